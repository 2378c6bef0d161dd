"""The copies of one event leave in the order of their classes, whoever subscribed first and at whatever QoS."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.gateway.virtual import Client, VirtualGateway
from tests.network.virtual_time import VirtualTime

from triagemq.channel.orders import (
    Orders,
    UnseenTopics,
    client_id_of,
    reranked,
    subscriber_of,
)
from triagemq.datagrams import Datagrams
from triagemq.gateway.core import GatewayCore, Policy
from triagemq.gateway.core.delivery import rerank
from triagemq.gateway.core.sessions import Group
from triagemq.gateway.policy import ManagedPolicy, Rules
from triagemq.gateway.sockets import Sender
from triagemq.mqttsn import PubAck, Publish, RegAck, Register, ReturnCode
from triagemq.network import EmbeddedDataPlane
from triagemq.plan.dataplane import FlowKey, SetFlow, SetPort, Treatment

PORT = SetPort("radio", 1e6, float("inf"), 8)
CLASSES = [6, 3, 0, 6, 1, 0]
QOS = [0, 0, 0, 1, 0, 1]


def orders(classes: list[int]) -> Orders:
    flows = [
        SetFlow(client_id_of(f"s{number}", 0), "radio", number, one, 0.0)
        for number, one in enumerate(classes)
    ]
    return Orders(ports={"radio": PORT}, flows={flow.key: flow for flow in flows})


class Exchange:
    """Subscriber i is in class CLASSES[i] and takes QOS[i]; `heard` is who heard a message, in order, and when."""

    def __init__(self, **settings: Any) -> None:
        self.rules = Rules(orders=orders(CLASSES))
        self.heard: list[tuple[int, int]] = []
        self.gateway = VirtualGateway(
            identify=subscriber_of, policy=ManagedPolicy(rules=self.rules), **settings
        )
        self.clients = list(self.gateway.clients(len(CLASSES)))

    def note(self, number: int, at_ns: int = 0) -> None:
        self.heard.append((number, at_ns))

    def follow(self, after: Orders) -> None:
        before, self.rules.orders = self.rules.orders, after
        self.gateway.core.planned_anew(reranked(before, after, after.since(before)))

    @property
    def classes(self) -> list[int]:
        return [self.rules.orders.flows[f"s{number}~0"].priority_class for number, _ in self.heard]


class _Listening:
    """Puts down when a client hears a message."""

    def __init__(self, exchange: Exchange, number: int, client: Client) -> None:
        self._exchange, self._number, self._hear = exchange, number, client.hear

    def __call__(self, datagram: bytes) -> None:
        self._hear(datagram)
        self._exchange.note(self._number)


@pytest.fixture
def direct() -> Exchange:
    """Without a data plane, as in front of switches: what the gateway sends is in that order on the wire."""
    exchange = Exchange()
    for number, client in enumerate(exchange.clients):
        client.connect(f"s{number}~0")
        client.subscribe("smoke", QOS[number])
    for number, client in enumerate(exchange.clients):
        client.hear = _Listening(exchange, number, client)  # type: ignore[method-assign]
    return exchange


def test_class_0_is_sent_to_first_whoever_subscribed_first(direct: Exchange) -> None:
    direct.gateway.publish("smoke", b"1", qos=1)
    assert [number for number, _ in direct.heard] == [2, 5, 4, 1, 0, 3]


def test_classes_share_a_system_call_where_nobody_has_to_be_sent_to_alone(direct: Exchange) -> None:
    direct.gateway.publish("smoke", b"1", qos=0)
    (route,) = direct.gateway.core.routes.values()
    (group,) = route.recipients
    assert isinstance(group, Group)
    assert [session.client_id for session, _ in group.members] == [f"s{i}~0" for i in (2, 5, 4, 1, 0, 3)]


def test_a_plan_that_changes_classes_changes_the_order_from_the_next_message_on(direct: Exchange) -> None:
    direct.gateway.publish("smoke", b"1", qos=1)
    direct.heard.clear()
    direct.follow(orders([0, 1, 2, 3, 4, 5]))
    direct.gateway.publish("smoke", b"2", qos=1)
    assert direct.classes == [0, 1, 2, 3, 4, 5]
    # With fewer classes than before those without an order are in another one, too.
    direct.heard.clear()
    fewer = Orders(ports={"radio": SetPort("radio", 1e6, 10, 2)}, flows=orders([1, 0, 1, 0, 1, 0]).flows)
    direct.follow(fewer)
    direct.gateway.publish("smoke", b"3", qos=1)
    assert direct.classes == [0, 0, 0, 1, 1, 1]


def test_a_plan_that_changes_drop_rates_alone_leaves_the_routes() -> None:
    before = orders(CLASSES)
    dropping = {name: replace(one, flow_id=0, drop_rate=0.5) for name, one in before.flows.items()}
    after = Orders(ports=before.ports, flows=dropping)
    assert reranked(before, after, after.since(before)) == set()


@pytest.mark.parametrize("wakes_late_ns", [0, 3_000_000])
def test_class_0_never_waits_for_a_copy_of_its_own_event(wakes_late_ns: int) -> None:
    """Through the embedded plane, its port idle: each class waits for those above it, and no other."""
    time = VirtualTime(wakes_late_ns)
    heard: list[tuple[int, int]] = []

    def hear(datagrams: Datagrams, *classes: Any) -> None:
        for (_, udp_port), datagram in datagrams:
            number = udp_port - 1000
            exchange.clients[number].hear(datagram)
            if isinstance(exchange.clients[number].received[-1], Publish):
                heard.append((CLASSES[number], time.now_ns))

    def outlet(core: GatewayCore) -> Sender:
        nonlocal plane
        made = Sender(core)
        plane = EmbeddedDataPlane(hear, made.settled, clock=time.clock, alarm=time.alarm, wake_ups_apart_ns=0)
        made.attach(plane)
        return made

    plane: Any = None
    exchange = Exchange(outlet=outlet)
    flows = [
        SetFlow(FlowKey(*client.address), "radio", number, CLASSES[number], 0.0)
        for number, client in enumerate(exchange.clients)
    ]
    for number, client in enumerate(exchange.clients):
        client.connect(f"s{number}~0")
        client.subscribe("smoke")
    plane.apply([PORT, *flows])
    exchange.gateway.publish("smoke", bytes(118))
    begun_ns = time.now_ns
    time.run_until_quiet()
    assert [level for level, _ in heard] == sorted(CLASSES)
    # 125 bytes of datagram and 42 of headers.
    assert heard[0][1] - begun_ns == 167 * 8_000 + wakes_late_ns
    assert heard[-1][1] - begun_ns <= len(CLASSES) * (167 * 8_000 + wakes_late_ns)


class Behind:
    """One subscriber behind a slow port, in virtual time."""

    def __init__(self, after: Orders, qos: int, *topics: str) -> None:
        self.time = VirtualTime()
        self.rules = Rules(orders=after)
        self.plane: Any = None
        self.gateway = VirtualGateway(
            identify=subscriber_of,
            policy=ManagedPolicy(rules=self.rules),
            outlet=self._outlet,
            retry_seconds=10,
        )
        self.client = self.gateway.client(1000)
        self.key = FlowKey(*self.client.address)
        self.client.connect("s~0")
        for topic in topics:
            self.client.subscribe(topic, qos)
        self.plane.apply([SetPort("radio", 8_000, 1_000, 8), SetFlow(self.key, "radio", 0, 7, 0.0)])

    def _outlet(self, core: GatewayCore) -> Sender:
        self.made = Sender(core)
        self.plane = EmbeddedDataPlane(
            self._hear, self.made.settled, clock=self.time.clock, alarm=self.time.alarm, wake_ups_apart_ns=0
        )
        self.made.attach(self.plane)
        return self.made

    def _hear(self, datagrams: Datagrams, *classes: Any) -> None:
        for _, datagram in datagrams:
            self.client.hear(datagram)

    def follow(self, after: Orders) -> None:
        self.rules.orders = after
        for session in self.gateway.core.sessions.values():
            rerank(self.gateway.core, session)
        self.made.rerank()

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.1)):
            self.time.run_until(self.time.now_ns + 100_000_000)
            self.gateway.wait(0.1)


def filtered(**classes: int) -> Orders:
    """Orders that know filters and no topics."""
    unseen = {topic: UnseenTopics(level, 1.0) for topic, level in classes.items()}
    return Orders(ports={"radio": PORT}, filters={"s": unseen})


@pytest.mark.parametrize("qos", [0, 1])
def test_what_waits_is_put_where_a_new_plan_wants_it(qos: int) -> None:
    behind = Behind(filtered(bulk=3, alarm=3), qos, "bulk", "alarm")
    for number in range(12):
        behind.gateway.publish("bulk", b"b%d" % number, qos)
    behind.gateway.publish("alarm", b"alarm", qos)
    behind.follow(filtered(bulk=3, alarm=0))
    behind.pass_time(10)
    heard = behind.client.payloads()
    # One may be in transmission already.
    assert heard.index(b"alarm") <= 1
    assert len(heard) == 13


def test_what_waits_for_a_topic_id_goes_in_the_class_of_a_new_plan() -> None:
    classes = {"smoke": 0, "camera": 1}

    class Changing(Policy):
        def treatment(self, client_id: str, topic: str) -> Treatment:
            return Treatment(classes[topic])

    gateway = VirtualGateway(policy=Changing(), in_flight_messages=1)
    client = gateway.client().connect()
    client.subscribe("+", 1)
    gateway.publish("camera", b"camera", 1)
    client.answers = False
    (first,) = client.take(Publish)
    for number in range(2):
        gateway.publish("camera", b"camera %d" % number, 1)
    gateway.publish("smoke", b"smoke", 1)
    (register,) = [one for one in client.take(Register) if one.topic_name == "smoke"]
    classes["smoke"] = 5
    rerank(gateway.core, gateway.core.sessions["c"])
    client.send(RegAck(register.topic_id, register.message_id, ReturnCode.ACCEPTED))
    heard = []
    while answered := client.take(Publish):
        heard += [message.payload for message in answered]
        for message in answered:
            client.send(PubAck(message.topic_id, message.message_id, ReturnCode.ACCEPTED))
    assert (first.payload, heard) == (b"camera", [b"camera 0", b"camera 1", b"smoke"])


@pytest.mark.parametrize("bandwidth_bps", [8_000, 2_000])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_waits_in_a_port_is_not_sent_a_second_time(qos: int, bandwidth_bps: int) -> None:
    behind = Behind(filtered(bulk=3), qos, "bulk")
    behind.plane.apply([SetPort("radio", bandwidth_bps, 1_000, 8)])
    for number in range(30):
        # At the lower bandwidth a window takes 34 s, and a client has 10 s to answer.
        behind.gateway.publish("bulk", b"%03d" % number + bytes(500), qos)
    behind.pass_time(320_000 / bandwidth_bps)
    heard = [payload[:3] for payload in behind.client.payloads()]
    assert heard == [b"%03d" % number for number in range(30)]


def test_a_full_window_of_a_low_class_holds_no_better_one_back() -> None:
    behind = Behind(filtered(bulk=7, alarm=0), 1, "bulk", "alarm")
    for _ in range(100):
        behind.gateway.publish("bulk", bytes(500), 1)
    behind.gateway.publish("alarm", b"alarm", 1)
    behind.pass_time(2)
    assert b"alarm" in behind.client.payloads()
