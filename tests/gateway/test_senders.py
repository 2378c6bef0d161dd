"""How datagrams leave: marks, priorities, full sockets, and a data plane in between."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.full_socket import Room
from tests.gateway.planned import ByClient

from triagemq.datagrams import CLASS_DSCP, CONTROL_DSCP, AddressList, socket_address
from triagemq.gateway import LiveTrace
from triagemq.gateway.core import GatewayCore, GatewaySettings, MqttSnCore, Policy
from triagemq.gateway.core.delivery import deliver
from triagemq.gateway.core.messages import Delivery, Publication, Subscription
from triagemq.gateway.core.sessions import Group, Session, SessionState
from triagemq.gateway.core.state import SendControl, SendMany, SendPublish
from triagemq.gateway.core.topics import ClientTopics
from triagemq.gateway.sockets import Sender, SocketPlane
from triagemq.mqttsn import TopicIdType, encode_publish
from triagemq.plan.dataplane import FlowKey, OutgoingPacket, Treatment, WaitingTerms
from triagemq.trace import Outcome, Trace


@pytest.fixture
def receivers() -> Iterator[list[socket.socket]]:
    sockets = []
    for _ in range(5):
        one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        one.bind(("127.0.0.1", 0))
        one.settimeout(20.0)
        one.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        sockets.append(one)
    yield sockets
    for one in sockets:
        one.close()


@pytest.fixture
def sender() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        one.setblocking(False)
        yield one


def core(**settings: Any) -> GatewayCore:
    return MqttSnCore(GatewaySettings(**settings), now_ns=0)


def member(
    gateway: GatewayCore, number: int, address: tuple[str, int], qos: int = 0
) -> tuple[Session, Subscription]:
    session = Session(f"c{number}", address, ClientTopics(gateway.topics, f"c{number}"), True, 0)
    session.state = SessionState.ACTIVE
    gateway.sessions[session.client_id] = session
    subscription = Subscription("a", qos, TopicIdType.NORMAL)
    session.subscriptions["a"] = subscription
    return session, subscription


def group_of(members: list[tuple[Session, Subscription]]) -> Group:
    return Group((TopicIdType.NORMAL, 1), members)


def by_socket(gateway: GatewayCore, sender: socket.socket, **options: Any) -> Sender:
    """Everything leaves as soon as it is handed over."""

    class Immediate(Sender):
        def control(self, action: SendControl) -> None:
            super().control(action)
            self.flush()

        def publish(self, action: SendPublish) -> None:
            super().publish(action)
            self.flush()

        def publish_many(self, action: SendMany) -> None:
            super().publish_many(action)
            self.flush()

    made = Immediate(gateway)

    def on_transmitted(losses: Any) -> None:
        gateway.advance(gateway.now_ns + 100)
        made.settled(losses)

    made.attach(SocketPlane(sender, on_transmitted, **options))
    return made


def publication(topic: str = "a") -> Publication:
    return Publication(0, topic, b"x", 0, 0)


def _mark(one: socket.socket) -> tuple[bytes, int]:
    datagram, found, _, _ = one.recvmsg(100, 100)
    return datagram, found[0][2][0]


def test_control_packets_bear_cs6_and_publish_does_not(
    receivers: list[socket.socket], sender: socket.socket
) -> None:
    gateway = core()
    outlet = by_socket(gateway, sender)
    address = receivers[0].getsockname()
    session, subscription = member(gateway, 0, address)
    outlet.control(SendControl(address, b"control"))
    delivery = Delivery(1, publication(), subscription, 0, False, 0)
    outlet.publish(SendPublish(session, delivery, b"publish"))
    assert _mark(receivers[0]) == (b"control", CONTROL_DSCP << 2)
    assert _mark(receivers[0]) == (b"publish", 0)
    assert gateway.counters.delivered == 1


def test_one_datagram_reaches_a_whole_group(receivers: list[socket.socket], sender: socket.socket) -> None:
    gateway = core()
    outlet = by_socket(gateway, sender)
    group = group_of([member(gateway, number, one.getsockname()) for number, one in enumerate(receivers)])
    for payload in (b"one\0", b"two"):
        outlet.publish_many(SendMany(group, publication(), encode_publish(*group.reference, payload)))
    for one in receivers:
        assert one.recv(100)[7:] == b"one\0"
        assert one.recv(100)[7:] == b"two"
    assert gateway.counters.sent == gateway.counters.delivered == 10


def test_address_that_cannot_be_reached_does_not_stop_the_others(
    receivers: list[socket.socket], sender: socket.socket
) -> None:
    gateway = core()
    outlet = by_socket(gateway, sender)
    addresses = [("255.255.255.255", 9), *(one.getsockname() for one in receivers)]
    group = group_of([member(gateway, number, address) for number, address in enumerate(addresses)])
    outlet.publish_many(SendMany(group, publication(), encode_publish(*group.reference, b"x")))
    for one in receivers:
        assert one.recv(100)
    assert gateway.counters.undelivered == {"lost_on_link: output port": 1}
    assert gateway.counters.delivered == 5


def test_what_a_full_socket_cannot_take_waits_by_priority_and_control_goes_first(
    receivers: list[socket.socket], sender: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, receiver = Room(monkeypatch), receivers[0]
    there = receiver.getsockname()

    async def scenario() -> None:
        policy = Policy(priorities=[("urgent", 0)], lowest_class=5)
        gateway = core(policy=policy)
        outlet = by_socket(gateway, sender, most_waiting=4)
        session, subscription = member(gateway, 0, there)
        groups = defaultdict(lambda: group_of([(session, subscription)]))
        for topic, datagram in (("rest", b"1"), ("rest", b"2"), ("urgent", b"3"), ("rest", b"4")):
            outlet.publish_many(SendMany(groups[topic], publication(topic), datagram))
        outlet.control(SendControl(there, b"control"))
        outlet.publish_many(SendMany(groups["rest"], publication("rest"), b"5"))
        assert gateway.counters.undelivered == {"dropped_by_buffer: output port": 2}
        assert gateway.counters.delivered == 0
        room.left, came_ns = 100, gateway.now_ns
        await asyncio.sleep(0.05)
        assert [receiver.recv(100) for _ in range(4)] == [b"control", b"3", b"1", b"2"]
        assert room.left == 96
        assert gateway.counters.delivered == 3
        # Those that waited left now, not when they came.
        assert gateway.now_ns == came_ns + 100
        room.left = 0
        outlet.publish_many(SendMany(groups["rest"], publication("rest"), b"6"))
        outlet.close()
        assert gateway.counters.undelivered == {
            "dropped_by_buffer: output port": 2,
            "in_flight: output port": 1,
        }
        assert gateway.counters.delivered == 3

    asyncio.run(scenario())


def test_what_waits_for_a_full_socket_takes_the_class_and_the_mark_of_a_new_plan(
    receivers: list[socket.socket], sender: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, receiver = Room(monkeypatch), receivers[0]
    there = receiver.getsockname()

    async def scenario() -> None:
        treated = {"c0": Treatment(0), "c1": Treatment(1), "c2": Treatment(2)}
        gateway = core(policy=ByClient(treated=treated))
        outlet = by_socket(gateway, sender, marks_classes=True)
        members = [member(gateway, number, there, qos=number % 2) for number in range(3)]
        for session, subscription in members:
            if subscription.qos:
                delivery = Delivery(1, publication(), subscription, 1, False, 0)
                outlet.publish(SendPublish(session, delivery, session.client_id.encode()))
            else:
                group = group_of([(session, subscription)])
                outlet.publish_many(SendMany(group, publication(), session.client_id.encode()))
        outlet.control(SendControl(there, b"control"))
        treated |= {"c0": Treatment(5), "c1": Treatment(0)}
        outlet.rerank()
        room.left = 100
        await asyncio.sleep(0.05)
        assert [_mark(receiver) for _ in range(4)] == [
            (b"control", CONTROL_DSCP << 2),
            (b"c1", CLASS_DSCP[0] << 2),
            (b"c2", CLASS_DSCP[2] << 2),
            (b"c0", CLASS_DSCP[5] << 2),
        ]

    asyncio.run(scenario())


def test_what_waits_for_a_full_socket_is_the_newest_and_has_not_expired(
    receivers: list[socket.socket], sender: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, there = Room(monkeypatch), receivers[0].getsockname()
    came: list[tuple[object, Outcome]] = []

    async def scenario() -> None:
        plane = SocketPlane(sender, lambda outcomes: came.extend(one[:2] for one in outcomes), most_waiting=5)

        def send(*packets: tuple[str, str | None, int]) -> None:
            plane.send(
                [
                    OutgoingPacket(
                        FlowKey(*there),
                        name.encode(),
                        False,
                        name,
                        Treatment(1),
                        WaitingTerms(key, time.time_ns() + 1_000_000_000 * seconds),
                    )
                    for name, key, seconds in packets
                ]
            )

        send(("a1", "a", 100), ("late", None, 0), ("b1", "b", 100))
        send(("a2", "a", 100), ("b2", "b", 0), ("a3", "a", 100), ("c1", "c", 100))
        assert came == [
            ("a1", Outcome.superseded),
            ("b1", Outcome.superseded),
            ("a2", Outcome.superseded),
        ]
        plane.reclassify(lambda token: Treatment(0) if token == "c1" else None)
        send(("d1", "d", 100), ("e1", "e", 100), ("d2", "d", 100))
        room.left = 100
        await asyncio.sleep(0.05)
        assert [receivers[0].recv(100) for _ in range(3)] == [b"c1", b"a3", b"d2"]
        assert room.left == 97
        found: dict[Outcome, list[object]] = defaultdict(list)
        for name, outcome in came[3:]:
            found[outcome].append(name)
        assert found == {
            Outcome.delivered: ["c1", "a3", "d2"],
            Outcome.expired: ["late", "b2"],
            Outcome.superseded: ["d1"],
            Outcome.dropped_by_buffer: ["e1"],
        }
        room.left = 0
        send(("f1", "f", 100), ("f2", "f", 100))
        plane.close()
        assert came[-2:] == [("f1", Outcome.superseded), ("f2", Outcome.in_flight)]

    asyncio.run(scenario())


class FakePlane:
    """A data plane that keeps packets until told what becomes of them."""

    def __init__(self, outlet: Sender) -> None:
        self.outlet = outlet
        self.packets: list[Any] = []

    def send(self, packets: Any) -> None:
        self.packets += packets

    def reclassify(self, treatment_of: Any) -> None:
        """Nothing waits here."""

    def decide(self, *outcomes: Outcome) -> None:
        tokens = [packet.token for packet in self.packets if not packet.control]
        self.packets.clear()
        self.outlet.settled([(token, outcome, 5, 7) for token, outcome in zip(tokens, outcomes, strict=True)])


def test_data_plane_gets_flows_and_its_fates_are_counted() -> None:
    gateway = core()
    outlet = Sender(gateway)
    plane = FakePlane(outlet)
    outlet.attach(plane)
    group = group_of([member(gateway, number, ("10.0.0.1", 100 + number)) for number in range(3)])
    outlet.control(SendControl(("10.0.0.1", 100), b"control"))
    outlet.publish_many(SendMany(group, publication(), b"x"))
    outlet.flush()
    assert [(packet.key.udp_port, packet.control) for packet in plane.packets] == [
        (100, True),
        (100, False),
        (101, False),
        (102, False),
    ]
    plane.decide(Outcome.delivered, Outcome.lost_on_link, Outcome.dropped_by_buffer)
    assert gateway.counters.delivered == gateway.counters.sent == 1
    assert gateway.counters.undelivered == {
        "lost_on_link: output port": 1,
        "dropped_by_buffer: output port": 1,
    }
    outlet.publish_many(SendMany(group, publication(), b"x", [0, 2]))
    outlet.flush()
    assert [packet.key.udp_port for packet in plane.packets] == [100, 102]


def test_the_trace_says_by_which_flow_a_copy_was_sent_though_its_client_has_left(tmp_path: Path) -> None:
    treated = {"c0": Treatment(0, flow_id=4), "c1": Treatment(0, flow_id=5)}
    trace = LiveTrace(tmp_path)
    settings = GatewaySettings(policy=ByClient(treated=treated))
    gateway = MqttSnCore(settings, now_ns=10, observer=trace)
    outlet = Sender(gateway)
    plane = FakePlane(outlet)
    outlet.attach(plane)
    members = [member(gateway, number, ("10.0.0.1", 100 + number)) for number in range(2)]
    outlet.publish_many(SendMany(group_of(members), publication(), b"x"))
    delivery = Delivery(1, publication(), members[0][1], 0, False, 7)
    outlet.publish(SendPublish(members[0][0], delivery, b"x"))
    outlet.flush()
    treated.clear()
    gateway.planned_anew(None)
    trace.write()
    plane.decide(Outcome.delivered, Outcome.dropped_by_buffer, Outcome.delivered)
    trace.finish(gateway)
    rows = Trace.open(tmp_path).table("deliveries").to_pylist()
    assert [(row["flow_id"], row["priority_class"], row["outcome"]) for row in rows] == [
        (4, 0, "delivered"),
        (5, 0, "dropped_by_buffer"),
        (4, 0, "delivered"),
    ]


def test_qos_1_dropped_by_a_full_buffer_is_sent_again() -> None:
    gateway = core(retry_seconds=1.0)
    outlet = Sender(gateway)
    plane = FakePlane(outlet)
    outlet.attach(plane)
    session, subscription = member(gateway, 0, ("10.0.0.1", 100), qos=1)
    known = session.topics.assign("a")
    assert known is not None
    gateway.confirm_topic(session, known)

    def pass_on() -> int:
        for action in gateway.take_actions():
            if isinstance(action, SendPublish):
                outlet.publish(action)
        outlet.flush()
        return len(plane.packets)

    for _ in range(2):
        deliver(gateway, (session, subscription, publication()), 1)
    assert pass_on() == 2
    plane.decide(Outcome.delivered, Outcome.dropped_by_buffer)
    assert len(session.in_flight) == 2
    gateway.advance(1_100_000_000)
    assert pass_on() == 2
    assert gateway.counters.undelivered == {}


def test_addresses_of_both_families() -> None:
    assert len(socket_address(socket.AF_INET, "127.0.0.1", 1)) == 16
    assert socket_address(socket.AF_INET6, "10.0.0.1", 1)[8:24] == bytes(10) + b"\xff\xff\x0a\0\0\1"
    assert AddressList(socket.AF_INET, []).send(0, b"x") == (0, 0)
