"""Promised topics take the direct way by themselves: every subscriber gets every event once, before, amid and after."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import sys
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.client.loopback import QUICK, until
from tests.client.test_commands import TRIAGE
from tests.client.test_real_coordinator import CoordinatorProcess, exchange
from tests.coordinator.promising import WARD
from tests.gateway.real import Child, ended

from triagemq.broker.process import find_mosquitto
from triagemq.client import (
    Event,
    PromiseRefusedError,
    Publisher,
    Subscriber,
    TypedTopic,
    directions,
    publisher,
)
from triagemq.client.direct import NetworkSettings
from triagemq.client.direct.udp import GroupAddress, MulticastSender
from triagemq.client.types import UInt32
from triagemq.intents import PublicationIntent

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")

HERE = NetworkSettings(interface="lo")


@dataclass
class Pulse:
    number: UInt32


PULSE = TypedTopic("pulse", Pulse)


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorProcess]:
    directory = tmp_path_factory.mktemp("exchange")
    network = directory / "ward.yaml"
    network.write_text(WARD)
    with exchange(directory, access=False, network=str(network)) as running:
        yield running


class Numbered:
    """A publisher of numbered events, one after the other for as long as it is open."""

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher
        self.number = 0

    async def publish(self) -> None:
        while True:
            await self.publisher.publish(PULSE, Pulse(self.number))
            self.number += 1
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def publishing(coordinator: CoordinatorProcess, name: str = "ecg") -> AsyncIterator[Numbered]:
    async with Publisher(coordinator.url, name=name, settings=QUICK, network=HERE) as publisher:
        await publisher.declare_all([PULSE.declared(min_separation_seconds=0.002)])
        await publisher.register(["pulse"])
        numbered = Numbered(publisher)
        work = asyncio.get_running_loop().create_task(numbered.publish())
        try:
            yield numbered
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)


def each_once(events: list[Event]) -> bool:
    """Every event from the first to the last, and none twice."""
    counted = Counter(event.value.number for event in events)
    return set(counted.values()) <= {1} and len(counted) == max(counted) - min(counted) + 1


def changed_over_once(events: list[Event]) -> bool:
    """Whether all up to one came by the gateway, however late, and all after it another way."""
    transports = [
        event.transport == "gateway" for event in sorted(events, key=lambda event: event.value.number)
    ]
    return transports == sorted(transports, reverse=True)


def test_an_admitted_subscriber_is_handed_over_to_the_direct_way_and_back_without_loss_or_repetition(
    coordinator: CoordinatorProcess,
) -> None:
    async def scene() -> None:
        promised: list[Event] = []
        ordinary: list[Event] = []
        async with publishing(coordinator) as source:
            async with Subscriber(
                coordinator.url, name="visitor", settings=QUICK, on_event=ordinary.append
            ) as visitor:
                await visitor.subscribe(PULSE)
                async with Subscriber(
                    coordinator.url,
                    name="nurse",
                    port="monitor",
                    settings=QUICK,
                    network=HERE,
                    on_event=promised.append,
                ) as nurse:
                    await nurse.subscribe(PULSE, max_latency_seconds=0.02, guaranteed=True)
                    await until(lambda: len(promised) > 20 and promised[-1].transport == "multicast")
                    assert promised[0].transport == "gateway"
                    assert source.publisher.sent_directly > 0
                    before = len(promised)
                    await until(lambda: len(promised) > before + 100)
                    await until(lambda: each_once(promised))
                    assert changed_over_once(promised)
                    assert promised[-1].value.number == int.from_bytes(promised[-1].payload)
                    await nurse.unsubscribe("pulse")
                    left = len(promised)
                    sent = source.number
                    await until(lambda: source.number > sent + 50)
                    assert len(promised) == left
                await until(lambda: len(ordinary) > 300)
                # Nobody listens any more, so nothing goes that way.
                sent_directly = source.publisher.sent_directly

                def at_rest() -> bool:
                    nonlocal sent_directly
                    before, sent_directly = sent_directly, source.publisher.sent_directly
                    return before == sent_directly

                await until(at_rest)
                await until(lambda: each_once(ordinary))
            assert {event.transport for event in ordinary} == {"gateway"}

    asyncio.run(scene())


@pytest.mark.slow
def test_a_second_publisher_and_a_later_subscriber_join_without_repetition(
    coordinator: CoordinatorProcess,
) -> None:
    async def scene() -> None:
        taken: dict[str, list[Event]] = {"nurse": [], "doctor": []}
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(publishing(coordinator, "ecg"))
            for name in taken:
                subscriber = await stack.enter_async_context(
                    Subscriber(
                        coordinator.url,
                        name=name,
                        port="monitor",
                        settings=QUICK,
                        network=HERE,
                        on_event=taken[name].append,
                    )
                )
                await subscriber.subscribe(PULSE, max_latency_seconds=0.02, guaranteed=True)
                await until(lambda name=name: taken[name] and taken[name][-1].transport == "multicast")
            await until(
                lambda: all(each_once(events) and changed_over_once(events) for events in taken.values())
            )
            # Another publisher that declares nothing reaches them through the broker, as before.
            plain = await stack.enter_async_context(
                Publisher(coordinator.url, name="stray", settings=QUICK, network=HERE)
            )
            await plain.publish(PULSE, Pulse(7_000_000), qos=1)
            for events in taken.values():
                await until(lambda events=events: any(e.value.number == 7_000_000 for e in events))
                strange = [event.transport for event in events if event.value.number == 7_000_000]
                assert strange == ["gateway"]

    asyncio.run(scene())


def test_who_is_refused_stays_with_the_broker_or_is_told_what_would_be_admitted(
    coordinator: CoordinatorProcess,
) -> None:
    async def scene() -> None:
        async with (
            publishing(coordinator),
            Subscriber(
                coordinator.url, name="nurse", port="monitor", settings=QUICK, network=HERE
            ) as subscriber,
        ):
            await subscriber.subscribe(PULSE, max_latency_seconds=0.0001, guaranteed=True)
            event = await subscriber.next(30)
            assert event is not None
            assert event.transport == "gateway"
            with pytest.raises(PromiseRefusedError) as refused:
                await subscriber.subscribe(
                    PULSE, max_latency_seconds=0.0002, guaranteed=True, or_brokered=False
                )
            error = refused.value
            assert error.missed == ("ecg", "pulse")
            assert error.offer_seconds is not None
            assert error.missed_by_seconds == pytest.approx(error.offer_seconds - 0.0002, rel=0.01)
            assert subscriber.subscriptions == []
            await subscriber.subscribe(
                PULSE, max_latency_seconds=error.offer_seconds, guaranteed=True, or_brokered=False
            )
            promise = await subscriber.promise("pulse", 30)
            assert promise is not None
            assert promise.admitted

    asyncio.run(scene())


@pytest.mark.slow
def test_the_direct_way_outlives_the_coordinator(coordinator: CoordinatorProcess) -> None:
    async def scene() -> None:
        events: list[Event] = []
        async with (
            publishing(coordinator) as source,
            Subscriber(
                coordinator.url,
                name="nurse",
                port="monitor",
                settings=QUICK,
                network=HERE,
                on_event=events.append,
            ) as subscriber,
        ):
            await subscriber.subscribe(PULSE, max_latency_seconds=0.02, guaranteed=True)
            await until(lambda: events and events[-1].transport == "multicast")
            await asyncio.to_thread(coordinator.kill)
            await until(lambda: subscriber.problem and source.publisher.problem)
            await asyncio.to_thread(coordinator.start)
            await until(lambda: not subscriber.problem and not source.publisher.problem)
            seen = len(events)
            await until(lambda: len(events) > seen + 100)
            await until(lambda: each_once(events))
            assert changed_over_once(events)

    asyncio.run(scene())


@pytest.mark.slow
def test_commands_take_the_direct_way_without_further_options(
    coordinator: CoordinatorProcess, tmp_path: Path
) -> None:
    def command(what: str, *arguments: str) -> list[str]:
        common = [what, "--coordinator", coordinator.url, "--topic", "pulse", "--interface", "lo", "--json"]
        return [sys.executable, "-c", TRIAGE, *common, *arguments]

    terms = ["--name", "ecg", "--rate", "50", "--min-separation", "10ms", "--max-size", "200"]
    publisher = Child(command("pub", *terms), tmp_path / "pub.log")
    with ended(publisher):
        subscriber = Child(
            command("sub", "--guaranteed", "--max-latency", "20ms", "--port", "monitor"), tmp_path / "sub.log"
        )
        with ended(subscriber):
            promise = json.loads(subscriber.line(60.0))["promise"]
            assert promise["admitted"]
            transport = "gateway"
            while transport == "gateway":
                transport = json.loads(subscriber.line(60.0))["transport"]
            assert transport == "multicast"


def test_an_event_that_is_too_long_for_the_gateway_goes_directly_alone(
    coordinator: CoordinatorProcess,
) -> None:
    largest = 70_000

    async def scene() -> None:
        promised: list[Event] = []
        async with (
            Publisher(coordinator.url, name="ecg", settings=QUICK, network=HERE) as publisher,
            Subscriber(
                coordinator.url,
                name="nurse",
                port="monitor",
                settings=QUICK,
                network=HERE,
                on_event=promised.append,
            ) as nurse,
        ):
            scan = PublicationIntent(
                "scan", 1.0, 100.0, min_separation_seconds=0.5, max_size_bytes=float(largest)
            )
            await publisher.declare_all([scan])
            await nurse.subscribe("scan", max_latency_seconds=0.4, guaranteed=True)

            async def direct() -> bool:
                before = publisher.sent_directly
                await publisher.publish("scan", b"small")
                return publisher.sent_directly > before

            while not await direct():
                await asyncio.sleep(0.1)
            assert await publisher.publish("scan", bytes(largest))
            await until(lambda: len(promised[-1:]) == 1 and len(promised[-1].payload) == largest)
            assert promised[-1].transport == "multicast"

    asyncio.run(scene())


def test_what_is_not_declared_for_promises_asks_nothing_of_the_coordinator(
    coordinator: CoordinatorProcess,
) -> None:
    async def scene() -> None:
        async with Publisher(coordinator.url, name="pump", settings=QUICK) as publisher:
            await publisher.declare_all([PublicationIntent("dose", rate_per_second=1.0)])
            await publisher.publish("dose", b"1", qos=1)
            assert publisher.sent_directly == 0
            assert not publisher.problem

    asyncio.run(scene())


def sends_from() -> str:
    """The address that packets to a promised topic really come from here."""
    group, port = "239.192.250.250", 17_999
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind((group, port))
        membership = socket.inet_aton(group) + bytes(4) + struct.pack("@i", socket.if_nametoindex("lo"))
        receiver.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
        receiver.settimeout(20)
        sender = MulticastSender(GroupAddress(group, port), HERE)
        sender.send([b"where from?"])
        address = receiver.recvfrom(100)[1][0]
        sender.close()
    assert isinstance(address, str)
    return address


def test_a_publisher_tells_where_it_sends_from_and_tells_again_when_it_has_moved(
    coordinator: CoordinatorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def source() -> object:
        with urllib.request.urlopen(f"{coordinator.url}/v1/publishers/ecg") as answer:
            return json.load(answer)["source_address"]

    async def is_told(address: str) -> None:
        while await asyncio.to_thread(source) != address:
            await asyncio.sleep(0.02)

    async def scene() -> None:
        monkeypatch.setattr(publisher, "POLL_SECONDS", 0.1)
        async with publishing(coordinator):
            await asyncio.wait_for(is_told(sends_from()), 20)
            monkeypatch.setattr(directions, "source_address", lambda network: "10.9.9.9")
            await asyncio.wait_for(is_told("10.9.9.9"), 20)

    asyncio.run(scene())
