"""How datagrams leave: marks, priorities, full sockets, and a data plane in between."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.exchange.planned import ByClient
from tests.full_socket import Room

from triagemq.datagrams import CONTROL_DSCP, AddressList, socket_address
from triagemq.exchange import LiveTrace, Numbers
from triagemq.exchange.gateway import HANDLERS, GatewayCore, GatewaySettings, Policy
from triagemq.exchange.gateway.core import SendControl, SendMany, SendPublish
from triagemq.exchange.gateway.delivery import deliver
from triagemq.exchange.gateway.messages import Delivery, Publication, Subscription
from triagemq.exchange.gateway.sessions import Group, Session, SessionState
from triagemq.exchange.gateway.topics import ClientTopics
from triagemq.exchange.senders import PlaneSender, SocketSender
from triagemq.mqttsn import TopicIdType
from triagemq.plan import Treatment
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
    return GatewayCore(GatewaySettings(**settings), HANDLERS, now_ns=0)


def member(
    gateway: GatewayCore, number: int, address: tuple[str, int], qos: int = 0
) -> tuple[Session, Subscription]:
    session = Session(
        f"c{number}", number, address, gateway.link, ClientTopics(gateway.topics, f"c{number}"), True, 0
    )
    session.state = SessionState.ACTIVE
    gateway.sessions[session.client_id] = session
    subscription = Subscription("a", qos, TopicIdType.NORMAL, number)
    session.subscriptions["a"] = subscription
    return session, subscription


def group_of(members: list[tuple[Session, Subscription]]) -> Group:
    group = Group(TopicIdType.NORMAL, 1)
    group.members = members
    return group


def publication(topic: str = "a") -> Publication:
    return Publication(0, topic, b"x", 0, 0)


def _mark(one: socket.socket) -> tuple[bytes, int]:
    datagram, found, _, _ = one.recvmsg(100, 100)
    return datagram, found[0][2][0]


def test_control_packets_bear_cs6_and_publish_does_not(
    receivers: list[socket.socket], sender: socket.socket
) -> None:
    gateway = core()
    outlet = SocketSender(gateway, sender)
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
    outlet = SocketSender(gateway, sender)
    group = group_of([member(gateway, number, one.getsockname()) for number, one in enumerate(receivers)])
    for payload in (b"one\0", b"two"):
        outlet.publish_many(SendMany(group, publication(), group.datagram(payload)))
    for one in receivers:
        assert one.recv(100)[7:] == b"one\0"
        assert one.recv(100)[7:] == b"two"
    assert gateway.counters.sent == gateway.counters.delivered == 10


def test_address_that_cannot_be_reached_does_not_stop_the_others(
    receivers: list[socket.socket], sender: socket.socket
) -> None:
    gateway = core()
    outlet = SocketSender(gateway, sender)
    addresses = [("255.255.255.255", 9), *(one.getsockname() for one in receivers)]
    group = group_of([member(gateway, number, address) for number, address in enumerate(addresses)])
    outlet.publish_many(SendMany(group, publication(), group.datagram(b"x")))
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
        moments = iter((100, 200, 300))

        def later(settle: Callable[[GatewayCore], None]) -> None:
            gateway.advance(next(moments))
            settle(gateway)

        outlet = SocketSender(gateway, sender, most_waiting=4, later=later)
        session, subscription = member(gateway, 0, there)
        group = group_of([(session, subscription)])
        for topic, datagram in (("rest", b"1"), ("rest", b"2"), ("urgent", b"3"), ("rest", b"4")):
            outlet.publish_many(SendMany(group, publication(topic), datagram))
        outlet.control(SendControl(there, b"control"))
        outlet.publish_many(SendMany(group, publication("rest"), b"5"))
        assert gateway.counters.undelivered == {"dropped_by_buffer: output port": 2}
        assert gateway.counters.delivered == 0
        room.left = 100
        await asyncio.sleep(0.05)
        assert [receiver.recv(100) for _ in range(4)] == [b"control", b"3", b"1", b"2"]
        assert room.left == 96
        assert gateway.counters.delivered == 3
        # Those that waited left now, not when they came.
        assert gateway.now_ns == 200
        room.left = 0
        outlet.publish_many(SendMany(group, publication("rest"), b"6"))
        outlet.close()
        assert gateway.counters.undelivered == {
            "dropped_by_buffer: output port": 2,
            "in_flight: output port": 1,
        }
        assert gateway.counters.delivered == 3

    asyncio.run(scenario())


def test_what_waits_for_a_full_socket_is_put_where_a_new_plan_wants_it(
    receivers: list[socket.socket], sender: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, receiver = Room(monkeypatch), receivers[0]
    classes = {"smoke": 2, "camera": 1}

    class Changing(Policy):
        def treatment(self, client_id: str, topic: str) -> Treatment:
            return Treatment(classes[topic])

    async def scenario() -> None:
        gateway = core(policy=Changing())
        outlet = SocketSender(gateway, sender)
        session, subscription = member(gateway, 0, receiver.getsockname())
        group = group_of([(session, subscription)])
        delivery = Delivery(1, publication("smoke"), subscription, 1, False, 2)
        outlet.publish_many(SendMany(group, publication("camera"), b"camera"))
        outlet.publish(SendPublish(session, delivery, b"smoke at QoS 1"))
        outlet.publish_many(SendMany(group, publication("smoke"), b"smoke"))
        classes["smoke"] = 0
        outlet.rerank()
        room.left = 100
        await asyncio.sleep(0.05)
        assert [receiver.recv(100) for _ in range(3)] == [b"smoke at QoS 1", b"smoke", b"camera"]

    asyncio.run(scenario())


class FakePlane:
    """A data plane that keeps packets until told what becomes of them."""

    def __init__(self, outlet: PlaneSender) -> None:
        self.outlet = outlet
        self.packets: list[Any] = []

    def send(self, packets: Any) -> None:
        self.packets += packets

    def decide(self, *outcomes: Outcome) -> None:
        tokens = [packet.token for packet in self.packets if not packet.control]
        self.packets.clear()
        self.outlet.settled([(token, outcome, 5, 7) for token, outcome in zip(tokens, outcomes, strict=True)])


def test_data_plane_gets_flows_and_its_fates_are_counted() -> None:
    gateway = core()
    outlet = PlaneSender(gateway)
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
    trace = LiveTrace(tmp_path, Numbers())
    settings = GatewaySettings(policy=ByClient(treated=treated))
    gateway = GatewayCore(settings, HANDLERS, now_ns=10, observer=trace)
    outlet = PlaneSender(gateway)
    plane = FakePlane(outlet)
    outlet.attach(plane)
    members = [member(gateway, number, ("10.0.0.1", 100 + number)) for number in range(2)]
    outlet.publish_many(SendMany(group_of(members), publication(), b"x"))
    delivery = Delivery(1, publication(), members[0][1], 0, False, 7)
    outlet.publish(SendPublish(members[0][0], delivery, b"x"))
    outlet.flush()
    treated.clear()
    gateway.planned_anew(None)
    trace.flows_changed()
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
    outlet = PlaneSender(gateway)
    plane = FakePlane(outlet)
    outlet.attach(plane)
    session, subscription = member(gateway, 0, ("10.0.0.1", 100), qos=1)
    known = session.topics.assign("a")
    assert known is not None
    session.confirm_topic(known)

    def pass_on() -> int:
        for action in gateway.take_actions():
            if isinstance(action, SendPublish):
                outlet.publish(action)
        outlet.flush()
        return len(plane.packets)

    for _ in range(2):
        deliver(gateway, session, subscription, publication(), 1)
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
