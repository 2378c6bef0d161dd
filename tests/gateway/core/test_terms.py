"""Terms of subscriptions in the gateway: thinned by time, the newest only, and nothing after its time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.virtual import Client, VirtualGateway
from tests.network.virtual_time import VirtualTime

from triagemq.datagrams import Datagrams
from triagemq.gateway.core import GatewayCore, Policy
from triagemq.gateway.core.delivery import rerank
from triagemq.gateway.core.sessions import Group
from triagemq.gateway.core.thinning import Thinning
from triagemq.gateway.sockets import Sender
from triagemq.mqtt.packets import CONTENT_TYPE, CORRELATION_DATA, RESPONSE_TOPIC, USER_PROPERTY
from triagemq.mqttsn import Disconnect, PingReq, PubAck, Publish, Register, ReturnCode
from triagemq.mqttsn.properties import EventProperties, split_properties, with_properties
from triagemq.mqttsn.timestamps import stamp_payload
from triagemq.network import EmbeddedDataPlane
from triagemq.plan.dataplane import CopyTerms, FlowKey, SetFlow, SetPort, Treatment
from triagemq.trace import Outcome

every_qos = pytest.mark.parametrize("qos", [0, 1, 2])


@dataclass(frozen=True)
class ByTerms(Policy):
    """The terms of each client; of the others none. All have the same drop rate."""

    terms: dict[str, CopyTerms] = field(default_factory=dict)
    drop_rate: float = 0.0

    def treatment(self, client_id: str, topic: str) -> Treatment:
        return Treatment(0, self.drop_rate, terms=self.terms.get(client_id))


def gateway_with(
    terms: CopyTerms, drop_rate: float = 0.0, *, store: Path | None = None, **settings: Any
) -> VirtualGateway:
    return VirtualGateway(policy=ByTerms(terms={"c": terms}, drop_rate=drop_rate), store=store, **settings)


def outcomes(gateway: VirtualGateway, client_id: str = "c") -> Mapping[Outcome, Sequence[bytes]]:
    found: dict[Outcome, list[bytes]] = {}
    for name, payload, outcome in gateway.outcomes:
        if name == client_id:
            found.setdefault(outcome, []).append(payload)
    return found


def replan(gateway: VirtualGateway, **terms: CopyTerms) -> None:
    policy = gateway.core.settings.policy
    assert isinstance(policy, ByTerms)
    policy.terms.clear()
    policy.terms.update(terms)
    gateway.core.planned_anew(None)
    for session in gateway.core.sessions.values():
        rerank(gateway.core, session)
    gateway.wait(0)


def stored_deliveries(gateway: VirtualGateway) -> int:
    assert gateway._store is not None
    return len(gateway._store.load()["deliveries"])


# Thinned by time.


class Listener:
    """Publishes 50 a second, and notes when a client hears what."""

    def __init__(self, gateway: VirtualGateway, client: Client) -> None:
        self.gateway, self.client = gateway, client
        self.heard: list[tuple[float, int]] = []

    def play(self, seconds: float, qos: int, topic: str = "smoke") -> None:
        for number in range(round(50 * seconds)):
            self.gateway.publish(topic, b"%d" % number, qos)
            self.note()
            for _ in range(4):
                self.gateway.wait(0.005)
                self.note()

    def note(self) -> None:
        now = self.gateway.core.now_ns / 1e9
        self.heard += [(now, int(payload)) for payload in self.client.payloads()]


@every_qos
def test_a_rate_is_kept_evenly_and_by_the_newest(qos: int, tmp_path: Path) -> None:
    gateway = gateway_with(CopyTerms(max_rate_per_second=2), store=tmp_path)
    client = gateway.client().connect()
    client.subscribe("smoke", qos)
    listener = Listener(gateway, client)
    listener.play(20.2, qos)
    assert len(listener.heard) == 41
    times, numbers = zip(*listener.heard, strict=True)
    assert all(0.495 <= later - earlier <= 0.505 for earlier, later in pairwise(times))
    # Published every 20 ms: what is sent at the end of an interval is the last of it.
    assert all(abs(number - 25 * place) <= 1 for place, number in enumerate(numbers))
    found = outcomes(gateway)
    assert len(found[Outcome.delivered]) == 41
    assert len(found[Outcome.thinned]) == 1010 - 41 - 1
    assert stored_deliveries(gateway) == (1 if qos else 0)
    gateway.wait(1)
    listener.note()
    assert listener.heard[-1][1] == 1009
    assert stored_deliveries(gateway) == 0


def test_each_topic_and_client_has_a_rate_of_its_own_and_a_slow_topic_is_not_thinned() -> None:
    gateway = gateway_with(CopyTerms(max_rate_per_second=2))
    limited, other = gateway.client(1000).connect("c"), gateway.client(1001).connect("d")
    for client in (limited, other):
        client.subscribe("+")
    for _ in range(10):
        for topic in ("a", "b"):
            gateway.publish(topic, b"now")
        gateway.wait(0.1)
    for number in range(5):
        gateway.wait(0.6)
        gateway.publish("slow", b"%d" % number)
    heard = limited.payloads()
    assert heard.count(b"now") == 6
    assert [each for each in heard if each != b"now"] == [b"0", b"1", b"2", b"3", b"4"]
    assert len(other.payloads()) == 25


def test_thinning_comes_before_the_drops_of_the_plan() -> None:
    gateway = gateway_with(CopyTerms(max_rate_per_second=10), 0.5, seed=1)
    client = gateway.client().connect()
    client.subscribe("smoke")
    listener = Listener(gateway, client)
    listener.play(100, 0)
    found = outcomes(gateway)
    assert len(found[Outcome.thinned]) == 4 * 1000 - 1
    assert abs(len(found[Outcome.dropped_by_policy]) - 500) < 60
    assert len(listener.heard) == 1001 - len(found[Outcome.dropped_by_policy])


def test_what_waits_for_the_end_of_an_interval_survives_a_kill(tmp_path: Path) -> None:
    gateway = gateway_with(CopyTerms(max_rate_per_second=0.1), store=tmp_path)
    client = gateway.client().connect()
    client.subscribe("smoke", 1)
    for number in range(4):
        gateway.publish("smoke", b"%d" % number, 1)
    assert client.payloads() == [b"0"]
    gateway.kill()
    gateway.wait(1)
    assert client.payloads() == [b"3"]
    assert stored_deliveries(gateway) == 0


def test_what_waits_for_the_end_of_an_interval_goes_as_the_session_does() -> None:
    gateway = gateway_with(CopyTerms(max_rate_per_second=0.1))
    client = gateway.client().connect()
    for topic in ("q0", "q1"):
        client.subscribe(topic, int(topic[1]))
        for number in range(2):
            gateway.publish(topic, b"%s %d" % (topic.encode(), number), 1)
    client.send(Disconnect())
    assert outcomes(gateway)[Outcome.subscriber_gone] == [b"q0 1"]
    client.take(Publish)
    client.send(Disconnect())
    client.connect()
    assert client.payloads() == [b"q1 1"]
    gateway.publish("q1", b"q1 2", 1)
    gateway.publish("q1", b"q1 3", 1)
    client.connect(clean=True)
    assert outcomes(gateway)[Outcome.subscriber_gone] == [b"q0 1", b"q1 3"]
    gateway.wait(100)
    assert client.payloads() == [b"q1 2"]


def test_a_new_rate_counts_from_the_last_event_that_was_sent() -> None:
    gateway = gateway_with(CopyTerms(max_rate_per_second=0.01))
    client = gateway.client().connect()
    client.subscribe("smoke")
    for number in range(3):
        gateway.publish("smoke", b"%d" % number)
    gateway.wait(5)
    assert client.payloads() == [b"0"]
    replan(gateway, c=CopyTerms(max_rate_per_second=0.1))
    gateway.wait(4.9)
    assert client.payloads() == []
    gateway.wait(0.2)
    assert client.payloads() == [b"2"]
    gateway.publish("smoke", b"3")
    replan(gateway)
    assert client.payloads() == [b"3"]
    gateway.publish("smoke", b"4")
    assert client.payloads() == [b"4"]


def test_a_client_has_so_many_intervals_at_a_time_and_no_more() -> None:
    calls: list[tuple[int, object]] = []
    thinning: Thinning[bytes] = Thinning(
        lambda due_ns, what: calls.append((due_ns, what)), lambda timer: None, lambda item: 0, most=2
    )
    assert [thinning.passes(topic, 5, 0) for topic in "abcabc"] == [True, True, True, False, False, True]
    assert (len(thinning), len(calls)) == (2, 2)


def test_retained_messages_are_not_thinned() -> None:
    gateway = gateway_with(CopyTerms(max_rate_per_second=0.1, newest_only=True))
    gateway.publish("a", b"kept", retain=True)
    client = gateway.client().connect()
    client.subscribe("a")
    gateway.publish("a", b"live")
    assert client.payloads() == [b"kept", b"live"]


# The newest only.


@every_qos
def test_a_sleeping_client_gets_the_newest_of_each_topic_in_the_places_of_the_first(
    qos: int, tmp_path: Path
) -> None:
    gateway = gateway_with(CopyTerms(newest_only=True), store=tmp_path)
    client = gateway.client().connect()
    client.subscribe("+", qos)
    for topic in ("a", "b"):
        gateway.publish(topic, b"first", qos)
    client.take(Publish)
    client.send(Disconnect(60))
    for topic, payload in (("a", b"a1"), ("b", b"b1"), ("a", b"a2"), ("c", b"c1"), ("a", b"a3")):
        gateway.publish(topic, payload, qos)
    assert stored_deliveries(gateway) == 3
    gateway.kill()
    replan(gateway, c=CopyTerms(newest_only=True))
    gateway.publish("b", b"b2", qos)
    client.send(PingReq("c"))
    assert client.payloads() == [b"a3", b"b2", b"c1"]
    assert outcomes(gateway)[Outcome.superseded] == [b"a1", b"a2", b"b1"]
    gateway.wait(1)
    assert stored_deliveries(gateway) == 0


def test_what_waits_for_the_answer_to_a_register_is_superseded() -> None:
    gateway = gateway_with(CopyTerms(newest_only=True))
    client = gateway.client().connect()
    client.subscribe("+")
    client.ignores.add("smoke")
    for number in range(3):
        gateway.publish("smoke", b"%d" % number)
    client.ignores.clear()
    gateway.wait(1)
    assert client.take(Register)
    assert client.payloads() == [b"2"]
    assert outcomes(gateway)[Outcome.superseded] == [b"0", b"1"]


def test_what_was_sent_and_not_answered_is_not_superseded() -> None:
    gateway = gateway_with(CopyTerms(newest_only=True), in_flight_messages=1)
    client = gateway.client().connect()
    client.subscribe("smoke", 1)
    client.ignores.add(b"0")
    for number in range(4):
        gateway.publish("smoke", b"%d" % number, 1)
    (first,) = client.take(Publish)
    client.send(PubAck(first.topic_id, first.message_id, ReturnCode.ACCEPTED))
    assert client.payloads() == [b"3"]
    assert outcomes(gateway)[Outcome.superseded] == [b"1", b"2"]
    assert gateway.core.counters.undelivered == {"superseded: newest_only": 2}


# Nothing after its time.


@every_qos
@pytest.mark.parametrize("said_by", ["subscription", "publisher"])
def test_a_sleeping_client_gets_nothing_after_its_time(qos: int, said_by: str, tmp_path: Path) -> None:
    terms = CopyTerms(expires_seconds=10 if said_by == "subscription" else float("inf"))
    expiry = 10 if said_by == "publisher" else None
    gateway = gateway_with(terms, store=tmp_path)
    client = gateway.client().connect()
    client.subscribe("smoke", qos)
    client.send(Disconnect(3600))
    gateway.publish("smoke", b"old", qos, expiry=expiry)
    gateway.wait(5)
    gateway.kill()
    gateway.publish("smoke", b"new", qos, expiry=expiry)
    gateway.wait(5.1)
    client.send(PingReq("c"))
    assert client.payloads() == [b"new"]
    assert outcomes(gateway)[Outcome.expired] == [b"old"]
    assert stored_deliveries(gateway) == 0


def test_the_shorter_time_of_publisher_and_subscription_counts_from_the_publication() -> None:
    gateway = gateway_with(CopyTerms(expires_seconds=10), read_timestamps=True)
    client = gateway.client().connect()
    client.subscribe("smoke", 1)
    client.send(Disconnect(3600))
    now_ns = gateway.core.now_ns
    for age, expiry in ((8, 100), (1, 5), (1, 100), (-100, 100)):
        payload = stamp_payload(b"%d %d" % (age, expiry), now_ns - age * 1_000_000_000)
        gateway.publish("smoke", payload, 1, expiry=expiry)
    gateway.wait(6)
    client.send(PingReq("c"))
    assert [payload[12:] for payload in client.payloads()] == [b"1 100", b"-100 100"]


@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_not_answered_is_not_sent_again_after_its_time(qos: int, tmp_path: Path) -> None:
    gateway = gateway_with(CopyTerms(expires_seconds=15), store=tmp_path)
    client = gateway.client().connect()
    client.subscribe("smoke", qos)
    gateway.publish("smoke", b"0", qos)
    client.take(Publish)
    client.answers = False
    gateway.publish("smoke", b"1", qos)
    for _ in range(4):
        gateway.wait(9)
        client.send(PingReq())
    assert [message.dup for message in client.take(Publish)] == [False, True]
    assert outcomes(gateway)[Outcome.expired] == [b"1"]
    assert stored_deliveries(gateway) == 0


def test_a_buffer_full_of_what_has_expired_has_room() -> None:
    gateway = gateway_with(CopyTerms(expires_seconds=10), buffer_messages=3)
    client = gateway.client().connect()
    client.subscribe("smoke", 1)
    client.send(Disconnect())
    for number in range(5):
        gateway.publish("smoke", b"old %d" % number, 1)
    gateway.wait(11)
    for number in range(5):
        gateway.publish("smoke", b"new %d" % number, 1)
    client.connect()
    assert client.payloads() == [b"new 0", b"new 1", b"new 2"]
    assert outcomes(gateway)[Outcome.expired] == [b"old 0", b"old 1", b"old 2"]
    assert outcomes(gateway)[Outcome.dropped_by_buffer] == [b"old 3", b"old 4", b"new 3", b"new 4"]


# What MQTT 5 says of a message.


@every_qos
def test_subscriptions_that_ask_for_them_get_properties_also_after_a_restart(
    qos: int, tmp_path: Path
) -> None:
    gateway = gateway_with(CopyTerms(properties=True), store=tmp_path)
    asking, other = gateway.client(1000).connect("c"), gateway.client(1001).connect("d")
    for client in (asking, other):
        client.subscribe("smoke", qos)
    said = [
        (CONTENT_TYPE, b"text/plain"),
        (RESPONSE_TOPIC, b"answers"),
        (CORRELATION_DATA, b"\xff\0"),
        (USER_PROPERTY, ("unit", "\u00b0C")),
        (USER_PROPERTY, ("triage-publisher", "sensor")),
    ]
    asking.send(Disconnect(3600))
    gateway.publish("smoke", b"42", qos, properties=said)
    gateway.publish("smoke", b"43", qos)
    gateway.publish("smoke", b"44", qos, expiry=5)
    gateway.publish("smoke", bytes(65_200), qos, properties=[(CONTENT_TYPE, bytes(60))])
    gateway.kill()
    asking.send(PingReq("c"))
    first, *rest = asking.payloads()
    found = EventProperties("text/plain", "answers", b"\xff\0", (("unit", "\u00b0C"),))
    assert split_properties(first) == (found, b"42")
    assert rest == [b"43", b"44", bytes(65_200)]
    assert other.payloads() == [b"42", b"43", b"44", bytes(65_200)]


@given(
    st.builds(
        EventProperties,
        st.text(max_size=9),
        st.text(max_size=9),
        st.binary(max_size=9),
        st.lists(st.tuples(st.text(max_size=9), st.text(max_size=9)), max_size=3).map(tuple),
    ),
    st.binary(max_size=20),
    st.integers(0, 80),
)
def test_properties_survive_in_front_of_a_payload_and_no_octets_are_an_error(
    properties: EventProperties, payload: bytes, cut: int
) -> None:
    octets = with_properties(payload, properties)
    assert split_properties(octets) == (properties, payload)
    split_properties(octets[:cut])
    split_properties(octets[:6] + octets[cut:])


# With others, and at a port.


def test_clients_without_terms_still_share_a_datagram() -> None:
    gateway = gateway_with(CopyTerms(newest_only=True))
    for number, client in enumerate(gateway.clients(4)):
        client.connect("c" if number == 1 else f"d{number}")
        client.subscribe("smoke")
    gateway.publish("smoke", b"1")
    (route,) = gateway.core.routes.values()
    groups = [one for one in route.recipients if isinstance(one, Group)]
    assert [[session.client_id for session, _ in group.members] for group in groups] == [["d0", "d2", "d3"]]
    replan(gateway)
    gateway.publish("smoke", b"2")
    (route,) = gateway.core.routes.values()
    assert len(route.recipients) == 1


class Behind:
    """Clients behind a port of 8 kbit/s, all at one time."""

    def __init__(self, terms: CopyTerms, qos: int, **settings: Any) -> None:
        self.time = VirtualTime()
        self.plane: Any = None
        self.gateway = VirtualGateway(
            policy=ByTerms(terms={"c": terms}), outlet=self._outlet, now_ns=0, **settings
        )
        self.clients = {name: self.gateway.client(1000 + n) for n, name in enumerate(("c", "d"))}
        self.heard: list[tuple[int, str, bytes]] = []
        for name, client in self.clients.items():
            client.connect(name)
            client.subscribe("smoke", qos)
        flows = [
            SetFlow(FlowKey(*client.address), "radio", n, 0, 0.0)
            for n, client in enumerate(self.clients.values())
        ]
        self.plane.apply([SetPort("radio", 8_000, 1_000, 8), *flows])

    def _outlet(self, core: GatewayCore) -> Sender:
        made = Sender(core)
        self.plane = EmbeddedDataPlane(
            self._hear, made.settled, clock=self.time.clock, alarm=self.time.alarm, wake_ups_apart_ns=0
        )
        made.attach(self.plane)
        return made

    def _hear(self, datagrams: Datagrams, *classes: Any) -> None:
        for (_, udp_port), datagram in datagrams:
            name = "cd"[udp_port - 1000]
            self.clients[name].hear(datagram)
            for message in self.clients[name].take(Publish):
                self.heard.append((self.time.now_ns, name, message.payload.rstrip(b"\0")))

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.05)):
            self.time.run_until(self.time.now_ns + 50_000_000)
            self.gateway.wait(0.05)

    def publish(self, number: int, qos: int, expiry: int | None = None) -> None:
        # 200 ms at the port for each client.
        self.gateway.publish("smoke", (b"%d" % number).ljust(151, b"\0"), qos, expiry=expiry)


@every_qos
def test_at_a_port_no_event_is_delivered_after_its_successor_and_a_transmission(qos: int) -> None:
    behind = Behind(CopyTerms(newest_only=True), qos)
    behind.pass_time(1)
    begun_ns = behind.time.now_ns
    for number in range(40):
        behind.publish(number, qos)
        behind.pass_time(0.1)
    behind.pass_time(30)
    heard = [(at_ns - begun_ns, int(payload)) for at_ns, name, payload in behind.heard if name == "c"]
    numbers = [number for _, number in heard]
    assert numbers == sorted(numbers)
    assert numbers[-1] == 39
    assert len(numbers) >= 4
    assert all(at_ns <= (number + 1) * 100_000_000 + 200_000_000 for at_ns, number in heard[:-1])
    found = outcomes(behind.gateway)
    assert len(found[Outcome.delivered]) + len(found[Outcome.superseded]) == 40
    # The other client's are not touched.
    assert sum(name == "d" for _, name, _ in behind.heard) == 40
    assert not behind.gateway.core.sessions["c"].in_flight


@every_qos
@pytest.mark.parametrize("said_by", ["subscription", "publisher"])
def test_at_a_port_nothing_is_delivered_after_its_time_and_a_transmission(qos: int, said_by: str) -> None:
    behind = Behind(CopyTerms(expires_seconds=1 if said_by == "subscription" else float("inf")), qos)
    behind.pass_time(1)
    begun_ns = behind.time.now_ns
    for number in range(40):
        behind.publish(number, qos, 1 if said_by == "publisher" else None)
        behind.pass_time(0.1)
    behind.pass_time(30)
    counted = {"c": 0, "d": 0}
    for at_ns, name, payload in behind.heard:
        age_ns = at_ns - begun_ns - int(payload) * 100_000_000
        counted[name] += 1
        if name == "c" or said_by == "publisher":
            assert age_ns <= 1_200_000_000
    found = outcomes(behind.gateway)
    assert len(found[Outcome.expired]) == 40 - counted["c"] > 5
    assert (counted["d"] < 40) == (said_by == "publisher")
    assert not behind.gateway.core.sessions["c"].in_flight
