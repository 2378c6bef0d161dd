"""What waits for a client and what goes to its port: order, windows, segments, and a port without room."""

from __future__ import annotations

from typing import Any

import pytest
from tests.network.virtual_time import VirtualTime

from triagemq.gateway.core.messages import Publication
from triagemq.gateway.front.downlink import HEADER_BYTES, MTU_BYTES, Downlink, Segment, Waiting
from triagemq.gateway.front.session import Copy
from triagemq.mqtt.packets import PING, Message, PacketStream, PacketType, encode_publish, parse_publish
from triagemq.network import EmbeddedDataPlane
from triagemq.plan.dataplane import CopyTerms, FlowKey, OutgoingPacket, SetFlow, SetPort, Treatment
from triagemq.trace import Outcome

BANDWIDTH_BPS = 1e6


class Client:
    """A DownlinkOwner at a port in virtual time; topics are classes."""

    def __init__(self, port: Port, number: int = 0, **options: Any) -> None:
        self.port = port
        self.octets = b""
        self.settled: list[tuple[bytes, Outcome]] = []
        self.retries = 0
        key = FlowKey("10.0.0.1", 1000 + number)
        self.downlink = Downlink(self, key, **options)
        port.plane.apply([SetFlow(key, "radio", number, 7, 0.0)])
        self._packet_id = 0

    def offer(self, topic: str, payload: bytes, qos: int = 0) -> None:
        self._packet_id += qos > 0
        packet = encode_publish(4, topic.encode(), payload, qos=qos, packet_id=self._packet_id)
        message = Message(topic.encode(), payload, qos, False, False, self._packet_id)
        self.downlink.offer(
            Copy(packet, message, topic), Publication(0, topic, payload, 0, 0), self.treatment(topic)
        )
        self.port.flush()

    def packets(self) -> list[bytes]:
        """The payloads, and b"ping" for a control packet."""
        found = []
        for first, body in PacketStream().feed(self.octets):
            is_publish = first >> 4 == PacketType.PUBLISH
            found.append(parse_publish(4, first, body).payload if is_publish else b"ping")
        return found

    @property
    def now_ns(self) -> int:
        return self.port.time.now_ns

    def transmit(self, packet: OutgoingPacket) -> None:
        self.octets += self.downlink.take(packet)

    def send(self, packet: OutgoingPacket) -> None:
        self.port.packets.append(packet)

    def settle(self, waiting: Waiting, outcome: Outcome, enqueued_ns: int, dequeued_ns: int) -> None:
        self.settled.append((waiting.copy.message.payload, outcome))
        if waiting.qos:
            self.downlink.acknowledged(waiting.copy.message.packet_id)

    def treatment(self, topic: str) -> Treatment:
        return Treatment(int(topic[0]))

    def try_again_soon(self) -> None:
        self.retries += 1


class Port:
    def __init__(self, buffer_packets: float = 1000.0) -> None:
        self.time = VirtualTime()
        self.packets: list[OutgoingPacket] = []
        self.plane = EmbeddedDataPlane(
            self._no_datagrams, self._settled, clock=self.time.clock, alarm=self.time.alarm
        )
        self.plane.apply([SetPort("radio", BANDWIDTH_BPS, buffer_packets, 8)])

    def _no_datagrams(self, *_: Any) -> None:
        raise AssertionError

    def _settled(self, outcomes: Any) -> None:
        for token, outcome, *_ in outcomes:
            assert isinstance(token, Segment)
            token.settled(outcome, 0, 0)
        self.flush()

    def flush(self) -> None:
        while self.packets:
            packets, self.packets = self.packets, []
            self.plane.send(packets)

    def run(self, *clients: Client) -> None:
        """Until nothing waits, in the port or for it."""
        while True:
            self.time.run_until_quiet()
            waiting = [client for client in clients if client.retries]
            if not waiting:
                return
            for client in waiting:
                client.retries = 0
                client.downlink.resume()
            self.flush()


def test_a_better_class_and_control_overtake_what_waits() -> None:
    port = Port()
    client = Client(port)
    for number in range(5):
        client.offer("7", b"bulk%d" % number)
    client.offer("0", b"alarm")
    client.downlink.control(PING)
    port.flush()
    port.run(client)
    assert client.packets() == [b"bulk0", b"ping", b"alarm", b"bulk1", b"bulk2", b"bulk3", b"bulk4"]


def test_headers_and_acknowledgements_take_their_time_in_the_port() -> None:
    port = Port()
    client = Client(port)
    client.offer("3", b"x" * 100, qos=1)
    port.run(client)
    packet_bytes = len(encode_publish(4, b"3", b"x" * 100, qos=1, packet_id=1))
    assert port.plane.counters().ports["radio"].queues[3].bytes_out == packet_bytes + 2 * HEADER_BYTES


def test_what_waits_goes_together_with_one_header() -> None:
    port = Port()
    client = Client(port, packed_bytes=lambda: 200)
    payloads = [b"%d" % number + b"x" * 30 for number in range(20)]
    for payload in payloads:
        client.offer("3", payload)
    port.run(client)
    assert client.packets() == payloads
    counted = port.plane.counters().ports["radio"].queues[3]
    assert counted.packets_out <= 2 + -(-18 // 5)
    assert counted.bytes_out == len(client.octets) + counted.packets_out * HEADER_BYTES
    assert [payload for payload, _ in client.settled] == payloads


def test_no_packet_comes_into_the_middle_of_a_large_message() -> None:
    port = Port()
    client, other = Client(port, 0), Client(port, 1)
    large = bytes(range(256)) * 100
    client.offer("7", b"first")
    client.offer("7", b"second")
    client.offer("5", large)
    client.offer("0", b"alarm")
    client.downlink.control(PING)
    port.flush()
    for number in range(20):
        other.offer("6", b"other%d" % number)
    port.run(client, other)
    assert sorted(client.packets(), key=len)[-1] == large
    assert {b"first", b"second", b"alarm", b"ping"} < set(client.packets())
    # What is left of it goes in the class of the alarm that waits behind it, and so before all of another client's.
    assert port.plane.counters().ports["radio"].queues[0].packets_out > len(large) // MTU_BYTES - 2


def test_a_better_class_of_another_client_waits_for_one_segment_at_most() -> None:
    port = Port()
    client, other = Client(port, 0), Client(port, 1)
    client.offer("7", b"x" * 100_000)
    other.offer("0", b"alarm")
    before_ns = port.time.clock()
    while not other.packets():
        port.time.run_until(port.time.now_ns + 1_000_000)
    segment_seconds = (MTU_BYTES + HEADER_BYTES + 200) * 8 / BANDWIDTH_BPS
    assert port.time.clock() - before_ns <= (segment_seconds + 0.002) * 1e9
    assert not client.packets()


@pytest.mark.parametrize("qos", [1, 2])
def test_a_port_without_room_loses_nothing_above_qos_0_and_keeps_the_order(qos: int) -> None:
    port = Port(buffer_packets=2)
    client, *others = (Client(port, number) for number in range(4))
    payloads = [b"%d" % number for number in range(60)]
    for payload in payloads:
        client.offer("6", payload, qos)
        for other in others:
            other.offer("5", b"other" + payload)
    port.run(client, *others)
    assert client.packets() == payloads
    assert [outcome for _, outcome in client.settled] == [Outcome.delivered] * 60
    assert Outcome.dropped_by_buffer in {outcome for other in others for _, outcome in other.settled}


def test_a_large_message_gets_through_a_port_that_is_full_again_and_again() -> None:
    port = Port(buffer_packets=3)
    client, other = Client(port, 0), Client(port, 1)
    client.offer("7", b"x" * 20_000, qos=1)
    for number in range(200):
        other.offer("1", b"%d" % number)
        port.time.run_until(port.time.now_ns + 500_000)
    port.run(client, other)
    assert client.packets() == [b"x" * 20_000]


def test_messages_of_a_low_class_leave_the_clients_window_to_others() -> None:
    port = Port()
    client = Client(port)
    client.downlink.window = 20
    for number in range(40):
        client.offer("7", b"bulk%d" % number, qos=1)
    client.offer("0", b"alarm", qos=1)
    port.run(client)
    assert client.packets().index(b"alarm") < 3
    assert len(client.packets()) == 41


def test_a_client_that_does_not_read_loses_the_lowest_class_and_nothing_above_qos_0() -> None:
    port = Port()
    client = Client(port, most_waiting=lambda: 10)
    client.downlink.is_blocked = True
    for number in range(10):
        client.offer("7", b"low%d" % number)
        client.offer("2", b"high%d" % number)
        client.offer("7", b"sure%d" % number, qos=1)
    assert [payload for payload, _ in client.settled] == [
        b"low%d" % number for number in (5, 4, 6, 3, 7, 2, 8, 1, 9, 0)
    ]
    client.downlink.is_blocked = False
    client.downlink.pump()
    port.flush()
    port.run(client)
    expected = [b"high%d" % number for number in range(10)], [b"sure%d" % number for number in range(10)]
    assert client.packets() == [*expected[0], *expected[1]]


def test_a_new_plan_orders_what_waits_anew() -> None:
    port = Port()
    client = Client(port)
    client.downlink.is_blocked = True
    client.offer("5", b"was fifth")
    client.offer("3", b"third")
    client.treatment = lambda topic: Treatment(0 if topic == "5" else 3)  # type: ignore[method-assign]
    client.downlink.rerank()
    client.downlink.is_blocked = False
    client.downlink.pump()
    port.flush()
    port.run(client)
    assert client.packets() == [b"was fifth", b"third"]


def test_the_newest_message_takes_the_place_of_an_older_one_in_the_port_and_before_it() -> None:
    port = Port()
    client = Client(port)
    client.treatment = lambda topic: Treatment(3, terms=CopyTerms(newest_only=True))  # type: ignore[method-assign]
    client.offer("3", b"on its way")
    for number in range(4):
        client.offer("3", b"%d" % number, qos=1)
    client.offer("4", b"another topic")
    port.run(client)
    assert client.packets() == [b"on its way", b"3", b"another topic"]
    client.downlink.is_blocked = True
    for number in range(4):
        client.offer("3", b"held %d" % number, qos=1)
    client.downlink.is_blocked = False
    client.downlink.pump()
    port.flush()
    port.run(client)
    assert client.packets()[3:] == [b"held 3"]
    superseded = {payload for payload, outcome in client.settled if outcome is Outcome.superseded}
    assert superseded == {b"0", b"1", b"2", b"held 0", b"held 1", b"held 2"}
    assert not client.downlink.in_flight


def test_what_has_expired_is_not_sent() -> None:
    port = Port()
    client = Client(port)
    client.treatment = lambda topic: Treatment(3, terms=CopyTerms(expires_seconds=0.01))  # type: ignore[method-assign]
    for number in range(40):
        client.offer("3", b"%02d" % number + b"x" * 100, qos=number % 2)
    port.run(client)
    sent = [int(payload[:2]) for payload in client.packets()]
    expired = [int(payload[:2]) for payload, outcome in client.settled if outcome is Outcome.expired]
    assert sorted(sent + expired) == list(range(40))
    assert 4 < len(sent) < 20
    assert not client.downlink.in_flight
