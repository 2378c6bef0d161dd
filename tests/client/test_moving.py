"""Clients that are sent from one gateway to another under load: nothing lost, nothing twice, order kept."""

from __future__ import annotations

import asyncio
import os
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.loopback import QUICK, until
from tests.coordinator.campus import campus

from triagemq.broker.process import find_mosquitto
from triagemq.channel.grants import Grants
from triagemq.client import Event, Publisher, Subscriber
from triagemq.client.moving import Handover
from triagemq.coordinator.decide.placement import Placements
from triagemq.coordinator.gateways.joined import Gateways
from triagemq.mqttsn.timestamps import stamp_payload

TOPICS = ("hall/smoke", "hall/heat")


@given(st.data())
def test_two_streams_of_the_same_events_become_one(data: st.DataObject) -> None:
    """However they are interleaved: the old one from the beginning to some event, the new one from some event on."""
    count = data.draw(st.integers(1, 30))
    begins = data.draw(st.integers(0, count))
    ends = data.draw(st.integers(begins, count))
    events = [Event(data.draw(st.sampled_from(TOPICS)), b"%d" % number, None, 0) for number in range(count)]
    got: list[Event] = []
    moving = Handover(got.append)
    old, new = events[:ends], events[begins:]
    for is_old in data.draw(st.permutations([True] * len(old) + [False] * len(new))):
        if is_old:
            moving.old(old.pop(0))
        else:
            moving.new(new.pop(0))
    moving.finish()
    for topic in TOPICS:
        mine = [int(event.payload) for event in got if event.topic == topic]
        assert mine == [int(event.payload) for event in events if event.topic == topic]
    assert moving.duplicates == ends - begins


@pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")
def test_clients_move_under_load_without_losing_or_repeating_an_event(tmp_path: Path) -> None:
    async def scene() -> None:
        async with campus(tmp_path, "north", "south") as there:
            await there.joined(2)
            got: dict[str, list[Event]] = {f"ff-{number}": [] for number in range(6)}
            subscribers = []
            for number, (name, events) in enumerate(got.items()):
                subscriber = Subscriber(there.url, name=name, on_event=events.append, settings=QUICK)
                subscribers.append(subscriber)
                await subscriber.open()
                for topic in TOPICS:
                    await subscriber.subscribe(topic, qos=number % 2)
            publishers = [
                Publisher(there.url, name=f"sensor-{topic[5:]}", settings=QUICK) for topic in TOPICS
            ]
            for publisher, topic in zip(publishers, TOPICS, strict=True):
                await publisher.open()
                await publisher.declare({topic: (50.0, 20.0)})
            await there.running.settled()
            sent = dict.fromkeys(TOPICS, 0)
            ended = asyncio.Event()

            async def publish(publisher: Publisher, topic: str) -> None:
                while not ended.is_set():
                    await publisher.publish(topic, b"%d" % sent[topic], qos=1)
                    sent[topic] += 1
                    await asyncio.sleep(0.02)

            working = [
                asyncio.ensure_future(publish(publisher, topic))
                for publisher, topic in zip(publishers, TOPICS, strict=True)
            ]
            for number, home in enumerate(("south", "north")):
                await there.move(home, *got, publishers=["sensor-smoke"])
                await until(lambda number=number: all(each.moves >= number for each in subscribers))
                await until(
                    lambda home=home: all(
                        each.connection.address.port == there.gateways[home].gateway.address[1]
                        for each in subscribers
                    )
                )
                before = dict(sent)
                await until(lambda before=before: all(sent[topic] >= before[topic] + 30 for topic in TOPICS))
            ended.set()
            await asyncio.gather(*working)
            await until(lambda: all(len(events) >= sum(sent.values()) for events in got.values()))
            for client in (*subscribers, *publishers):
                await client.close()
            for events in got.values():
                for topic in TOPICS:
                    numbers = [int(event.payload) for event in events if event.topic == topic]
                    assert numbers == list(range(sent[topic]))
            moved = await there.moved()
            assert {each["subject"] for each in moved} >= {"subscriber ff-0", "subscriber ff-1"}
            assert all(each["reason"] == "an operator wants it there" for each in moved)

    asyncio.run(scene())


@pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")
def test_a_broker_that_dies_loses_its_clients_to_others_within_seconds(tmp_path: Path) -> None:
    async def scene() -> None:
        async with campus(tmp_path, "north", "south") as there:
            await there.joined(2)
            got: dict[str, list[Event]] = {"ff-0": [], "ff-1": []}
            subscribers = [
                Subscriber(there.url, name=name, on_event=events.append, settings=QUICK)
                for name, events in got.items()
            ]
            for subscriber in subscribers:
                await subscriber.open()
                await subscriber.subscribe(TOPICS[0], qos=1)
            async with Publisher(there.url, name="sensor", settings=QUICK) as publisher:
                await there.move("north", "ff-0", publishers=["sensor"])
                await there.move("south", "ff-1")
                await until(
                    lambda: (
                        subscribers[1].connection.address.port == there.gateways["south"].gateway.address[1]
                    )
                )
                for number in range(100):
                    await publisher.publish(TOPICS[0], b"%d" % number, qos=1)
                    if number == 30:
                        there.brokers["south"].kill()
                    await asyncio.sleep(0.02)
                await until(
                    lambda: (
                        subscribers[1].connection.address.port == there.gateways["north"].gateway.address[1]
                    )
                )
                await publisher.publish(TOPICS[0], b"100", qos=1)
                await until(lambda: all(len(events) >= 101 for events in got.values()))
            for subscriber in subscribers:
                await subscriber.close()
            for events in got.values():
                numbers = [int(event.payload) for event in events]
                assert numbers == list(range(101))
                assert all(after > before for before, after in pairwise(numbers))
            [moved] = [each for each in await there.moved() if "operator" not in each["reason"]]
            assert (moved["subject"], moved["before"], moved["after"]) == (
                "subscriber ff-1",
                "gateway south",
                "gateway north",
            )
            assert "cannot be reached" in moved["reason"]

    asyncio.run(scene())


@pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")
def test_a_move_to_where_nobody_answers_is_given_up_when_the_coordinator_names_another(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        async with campus(tmp_path, "north", "south", "east") as there:
            await there.joined(3)
            got: list[Event] = []
            async with (
                Subscriber(there.url, name="ff-0", on_event=got.append, settings=QUICK) as subscriber,
                Publisher(there.url, name="sensor", settings=QUICK) as publisher,
            ):
                await subscriber.subscribe(TOPICS[0], qos=1)
                await there.move("north", "ff-0", publishers=["sensor"])
                ports = {name: each.gateway.address[1] for name, each in there.gateways.items()}
                await until(lambda: subscriber.connection.address.port == ports["north"])
                # Its gateway lets the client in, and then waits for the broker to take the subscription.
                os.kill(there.brokers["south"].pid, signal.SIGSTOP)
                await there.move("south", "ff-0", publishers=["sensor"])
                await until(lambda: "ff-0~0" in there.gateways["south"].gateway.core.sessions)
                await there.move("east", "ff-0", publishers=["sensor"])
                await until(lambda: subscriber.connection.address.port == ports["east"])
                await publisher.publish(TOPICS[0], b"1", qos=1)
                await until(lambda: [event.payload for event in got] == [b"1"])
            there.brokers["south"].kill()

    asyncio.run(scene())


@pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")
def test_nobody_moves_because_the_coordinator_was_started_anew(tmp_path: Path) -> None:
    async def scene() -> None:
        async with campus(tmp_path, "north", "south") as there:
            await there.joined(2)
            async with Subscriber(there.url, name="ff-0", settings=QUICK) as subscriber:
                await subscriber.subscribe(TOPICS[0])
                south = there.gateways["south"].gateway.address[1]
                await there.move("south", "ff-0")
                await until(lambda: subscriber.connection.address.port == south)
                await until(lambda: not there.gateways["north"].gateway.core.sessions)
                gateways = there.running.coordinator.runtime.gateways
                clients = there.running.coordinator.service.registry
                # As one that has only just begun: no client has a gateway, and the gateway joins again.
                fresh, north = Gateways(Placements(clients=clients), Grants), gateways["north"]
                fresh.add("north", north.reconciler.link, north.address)
                assert fresh.news_for(("subscriber", "ff-0"), "127.0.0.1") == ""
                [_, led] = gateways
                await fresh.join("south", led.reconciler.link, "127.0.0.1", is_here=True)
                assert fresh.home_of(("subscriber", "ff-0")).name == "south"

    asyncio.run(scene())


@pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")
def test_a_subscriber_that_keeps_its_session_leaves_none_behind_where_it_was(tmp_path: Path) -> None:
    async def scene() -> None:
        async with campus(tmp_path, "north", "south") as there:
            await there.joined(2)
            got: list[bytes] = []

            def keeper() -> Subscriber:
                return Subscriber(
                    there.url,
                    name="ff-0",
                    keep_session=True,
                    on_event=lambda event: got.append(event.payload),
                    settings=QUICK,
                )

            async with (
                Publisher(there.url, name="sensor", keep_session=True, settings=QUICK) as publisher,
                keeper() as subscriber,
            ):
                await subscriber.subscribe(TOPICS[0], qos=1)
                for number, home in enumerate(("south", "north", "south")):
                    await there.move(home, "ff-0", publishers=["sensor"])
                    await until(lambda home=home: subscriber.connection.address.port == there.port(home))
                    await publisher.publish(TOPICS[0], b"%d" % number, qos=1)
                    other = "north" if home == "south" else "south"
                    await until(lambda other=other: not there.gateways[other].gateway.core.sessions)
                await until(lambda: len(got) == 3)
                await subscriber.close()
                await publisher.publish(TOPICS[0], b"while it is away", qos=1)
                async with keeper() as again:
                    assert again.connection.address.port == there.port("south")
                    await until(lambda: len(got) == 4)
                assert got == [b"0", b"1", b"2", b"while it is away"]

    asyncio.run(scene())


@pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")
@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_acknowledged_before_a_subscriber_is_back_reaches_it_once(
    tmp_path: Path, qos: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway goes with its clients, the publisher is elsewhere first, and later the gateway is back."""

    async def scene() -> None:
        async with campus(tmp_path, "north", "south") as there:
            await there.joined(2)
            got: list[int] = []
            may_move = asyncio.Event()
            async with (
                Publisher(there.url, name="sensor", settings=QUICK) as publisher,
                Subscriber(
                    there.url,
                    name="ff-0",
                    keep_session=True,
                    on_event=lambda event: got.append(int(event.payload)),
                    settings=QUICK,
                ) as subscriber,
            ):
                await subscriber.subscribe(TOPICS[0], qos=qos)
                await there.move("south", "ff-0", publishers=["sensor"])
                await until(lambda: subscriber.connection.address.port == there.port("south"))
                await until(lambda: publisher._require_connection().address.port == there.port("south"))
                await until(lambda: not there.gateways["north"].gateway.core.sessions)
                move = subscriber._move

                async def late(*arguments: Any) -> None:
                    await may_move.wait()
                    await move(*arguments)

                monkeypatch.setattr(subscriber, "_move", late)
                sent: list[int] = []

                async def publish(count: int) -> None:
                    for _ in range(count):
                        number = len(sent)
                        sent.append(number)
                        await publisher.publish(TOPICS[0], b"%d" % number, qos=qos)

                await publish(5)
                await there.stop("south")
                await until(lambda: publisher._require_connection().address.port == there.port("north"))
                await publish(20)
                may_move.set()
                await until(lambda: subscriber.connection.address.port == there.port("north"))
                await until(lambda: sorted(got) == sent)
                await there.start("south")
                await there.joined(2)
                await until(lambda: not subscriber._leaving)
                assert "ff-0~0" not in there.gateways["south"].gateway.core.sessions
                await publish(5)
                await until(lambda: len(got) >= len(sent))
                assert sorted(got) == sent

    asyncio.run(scene())


@pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")
def test_an_event_that_is_published_again_by_another_gateway_comes_once_at_qos_2(tmp_path: Path) -> None:
    """A publisher whose gateway died cannot know whether its last events were distributed."""

    async def scene() -> None:
        async with campus(tmp_path, "north", "south") as there:
            await there.joined(2)
            got: list[bytes] = []
            async with (
                Publisher(there.url, name="before", settings=QUICK) as before,
                Publisher(there.url, name="after", settings=QUICK) as after,
                Subscriber(
                    there.url, name="ff-0", on_event=lambda event: got.append(event.payload), settings=QUICK
                ) as subscriber,
            ):
                await subscriber.subscribe(TOPICS[0], qos=2)
                await there.move("north", publishers=["before"])
                await there.move("south", publishers=["after"])
                await until(lambda: before._require_connection().address.port == there.port("north"))
                await until(lambda: after._require_connection().address.port == there.port("south"))
                await before.publish(TOPICS[0], stamp_payload(b"smoke", 1), qos=2)
                await after.publish(TOPICS[0], stamp_payload(b"smoke", 1), qos=2)
                await after.publish(TOPICS[0], stamp_payload(b"smoke", 2), qos=2)
                await after.publish(TOPICS[0], b"same", qos=2)
                await after.publish(TOPICS[0], b"same", qos=2)
                await until(lambda: got.count(b"same") == 2)
                assert got == [b"smoke", b"smoke", b"same", b"same"]

    asyncio.run(scene())


def test_what_a_gateway_had_stored_for_a_subscriber_is_fetched_when_it_is_back(tmp_path: Path) -> None:
    """The publisher's broker has what nobody took while both were away."""

    async def scene() -> None:
        async with campus(tmp_path, "north", "south") as there:
            await there.joined(2)
            got: list[int] = []
            async with (
                Publisher(there.url, name="sensor", settings=QUICK) as publisher,
                Subscriber(
                    there.url,
                    name="ff-0",
                    on_event=lambda event: got.append(int(event.payload)),
                    settings=QUICK,
                ) as subscriber,
            ):
                await subscriber.subscribe(TOPICS[0], qos=2)
                await there.move("south", "ff-0")
                await there.move("north", publishers=["sensor"])
                await until(lambda: subscriber.connection.address.port == there.port("south"))
                await until(lambda: publisher._require_connection().address.port == there.port("north"))
                await there.stop("south")
                for number in range(20):
                    await publisher.publish(TOPICS[0], b"%d" % number, qos=2)
                await until(lambda: subscriber.connection.address.port == there.port("north"))
                await publisher.publish(TOPICS[0], b"20", qos=2)
                await until(lambda: 20 in got)
                await there.start("south")
                await until(lambda: not subscriber._leaving)
                assert sorted(got) == list(range(21))

    asyncio.run(scene())
