"""How a packet may wait in an embedded port: until a newer one of its key takes its place, and until it expires."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import pytest
from tests.network.bench import WIRE_BYTES, datagram, number_of
from tests.network.virtual_time import VirtualTime

from triagemq.datagrams import Datagrams
from triagemq.network import EmbeddedDataPlane
from triagemq.plan.dataplane import (
    NEVER_NS,
    FlowKey,
    OutgoingPacket,
    SetFlow,
    SetPort,
    TransmitOutcome,
    Treatment,
    WaitingTerms,
)
from triagemq.trace import Outcome

PACKET_NS = round(WIRE_BYTES * 8 / 2e6 * 1e9)
"""The transmission of a packet at 2 Mbit/s."""
KEYS = [FlowKey("10.0.0.1", 20000 + number) for number in range(3)]
PRIORITY = SetPort("radio", 2e6, 4, 3)
# All of the port is class 1's, where packets of the tests wait.
BORROWING = SetPort("radio", 2e6, 4, 3, (1e3, 2e6 - 2e3, 1e3), borrowing=True)
PARTITIONED = SetPort("radio", 4e6 + 1e3, 4, 3, (2e6, 2e6, 1e3))
every_port = pytest.mark.parametrize("port", [PRIORITY, BORROWING, PARTITIONED])


class Rig:
    """A data plane with one port, flow i in class i."""

    def __init__(self, port: SetPort) -> None:
        self.time = VirtualTime()
        self.sent: list[int] = []
        self.outcomes: list[TransmitOutcome] = []
        self.plane = EmbeddedDataPlane(
            self._receive, self.outcomes.extend, clock=self.time.clock, alarm=self.time.alarm
        )
        self.plane.apply([port, *(SetFlow(key, "radio", flow, flow, 0.0) for flow, key in enumerate(KEYS))])

    def _receive(self, datagrams: Datagrams, class_of: Callable[[int], int]) -> None:
        self.sent += [number_of(received) for _, received in datagrams]

    def send(
        self,
        number: int,
        replaces: Hashable = None,
        expires_ns: int = NEVER_NS,
        *,
        flow: int = 1,
        treatment: Treatment | None = None,
        more_bytes: int = 0,
    ) -> None:
        waiting = None
        if replaces is not None or expires_ns != NEVER_NS:
            waiting = WaitingTerms(replaces, expires_ns)
        octets = datagram(number) + bytes(more_bytes)
        self.plane.send([OutgoingPacket(KEYS[flow], octets, False, number, treatment, waiting)])

    def finish(self) -> None:
        """Until nothing waits: then the counters add up."""
        self.time.run_until_quiet()
        counted = self.plane.counters()
        queues = counted.ports["radio"].queues
        assert all((queue.backlog_packets, queue.backlog_bytes) == (0, 0) for queue in queues)
        # A new plan moves packets to other queues.
        assert sum(queue.packets_in - queue.packets_out - queue.drops for queue in queues) == 0
        assert all(flow.backlog_packets == 0 for flow in counted.flows.values())

    def numbers(self, outcome: Outcome) -> list[object]:
        return [token for token, of_token, *_ in self.outcomes if of_token is outcome]


@every_port
def test_a_newer_packet_takes_the_place_of_the_one_that_waits(port: SetPort) -> None:
    rig = Rig(port)
    for number, key in ((0, "a"), (1, "a"), (2, None), (3, "a"), (4, "b"), (5, "a")):
        rig.send(number, key, more_bytes=number)
    rig.finish()
    # 0 is being transmitted when its successors come.
    assert rig.sent == [0, 5, 2, 4]
    assert rig.numbers(Outcome.superseded) == [1, 3]
    assert rig.numbers(Outcome.delivered) == [0, 5, 2, 4]


@every_port
def test_a_newer_packet_needs_no_place_in_a_full_buffer(port: SetPort) -> None:
    rig = Rig(port)
    for number, key in ((0, None), (1, "a"), (2, None), (3, None), (4, "a"), (5, "b")):
        rig.send(number, key)
    rig.finish()
    assert rig.sent == [0, 4, 2, 3]
    assert rig.numbers(Outcome.dropped_by_buffer) == [5]


@every_port
def test_what_has_expired_when_its_turn_comes_is_not_sent_and_takes_no_time(port: SetPort) -> None:
    rig = Rig(port)
    rig.send(0)
    rig.send(1, expires_ns=PACKET_NS)
    rig.send(2, expires_ns=PACKET_NS + 1)
    rig.send(3, expires_ns=2 * PACKET_NS)
    rig.finish()
    assert rig.sent == [0, 2]
    assert rig.numbers(Outcome.expired) == [1, 3]
    assert rig.time.now_ns <= 2 * PACKET_NS + 1_000_000


@every_port
def test_what_was_expired_already_is_not_sent_by_an_idle_port(port: SetPort) -> None:
    rig = Rig(port)
    rig.time.run_until(10)
    rig.send(0, "a", 10)
    rig.send(1, "a", 11)
    rig.finish()
    assert rig.sent == [1]
    assert rig.numbers(Outcome.expired) == [0]


@every_port
def test_the_newest_expires_by_its_own_time(port: SetPort) -> None:
    rig = Rig(port)
    rig.send(0)
    rig.send(1, "a", 1)
    rig.send(2, "a", PACKET_NS + 1)
    rig.finish()
    assert rig.sent == [0, 2]
    assert rig.numbers(Outcome.superseded) == [1]


def test_a_packet_that_is_pushed_out_leaves_its_successors_the_end_of_the_queue() -> None:
    rig = Rig(PRIORITY)
    for number, key in ((0, None), (1, "a"), (2, None), (3, "a")):
        rig.send(number, key)
    rig.send(4, "a")
    rig.send(5, flow=0)
    rig.send(6, flow=0)
    rig.send(7, flow=0)
    rig.finish()
    # 2, and then 4 in the place of 1 and 3, were the last to go.
    assert rig.sent == [0, 5, 6, 7]
    assert rig.numbers(Outcome.superseded) == [1, 3]
    assert rig.numbers(Outcome.dropped_by_buffer) == [2, 4]
    rig.send(8)
    rig.send(9, "a")
    rig.finish()
    assert rig.sent[4:] == [8, 9]


@every_port
def test_a_new_plan_moves_the_newest_with_its_place(port: SetPort) -> None:
    rig = Rig(port)
    rig.send(9, flow=0)
    rig.send(0)
    rig.send(1, "a")
    rig.send(2, "a")
    rig.plane.reclassify(lambda token: Treatment(0) if token == 2 else None)
    rig.send(3, "a", treatment=Treatment(0))
    rig.finish()
    assert sorted(rig.sent) == [0, 3, 9]
    assert rig.numbers(Outcome.superseded) == [1, 2]
    assert rig.plane.counters().ports["radio"].queues[0].packets_out >= 1


def test_the_newest_of_an_unseen_topic_goes_in_its_place_by_worth() -> None:
    rig = Rig(PRIORITY)
    rig.send(0)
    rig.send(1, "a", treatment=Treatment(1, 0.0, 5.0))
    rig.send(2, None, treatment=Treatment(1, 0.0, 3.0))
    rig.send(3, "a", treatment=Treatment(1, 0.0, 1.0))
    rig.finish()
    assert rig.sent == [0, 3, 2]


@every_port
def test_what_waits_at_the_end_is_in_flight_as_its_newest(port: SetPort) -> None:
    rig = Rig(port)
    for number in range(3):
        rig.send(number, "a")
    rig.plane.close()
    assert rig.numbers(Outcome.superseded) == [1]
    assert rig.numbers(Outcome.in_flight) == [0, 2]
