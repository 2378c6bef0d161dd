"""What goes wrong while a program is busy with something else: it is logged, told, raised, and the rest goes on."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from tests.client.fake_coordinator import FakeCoordinator
from tests.client.loopback import QUICK, until
from tests.client.stub_gateway import StubGateway
from tests.client.test_commands import TRIAGE

from triagemq.addresses import host_and_port
from triagemq.client import (
    BlockingSubscriber,
    ClientError,
    ClosedError,
    Connection,
    Coordinator,
    CoordinatorError,
    Event,
    GatewayUnreachableError,
    PromiseRefusedError,
    PublicationIntent,
    Publisher,
    Subscriber,
    connection,
)
from triagemq.client.settings import ConnectionSettings
from triagemq.mqttsn import (
    Connect,
    Disconnect,
    Message,
    Publish,
    Register,
    ReturnCode,
    Subscribe,
    TopicIdType,
    Unsubscribe,
)

# It connects again several times before it gives up an answer.
IMPATIENT = ConnectionSettings(
    ping_seconds=0.1,
    retry_seconds=0.05,
    retries=1,
    first_delay_seconds=0.05,
    close_timeout_seconds=0.1,
    answer_timeout_seconds=0.3,
)


def topics_of(coordinator: FakeCoordinator, kind: str, name: str) -> list[str]:
    intent = coordinator.intents[kind].get(name, {})
    return [one["topic"] for one in intent.get("publications", intent.get("subscriptions", ()))]


async def forever(call: Callable[[], Awaitable[object]]) -> None:
    while True:
        await call()
        await asyncio.sleep(0.001)


def test_a_topic_that_is_refused_after_an_outage_is_withdrawn_alone_and_the_program_hears_of_it() -> None:
    problems: list[ClientError] = []

    async def scene() -> None:
        async with (
            StubGateway() as gateway,
            FakeCoordinator(gateway.address) as coordinator,
            Publisher(coordinator.url, name="pump", settings=QUICK, on_problem=problems.append) as publisher,
        ):
            await publisher.declare({"floor/0": 1.0, "floor/1": 1.0})
            await coordinator.stop()
            many = {f"floor/{number}": 2.0 for number in range(20)}
            await publisher.declare({**many, "forbidden/1": 1.0, "floor/1": 99.0, "forbidden/2": 1.0})
            coordinator.refuses = {99.0}
            coordinator.announced.clear()
            await coordinator.start()
            await until(lambda: not publisher.problem)
            # All but the refused topics; the one with a refused rate keeps its old one.
            assert topics_of(coordinator, "publishers", "pump") == list(many)
            rates = [
                one["rate_per_second"] for one in coordinator.intents["publishers"]["pump"]["publications"]
            ]
            assert rates == [2.0, 1.0, *[2.0] * 18]
            assert all({"floor/0", "floor/1"} <= set(each) for each in coordinator.announced)
            refused = [str(each) for each in problems if "withdrawn" in str(each)]
            assert len(refused) == 3
            assert any("'forbidden/2' is withdrawn" in each and "does not allow" in each for each in refused)
            for topic in ("forbidden/1", "forbidden/2", "floor/1"):
                with pytest.raises(CoordinatorError, match=f"'{topic}' is withdrawn"):
                    await publisher.publish(topic, b"x", qos=1)
            await publisher.publish("floor/1", b"x", qos=1)
            # It is a lease like any other from now on.
            beats = len(coordinator.reports)
            await until(lambda: len(coordinator.reports) > beats + 2)
            assert topics_of(coordinator, "publishers", "pump") == list(many)

    asyncio.run(scene())


def test_a_filter_that_is_refused_after_an_outage_is_withdrawn_alone_and_raised_where_events_are_taken() -> (
    None
):
    async def scene() -> None:
        async with (
            StubGateway() as gateway,
            FakeCoordinator(gateway.address) as coordinator,
            Subscriber(coordinator.url, name="ff-7", settings=QUICK) as subscriber,
        ):
            await subscriber.subscribe("floor/0", qos=1)
            await coordinator.stop()
            await subscriber.subscribe("forbidden/#", qos=1)
            await subscriber.subscribe("floor/1", qos=1)
            await coordinator.start()
            with pytest.raises(CoordinatorError, match="'forbidden/#' is withdrawn"):
                await subscriber.next(30)
            assert [one.topic for one in subscriber.subscriptions] == ["floor/0", "floor/1"]
            assert topics_of(coordinator, "subscribers", "ff-7") == ["floor/0", "floor/1"]
            await until(lambda: any(isinstance(each, Unsubscribe) for each in gateway.got))
            [left] = [each for each in gateway.got if isinstance(each, Unsubscribe)]
            assert left.topic == "forbidden/#"

    asyncio.run(scene())


def test_a_name_that_is_taken_after_an_outage_is_told_and_nothing_is_withdrawn() -> None:
    problems: list[ClientError] = []

    async def scene() -> None:
        async with (
            StubGateway() as gateway,
            FakeCoordinator(gateway.address) as coordinator,
            Publisher(coordinator.url, name="pump", settings=QUICK, on_problem=problems.append) as publisher,
        ):
            await publisher.declare({"floor/0": 1.0, "floor/1": 1.0})
            coordinator.taken_names = {"pump"}
            coordinator.forget()
            await until(lambda: "is taken" in publisher.problem)
            assert len([each for each in problems if "is taken" in str(each)]) == 1
            coordinator.taken_names = set()
            await until(lambda: topics_of(coordinator, "publishers", "pump") == ["floor/0", "floor/1"])
            await until(lambda: not publisher.problem)

    asyncio.run(scene())


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_publishing_to_a_gateway_that_does_not_answer_ends_with_an_error_that_says_why(qos: int) -> None:
    async def scene() -> None:
        async with (
            StubGateway() as gateway,
            FakeCoordinator(gateway.address) as coordinator,
            Publisher(coordinator.url, name="pump", settings=IMPATIENT) as publisher,
        ):
            await publisher.publish("floor/0", b"x", qos=1)
            # It answers pings: the connection is there, and the first event of a topic waits for its id.
            gateway.silent_to = (Register,)
            with pytest.raises(
                GatewayUnreachableError, match=r"publishing to 'floor/1': .*does not answer this"
            ):
                await publisher.publish("floor/1", b"x", qos=qos)
            gateway.silent_to = (Message,)
            await coordinator.stop()
            await until(lambda: "cannot be reached" in publisher.problem)
            await until(lambda: "the gateway does not answer" in publisher.problem)
            if qos == 0:
                await publisher.publish("floor/0", b"x", qos=0)
                assert publisher.counters.not_sent == 1
                return
            for wait in (True, False):
                with pytest.raises(GatewayUnreachableError) as caught:
                    await forever(partial(publisher.publish, "floor/0", b"x", qos=qos, wait=wait))
                assert "the gateway does not answer" in str(caught.value)
                assert "coordinator http://127.0.0.1" in str(caught.value)
            with pytest.raises(GatewayUnreachableError, match="waiting for acknowledgements"):
                await publisher.flush()

    asyncio.run(scene())


def test_the_gateway_s_refusal_is_why_an_event_is_not_acknowledged() -> None:
    async def scene() -> None:
        async with (
            StubGateway() as gateway,
            Publisher(gateway=gateway.address, settings=IMPATIENT) as publisher,
            Subscriber(gateway=gateway.address, settings=IMPATIENT) as subscriber,
        ):
            gateway.connect_code = ReturnCode.REJECTED_NOT_SUPPORTED
            gateway.send(Disconnect(None))
            with pytest.raises(
                GatewayUnreachableError, match=r"refuses the connection .rejected not supported"
            ):
                await publisher.publish("floor/1", b"x", qos=1)
            for call in (subscriber.subscribe, subscriber.unsubscribe):
                with pytest.raises(GatewayUnreachableError, match="refuses the connection"):
                    await call("floor/1")
            # What was taken is still sent when the gateway is there again.
            gateway.connect_code = ReturnCode.ACCEPTED
            await until(lambda: [each.payload for each in gateway.published] == [b"x"])
            await publisher.flush()

    asyncio.run(scene())


def test_an_event_that_waits_for_a_place_when_its_connection_is_closed_gets_an_error() -> None:
    async def scene() -> None:
        settings = ConnectionSettings(in_flight_messages=1, close_timeout_seconds=0.05)
        async with (
            StubGateway() as gateway,
            Connection(*host_and_port(gateway.address), "pump", settings=settings) as connection,
        ):
            await connection.publish("ab", b"0", qos=1)
            gateway.silent_to = (Publish,)
            waiting = [asyncio.create_task(connection.publish("ab", b"%d" % n, qos=1)) for n in range(3)]
            await asyncio.sleep(0)
            await connection.close()
            results = await asyncio.gather(*waiting, return_exceptions=True)
            assert [type(each) for each in results] == [ClosedError] * 3

    asyncio.run(scene())


@pytest.mark.parametrize("topic", ["ab", "floor/1"])
def test_an_event_that_cannot_be_sent_is_an_error_and_holds_up_no_other(topic: str) -> None:
    async def scene() -> None:
        async with (
            StubGateway() as gateway,
            Publisher(gateway=gateway.address, settings=IMPATIENT) as publisher,
        ):
            for qos in (1, 2):
                with pytest.raises(ClientError, match="cannot be sent"):
                    await publisher.publish(topic, bytes(70_000), qos=qos)
                await publisher.publish(topic, b"x", qos=qos)
            await publisher.flush()
            assert [each.payload for each in gateway.published] == [b"x", b"x"]

    asyncio.run(scene())


@pytest.mark.parametrize("waits_for", ["its turn", "its topic id", "a place"])
def test_an_event_that_waits_while_its_publisher_moves_goes_to_the_new_gateway(waits_for: str) -> None:
    async def scene() -> None:
        settings = ConnectionSettings(in_flight_messages=1, close_timeout_seconds=0.05, retry_seconds=0.1)
        async with (
            StubGateway() as left,
            StubGateway() as right,
            FakeCoordinator(left.address) as coordinator,
        ):
            coordinator.may_move = True
            coordinator.lease_seconds = 0.1
            async with Publisher(coordinator.url, name="pump", settings=settings) as publisher:
                await publisher.publish("floor/1", b"first", qos=1)
                topic, qos = "floor/1", 1
                waiting: list[asyncio.Task[bool]] = []
                if waits_for == "its turn":
                    coordinator.slow_down = {topic: 4.0}
                    await until(lambda: publisher.requested_rates == coordinator.slow_down)
                    await publisher.publish(topic, b"takes the turn", qos=1)
                elif waits_for == "its topic id":
                    left.silent_to = (Register,)
                    topic, qos = "floor/2", 0
                else:
                    left.silent_to = (Publish,)
                    waiting += [asyncio.create_task(publisher.publish(topic, b"takes the place", qos=1))]
                    await asyncio.sleep(0.05)
                waiting += [asyncio.create_task(publisher.publish(topic, b"waits", qos=qos))]
                await asyncio.sleep(0.05)
                coordinator.gateway = right.address
                coordinator.plan(1)
                await until(lambda: publisher.moves == 1)
                assert await asyncio.wait_for(asyncio.gather(*waiting), 20) == [True] * len(waiting)
                assert b"waits" in [each.payload for each in right.published]
                assert b"waits" not in [each.payload for each in left.published]

    asyncio.run(scene())


def test_a_topic_that_is_withdrawn_while_its_subscriber_moves_is_withdrawn_at_the_new_gateway() -> None:
    async def scene() -> None:
        async with (
            StubGateway() as left,
            StubGateway() as right,
            FakeCoordinator(left.address) as coordinator,
            Subscriber(coordinator.url, name="ff-7", settings=QUICK) as subscriber,
        ):
            coordinator.may_move = True
            await subscriber.subscribe("floor/1")
            right.silent_to = (Connect,)
            coordinator.gateway = right.address
            coordinator.plan(1)
            await until(lambda: bool(right.got))
            leaving = asyncio.create_task(subscriber.unsubscribe("floor/1"))
            await asyncio.sleep(0.05)
            right.silent_to = ()
            await asyncio.wait_for(leaving, 20)
            assert subscriber.moves == 1
            kinds = [type(each) for each in right.got if isinstance(each, Subscribe | Unsubscribe)]
            assert kinds == [Subscribe, Unsubscribe]

    asyncio.run(scene())


def test_callbacks_hear_of_connections_made_and_lost(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[str] = []

    def wrong(_: str) -> None:
        raise RuntimeError("a mistake of the program")

    async def scene() -> None:
        async with StubGateway() as gateway:
            async with Subscriber(
                gateway=gateway.address,
                name="ff-7",
                settings=IMPATIENT,
                on_connected=lambda address: heard.append(f"connected to {address}"),
                on_disconnected=lambda why: heard.append(f"lost: {why}"),
            ) as subscriber:
                gateway.send(Disconnect(None))
                await until(lambda: len(heard) == 3)
                assert not subscriber.problem
            connected = f"connected to {gateway.address}"
            assert heard == [connected, "lost: the gateway has ended the connection", connected]
            async with Publisher(
                gateway=gateway.address, settings=IMPATIENT, on_connected=wrong
            ) as publisher:
                await publisher.publish("floor/1", b"x", qos=1)

    with caplog.at_level(logging.INFO, "triagemq.client"):
        asyncio.run(scene())
    said = [record.getMessage() for record in caplog.records]
    assert [record.levelname for record in caplog.records[:3]] == ["INFO", "WARNING", "INFO"]
    assert "ff-7" in said[1]
    assert "the gateway has ended the connection" in said[1]
    assert "a callback of the program failed" in said


def test_a_mistake_in_the_handler_of_events_is_logged_and_costs_no_event(
    caplog: pytest.LogCaptureFixture,
) -> None:
    got: list[bytes] = []

    def handle(event: Event) -> None:
        got.append(event.payload)
        raise RuntimeError("a mistake of the program")

    async def scene() -> None:
        async with (
            StubGateway() as gateway,
            Subscriber(gateway=gateway.address, settings=QUICK, on_event=handle) as subscriber,
        ):
            await subscriber.subscribe("ab", qos=1)
            for number in range(3):
                payload = b"%d" % number
                gateway.send(Publish(TopicIdType.SHORT, 0x6162, payload, 1, message_id=1 + number))
            await until(lambda: len(got) == 3)

    asyncio.run(scene())
    assert got == [b"0", b"1", b"2"]
    assert [record.levelname for record in caplog.records if record.exc_info] == ["ERROR"] * 3


def broken(owner: Any, method: str, times: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have a method fail so often; how often it was called."""
    right, calls = getattr(owner, method), []

    async def wrong(*arguments: Any, **options: Any) -> Any:
        calls.append(len(calls))
        if len(calls) <= times:
            raise KeyError("nobody thought of that")
        return await right(*arguments, **options)

    monkeypatch.setattr(owner, method, wrong)
    return calls


PROMISED = PublicationIntent("floor/1", min_separation_seconds=0.001, max_size_bytes=10)
LOOPS = [
    (Publisher, Coordinator, "heartbeat", "keeping the lease", False),
    (Publisher, Coordinator, "direction", "following the plan", False),
    (Publisher, Coordinator, "direction", "following the plan", True),
    (Subscriber, Coordinator, "heartbeat", "keeping the lease", False),
    (Subscriber, Coordinator, "assignment", "following the plan", False),
    (Subscriber, Connection, "_until", "keeping the connection to the gateway", False),
]


@pytest.mark.parametrize(("kind", "owner", "method", "what", "promised"), LOOPS)
def test_a_background_loop_that_fails_is_logged_and_told_and_goes_on(
    kind: Any,
    owner: Any,
    method: str,
    what: str,
    promised: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: Any,
) -> None:
    problems: list[ClientError] = []
    monkeypatch.setattr(connection, "PAUSES_SECONDS", (0.01,) * 7)

    async def scene() -> None:
        async with StubGateway() as gateway, FakeCoordinator(gateway.address) as coordinator:
            coordinator.may_move, coordinator.lease_seconds = not promised, 0.05
            calls = broken(owner, method, 2, monkeypatch)
            async with kind(
                coordinator.url, name="ff-7", settings=QUICK, on_problem=problems.append
            ) as client:
                if promised:
                    await client.declare_all([PROMISED])
                await until(lambda: len(calls) > 2)
                await until(lambda: client._connection.is_active)
                if isinstance(client, Publisher):
                    await client.publish("floor/1", b"x", qos=1)
                else:
                    await client.subscribe("floor/1", qos=1)

    asyncio.run(scene())
    assert [str(each) for each in problems] == [f"{what} failed: KeyError: 'nobody thought of that'"] * 2
    assert all(isinstance(each.__cause__, KeyError) for each in problems)
    logged = [record for record in caplog.records if record.name == "triagemq.client" and record.exc_info]
    assert [f"{what} failed" in record.getMessage() for record in logged] == [True, True]


@pytest.mark.parametrize(("kind", "owner", "method", "what", "promised"), LOOPS)
def test_a_background_loop_that_keeps_failing_is_raised_where_the_program_meets_it(
    kind: Any, owner: Any, method: str, what: str, promised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PAUSES_SECONDS", (0.01,) * 2)

    async def scene() -> None:
        async with StubGateway() as gateway, FakeCoordinator(gateway.address) as coordinator:
            coordinator.may_move, coordinator.lease_seconds = not promised, 0.05
            broken(owner, method, 1_000, monkeypatch)
            async with kind(coordinator.url, name="ff-7", settings=QUICK) as client:
                if promised:
                    await client.declare_all([PROMISED])
                if isinstance(client, Publisher):
                    with pytest.raises(ClientError, match=f"{what} failed: KeyError"):
                        await forever(partial(client.publish, "floor/1", b"x"))
                    calls = (client.declare({}), client.flush(), client.register(["a/b"]))
                else:
                    # It waits for an event when that happens.
                    with pytest.raises(ClientError, match=f"{what} failed: KeyError"):
                        await client.next(30)
                    calls = (client.take_all(), client.subscribe("floor/1"), anext(client))
                for call in calls:
                    with pytest.raises(ClientError, match=f"{what} failed: KeyError"):
                        await call

    asyncio.run(scene())


def test_a_program_without_asyncio_gets_the_failure_where_it_iterates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "PAUSES_SECONDS", ())
    broken(Connection, "_until", 1_000, monkeypatch)
    addresses: list[str] = []
    ready, ended = threading.Event(), threading.Event()

    async def serve() -> None:
        async with StubGateway() as gateway:
            addresses.append(gateway.address)
            ready.set()
            await asyncio.to_thread(ended.wait)

    serving = threading.Thread(target=lambda: asyncio.run(serve()))
    serving.start()
    try:
        ready.wait()
        with (
            BlockingSubscriber(gateway=addresses[0], settings=IMPATIENT) as subscriber,
            pytest.raises(ClientError, match="keeping the connection to the gateway failed"),
        ):
            next(iter(subscriber))
    finally:
        ended.set()
        serving.join()


REFUSED_DELAY = {
    "topic": "floor/1",
    "max_latency_seconds": 0.001,
    "ports": ["radio"],
    "refused": True,
    "offer_seconds": 0.0045,
}
REFUSED_WORDS = (
    "floor/1: A delay of 1 ms over radio is refused: that is less than sending takes there; "
    "ask for 4.5 ms or more."
)


def test_a_subscriber_hears_once_that_a_delay_is_refused_and_what_could_be_asked_for() -> None:
    async def scene() -> None:
        problems: list[ClientError] = []
        async with (
            StubGateway() as gateway,
            FakeCoordinator(gateway.address) as coordinator,
            Subscriber(coordinator.url, settings=QUICK, on_problem=problems.append) as subscriber,
        ):
            coordinator.lease_seconds = 0.05
            await subscriber.subscribe("floor/1", max_latency_seconds=0.001)
            coordinator.refused_delays = [REFUSED_DELAY]
            await until(lambda: subscriber.refused_delays)
            beats = len(coordinator.reports)
            await until(lambda: len(coordinator.reports) > beats + 3)
            [problem] = problems
            assert isinstance(problem, PromiseRefusedError)
            assert (str(problem), problem.offer_seconds) == (REFUSED_WORDS, 0.0045)
            coordinator.refused_delays = []
            await until(lambda: not subscriber.refused_delays)
            coordinator.refused_delays = [REFUSED_DELAY]
            await until(lambda: len(problems) == 2)

    asyncio.run(scene())


def test_the_command_prints_that_a_delay_is_refused() -> None:
    async def scene() -> str:
        async with StubGateway() as gateway, FakeCoordinator(gateway.address) as coordinator:
            coordinator.lease_seconds = 0.05
            coordinator.refused_delays = [REFUSED_DELAY]
            wanted = ["--topic", "floor/1", "--max-latency", "1ms", "--for", "1"]
            command = [sys.executable, "-c", TRIAGE, "sub", "--coordinator", coordinator.url, *wanted]
            process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
            return (await process.communicate())[1].decode()

    assert asyncio.run(scene()) == f"triage: {REFUSED_WORDS}\n"
