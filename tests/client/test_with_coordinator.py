"""Subscribers and publishers with a coordinator: leases, reports, changing flows, a coordinator that is away."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.client.fake_coordinator import FakeCoordinator
from tests.client.loopback import QUICK, gateway_with_broker, until

from triagemq.broker.process import find_mosquitto
from triagemq.client import (
    Coordinator,
    CoordinatorError,
    CoordinatorUnreachableError,
    Event,
    Publisher,
    RefusedError,
    Subscriber,
    SubscriptionIntent,
    TypedTopic,
    Utility,
)
from triagemq.errors import ParameterError
from triagemq.gateway import Gateway, Policy

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")


def address(gateway: Gateway) -> str:
    return "{}:{}".format(*gateway.address)


def test_a_subscriber_announces_reports_and_withdraws(tmp_path: Path) -> None:
    async def scene() -> None:
        async with gateway_with_broker(tmp_path) as gateway, FakeCoordinator(address(gateway)) as coordinator:
            async with (
                Subscriber(coordinator.url, name="ff-7", settings=QUICK, port="radio") as subscriber,
                Publisher(coordinator.url, name="smoke-12", stamp=True, settings=QUICK) as publisher,
            ):
                await subscriber.subscribe("floor/+", utility="log:10", max_latency_seconds=0.05, qos=1)
                await publisher.declare(
                    {"floor/1": 2.0, "floor/2": (3.0, 100.0), "floor/3": None}, size_bytes=50
                )
                assert coordinator.intents["subscribers"]["ff-7"] == {
                    "subscriptions": [
                        {
                            "topic": "floor/+",
                            "qos": 1,
                            "utility": {"shape": "log", "weight": 10.0},
                            "max_latency_seconds": 0.05,
                        }
                    ],
                    "lease_seconds": 10.0,
                    "port": "radio",
                }
                assert coordinator.intents["publishers"]["smoke-12"]["publications"] == [
                    {"topic": "floor/1", "rate_per_second": 2.0, "size_bytes": 50},
                    {"topic": "floor/2", "rate_per_second": 3.0, "size_bytes": 100.0},
                    {"topic": "floor/3", "size_bytes": 50},
                ]
                assert {"ff-7.key~0", "smoke-12.key"} <= set(gateway.core.sessions)
                before_ns = time.time_ns()
                for number in range(10):
                    await publisher.publish("floor/1", b"%d" % number, qos=1)
                events = [await subscriber.next(20) for _ in range(10)]
                assert [event.payload for event in events if event] == [b"%d" % n for n in range(10)]
                first = events[0]
                assert first is not None
                assert first.topic == "floor/1"
                assert before_ns <= (first.published_ns or 0) <= first.received_ns
                # The same topic again: only its worth changes.
                await subscriber.subscribe("floor/+", utility={"shape": "linear", "weight": 2.0}, qos=1)
                wanted = coordinator.intents["subscribers"]["ff-7"]["subscriptions"]
                assert wanted == [
                    {"topic": "floor/+", "qos": 1, "utility": {"shape": "linear", "weight": 2.0}}
                ]
                await subscriber.subscribe("a/b", max_latency_seconds=0.2, max_latency_share=0.95)
                assert coordinator.intents["subscribers"]["ff-7"]["subscriptions"][1] == {
                    "topic": "a/b",
                    "utility": {"shape": "log", "weight": 1.0},
                    "max_latency_seconds": 0.2,
                    "max_latency_share": 0.95,
                }
                await subscriber.subscribe("a/b", max_latency_seconds=0.2, guaranteed=True)
                assert coordinator.intents["subscribers"]["ff-7"]["subscriptions"][1]["guaranteed"] is True
                await subscriber.subscribe_all(
                    [SubscriptionIntent("a/b"), SubscriptionIntent("c/#", max_separation_seconds=2.0)]
                )
                await subscriber.unsubscribe("a/b", "floor/+")
                assert [one.topic for one in subscriber.subscriptions] == ["c/#"]
                await until(lambda: coordinator.received == {"floor/1": 10})
                assert 0 < coordinator.latencies["floor/1"] < 10 * 60
            assert coordinator.intents == {"publishers": {}, "subscribers": {}}
            assert not gateway.core.sessions
            assert await subscriber.next(1) is None

    asyncio.run(scene())


def test_everything_goes_on_while_the_coordinator_is_away_and_it_is_told_again_when_it_returns(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        async with gateway_with_broker(tmp_path) as gateway, FakeCoordinator(address(gateway)) as coordinator:
            async with (
                Subscriber(coordinator.url, name="ff-7", settings=QUICK) as subscriber,
                Publisher(coordinator.url, name="smoke", settings=QUICK) as publisher,
            ):
                await subscriber.subscribe("floor/1", qos=1)
                await coordinator.stop()
                coordinator.forget()
                await publisher.publish("floor/1", b"meanwhile", qos=1)
                event = await subscriber.next(20)
                assert event is not None
                assert event.payload == b"meanwhile"
                # An intent that changes meanwhile is in force at the gateway, and told later.
                await subscriber.subscribe("floor/2", utility="log:3", qos=1)
                await publisher.declare({"floor/2": 5.0})
                await publisher.publish("floor/2", b"new", qos=1)
                event = await subscriber.next(20)
                assert event is not None
                assert event.topic == "floor/2"
                await until(lambda: "cannot be reached" in subscriber.problem)
                await coordinator.start()
                await until(lambda: "ff-7" in coordinator.intents["subscribers"])
                await until(lambda: coordinator.intents["publishers"].get("smoke", {}).get("publications"))
                wanted = coordinator.intents["subscribers"]["ff-7"]["subscriptions"]
                assert [one["topic"] for one in wanted] == ["floor/1", "floor/2"]
                await until(lambda: coordinator.received == {"floor/1": 1, "floor/2": 1})
                # Forgotten without having been away: a heartbeat finds it out.
                coordinator.forget()
                await until(lambda: "ff-7" in coordinator.intents["subscribers"])
                await until(lambda: "smoke" in coordinator.intents["publishers"])
                await until(lambda: not subscriber.problem)
                await coordinator.stop()
            await coordinator.start()

    asyncio.run(scene())


def test_refusals_of_the_coordinator_are_one_clear_line_and_change_nothing(tmp_path: Path) -> None:
    async def scene() -> None:
        async with (
            gateway_with_broker(tmp_path) as gateway,
            FakeCoordinator(address(gateway), token="secret") as coordinator,
        ):
            with pytest.raises(CoordinatorError, match="this token is not known") as refusal:
                await Subscriber(coordinator.url, token="guessed").open()
            assert refusal.value.status == 401
            assert "guessed" not in str(refusal.value)
            coordinator.chunked = True
            async with Subscriber(coordinator.url, token="secret", settings=QUICK) as subscriber:
                await subscriber.subscribe("floor/1")
                with pytest.raises(CoordinatorError, match=r"does not allow forbidden topics$"):
                    await subscriber.subscribe("forbidden/1")
                with pytest.raises(CoordinatorError, match=r"subscriptions\.0\.utility: is no utility"):
                    await subscriber.subscribe("floor/2", utility="log:99")
                assert [one.topic for one in subscriber.subscriptions] == ["floor/1"]
                with pytest.raises(ParameterError, match="by name"):
                    await subscriber.subscribe(7)
                for wrong in (
                    {"max_latency_seconds": 0.0},
                    {"max_latency_share": 0.9},
                    {"max_latency_seconds": 1.0, "max_latency_share": 1.1},
                    {"qos": 3},
                    {"utility": "sqrt:1"},
                ):
                    with pytest.raises(ParameterError):
                        await subscriber.subscribe("floor/1", **wrong)  # type: ignore[arg-type]
            async with Subscriber(gateway=address(gateway), settings=QUICK) as subscriber:
                with pytest.raises(ParameterError, match="need a coordinator"):
                    await subscriber.subscribe("floor/1", utility="log:1")

    asyncio.run(scene())


def test_calls_that_overlap_do_not_undo_each_other(tmp_path: Path) -> None:
    async def scene() -> None:
        async with (
            gateway_with_broker(tmp_path) as gateway,
            FakeCoordinator(address(gateway)) as coordinator,
            Subscriber(coordinator.url, name="ff-7", settings=QUICK) as subscriber,
            Publisher(coordinator.url, name="smoke", settings=QUICK) as publisher,
        ):
            await subscriber.subscribe("floor/0", utility="log:1")
            answer = coordinator._answer

            async def slowly(method: str, target: str, body: dict[str, Any]) -> tuple[int, Any]:
                await asyncio.sleep(0.01)
                return await answer(method, target, body)

            coordinator._answer = slowly  # type: ignore[method-assign]
            results = await asyncio.gather(
                subscriber.subscribe("forbidden/1"),
                subscriber.subscribe("floor/1"),
                subscriber.subscribe("floor/0", utility="log:7"),
                subscriber.subscribe("forbidden/2"),
                subscriber.subscribe("floor/0", utility="log:99"),
                subscriber.unsubscribe("floor/1"),
                subscriber.subscribe("floor/2"),
                return_exceptions=True,
            )
            refused = [isinstance(result, CoordinatorError) for result in results]
            assert refused == [True, False, False, True, True, False, False]
            assert {one.topic: one.utility for one in subscriber.subscriptions} == {
                "floor/0": Utility("log", 7.0),
                "floor/2": Utility("log", 1.0),
            }
            told = coordinator.intents["subscribers"]["ff-7"]["subscriptions"]
            assert told == [one.as_json() for one in subscriber.subscriptions]
            coordinator.refuses = {3.0}
            results = await asyncio.gather(
                *(publisher.declare({"floor/0": rate}) for rate in (2.0, 3.0, 4.0, 3.0)),
                return_exceptions=True,
            )
            assert [isinstance(result, CoordinatorError) for result in results] == [False, True, False, True]
            told = coordinator.intents["publishers"]["smoke"]["publications"]
            assert told == [{"topic": "floor/0", "rate_per_second": 4.0}]
            coordinator.forget()
            await until(lambda: "smoke" in coordinator.intents["publishers"])
            assert coordinator.intents["publishers"]["smoke"]["publications"] == told

    asyncio.run(scene())


def test_a_report_counts_once_though_its_answer_was_lost(tmp_path: Path) -> None:
    async def scene() -> None:
        async with (
            gateway_with_broker(tmp_path) as gateway,
            FakeCoordinator(address(gateway)) as coordinator,
            Subscriber(coordinator.url, name="ff-7", settings=QUICK) as subscriber,
            Publisher(gateway=address(gateway), settings=QUICK) as publisher,
        ):
            await subscriber.subscribe("floor/1", qos=1)
            for lost in (True, False, True):
                coordinator.loses_answers = lost
                await publisher.publish("floor/1", b"x", qos=1)
                assert await subscriber.next(20) is not None
                before = len(coordinator.reports)
                await until(lambda before=before: len(coordinator.reports) > before + 1)
            coordinator.loses_answers = False
            await until(lambda: not subscriber.problem)
            numbers = [report["number"] for report in coordinator.reports if report]
            assert len(set(numbers)) < len(numbers), "reports were sent again"
            for number in set(numbers):
                same = [report for report in coordinator.reports if report.get("number") == number]
                assert all(report == same[0] for report in same)
            once = {
                report["number"]: report["received"]["floor/1"]["count"]
                for report in coordinator.reports
                if report
            }
            assert sum(once.values()) == 3

    asyncio.run(scene())


def test_what_is_no_coordinator_is_called_so() -> None:
    async def scene() -> None:
        with pytest.raises(CoordinatorUnreachableError, match="connection refused"):
            await Coordinator("http://127.0.0.1:9").withdraw("subscribers", "x")
        for url in ("127.0.0.1:8080", "ftp://a", "http://", "http://a:99999999"):
            with pytest.raises(ParameterError, match="must be http"):
                Coordinator(url)
        with pytest.raises(ParameterError, match="coordinator or of a gateway"):
            Subscriber()
        with pytest.raises(ParameterError, match="HOST:PORT"):
            Publisher(gateway="nowhere")
        answers = [
            b"SSH-2.0-OpenSSH\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 5 + b"x" * 200_000,
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnope",
            b"HTTP/1.1 500 no\r\nContent-Length: 4\r\n\r\nnope",
            b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ncut off",
            b"",
        ]
        coming = iter(answers)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(next(coming))
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        coordinator = Coordinator(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        for _ in answers:
            with pytest.raises(CoordinatorError) as error:
                await coordinator.announce("subscribers", "x", {})
            assert "\n" not in str(error.value)
        await coordinator.close()
        server.close()
        await server.wait_closed()

    asyncio.run(scene())


def test_a_slow_program_loses_the_oldest_events_and_knows_how_many(tmp_path: Path) -> None:
    async def scene() -> None:
        async with (
            gateway_with_broker(tmp_path) as gateway,
            Publisher(gateway=address(gateway), settings=QUICK) as publisher,
        ):
            async with Subscriber(gateway=address(gateway), queue_events=3, settings=QUICK) as subscriber:
                await subscriber.subscribe("floor/1", qos=1)
                for number in range(10):
                    await publisher.publish("floor/1", b"%d" % number, qos=1)
                await until(lambda: subscriber.overflowed == 7)
                assert [int(event.payload) for event in await subscriber.take_all()] == [7, 8, 9]
            taken: list[Event] = []
            async with Subscriber(
                gateway=address(gateway), on_event=taken.append, settings=QUICK
            ) as subscriber:
                await subscriber.subscribe("floor/1", qos=1)
                await publisher.publish("floor/1", b"called", qos=1)
                await until(lambda: [event.payload for event in taken] == [b"called"])

    asyncio.run(scene())


def test_a_coordinator_that_gives_another_client_id_is_followed(tmp_path: Path) -> None:
    async def scene() -> None:
        async with gateway_with_broker(tmp_path) as gateway, FakeCoordinator(address(gateway)) as coordinator:
            # A coordinator of before asked for several connections.
            coordinator.flows = 2
            async with (
                Subscriber(coordinator.url, name="ff-7", settings=QUICK) as subscriber,
                Publisher(coordinator.url, name="smoke", settings=QUICK) as publisher,
            ):
                await subscriber.subscribe("floor/+", qos=1)
                coordinator.key = "other"
                coordinator.forget()
                wanted = {"ff-7.other~0", "smoke.other"}
                await until(lambda: wanted <= set(gateway.core.sessions))
                await until(lambda: gateway.core.sessions["ff-7.other~0"].subscriptions)
                await publisher.publish("floor/1", b"as before", qos=2)
                event = await subscriber.next(30)
                assert event is not None
                assert event.payload == b"as before"

    asyncio.run(scene())


def test_several_topics_are_subscribed_to_together_or_not_at_all(tmp_path: Path) -> None:
    class Closed(Policy):
        def forbids_subscription(self, client_id: str, topic_filter: str) -> bool:
            return topic_filter == "floor/7"

    async def scene() -> None:
        async with (
            gateway_with_broker(tmp_path, policy=Closed()) as gateway,
            FakeCoordinator(address(gateway)) as coordinator,
            Subscriber(coordinator.url, name="ff-7", settings=QUICK) as subscriber,
        ):
            await subscriber.subscribe("roof")
            with pytest.raises(RefusedError, match="floor/7"):
                await subscriber.subscribe_all(
                    [SubscriptionIntent(f"floor/{number}") for number in range(100)]
                )
            assert set(gateway.core.sessions["ff-7.key~0"].subscriptions) == {"roof"}
            wanted = coordinator.intents["subscribers"]["ff-7"]["subscriptions"]
            assert [one["topic"] for one in wanted] == ["roof"]
            await subscriber.subscribe_all([SubscriptionIntent(f"room/{number}") for number in range(300)])
            assert len(gateway.core.sessions["ff-7.key~0"].subscriptions) == 301

    asyncio.run(scene())


def test_who_closes_again_does_not_withdraw_another_client_of_that_name(tmp_path: Path) -> None:
    async def scene() -> None:
        async with gateway_with_broker(tmp_path) as gateway, FakeCoordinator(address(gateway)) as coordinator:
            for kind, several in ((Subscriber, "subscribers"), (Publisher, "publishers")):
                first = kind(coordinator.url, name="ff-7", settings=QUICK)
                await first.open()
                await first.close()
                async with kind(coordinator.url, name="ff-7", settings=QUICK):
                    await first.close()
                    assert "ff-7" in coordinator.intents[several]

    asyncio.run(scene())


def test_a_typed_filter_decodes_every_topic_that_it_takes(tmp_path: Path) -> None:
    async def scene() -> None:
        async with (
            gateway_with_broker(tmp_path) as gateway,
            Subscriber(gateway=address(gateway), settings=QUICK) as subscriber,
            Publisher(gateway=address(gateway), settings=QUICK) as publisher,
        ):
            await subscriber.subscribe(TypedTopic("ward/+/pulse", "!H"), qos=1)
            await subscriber.subscribe(TypedTopic("ward/3/pulse", "!B"), qos=1)
            await subscriber.subscribe(TypedTopic("heat/#", "!d"), qos=1)
            await subscriber.subscribe("plain/#", qos=1)
            for topic, kind, value in (
                ("ward/1/pulse", "!H", 61),
                ("ward/3/pulse", "!B", 62),
                ("heat", "!d", 0.5),
                ("heat/1/2", "!d", 21.5),
            ):
                await publisher.publish(TypedTopic(topic, kind), (value,), qos=1)
                event = await subscriber.next(20)
                assert event is not None
                assert (event.topic, event.value) == (topic, (value,))
            await publisher.publish("ward/1/pulse", b"of another type", qos=1)
            await publisher.publish("plain/1", b"without one", qos=1)
            event = await subscriber.next(20)
            assert event is not None
            assert (event.payload, event.value, subscriber.undecodable) == (b"without one", None, 1)
            await subscriber.unsubscribe("ward/+/pulse", "heat/#")
            await subscriber.subscribe("ward/+/pulse", qos=1)
            await publisher.publish("ward/1/pulse", b"untyped", qos=1)
            event = await subscriber.next(20)
            assert event is not None
            assert (event.payload, event.value) == (b"untyped", None)

    asyncio.run(scene())


def test_fields_that_a_newer_coordinator_adds_are_ignored() -> None:
    hop = {"port": "", "level": 0, "bound_seconds": 0.1, "deadline_seconds": 0.2, "new": 1}
    promise = {
        "subscriber": "ff-7",
        "topic": "dose",
        "publisher": "pump",
        "admitted": True,
        "max_latency_seconds": 0.03,
        "hops": [hop],
        "new": {"what": "ever"},
    }
    whole = {
        "lease_seconds": 1.0,
        "generation": 1,
        "in_force": True,
        "connection": {"gateway": "127.0.0.1:1", "client_id": "ff-7", "new": 1},
        "promises": [promise],
        "new": [],
    }

    async def scene() -> None:
        answers = iter([whole, whole, whole, whole, {**whole, "promises": [{"topic": "dose"}]}])

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            body = json.dumps(next(answers)).encode()
            writer.write(
                b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            )
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        coordinator = Coordinator(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        assert (await coordinator.announce("subscribers", "ff-7", {})).client_id == "ff-7"
        assert (await coordinator.heartbeat("subscribers", "ff-7", {})).refused_delays == ()
        assert (await coordinator.assignment("ff-7", after=0, wait_seconds=0)).generation == 1
        [found] = await coordinator.promises("ff-7", wait_seconds=0)
        assert (found.topic, found.admitted, found.hops[0].bound_seconds) == ("dose", True, 0.1)
        with pytest.raises(CoordinatorError, match="answers strangely"):
            await coordinator.promises("ff-7", wait_seconds=0)
        await coordinator.close()
        server.close()
        await server.wait_closed()

    asyncio.run(scene())
