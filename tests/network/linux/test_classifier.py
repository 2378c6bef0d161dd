"""The classifier on single packets: what it takes for a flow's PUBLISH, for control, for neither."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.network.linux.packets import (
    AF31,
    CS6,
    DROPPED,
    PASSED,
    encapsulated,
    frame,
    ipv4,
    ipv6,
    long_publish,
    publish,
    run_program,
    udp,
)

from triagemq.errors import NetworkError
from triagemq.network.linux.bpf import load_program
from triagemq.network.linux.classifier import CONTROL, UNMANAGED, UNMANAGED_CONTROL, classifier_program
from triagemq.network.linux.classifying import Policy, PolicyChange
from triagemq.network.linux.flow_table import FlowTable, drop_threshold, packed_key
from triagemq.plan import FlowKey

V4, V6, PORT = "10.0.0.9", "fd00::9", 20_001
KEYS = (FlowKey(V4, PORT), FlowKey(V6, PORT))
CLASS_2 = 3
"""The queue of class 2."""
THIS_PORT, OTHER_PORT = 1, 2


class Classifier:
    """A program for port 1 and its table; `queue_of` runs one packet and says where it went."""

    def __init__(self) -> None:
        self.table = FlowTable(10, 10, 10)
        self.program = load_program(classifier_program(self.table.maps, THIS_PORT))
        self._policies: dict[FlowKey, Policy] = {}

    def set(self, **changes: Policy | None) -> None:
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
        answer = run_program(self.program, packet)
        counted = (self.table.queue_counters(THIS_PORT) - before).tolist()
        if answer == DROPPED:
            assert not any(packets for packets, _ in counted)
            return None
        assert answer == PASSED
        (queue,) = [number for number, (packets, _) in enumerate(counted) if packets]
        assert counted[queue] == [1, len(packet)]
        return queue

    def close(self) -> None:
        os.close(self.program)
        self.table.close()


@pytest.fixture
def classifier() -> Iterator[Classifier]:
    made = Classifier()
    yield made
    made.close()


def both(threshold: int, port: int = THIS_PORT) -> dict[str, Policy]:
    return {"v4": Policy(port, CLASS_2, threshold, 0), "v6": Policy(port, CLASS_2, threshold, 1)}


PUBLISHED = {
    "short": frame(ipv4(V4, udp(PORT, publish()))),
    "length of three octets": frame(ipv4(V4, udp(PORT, long_publish()))),
    "small, yet a length of three octets": frame(ipv4(V4, udp(PORT, long_publish(12)))),
    "from a forwarder": frame(ipv4(V4, udp(PORT, encapsulated(publish())))),
    "from a forwarder, long": frame(ipv4(V4, udp(PORT, encapsulated(long_publish())))),
    "header options": frame(ipv4(V4, udp(PORT, publish()), options=bytes([1, 1, 1, 0] * 3))),
    "tagged": frame(ipv4(V4, udp(PORT, publish())), tag=True),
    "QoS -1": frame(ipv4(V4, udp(PORT, publish(flags=0x60)))),
    "another mark": frame(ipv4(V4, udp(PORT, publish()), dscp=46)),
    "first fragment": frame(ipv4(V4, udp(PORT, long_publish()), fragment=0x2000)),
    "IPv6": frame(ipv6(V6, udp(PORT, publish()))),
    "IPv6, long": frame(ipv6(V6, udp(PORT, long_publish()))),
    "IPv6, tagged": frame(ipv6(V6, udp(PORT, publish())), tag=True),
}
SPARED = {
    "IPv4": frame(ipv4(V4, udp(PORT, publish()), dscp=AF31)),
    "IPv4, from a forwarder": frame(ipv4(V4, udp(PORT, encapsulated(publish())), dscp=AF31)),
    "IPv6": frame(ipv6(V6, udp(PORT, long_publish()), dscp=AF31)),
    "QoS 1, marked anew by a switch": frame(ipv4(V4, udp(PORT, publish(flags=0x20)), dscp=46)),
    "QoS 2, sent again": frame(ipv6(V6, udp(PORT, publish(flags=0xC0)))),
    "QoS 1, from a forwarder": frame(ipv4(V4, udp(PORT, encapsulated(publish(flags=0x20))))),
}
CONTROLLING = {
    "PINGRESP": frame(ipv4(V4, udp(PORT, b"\x02\x17"))),
    "SUBACK": frame(ipv4(V4, udp(PORT, b"\x08\x13" + bytes(6)))),
    "SUBACK with the mark of a spared PUBLISH": frame(ipv4(V4, udp(PORT, b"\x08\x13" + bytes(6)), dscp=AF31)),
    "a long message that is not PUBLISH": frame(ipv4(V4, udp(PORT, b"\x01\x01\x00\x0a" + bytes(252)))),
    "from a forwarder": frame(ipv4(V4, udp(PORT, encapsulated(b"\x02\x17")))),
    "PUBLISH marked CS6": frame(ipv4(V4, udp(PORT, publish()), dscp=CS6)),
    "IPv6": frame(ipv6(V6, udp(PORT, b"\x02\x17"))),
    "IPv6 PUBLISH marked CS6": frame(ipv6(V6, udp(PORT, publish()), dscp=CS6)),
    "empty datagram": frame(ipv4(V4, udp(PORT, b""))),
    "one octet": frame(ipv4(V4, udp(PORT, b"\x0c"))),
    "envelope without a message": frame(ipv4(V4, udp(PORT, b"\x04\xfe\x00\x07"))),
}
NOBODYS = {
    "another UDP port": frame(ipv4(V4, udp(PORT + 1, publish()))),
    "another address": frame(ipv4("10.0.0.8", udp(PORT, publish()))),
    "somebody's AF31": frame(ipv4("10.0.0.8", udp(PORT, publish()), dscp=AF31)),
    "TCP": frame(ipv4(V4, udp(PORT, publish()), protocol=6)),
    "fragment other than the first": frame(ipv4(V4, udp(PORT, publish()), fragment=0x0010)),
    "IPv6 with an extension header": frame(ipv6(V6, bytes(8) + udp(PORT, publish()), next_header=0)),
    "IPv6 echo": frame(ipv6(V6, b"\x80" + bytes(7), next_header=58)),
    "cut short": frame(ipv4(V4, udp(PORT, publish())))[:36],
}
NETWORKS = {
    "ARP": frame(bytes(28), kind=0x0806),
    "neighbour solicitation": frame(ipv6(V6, b"\x87" + bytes(23), next_header=58)),
    "somebody's CS6": frame(ipv4("10.0.0.8", udp(7, publish()), dscp=CS6)),
    "TCP marked CS6": frame(ipv4("10.0.0.8", bytes(20), dscp=CS6, protocol=6)),
}


@pytest.mark.parametrize("packet", PUBLISHED.values(), ids=PUBLISHED)
def test_publish_goes_to_its_class_or_is_dropped(classifier: Classifier, packet: bytes) -> None:
    classifier.set(**both(0))
    assert classifier.queue_of(packet) == CLASS_2
    classifier.set(**both(drop_threshold(1.0)))
    assert classifier.queue_of(packet) is None


@pytest.mark.parametrize("packet", SPARED.values(), ids=SPARED)
def test_publish_that_the_gateway_has_spared_is_counted_and_never_dropped(
    classifier: Classifier, packet: bytes
) -> None:
    classifier.set(**both(drop_threshold(1.0)))
    assert classifier.queue_of(packet) == CLASS_2
    assert sum(counted[0] for counted in classifier.table.flow_counters(2).tolist()) == 1
    classifier.set(v4=None, v6=None)
    assert classifier.queue_of(packet) == UNMANAGED


def test_a_flow_is_counted_before_and_after_drops(classifier: Classifier) -> None:
    packet = PUBLISHED["short"]
    classifier.set(**both(drop_threshold(0.3)))
    passed = sum(classifier.queue_of(packet) is not None for _ in range(5000))
    assert passed / 5000 == pytest.approx(0.7, abs=0.04)
    assert classifier.table.flow_counters(2).tolist() == [
        [5000, 5000 - passed, passed * len(packet)],
        [0, 0, 0],
    ]


@pytest.mark.parametrize("packet", CONTROLLING.values(), ids=CONTROLLING)
def test_control_packets_of_a_flow_are_never_dropped(classifier: Classifier, packet: bytes) -> None:
    classifier.set(**both(drop_threshold(1.0)))
    assert classifier.queue_of(packet) == CONTROL
    assert classifier.table.flow_counters(2).tolist() == [[0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("packet", NOBODYS.values(), ids=NOBODYS)
def test_packets_of_no_flow_go_last(classifier: Classifier, packet: bytes) -> None:
    classifier.set(**both(drop_threshold(1.0)))
    assert classifier.queue_of(packet) == UNMANAGED


@pytest.mark.parametrize("packet", NETWORKS.values(), ids=NETWORKS)
def test_what_a_network_needs_goes_with_control_packets(classifier: Classifier, packet: bytes) -> None:
    classifier.set(**both(drop_threshold(1.0)))
    assert classifier.queue_of(packet) == UNMANAGED_CONTROL


def test_at_another_port_a_flow_has_its_class_and_is_not_dropped(classifier: Classifier) -> None:
    classifier.set(**both(drop_threshold(1.0), OTHER_PORT))
    assert classifier.queue_of(PUBLISHED["short"]) == CLASS_2
    assert classifier.queue_of(CONTROLLING["PINGRESP"]) == CONTROL
    assert classifier.table.flow_counters(2).tolist() == [[0, 0, 0], [0, 0, 0]]


def test_staged_policies_wait_for_the_switch_and_can_be_taken_back(classifier: Classifier) -> None:
    classifier.set(**both(0))
    packet = PUBLISHED["short"]
    old, new = both(0)["v4"], both(0)["v4"]._replace(queue=1)
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
    classifier.set(**both(0))
    classifier.set(v4=None)
    assert classifier.queue_of(PUBLISHED["short"]) == UNMANAGED
    assert classifier.queue_of(PUBLISHED["IPv6"]) == CLASS_2


def test_a_refused_program_quotes_the_verifier() -> None:
    with pytest.raises(NetworkError, match=r"R0 !read_ok"):
        load_program(b"\x95\0\0\0\0\0\0\0")
