"""Datagrams are lost, doubled and late, in both directions: QoS 1 loses nothing, QoS 2 loses and repeats nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from tests.client.loopback import BadNetwork, connected, gateway_with_broker, until

from triagemq.broker.process import find_mosquitto
from triagemq.client.events import Event
from triagemq.mqttsn import Publish, PubRec, TopicIdType, encode

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")


@pytest.mark.parametrize("seed", [1, 2])
def test_every_qos_keeps_its_promise(tmp_path: Path, seed: int) -> None:
    count = 80

    async def scene() -> None:
        async with (
            gateway_with_broker(tmp_path) as gateway,
            BadNetwork(gateway.address[1], seed, loss=0.15, doubled=0.1, delayed=0.2) as network,
        ):
            events: list[Event] = []
            subscriber = await connected(network.port, "subscriber", events)
            for qos in (0, 1, 2):
                await subscriber.subscribe(f"qos/{qos}", qos=qos)
            await subscriber.subscribe("wild/+/2", qos=2)
            publisher = await connected(network.port, "publisher")
            for number in range(count):
                for qos in (0, 1, 2):
                    await publisher.publish(f"qos/{qos}", b"%d" % number, qos=qos, wait=False)
                await publisher.publish(f"wild/{number % 5}/2", b"%d" % number, qos=2, wait=False)
            await publisher.flush()
            wanted = {b"%d" % number for number in range(count)}

            def received(start: str) -> Counter[bytes]:
                return Counter(event.payload for event in events if event.topic.startswith(start))

            def complete() -> bool:
                return all(set(received(start)) == wanted for start in ("qos/1", "qos/2", "wild"))

            await until(complete, 60)
            network.is_perfect = True
            # A repetition that is on its way must have the time to arrive.
            await asyncio.sleep(1.0)
            assert set(received("qos/2").values()) == {1}
            assert set(received("wild").values()) == {1}
            assert set(received("qos/0")) <= wanted
            assert network.lost > 50
            assert publisher.counters.retransmissions > 0
            assert subscriber.counters.duplicates > 0
            await subscriber.close()
            await publisher.close()

    asyncio.run(scene())


def test_a_late_copy_of_a_finished_message_harms_no_later_one(tmp_path: Path) -> None:
    async def scene() -> None:
        async with gateway_with_broker(tmp_path) as gateway:
            events: list[Event] = []
            one = await connected(gateway.address[1], "one", events)
            await one.subscribe("floor/1", qos=2)
            await one.publish("floor/1", b"first", qos=2)
            reference = one._session.reference("floor/1")
            assert reference is not None
            message_id = (one._session._next_message_id - 2) % 0xFFFF + 1
            duplicates = gateway.core.counters.duplicates
            one._session.send(Publish(*reference, b"first", qos=2, dup=True, message_id=message_id))
            await until(lambda: gateway.core.counters.duplicates > duplicates)
            assert not gateway.core.sessions["one"].inbound
            # One without a mark passes for a new message, and is never released; its id comes round again in the end.
            one._session.send(Publish(*reference, b"first", qos=2, message_id=message_id))
            await until(lambda: gateway.core.sessions["one"].inbound)
            one._session._next_message_id = message_id
            await one.publish("floor/1", b"second", qos=2)
            await until(lambda: len(events) == 2)
            await asyncio.sleep(0.3)
            assert [event.payload for event in events] == [b"first", b"second"]
            await one.close()

    asyncio.run(scene())


def test_late_copies_from_the_gateway_are_not_handed_on(tmp_path: Path) -> None:
    async def scene() -> None:
        async with gateway_with_broker(tmp_path) as gateway:
            events: list[Event] = []
            one = await connected(gateway.address[1], "one", events)
            await one.subscribe("floor/1", qos=2)
            copies: list[bytes] = []
            pass_on = one._session.inbox.publish

            def tap(message: Publish) -> None:
                copies.append(encode(message))
                pass_on(message)

            one._session.inbox.publish = tap  # type: ignore[method-assign]
            await one.publish("floor/1", b"only once", qos=2)
            await until(lambda: events and not gateway.core.sessions["one"].in_flight)
            one._session.receive(copies[0])
            assert len(events) == 1
            assert one.counters.duplicates == 1
            # An unknown topic id is refused; what came with it is kept until the gateway has told the name.
            answers: list[object] = []
            one._session.inbox._send = answers.append
            one._session.receive(encode(Publish(TopicIdType.NORMAL, 4711, b"early")))
            one._session.receive(
                encode(Publish(TopicIdType.NORMAL, 4711, b"later again", qos=2, message_id=9))
            )
            assert len(events) == 1
            assert not any(isinstance(answer, PubRec) for answer in answers)
            one._session.inbox.learn(4711, "floor/2")
            assert [(event.topic, event.payload) for event in events[1:]] == [("floor/2", b"early")]
            await one.close()

    asyncio.run(scene())


def test_a_client_whose_address_changes_connects_anew_and_loses_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            gateway_with_broker(tmp_path) as gateway,
            BadNetwork(gateway.address[1], 1, 0, 0, 0) as network,
        ):
            events: list[Event] = []
            subscriber = await connected(network.port, "subscriber", events)
            publisher = await connected(network.port, "publisher")
            await subscriber.subscribe("a", qos=1)
            expected = []
            for round_number in range(3):
                network.renumber()
                for number in range(20):
                    expected.append(b"%d" % (20 * round_number + number))
                    await publisher.publish("a", expected[-1], qos=1 + number % 2, wait=False)
                await publisher.flush()
                await until(lambda: len(events) >= len(expected))
            await subscriber.sleep(60)
            network.renumber()
            await publisher.publish("a", b"asleep", qos=1)
            await subscriber.check()
            await subscriber.wake()
            await until(lambda: len(events) > len(expected))
            await asyncio.gather(subscriber.close(), publisher.close())
            assert sorted(event.payload for event in events) == sorted([*expected, b"asleep"])
            # By CONNECT every time: two clients three times, the sleeper once, the other once more.
            assert gateway.core.counters.connects >= 2 + 3 * 2 + 2

    asyncio.run(run())
