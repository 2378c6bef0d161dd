"""Subscribers with several connections: each message once, through the slot that was ordered, and none lost."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.exchange.virtual import Client, VirtualGateway

from triagemq.exchange.gateway.actions import Gone, Present
from triagemq.mqttsn import (
    Connect,
    Disconnect,
    Publish,
    PubRec,
    PubRel,
    Register,
    TopicIdType,
)


def identify(client_id: str) -> tuple[str, int]:
    name, mark, slot = client_id.rpartition("~")
    return (name, int(slot)) if mark else (client_id, 0)


def gateway(store: Path | None = None, **settings: Any) -> VirtualGateway:
    return VirtualGateway(store=store, identify=identify, **settings)


def slots(where: VirtualGateway, count: int, name: str = "s", *, clean: bool = False) -> list[Client]:
    first = 1000 + 100 * sum(map(ord, name))
    return [
        where.client(first + slot).connect(f"{name}~{slot}", clean=clean, duration=0) for slot in range(count)
    ]


def order(where: VirtualGateway, **ordered: dict[str, int]) -> None:
    where.core.slots.order(lambda name, topic: ordered.get(name, {}).get(topic, 0), ["s"])
    where.run()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_topic_goes_through_the_slot_that_was_ordered(qos: int) -> None:
    here = gateway()
    zero, one, two = slots(here, 3)
    zero.subscribe("a", qos)
    zero.subscribe("b", qos)
    order(here, s={"a": 1})
    here.publish("a", b"a1", qos)
    here.publish("b", b"b1", qos)
    assert (zero.payloads(), one.payloads(), two.payloads()) == ([b"b1"], [b"a1"], [])
    order(here, s={"a": 2, "b": 1})
    here.publish("a", b"a2", qos)
    here.publish("b", b"b2", qos)
    assert (zero.payloads(), one.payloads(), two.payloads()) == ([], [b"b2"], [b"a2"])
    order(here)
    here.publish("a", b"a3", qos)
    assert (zero.payloads(), one.payloads(), two.payloads()) == ([b"a3"], [], [])
    assert here.core.counters.delivered == 5


def test_the_other_slot_is_told_the_topic_id_first() -> None:
    here = gateway()
    zero, one = slots(here, 2)
    topic_id = zero.subscribe("a").topic_id
    order(here, s={"a": 1})
    one.answers = False
    here.publish("a", b"1")
    here.publish("a", b"2")
    assert one.payloads() == []
    (told,) = one.take(Register)
    assert (told.topic_id, told.topic_name) == (topic_id, "a")
    one.answers = True
    here.wait(11.0)
    assert one.payloads() == [b"1", b"2"]
    here.publish("a", b"3")
    assert one.payloads() == [b"3"]


def test_wildcards_and_overlapping_filters_give_one_copy_each_by_its_topic() -> None:
    here = gateway()
    zero, one, two = slots(here, 3)
    zero.subscribe("floor/#")
    zero.subscribe("floor/+/smoke", 1)
    order(here, s={"floor/1/smoke": 1, "floor/1/heat": 2})
    for topic in ("floor/1/smoke", "floor/1/heat", "floor/2/smoke"):
        here.publish(topic, topic.encode(), 1)
    assert (zero.payloads(), one.payloads(), two.payloads()) == (
        [b"floor/2/smoke"],
        [b"floor/1/smoke"],
        [b"floor/1/heat"],
    )
    assert here.core.publications.counts.changed_since(0, 0).topics == {
        "floor/1/smoke": (1, 13),
        "floor/1/heat": (1, 12),
        "floor/2/smoke": (1, 13),
    }


def test_predefined_topics_need_no_registration_on_any_slot() -> None:
    here = gateway(predefined_topics={7: "a"})
    zero, one = slots(here, 2)
    zero.subscribe_as(TopicIdType.PREDEFINED, 7)
    order(here, s={"a": 1})
    here.publish("a", b"x")
    (message,) = one.take(Publish)
    assert (message.topic_id_type, message.topic_id, one.take(Register)) == (TopicIdType.PREDEFINED, 7, [])


def test_a_slot_that_comes_later_takes_over_and_one_that_goes_gives_back() -> None:
    here = gateway()
    (zero,) = slots(here, 1)
    zero.subscribe("a")
    order(here, s={"a": 1})
    here.publish("a", b"1")
    one = here.client(5).connect("s~1")
    here.publish("a", b"2")
    assert (zero.payloads(), one.payloads()) == ([b"1"], [b"2"])
    one.send(Disconnect())
    here.publish("a", b"3")
    one.send(Connect("s~1", 0, clean_session=False))
    here.publish("a", b"4")
    one.send(Disconnect(60))
    here.publish("a", b"5")
    assert (zero.payloads(), one.payloads()) == ([b"3", b"5"], [b"4"])


def test_a_retained_message_comes_once_through_its_slot() -> None:
    here = gateway()
    here.publish("a", b"old", retain=True)
    zero, one = slots(here, 2)
    order(here, s={"a": 1})
    zero.subscribe("a")
    assert (zero.payloads(), one.payloads()) == ([], [b"old"])
    assert len(here.core.publications.counts) == 0


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("how", ["disconnect", "sleep", "silence", "connect again clean"])
def test_what_a_slot_leaves_undelivered_goes_through_slot_0(clean: bool, how: str) -> None:
    here = gateway(in_flight_messages=2)
    zero = here.client(1).connect("s~0")
    one = here.client(2)
    one.send(Connect("s~1", 10, clean_session=clean))
    zero.subscribe("a", 1)
    order(here, s={"a": 1})
    here.publish("a", b"0", 1)
    assert one.payloads() == [b"0"]
    one.answers = False
    for number in range(1, 6):
        here.publish("a", b"%d" % number, 1)
    assert one.payloads() == [b"1", b"2"]
    match how:
        case "disconnect":
            one.send(Disconnect())
        case "sleep":
            one.send(Disconnect(60))
        case "silence":
            here.wait(20.0)
        case "connect again clean":
            one.send(Connect("s~1", 10, clean_session=True))
    assert zero.payloads() == [b"1", b"2", b"3", b"4", b"5"]
    assert here.core.counters.delivered == 6
    assert not here.core.counters.undelivered


def test_kept_for_slot_0_while_the_whole_subscriber_is_away(tmp_path: Path) -> None:
    here = gateway(tmp_path)
    zero, one = slots(here, 2)
    zero.subscribe("a", 1)
    order(here, s={"a": 1})
    one.answers = False
    here.publish("a", b"1", 1)
    zero.send(Disconnect())
    here.publish("a", b"2", 1)
    one.send(Disconnect())
    here.publish("a", b"3", 1)
    here.kill()
    order(here, s={"a": 1})
    assert zero.payloads() == []
    zero.send(Connect("s~0", 0, clean_session=False))
    assert zero.payloads() == [b"1", b"2", b"3"]


def test_qos_2_that_the_client_has_confirmed_is_not_repeated() -> None:
    here = gateway()
    zero, one = slots(here, 2)
    zero.subscribe("a", 2)
    order(here, s={"a": 1})
    here.publish("a", b"0", 2)
    one.take(Publish)
    one.answers = False
    here.publish("a", b"1", 2)
    here.publish("a", b"2", 2)
    first, second = one.take(Publish)
    one.send(PubRec(first.message_id))
    one.send(Disconnect())
    assert zero.payloads() == [b"2"]
    one.take(PubRel)
    one.answers = True
    one.connect("s~1")
    assert [release.message_id for release in one.take(PubRel)] == [first.message_id]
    assert here.core.counters.delivered == 3
    assert second.payload == b"2"


def test_qos_2_that_was_confirmed_counts_as_delivered_when_its_slot_ends() -> None:
    here = gateway()
    zero = here.client(1).connect("s~0")
    one = here.client(2).connect("s~1", clean=True)
    zero.subscribe("a", 2)
    order(here, s={"a": 1})
    here.publish("a", b"0", 2)
    one.answers = False
    here.publish("a", b"1", 2)
    one.send(PubRec(one.take(Publish)[-1].message_id))
    one.send(Disconnect())
    assert zero.payloads() == []
    assert here.core.counters.delivered == 2


def test_a_kill_loses_nothing_of_any_slot(tmp_path: Path) -> None:
    here = gateway(tmp_path, in_flight_messages=2)
    zero, one = slots(here, 2)
    zero.subscribe("+", 1)
    order(here, s={"ab": 1, "abc": 1})
    here.publish("abc", b"0", 1)
    one.answers = False
    for number in range(1, 5):
        here.publish("abc", b"%d" % number, 1)
    assert one.payloads() == [b"0", b"1", b"2"]
    one.answers = True
    here.kill()
    order(here, s={"abc": 1})
    here.wait(11.0)
    assert sorted(one.payloads()) == [b"1", b"2", b"3", b"4"]
    here.publish("abc", b"5", 1)
    assert (zero.payloads(), one.payloads()) == ([], [b"5"])


def test_slots_of_others_and_plain_clients_are_left_alone() -> None:
    here = gateway()
    zero, one = slots(here, 2)
    other_zero, other_one = slots(here, 2, "other")
    plain = here.client(9).connect("plain")
    for client in (zero, other_zero, plain):
        client.subscribe("a")
    order(here, s={"a": 1}, plain={"a": 1}, other={"a": 3})
    here.publish("a", b"x")
    assert [client.payloads() for client in (zero, one, other_zero, other_one, plain)] == [
        [],
        [b"x"],
        [b"x"],
        [],
        [b"x"],
    ]


@pytest.mark.parametrize("seed", range(6))
def test_random_orders_and_departures_lose_and_repeat_nothing(seed: int) -> None:
    chance = random.Random(seed)
    qos = 1 + seed % 2
    here = gateway(in_flight_messages=4)
    clients = slots(here, 4)
    connected = [True] * 4
    topics = [f"topic/{number}" for number in range(6)]
    clients[0].subscribe("topic/#", qos)
    got: list[bytes] = []
    sent = 0
    for _ in range(600):
        match chance.randrange(10):
            case 0:
                order(here, s={topic: chance.randrange(5) for topic in topics if chance.random() < 0.8})
            case 1:
                slot = chance.randrange(1, 4)
                if connected[slot]:
                    clients[slot].send(Disconnect(chance.choice([None, 1000])))
                else:
                    clients[slot].send(Connect(f"s~{slot}", 0, clean_session=chance.random() < 0.5))
                connected[slot] = not connected[slot]
            case 2:
                here.wait(0.5)
            case _:
                here.publish(chance.choice(topics), b"%d" % sent, qos)
                sent += 1
        for client in clients:
            got += client.payloads()
    here.wait(60.0)
    for client in clients:
        got += client.payloads()
    assert sorted(map(int, got)) == list(range(sent))


def test_whoever_binds_flows_hears_where_clients_are(tmp_path: Path) -> None:
    here = gateway(tmp_path)
    news: list[Present | Gone] = []
    act = here._act

    def listening(action: Any) -> None:
        if isinstance(action, Present | Gone):
            news.append(action)
        act(action)

    here._act = listening  # type: ignore[method-assign]
    client = here.client(1).connect("s~0")
    assert news == [Present("s~0", ("10.0.0.1", 1), False)]
    client.subscribe("a")
    client.subscribe("b")
    assert news[1:] == [Present("s~0", ("10.0.0.1", 1), True)]
    news.clear()
    here.client(2).connect("s~0")
    here.kill()
    assert news == [Present("s~0", ("10.0.0.1", 2), True)] * 2
    news.clear()
    here.client(2).send(Disconnect())
    assert news == [Gone("s~0")]
