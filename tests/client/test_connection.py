"""One connection against the real gateway and a real Mosquitto: every QoS, every kind of topic, sleep, wills."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.client.loopback import QUICK, connected, gateway_with_broker, until

from triagemq.broker.process import find_mosquitto
from triagemq.client.connection import Connection
from triagemq.client.events import Event
from triagemq.client.session import State
from triagemq.client.settings import ConnectionSettings, Will
from triagemq.errors import ClosedError, GatewayUnreachableError, ParameterError, RefusedError
from triagemq.gateway import Policy

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")


def payloads(events: list[Event]) -> list[bytes]:
    return [event.payload for event in events]


def test_every_qos_and_every_kind_of_topic_pass_both_ways(tmp_path: Path) -> None:
    async def scene() -> None:
        async with gateway_with_broker(tmp_path, predefined_topics={7: "floor/seven"}) as gateway:
            port = gateway.address[1]
            named, wild, short, predefined = [], [], [], []  # type: ignore[var-annotated]
            settings = ConnectionSettings(retry_seconds=0.25, predefined_topics={7: "floor/seven"})
            one = await connected(port, "one", named)
            two = await connected(port, "two", wild)
            three = await connected(port, "three", short)
            four = await connected(port, "four", predefined, settings=settings)
            assert await one.subscribe("floor/1", qos=2) == 2
            assert await two.subscribe("floor/#", qos=1) == 1
            assert await three.subscribe("ab") == 0
            await four.subscribe(7, qos=2)
            publisher = await connected(port, "publisher")
            for qos in (0, 1, 2):
                await publisher.publish("floor/1", b"%d" % qos, qos=qos)
            await publisher.publish(7, b"by id", qos=1)
            await publisher.publish(7, b"without connection", qos=-1)
            for qos in (-1, 0, 1, 2):
                await publisher.publish("ab", b"%d" % qos, qos=qos)
            await until(
                lambda: len(wild) == 5 and len(named) == 3 and len(short) == 4 and len(predefined) == 2
            )
            assert [(event.topic, event.payload, event.qos) for event in named] == [
                ("floor/1", b"%d" % qos, qos) for qos in (0, 1, 2)
            ]
            assert [event.qos for event in wild] == [0, 1, 1, 1, 0]
            assert {event.topic for event in wild} == {"floor/1", "floor/seven"}
            assert {(event.topic, event.qos) for event in short} == {("ab", 0)}
            assert [(event.topic, event.qos) for event in predefined] == [
                ("floor/seven", 1),
                ("floor/seven", 0),
            ]
            await two.unsubscribe("floor/#")
            await publisher.publish("floor/1", b"last", qos=1)
            await until(lambda: len(named) == 4)
            assert len(wild) == 5
            for connection in (one, two, three, four, publisher):
                await connection.close()
            # Sessions end with their connections.
            assert not gateway.core.sessions

    asyncio.run(scene())


def test_a_connection_says_what_is_wrong(tmp_path: Path) -> None:
    class Closed(Policy):
        def forbids_connection(self, client_id: str) -> bool:
            return client_id == "stranger"

        def forbids_subscription(self, client_id: str, topic_filter: str) -> bool:
            return topic_filter == "secret/#"

    async def scene() -> None:
        hurried = ConnectionSettings(
            retry_seconds=0.02, connect_timeout_seconds=0.5, first_delay_seconds=0.05
        )
        with pytest.raises(GatewayUnreachableError, match=r"gateway 127.0.0.1:9 does not answer"):
            await connected(9, "one", settings=hurried)
        with pytest.raises(GatewayUnreachableError, match="check the address"):
            await Connection("no.such.host.invalid", 1, "one").open()
        async with gateway_with_broker(tmp_path, policy=Closed()) as gateway:
            port = gateway.address[1]
            with pytest.raises(RefusedError, match="connecting as 'stranger'"):
                await connected(port, "stranger", settings=hurried)
            one = await connected(port, "one", settings=hurried)
            with pytest.raises(RefusedError, match="subscribing to 'secret/#' was refused"):
                await one.subscribe("secret/#")
            for topic in ("", "a/+", "#"):
                with pytest.raises(ParameterError):
                    await one.publish(topic, b"")
            with pytest.raises(ParameterError):
                await one.subscribe("a/#/b")
            with pytest.raises(ParameterError, match="QoS -1 needs"):
                await one.publish("floor/1", b"", qos=-1)
            with pytest.raises(RefusedError, match="subscribing to 99"):
                await one.subscribe(99)
            with pytest.raises(RefusedError, match="publishing to 99"):
                await one.publish(99, b"", qos=1)
            await one.close()
            with pytest.raises(ClosedError):
                await one.publish("floor/1", b"", qos=1)

    asyncio.run(scene())


def test_a_publisher_has_no_more_unacknowledged_messages_than_allowed(tmp_path: Path) -> None:
    async def scene() -> None:
        async with gateway_with_broker(tmp_path) as gateway:
            events: list[Event] = []
            subscriber = await connected(gateway.address[1], "subscriber", events)
            await subscriber.subscribe("load", qos=1)
            settings = ConnectionSettings(in_flight_messages=4, retry_seconds=5)
            publisher = await connected(gateway.address[1], "publisher", settings=settings)
            most = 0
            for number in range(300):
                await publisher.publish("load", b"%d" % number, qos=1, wait=False)
                most = max(most, publisher.unacknowledged)
            await publisher.flush()
            assert most == 4
            await until(lambda: len(events) >= 300)
            assert payloads(events) == [b"%d" % number for number in range(300)]
            assert publisher.counters.acknowledged == 300
            await subscriber.close()
            await publisher.close()

    asyncio.run(scene())


def test_a_sleeping_client_gets_what_was_kept_when_it_checks(tmp_path: Path) -> None:
    async def scene() -> None:
        async with gateway_with_broker(tmp_path) as gateway:
            events: list[Event] = []
            sleeper = await connected(gateway.address[1], "sleeper", events)
            await sleeper.subscribe("floor/+", qos=1)
            await sleeper.sleep(60)
            publisher = await connected(gateway.address[1], "publisher")
            for number in range(20):
                await publisher.publish("floor/1", b"%d" % number, qos=number % 2)
            await publisher.publish("floor/1", b"end", qos=1)
            await until(lambda: gateway.core.counters.broker_messages == 21)
            assert events == []
            await sleeper.check()
            assert payloads(events) == [*(b"%d" % number for number in range(20)), b"end"]
            await sleeper.check()
            assert len(events) == 21
            await sleeper.wake()
            assert sleeper.is_active
            await publisher.publish("floor/1", b"awake", qos=1)
            await until(lambda: len(events) == 22)
            await sleeper.close()
            await publisher.close()

    asyncio.run(scene())


def test_a_will_is_published_for_a_client_that_is_lost_and_for_no_other(tmp_path: Path) -> None:
    async def scene() -> None:
        async with gateway_with_broker(tmp_path, keep_alive_tolerance=1.0) as gateway:
            events: list[Event] = []
            watcher = await connected(gateway.address[1], "watcher", events)
            await watcher.subscribe("wills/+", qos=1)
            for name in ("careful", "careless"):
                settings = ConnectionSettings(keep_alive_seconds=1, ping_seconds=0.1)
                will = Will(f"wills/{name}", b"gone", qos=1)
                one = await connected(gateway.address[1], name, settings=settings, will=will)
                if name == "careful":
                    await one.close()
                else:
                    await one._end(ClosedError("killed"))
            await until(lambda: events)
            assert [event.topic for event in events] == ["wills/careless"]
            await watcher.close()

    asyncio.run(scene())


def test_a_session_that_is_kept_brings_what_came_meanwhile(tmp_path: Path) -> None:
    async def scene() -> None:
        async with gateway_with_broker(tmp_path) as gateway:
            port = gateway.address[1]
            events: list[Event] = []
            for keep_session, expected in ((True, [b"meanwhile"]), (False, [])):
                first = await connected(port, "ff-7", keep_session=keep_session)
                await first.subscribe("floor/1", qos=1)
                await first.close()
                async with Connection("127.0.0.1", port, "publisher", settings=QUICK) as publisher:
                    await publisher.publish("floor/1", b"meanwhile", qos=1)
                events.clear()
                second = await connected(port, "ff-7", events, keep_session=True)
                await second.subscribe("mark", qos=1)
                await second.publish("mark", b"mark", qos=1)
                await until(lambda: b"mark" in payloads(events))
                assert [one for one in payloads(events) if one != b"mark"] == expected
                await second.unsubscribe("mark")
                await second.close()

    asyncio.run(scene())


def test_stamped_events_carry_their_time_and_octets_that_are_no_message_are_counted(tmp_path: Path) -> None:
    from triagemq.mqttsn.timestamps import stamp_payload

    async def scene() -> None:
        async with gateway_with_broker(tmp_path) as gateway:
            events: list[Event] = []
            one = await connected(gateway.address[1], "one", events)
            await one.subscribe("floor/1")
            await one.publish("floor/1", stamp_payload(b"42", 1_700_000_000_000_000_000))
            await until(lambda: events)
            assert (events[0].payload, events[0].published_ns) == (b"42", 1_700_000_000_000_000_000)
            assert events[0].latency_seconds == pytest.approx(
                (events[0].received_ns - 1_700_000_000_000_000_000) / 1e9
            )
            for octets in (b"", b"\x00", b"\x05\xff\xff\xff\xff", bytes(200)):
                one._session.receive(octets)
            assert one.counters.malformed == 4
            assert one.state is State.ACTIVE
            await one.close()

    asyncio.run(scene())
