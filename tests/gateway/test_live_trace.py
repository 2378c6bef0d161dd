"""The Trace of a running gateway: it holds every publication and what became of every copy, and is read while live."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.gateway.planned import ByClient
from tests.gateway.real import Mosquitto, Publisher, SnClient, ended
from tests.gateway.virtual import VirtualGateway

from triagemq.broker import BrokerAddress
from triagemq.broker.process import find_mosquitto
from triagemq.gateway import Gateway, GatewaySettings, LiveTrace, Numbers
from triagemq.gateway.live_trace import recover
from triagemq.mqttsn import Disconnect, Publish, TopicIdType, short_topic_id
from triagemq.mqttsn.timestamps import stamp_payload
from triagemq.plan.dataplane import Treatment
from triagemq.trace import Outcome, Trace, TraceWriter
from triagemq.trace.schema import TABLES

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")


def run_with_trace(
    tmp_path: Path, scenario: Any, *, make_plane: Any = None, version: int = 5, **settings: Any
) -> dict[str, Any]:
    """Run a gateway in this process with a trace, do something in a thread, and return the counters."""
    broker = Mosquitto(tmp_path / "broker")

    async def run() -> dict[str, Any]:
        trace = LiveTrace(tmp_path / "trace", rotate_seconds=0.5)
        gateway = Gateway(
            GatewaySettings(**settings),
            BrokerAddress("127.0.0.1", broker.port, version=version),
            ("127.0.0.1", 0),
            trace=trace,
            make_plane=make_plane,
        )
        await gateway.start()
        assert await gateway.wait_for_broker(30)
        await asyncio.to_thread(scenario, gateway.address[1], broker.port)
        await gateway.close()
        return gateway.core.counters.as_json()

    with ended(broker):
        return asyncio.run(run())


def test_every_copy_is_in_the_trace_with_its_outcome(tmp_path: Path) -> None:
    def scenario(port: int, broker_port: int) -> None:
        clients = [SnClient(port, f"c{number}") for number in range(4)]
        publisher = Publisher(broker_port)
        with ended(publisher, *clients):
            for number, client in enumerate(clients):
                client.connect().subscribe("a/#" if number else "a/b", number % 2)
            clients[2].ask(Disconnect(), Disconnect)
            clients[3].ask(Disconnect(600), Disconnect)
            begin_ns = time.time_ns()
            for number in range(100):
                publisher.publish("a/b", stamp_payload(b"%d" % number, begin_ns + number), 1)
            publisher.wait()
            for client in clients[:2]:
                client.collect(30, 100)
                assert len(client.messages) == 100
            time.sleep(0.7)

    counters = run_with_trace(tmp_path, scenario, read_timestamps=True)
    trace = Trace.open(tmp_path / "trace")
    publications = trace.table("publications").to_pylist()
    deliveries = trace.table("deliveries").to_pylist()
    # Overlapping filters: the broker sent two copies of each message, which are one publication.
    assert counters["broker_messages"] == 200
    assert len(publications) == 100
    published = [row["published_ns"] for row in publications]
    assert [one - published[0] for one in published] == list(range(100))
    names = trace.manifest.extra["subscribers"]
    found = {name: {"outcomes": set(), "rows": 0} for name in names}
    for row in deliveries:
        one = found[names[row["subscriber_id"]]]
        one["rows"] += 1  # type: ignore[operator]
        one["outcomes"].add(row["outcome"])  # type: ignore[attr-defined]
        assert (row["delivered_ns"] is not None) == (row["outcome"] == "delivered")
    assert {name: (one["rows"], one["outcomes"]) for name, one in found.items()} == {
        "c0": (100, {"delivered"}),
        "c1": (100, {"delivered"}),
        "c2": (100, {"subscriber_gone"}),
        "c3": (100, {"in_flight"}),
    }
    assert counters["delivered"] == 200
    assert counters["undelivered"] == {"subscriber_gone: not connected": 100}


@pytest.mark.parametrize("version", [5, 4], ids=["mqtt5", "mqtt3.1.1"])
def test_trace_says_who_published_through_the_gateway(tmp_path: Path, version: int) -> None:
    def scenario(port: int, broker_port: int) -> None:
        sensor, client = SnClient(port, "sensor"), SnClient(port, "client")
        publisher = Publisher(broker_port)
        with ended(publisher, sensor, client):
            client.connect().subscribe("ab")
            sensor.connect().send(Publish(TopicIdType.SHORT, short_topic_id("ab"), b"mine"))
            client.collect(30, 1)
            publisher.publish("ab", b"of nobody here")
            client.collect(30, 2)

    run_with_trace(tmp_path, scenario, version=version)
    trace = Trace.open(tmp_path / "trace")
    names = trace.manifest.extra["publishers"]
    publishers = trace.table("publications")["publisher_id"].to_pylist()
    assert [None if number is None else names[number] for number in publishers] == ["sensor", None]


def test_trace_is_readable_while_the_gateway_runs(tmp_path: Path) -> None:
    def scenario(port: int, broker_port: int) -> None:
        client = SnClient(port, "c")
        publisher = Publisher(broker_port)
        with ended(publisher, client):
            client.connect().subscribe("a")
            publisher.publish("a", b"x")
            deadline = time.monotonic() + 30
            while not list((tmp_path / "trace" / "deliveries").glob("*.parquet")):
                assert time.monotonic() < deadline
                publisher.publish("a", b"x")
                time.sleep(0.1)

    run_with_trace(tmp_path, scenario)


def test_data_plane_in_the_gateway_gives_enqueued_and_dequeued_times(tmp_path: Path) -> None:
    network = pytest.importorskip("triagemq.network")
    from triagemq.plan.dataplane import FlowKey, SetFlow, SetPort

    planes: list[Any] = []

    def make_plane(udp_socket: Any, on_transmitted: Any, clock: Any) -> Any:
        plane = network.EmbeddedDataPlane(network.DatagramSender(udp_socket), on_transmitted, clock=clock)
        planes.append(plane)
        return plane

    def scenario(port: int, broker_port: int) -> None:
        clients = [SnClient(port, f"c{number}") for number in range(2)]
        publisher = Publisher(broker_port)
        with ended(publisher, *clients):
            for client in clients:
                client.connect().subscribe("a")
            keys = [FlowKey(*client.socket.getsockname()) for client in clients]
            plane = planes[0]
            # From the loop's thread: a data plane is used from one thread only.
            loop.call_soon_threadsafe(
                plane.apply,
                [
                    SetPort("port", 1e6, 1000, 8),
                    SetFlow(keys[0], "port", 0, 0, 0.0),
                    SetFlow(keys[1], "port", 1, 1, 1.0),
                ],
            )
            time.sleep(0.1)
            for number in range(50):
                publisher.publish("a", b"%d" % number)
            clients[0].collect(30, 50)
            assert len(clients[0].messages) == 50
            clients[1].collect(0.2)
            assert clients[1].messages == []
            # Too slow to be sent before the gateway ends.
            loop.call_soon_threadsafe(plane.apply, [SetPort("port", 1e3, 1000, 8)])
            time.sleep(0.1)
            for number in range(5):
                publisher.publish("a", b"%d" % number)

            def came() -> set[int]:
                found: Future[set[int]] = Future()
                loop.call_soon_threadsafe(
                    lambda: found.set_result({each.packets_in for each in plane.counters().flows.values()})
                )
                return found.result(30)

            deadline = time.monotonic() + 30
            while came() != {55, 0}:
                assert time.monotonic() < deadline
                time.sleep(0.02)

    loop: Any = None
    original = asyncio.to_thread

    async def noting(*arguments: Any) -> Any:
        nonlocal loop
        loop = asyncio.get_running_loop()
        return await original(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "to_thread", noting)
        policy = ByClient(treated={"c1": Treatment(1, 1.0)})
        counters = run_with_trace(tmp_path, scenario, make_plane=make_plane, policy=policy)
    assert counters["undelivered"] == {"dropped_by_policy: planned": 55, "in_flight: output port": 5}
    rows = Trace.open(tmp_path / "trace").table("deliveries").to_pylist()
    delivered = [row for row in rows if row["outcome"] == "delivered"]
    assert len(delivered) == 50
    assert all(row["enqueued_ns"] < row["dequeued_ns"] == row["delivered_ns"] for row in delivered)


def test_numbers_of_a_scenario_are_its_rows() -> None:
    from triagemq.lab.generators import table2

    scenario = table2(seed=1)
    numbers = Numbers(scenario)
    subscriptions = scenario.subscriptions
    for row in range(0, len(subscriptions.topic), 7):
        subscriber = scenario.subscribers.name[subscriptions.subscriber[row]]
        topic = scenario.topics.name[subscriptions.topic[row]]
        assert numbers.topics.number(topic) == subscriptions.topic[row]
        assert numbers.subscribers.number(subscriber) == subscriptions.subscriber[row]
        assert numbers.subscription(subscriber, "#", topic) == row
    assert numbers.topics.number("unheard of") == len(scenario.topics.name)


def test_what_was_given_up_survives_a_kill_and_is_added_to_the_killed_run(tmp_path: Path) -> None:
    """The first rows are shown before the kill, the others are only in the store."""
    run = tmp_path / "run-0"
    writer = TraceWriter(run, scenario_text="", plan_text=None, producer="test", rotate_seconds=0.05)
    rows = [
        (number, 0, 0, 0, 0, 3, 10 + number, -1, -1, -1, 60, int(Outcome.dropped_by_policy))
        for number in range(5)
    ]
    writer.deliveries(dict(zip(TABLES["deliveries"].names, np.array(rows[:2]).T, strict=True)))
    _wait(lambda: writer.shown("deliveries") == 2)
    stored = [("run-0", number, np.array(row).tobytes()) for number, row in enumerate(rows)]
    assert recover(tmp_path, [*stored, ("run-1", 0, stored[0][2])]) == 3
    found = Trace.open(run, allow_incomplete=True).table("deliveries").to_pylist()
    assert [row["publication_id"] for row in found] == [0, 1, 2, 3, 4]
    assert {row["outcome"] for row in found} == {"dropped_by_policy"}
    assert recover(tmp_path, stored) == 0
    writer.abort("killed")


def test_the_store_has_what_was_given_up_until_the_run_shows_it(tmp_path: Path) -> None:
    gateway = VirtualGateway(store=tmp_path / "store", buffer_messages=2)
    trace = LiveTrace(tmp_path / "run-0", rotate_seconds=0.05)
    gateway.core.observer = trace
    assert gateway._store is not None
    trace.store_outcomes_in(gateway.core.changes, [])
    gateway.client().connect(duration=60).subscribe("a", 1)
    gateway.client().send(Disconnect())
    for number in range(5):
        gateway.publish("a", b"%d" % number, 1)
    assert [row[:2] for row in gateway._store.load()["outcomes"]] == [
        ("run-0", number) for number in range(3)
    ]
    trace.write()

    def is_forgotten() -> bool:
        trace.write()
        gateway.run()
        return gateway._store is not None and not gateway._store.load()["outcomes"]

    _wait(is_forgotten)
    trace.abort("ended")


def _wait(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not what():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
