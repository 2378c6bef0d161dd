"""The classifier on single packets: what it takes for a flow's PUBLISH, for control, for neither."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest
from tests.network.linux.packets import (
    CS6,
    DROPPED,
    PASSED,
    dtls,
    encapsulated,
    frame,
    ipv4,
    ipv6,
    ipv6_fragment,
    long_publish,
    publish,
    run_program,
    tcp,
    udp,
)

from triagemq.datagrams import CLASS_DSCP
from triagemq.errors import NetworkError
from triagemq.network.linux.bpf import load_program
from triagemq.network.linux.flow_table import (
    FlowPolicy,
    FlowTable,
    PolicyChange,
    TrustedAddress,
    control_bounds,
    packed_key,
    packed_source,
    window_settings,
)
from triagemq.network.linux.records import (
    BEYOND_BOUND,
    CONTROL,
    MISMATCHED,
    UNMANAGED,
    UNMANAGED_CONTROL,
    UNTRUSTED_CS6,
)
from triagemq.plan.dataplane import LIMITER_PACKETS, FlowKey, SetLimiter

pytestmark = pytest.mark.needs_root("it changes queues of the kernel")

V4, V6, PORT = "10.0.0.9", "fd00::9", 20_001
KEYS = (FlowKey(V4, PORT), FlowKey(V6, PORT))
CLASS_2 = 3
"""The queue of class 2."""
THIS_PORT, OTHER_PORT = 1, 2
REST = 8080
EXCHANGE = [
    TrustedAddress("udp", "10.0.0.1", 1883),
    TrustedAddress("udp", "fd00::1", 1883),
    TrustedAddress("tcp", "10.0.0.1", REST),
]
"""Where the packets that packets.py makes come from."""
STRANGER = "10.0.0.66"


class Classifier:
    """A program for port 1 and its table; `queue_of` runs one packet and says where it went."""

    def __init__(self) -> None:
        self.table = FlowTable(10, 10)
        self.table.open_port(THIS_PORT, 1e9, 0)
        for _ in range(10):
            self.table.take_counter()
        self.table.trust(EXCHANGE)
        self._policies: dict[FlowKey, FlowPolicy] = {}

    def set(self, **changes: FlowPolicy | None) -> None:
        """Policies for the keys v4 and v6, in one step."""
        keys = {"v4": KEYS[0], "v6": KEYS[1]}
        self.table.stage(
            [
                PolicyChange(packed_key(keys[name]), self._policies.get(keys[name]), policy)
                for name, policy in changes.items()
            ]
        )
        self.table.switch()
        self.table.settle()
        self._policies = {keys[name]: policy for name, policy in changes.items() if policy is not None}

    def queue_of(self, packet: bytes) -> int | None:
        before = self.table.queue_counters(THIS_PORT)
        answer = run_program(self.table.program, packet)
        # The bounds of control packets follow the counters.
        counted = (self.table.queue_counters(THIS_PORT) - before)[: UNTRUSTED_CS6 + 1].tolist()
        if answer == DROPPED:
            assert not any(packets for packets, _ in counted)
            return None
        assert answer == PASSED
        (queue,) = [number for number, (packets, _) in enumerate(counted) if packets]
        assert counted[queue] == [1, len(packet)]
        return queue

    def close(self) -> None:
        self.table.close()


@pytest.fixture
def classifier() -> Iterator[Classifier]:
    made = Classifier()
    yield made
    made.close()


def both(port: int = THIS_PORT) -> dict[str, FlowPolicy]:
    return {"v4": FlowPolicy(port, CLASS_2, 0), "v6": FlowPolicy(port, CLASS_2, 1)}


PUBLISHED = {
    "short": frame(ipv4(V4, udp(PORT, publish()))),
    "length of three octets": frame(ipv4(V4, udp(PORT, long_publish()))),
    "small, yet a length of three octets": frame(ipv4(V4, udp(PORT, long_publish(12)))),
    "from a forwarder": frame(ipv4(V4, udp(PORT, encapsulated(publish())))),
    "from a forwarder, long": frame(ipv4(V4, udp(PORT, encapsulated(long_publish())))),
    "header options": frame(ipv4(V4, udp(PORT, publish()), options=bytes([1, 1, 1, 0] * 3))),
    "tagged": frame(ipv4(V4, udp(PORT, publish())), tag=True),
    "QoS -1": frame(ipv4(V4, udp(PORT, publish(flags=0x60)))),
    "another mark": frame(ipv4(V4, udp(PORT, publish()), dscp=26)),
    "first fragment": frame(ipv4(V4, udp(PORT, long_publish()), fragment=0x2000)),
    "IPv6": frame(ipv6(V6, udp(PORT, publish()))),
    "IPv6, long": frame(ipv6(V6, udp(PORT, long_publish()))),
    "IPv6, tagged": frame(ipv6(V6, udp(PORT, publish())), tag=True),
    "IPv6, first fragment": frame(ipv6_fragment(V6, udp(PORT, long_publish()), offset_and_more=1)),
    "application data of DTLS": frame(ipv4(V4, udp(PORT, dtls(23)))),
}
CONTROLLING = {
    "PINGRESP": frame(ipv4(V4, udp(PORT, b"\x02\x17"))),
    "SUBACK": frame(ipv4(V4, udp(PORT, b"\x08\x13" + bytes(6)))),
    "SUBACK with another mark": frame(ipv4(V4, udp(PORT, b"\x08\x13" + bytes(6)), dscp=46)),
    "a long message that is not PUBLISH": frame(ipv4(V4, udp(PORT, b"\x01\x01\x00\x0a" + bytes(252)))),
    "from a forwarder": frame(ipv4(V4, udp(PORT, encapsulated(b"\x02\x17")))),
    "PUBLISH marked CS6": frame(ipv4(V4, udp(PORT, publish()), dscp=CS6)),
    "IPv6": frame(ipv6(V6, udp(PORT, b"\x02\x17"))),
    "IPv6 PUBLISH marked CS6": frame(ipv6(V6, udp(PORT, publish()), dscp=CS6)),
    "handshake of DTLS": frame(ipv4(V4, udp(PORT, dtls(22)))),
    "application data of DTLS marked CS6": frame(ipv4(V4, udp(PORT, dtls(23)), dscp=CS6)),
    "empty datagram": frame(ipv4(V4, udp(PORT, b""))),
    "one octet": frame(ipv4(V4, udp(PORT, b"\x0c"))),
    "envelope without a message": frame(ipv4(V4, udp(PORT, b"\x04\xfe\x00\x07"))),
}
NOBODYS = {
    "another UDP port": frame(ipv4(V4, udp(PORT + 1, publish()))),
    "another address": frame(ipv4("10.0.0.8", udp(PORT, publish()))),
    "TCP": frame(ipv4(V4, udp(PORT, publish()), protocol=6)),
    "PINGRESP to a flow from a stranger": frame(ipv4(V4, udp(PORT, b"\x02\x17"), source=STRANGER)),
    "PUBLISH to a flow from a stranger": frame(ipv4(V4, udp(PORT, publish()), source=STRANGER)),
    "PUBLISH to a flow from another port of the gateway's host": frame(
        ipv4(V4, udp(PORT, publish(), source=1884))
    ),
    "TCP of another port": frame(ipv4(V4, tcp(REST + 1, 40_000), protocol=6)),
    "TCP from a stranger's port of that number": frame(
        ipv4(V4, tcp(REST, 40_000), protocol=6, source=STRANGER)
    ),
    "UDP from the port of REST": frame(ipv4("10.0.0.8", udp(7, publish(), source=REST))),
    "fragment other than the first, whose first did not come": frame(
        ipv4(V4, udp(PORT, publish()), fragment=0x0010)
    ),
    "IPv6 with an extension header": frame(ipv6(V6, bytes(8) + udp(PORT, publish()), next_header=0)),
    "IPv6 echo": frame(ipv6(V6, b"\x80" + bytes(7), next_header=58)),
    "cut short": frame(ipv4(V4, udp(PORT, publish())))[:36],
}
NETWORKS = {
    "ARP": frame(bytes(28), kind=0x0806),
    "neighbour solicitation": frame(ipv6(V6, b"\x87" + bytes(23), next_header=58)),
    "REST": frame(ipv4("10.0.0.8", tcp(REST, 40_000), protocol=6)),
    "to REST": frame(ipv4("10.0.0.1", tcp(40_000, REST), protocol=6, source="10.0.0.8")),
    "the gateway's CS6 to a client without a flow": frame(ipv4("10.0.0.8", udp(7, b"\x02\x17"), dscp=CS6)),
    "the gateway's handshake of DTLS": frame(ipv4("10.0.0.8", udp(7, dtls(22)))),
}
STRANGE = {
    "UDP": frame(ipv4("10.0.0.8", udp(7, publish()), dscp=CS6, source=STRANGER)),
    "UDP to a flow": frame(ipv4(V4, udp(PORT, publish()), dscp=CS6, source=STRANGER)),
    "UDP over IPv6": frame(ipv6("fd00::8", udp(7, publish(), source=9), dscp=CS6)),
    "TCP": frame(ipv4("10.0.0.8", tcp(22, 22), dscp=CS6, protocol=6)),
}


@pytest.mark.parametrize("packet", PUBLISHED.values(), ids=PUBLISHED)
def test_publish_goes_to_its_class_and_is_counted(classifier: Classifier, packet: bytes) -> None:
    classifier.set(**both())
    assert classifier.queue_of(packet) == CLASS_2
    counted = classifier.table.flow_counters()[:2].tolist()
    assert sorted(counted) == [[0] * 4, [1, len(packet), 0, 0]]
    classifier.set(v4=None, v6=None)
    assert classifier.queue_of(packet) == UNMANAGED


@pytest.mark.parametrize("version", [4, 6])
def test_an_event_of_the_gateway_goes_by_its_mark_and_nobody_elses_does(
    classifier: Classifier, version: int
) -> None:
    """Whoever is to have it; classes that the port does not have are its last."""
    classifier.table.set_port(THIS_PORT, 1e9, 5)

    def event(dscp: int, source: int = 1883) -> bytes:
        if version == 4:
            return frame(ipv4("10.0.0.8", udp(7, publish(), source=source), dscp=dscp))
        return frame(ipv6("fd00::8", udp(7, publish(), source=source), dscp=dscp))

    assert [classifier.queue_of(event(dscp)) for dscp in CLASS_DSCP] == [1, 2, 3, 4, 5, 5, 5]
    assert classifier.queue_of(event(0)) == classifier.queue_of(event(26)) == UNMANAGED
    assert [classifier.queue_of(event(dscp, source=4711)) for dscp in CLASS_DSCP] == [UNMANAGED] * 7
    answer = frame(ipv4("10.0.0.8", udp(7, b"\x02\x17"), dscp=46))
    assert classifier.queue_of(answer) == UNMANAGED_CONTROL
    first, second = (
        frame(ipv4("10.0.0.8", part, fragment=place, dscp=46))
        for part, place in ((udp(7, long_publish()), 0x2000), (bytes(400), 0x0032))
    )
    assert [classifier.queue_of(first), classifier.queue_of(second)] == [1, 1]


@pytest.mark.parametrize("packet", CONTROLLING.values(), ids=CONTROLLING)
def test_control_packets_of_a_flow_are_never_dropped(classifier: Classifier, packet: bytes) -> None:
    classifier.set(**both())
    assert classifier.queue_of(packet) == CONTROL
    assert classifier.table.flow_counters()[:2].tolist() == [[0] * 4, [0] * 4]


@pytest.mark.parametrize("packet", NOBODYS.values(), ids=NOBODYS)
def test_packets_of_no_flow_go_last(classifier: Classifier, packet: bytes) -> None:
    classifier.set(**both())
    assert classifier.queue_of(packet) == UNMANAGED


@pytest.mark.parametrize("packet", NETWORKS.values(), ids=NETWORKS)
def test_what_a_network_needs_goes_with_control_packets(classifier: Classifier, packet: bytes) -> None:
    classifier.set(**both())
    assert classifier.queue_of(packet) == UNMANAGED_CONTROL


@pytest.mark.parametrize("packet", STRANGE.values(), ids=STRANGE)
def test_marks_of_strangers_are_not_believed(classifier: Classifier, packet: bytes) -> None:
    classifier.set(**both())
    assert classifier.queue_of(packet) == UNTRUSTED_CS6


def test_a_listener_at_all_addresses_is_known_by_its_port(classifier: Classifier) -> None:
    classifier.table.trust([TrustedAddress("udp", "0.0.0.0", 1883)])
    classifier.set(**both())
    assert classifier.queue_of(CONTROLLING["PUBLISH marked CS6"]) == CONTROL
    assert classifier.queue_of(CONTROLLING["IPv6 PUBLISH marked CS6"]) == CONTROL
    assert classifier.queue_of(STRANGE["UDP over IPv6"]) == UNTRUSTED_CS6
    assert classifier.queue_of(NETWORKS["REST"]) == UNMANAGED


def test_before_a_listener_is_named_marks_are_believed_on_flows_only(classifier: Classifier) -> None:
    classifier.table.trust([])
    classifier.set(**both())
    assert classifier.queue_of(CONTROLLING["PUBLISH marked CS6"]) == CONTROL
    assert classifier.queue_of(PUBLISHED["short"]) == CLASS_2
    assert classifier.queue_of(STRANGE["UDP"]) == UNTRUSTED_CS6


@pytest.mark.parametrize(
    ("packet", "queue", "bound"),
    [
        (CONTROLLING["PINGRESP"], CONTROL, 0),
        (NETWORKS["REST"], UNMANAGED_CONTROL, 0),
        (NETWORKS["ARP"], UNMANAGED_CONTROL, 1),
    ],
    ids=["of a flow", "REST", "ARP"],
)
def test_control_packets_beyond_the_bound_go_last(
    classifier: Classifier, packet: bytes, queue: int, bound: int
) -> None:
    classifier.set(**both())
    classifier.table.set_port(THIS_PORT, 20_000.0, 0)
    allowed = control_bounds(20_000.0)[bound]
    begun = time.monotonic()
    went = [classifier.queue_of(packet) for _ in range(400)]
    passed_bytes = went.count(queue) * len(packet)
    assert set(went) == {queue, BEYOND_BOUND}
    assert went[: int(allowed.burst_bytes / len(packet))].count(BEYOND_BOUND) == 0
    # A packet passes while those before it have not used up the burst, which grows again with time.
    regained_bytes = (time.monotonic() - begun) * allowed.bytes_per_second
    assert passed_bytes <= allowed.burst_bytes + regained_bytes + 2 * len(packet)
    # What the network needs does not use up what the exchange needs, nor the other way round.
    other = NETWORKS["REST"] if bound else NETWORKS["ARP"]
    assert classifier.queue_of(other) == UNMANAGED_CONTROL


def limited(burst_bytes: float, rate: float = 0.3) -> bytes:
    return window_settings(SetLimiter(KEYS[0], burst_bytes, rate))


def test_a_limiter_cuts_what_exceeds_its_burst_and_never_control(classifier: Classifier) -> None:
    packet = PUBLISHED["short"]
    classifier.table.open_window(1, limited(3 * len(packet)))
    classifier.set(v4=FlowPolicy(THIS_PORT, CLASS_2, 0, 1))
    went = [classifier.queue_of(each) for each in [packet] * 5]
    assert went == [CLASS_2] * 3 + [None] * 2
    for control in ("PINGRESP", "PUBLISH marked CS6", "handshake of DTLS"):
        assert classifier.queue_of(CONTROLLING[control]) == CONTROL
    assert classifier.table.flow_counters()[:1].tolist() == [[5, 3 * len(packet), 2, 0]]
    # What has passed counts by new terms, too; without a limiter everything passes.
    classifier.table.set_window(1, limited(4 * len(packet)))
    assert [classifier.queue_of(packet) for _ in range(2)] == [CLASS_2, None]
    classifier.set(v4=FlowPolicy(THIS_PORT, CLASS_2, 0))
    assert classifier.queue_of(packet) == CLASS_2


@pytest.mark.parametrize("rate", [0.001, 1e4, 1e9, 1e12, 1e30])
@pytest.mark.parametrize("bursts", [1.0, 1e3, 1e15])
def test_a_window_opens_again_whatever_its_numbers(
    classifier: Classifier, rate: float, bursts: float
) -> None:
    """No sum exceeds 64 bits: what should pass does, and never more."""
    packet = PUBLISHED["short"]
    terms = SetLimiter(KEYS[0], bursts * len(packet), rate)
    classifier.table.open_window(1, window_settings(terms))
    classifier.set(v4=FlowPolicy(THIS_PORT, CLASS_2, 0, 1))
    begun = time.monotonic()
    passed = sum(classifier.queue_of(packet) is not None for _ in range(200))
    windows = (time.monotonic() - begun) / max(int(terms.window_seconds * 1e9) * 1e-9, 1e-9)
    assert min(200, bursts) <= passed <= bursts * (1 + windows)


@pytest.mark.parametrize("jitter_seconds", [0.0, 0.003, 0.04])
def test_no_time_sees_more_than_the_messages_of_its_windows_whatever_the_sizes(
    classifier: Classifier, jitter_seconds: float
) -> None:
    small, large = PUBLISHED["short"], frame(ipv4(V4, udp(PORT, long_publish(900))))
    terms = SetLimiter(KEYS[0], 3.5 * len(large), 3.5 * len(large) / 0.01, jitter_seconds=jitter_seconds)
    classifier.table.open_window(1, window_settings(terms))
    classifier.set(v4=FlowPolicy(THIS_PORT, CLASS_2, 0, 1))
    source = random.Random(3)
    passed: list[tuple[int, int, int]] = []
    for _ in range(400):
        packet = source.choice((small, large))
        before_ns = time.monotonic_ns()
        went = classifier.queue_of(packet)
        if went is not None:
            passed.append((before_ns, time.monotonic_ns(), len(packet)))
        while time.monotonic_ns() < before_ns + source.randrange(300_000):
            pass
    window_ns, jitter_ns = int(terms.window_seconds * 1e9), jitter_seconds * 1e9
    for begin in range(len(passed)):
        octets = 0
        for first, last in ((passed[begin], each) for each in passed[begin:]):
            octets += last[2]
            messages = (last[1] - first[0] + jitter_ns) // window_ns + 1
            assert octets <= messages * terms.burst_bytes
    assert 0 < len(passed) < 400


def test_a_message_of_as_many_packets_as_a_limiter_remembers_passes_in_every_window(
    classifier: Classifier,
) -> None:
    large = frame(ipv4(V4, udp(PORT, long_publish(900))))
    terms = SetLimiter(KEYS[0], float(LIMITER_PACKETS * len(large)), LIMITER_PACKETS * len(large) / 0.05)
    classifier.table.open_window(1, window_settings(terms))
    classifier.set(v4=FlowPolicy(THIS_PORT, CLASS_2, 0, 1))
    for _ in range(3):
        begun_ns = time.monotonic_ns()
        assert all(classifier.queue_of(large) == CLASS_2 for _ in range(LIMITER_PACKETS))
        ended_ns = time.monotonic_ns()
        if ended_ns - begun_ns < 50_000_000:
            went = classifier.queue_of(large)
            assert went is None or time.monotonic_ns() - begun_ns >= 50_000_000
        while time.monotonic_ns() < ended_ns + 50_000_000:
            pass


def test_each_fragment_takes_its_share_of_a_limiter_and_those_after_a_limited_first_are_cut(
    classifier: Classifier,
) -> None:
    def fragments(number: int) -> list[bytes]:
        return [
            frame(ipv4(V4, udp(PORT, long_publish(392)), fragment=0x2000, number=number)),
            frame(ipv4(V4, bytes(400), fragment=0x2032, number=number)),
            frame(ipv4(V4, bytes(400), fragment=0x0064, number=number)),
        ]

    size = len(fragments(0)[0])
    assert [len(each) for each in fragments(0)] == [size] * 3
    classifier.table.open_window(1, limited(5 * size))
    classifier.set(v4=FlowPolicy(THIS_PORT, CLASS_2, 0, 1))
    assert [classifier.queue_of(each) for each in fragments(1)] == [CLASS_2] * 3
    assert [classifier.queue_of(each) for each in fragments(2)] == [CLASS_2] * 2 + [None]
    assert [classifier.queue_of(each) for each in fragments(3)] == [None] * 3
    classifier.table.open_window(1, limited(5 * size))
    assert [classifier.queue_of(each) for each in fragments(3)[1:]] == [None] * 2
    assert classifier.table.flow_counters()[:1].tolist() == [[11, 5 * size, 6, 0]]


TOPICS = {"239.1.2.3": ipv4, "ff15::7": ipv6}


@pytest.mark.parametrize("address", TOPICS)
def test_a_multicast_address_has_a_class_at_each_port_whoever_sends_whatever(
    classifier: Classifier, address: str
) -> None:
    ip = TOPICS[address]
    key = FlowKey(address, PORT)
    here, there = (FlowPolicy(port, 1, 0) for port in (THIS_PORT, OTHER_PORT))
    events = [
        frame(ip(address, udp(PORT, payload, source=source), dscp=dscp))
        for payload in (b"", b"\x02\x17", publish(), bytes(500))
        for source in (1883, 4711)
        for dscp in (0, CS6, 26)
    ]
    assert all(classifier.queue_of(each) in (UNMANAGED, UNTRUSTED_CS6, UNMANAGED_CONTROL) for each in events)
    classifier.table.stage([PolicyChange(packed_key(key, OTHER_PORT), None, there)])
    classifier.table.switch()
    classifier.table.settle()
    assert all(classifier.queue_of(each) in (UNMANAGED, UNTRUSTED_CS6, UNMANAGED_CONTROL) for each in events)
    classifier.table.stage([PolicyChange(packed_key(key, THIS_PORT), None, here)])
    classifier.table.switch()
    assert all(classifier.queue_of(each) == 1 for each in events)
    foreign = frame(ip(address, udp(PORT + 1, publish(), source=4711)))
    assert classifier.queue_of(foreign) == UNMANAGED
    assert classifier.table.flow_counters()[:1][0, 0] == len(events)


@pytest.mark.parametrize(
    ("group", "source", "other"), [("239.1.2.3", "10.0.0.1", STRANGER), ("ff15::7", "fd00::1", "fd00::66")]
)
def test_a_topic_with_a_source_is_that_of_its_packets_alone(
    classifier: Classifier, group: str, source: str, other: str
) -> None:
    event = frame(TOPICS[group](group, udp(PORT, b"event")))
    key = packed_key(FlowKey(group, PORT), THIS_PORT)
    before = None
    for wanted, queue in ((source, 1), (other, UNMANAGED), ("", 1)):
        policy = FlowPolicy(THIS_PORT, 1, 0, 0, packed_source(wanted))
        classifier.table.stage([PolicyChange(key, before, policy)])
        classifier.table.switch()
        classifier.table.settle()
        assert classifier.queue_of(event) == queue
        before = policy
    assert classifier.table.flow_counters()[:1].tolist() == [[2, 2 * len(event), 0, 1]]


@pytest.mark.parametrize("version", [4, 6])
def test_fragments_share_the_fate_of_the_first(classifier: Classifier, version: int) -> None:
    """One decision per datagram, with its first; each fragment counts as a packet of the flow."""

    def fragments(number: int, message: bytes, dscp: int = 0) -> list[bytes]:
        if version == 4:
            return [
                frame(ipv4(V4, udp(PORT, message), fragment=0x2000, number=number, dscp=dscp)),
                frame(ipv4(V4, bytes(400), fragment=0x2032, number=number, dscp=dscp)),
                frame(ipv4(V4, bytes(200), fragment=0x0064, number=number, dscp=dscp)),
            ]
        return [
            frame(ipv6_fragment(V6, udp(PORT, message), offset_and_more=1, number=number)),
            frame(ipv6_fragment(V6, bytes(400), offset_and_more=0x0191, number=number)),
            frame(ipv6_fragment(V6, bytes(200), offset_and_more=0x0320, number=number)),
        ]

    classifier.set(**both())
    losses = [[classifier.queue_of(each) for each in fragments(n, long_publish())] for n in range(300)]
    assert all(loss == [CLASS_2] * 3 for loss in losses)
    counted = classifier.table.flow_counters()[:2][0 if version == 4 else 1].tolist()
    assert counted[0] == 900
    # Control, in turn, is never dropped, and its fragments go with it.
    assert [classifier.queue_of(each) for each in fragments(7, b"\x01\x01\x00\x0a" + bytes(252))] == [
        CONTROL
    ] * 3
    # Others' fragments are strangers' as their first is, and those of another datagram are nobody's.
    classifier.set(**both())
    assert classifier.queue_of(fragments(9_000, long_publish())[1]) == UNMANAGED


def change_policy(
    classifier: Classifier, key: FlowKey, port: int, queue: int | None, counter: int = 0
) -> None:
    """Put a multicast key or a prefix into a queue at a port, or take it away."""
    after = None if queue is None else FlowPolicy(port, queue, counter)
    before = None if queue is not None else FlowPolicy(port, 1, counter)
    classifier.table.stage([PolicyChange(packed_key(key, port), before, after)])
    classifier.table.switch()
    classifier.table.settle()


def test_events_with_codes_go_where_a_prefix_fits_and_nowhere_else(classifier: Classifier) -> None:
    def event(address: str, inner: bytes = bytes(30)) -> bytes:
        return frame(ipv6(address, udp(PORT, inner, source=4000)))

    def discarded() -> list[int]:
        return classifier.table.queue_counters(THIS_PORT)[MISMATCHED].tolist()

    wide, narrow = FlowKey("ff1e:8000::/18", PORT), FlowKey("ff1e:a000::/20", PORT)
    assert classifier.queue_of(event("ff1e:a000::7")) == UNMANAGED
    change_policy(classifier, wide, OTHER_PORT, 3)
    # It is another port's; here nothing fits.
    assert classifier.queue_of(event("ff1e:a000::7")) is None
    assert discarded() == [1, len(event("ff1e:a000::7"))]
    change_policy(classifier, wide, THIS_PORT, 2, 1)
    change_policy(classifier, narrow, THIS_PORT, 4, 2)
    # The class is the plan's, whatever the address ends with.
    assert {classifier.queue_of(event(f"ff1e:a000::{number}")) for number in range(8)} == {4}
    # Whatever it looks like and however it is marked: it is an event.
    assert classifier.queue_of(event("ff1e:8000::7", b"\x02\x17")) == 2
    assert classifier.queue_of(frame(ipv6("ff1e:8000::f", udp(PORT, publish()), dscp=CS6), tag=True)) == 2
    assert classifier.table.flow_counters()[:3][1:, 0].tolist() == [2, 8]
    for other in ("ff1e:c000::7", "ff1e::7"):
        assert classifier.queue_of(event(other)) is None
    # Another UDP port is another key.
    assert classifier.queue_of(frame(ipv6("ff1e:a000::7", udp(PORT + 1, bytes(30), source=4000)))) is None
    assert classifier.queue_of(event("ff1d:8000::7")) == UNMANAGED
    assert discarded()[0] == 4
    # A flow of its own comes first.
    change_policy(classifier, FlowKey("ff1e:a000::7", PORT), THIS_PORT, 5, 3)
    assert classifier.queue_of(event("ff1e:a000::7")) == 5
    # Without the longer prefix the shorter one holds; without any, codes are addresses like others.
    change_policy(classifier, narrow, THIS_PORT, None, 2)
    assert classifier.queue_of(event("ff1e:a000::6")) == 2
    change_policy(classifier, wide, THIS_PORT, None, 1)
    change_policy(classifier, wide, OTHER_PORT, None)
    assert classifier.queue_of(event("ff1e:a000::6")) == UNMANAGED


def test_a_prefix_that_is_taken_back_hides_no_shorter_one(classifier: Classifier) -> None:
    wide, narrow = FlowKey("ff1e:8000::/18", PORT), FlowKey("ff1e:a000::/20", PORT)
    event = frame(ipv6("ff1e:a000::1", udp(PORT, bytes(30), source=4000)))
    change_policy(classifier, wide, THIS_PORT, 2)
    change = PolicyChange(packed_key(narrow, THIS_PORT), None, FlowPolicy(THIS_PORT, 4, 1))
    for switched in (False, True):
        classifier.table.stage([change])
        assert classifier.queue_of(event) == 2
        if switched:
            classifier.table.switch()
            assert classifier.queue_of(event) == 4
        classifier.table.take_back(switched=switched)
        assert classifier.queue_of(event) == 2


def test_fragments_of_an_event_go_where_the_first_goes(classifier: Classifier) -> None:
    def fragments(address: str, number: int) -> list[bytes]:
        parts = ((1, udp(PORT, bytes(200))), (0x41, bytes(64)), (0x80, bytes(9)))
        return [
            frame(ipv6_fragment(address, inner, offset_and_more=place, number=number))
            for place, inner in parts
        ]

    change_policy(classifier, FlowKey("ff1e:8000::/18", PORT), THIS_PORT, 3)
    assert [classifier.queue_of(each) for each in fragments("ff1e:8000::5", 1)] == [3, 3, 3]
    assert [classifier.queue_of(each) for each in fragments("ff1e:c000::5", 2)] == [None] * 3
    assert classifier.table.queue_counters(THIS_PORT)[MISMATCHED, 0] == 3


def test_at_another_port_a_flow_has_its_class_and_is_not_dropped(classifier: Classifier) -> None:
    classifier.set(**both(OTHER_PORT))
    assert classifier.queue_of(PUBLISHED["short"]) == CLASS_2
    assert classifier.queue_of(CONTROLLING["PINGRESP"]) == CONTROL
    assert classifier.table.flow_counters()[:2].tolist() == [[0] * 4, [0] * 4]


def test_staged_policies_wait_for_the_switch_and_can_be_taken_back(classifier: Classifier) -> None:
    classifier.set(**both())
    packet = PUBLISHED["short"]
    old, new = both()["v4"], both()["v4"]._replace(queue=1)
    other = packed_key(FlowKey(V4, PORT + 1))
    for switched in (False, True):
        classifier.table.stage([PolicyChange(packed_key(KEYS[0]), old, new), PolicyChange(other, None, new)])
        assert classifier.queue_of(packet) == CLASS_2
        assert classifier.queue_of(NOBODYS["another UDP port"]) == UNMANAGED
        if switched:
            classifier.table.switch()
            assert classifier.queue_of(packet) == 1
            assert classifier.queue_of(NOBODYS["another UDP port"]) == 1
        classifier.table.take_back(switched=switched)
        assert classifier.queue_of(packet) == CLASS_2
        assert classifier.queue_of(NOBODYS["another UDP port"]) == UNMANAGED
    # A later change does not wake what was taken back.
    classifier.table.stage([])
    classifier.table.switch()
    assert classifier.queue_of(packet) == CLASS_2
    assert classifier.queue_of(NOBODYS["another UDP port"]) == UNMANAGED


def test_a_removed_flow_is_nobodys(classifier: Classifier) -> None:
    classifier.set(**both())
    classifier.set(v4=None)
    assert classifier.queue_of(PUBLISHED["short"]) == UNMANAGED
    assert classifier.queue_of(PUBLISHED["IPv6"]) == CLASS_2


def test_a_refused_program_quotes_the_verifier() -> None:
    with pytest.raises(NetworkError, match=r"R0 !read_ok"):
        load_program(b"\x95\0\0\0\0\0\0\0")
