"""The embedded data plane: fates, what a change of plan does to queued packets, closing, lateness."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

import pytest
from tests.network.bench import datagram, number_of
from tests.network.virtual_time import VirtualTime

from triagemq.datagrams import Datagrams, Unsent
from triagemq.errors import PlanError
from triagemq.network import EmbeddedDataPlane
from triagemq.plan.dataplane import (
    FlowKey,
    OutgoingPacket,
    RemoveFlow,
    RemovePort,
    SetFlow,
    SetPort,
    TransmitOutcome,
    Treatment,
)
from triagemq.trace import Outcome

KEYS = [FlowKey("10.0.0.1", 20000 + number) for number in range(4)]
PACKET_NS = 568_000
"""The transmission of a bench's packet of 142 bytes at 2 Mbit/s."""


class Rig:
    """A data plane with one port at 2 Mbit/s, flow i in class i, and all that came of it."""

    def __init__(self, buffer_packets: float = 100, late_ns: int = 0, **settings: int) -> None:
        self.refused: dict[int, int | None] = {}
        """By number of a packet: what the socket has against it, None if it has to wait."""
        self.waiting: list[Unsent] = []
        self.classes: list[int] = []
        self.time = VirtualTime(late_ns)
        self.sent: list[tuple[int, int]] = []
        self.outcomes: list[TransmitOutcome] = []
        self.batches = 0
        self.plane = EmbeddedDataPlane(
            self._receive, self.outcomes.extend, clock=self.time.clock, alarm=self.time.alarm, **settings
        )
        self.plane.apply(
            [
                SetPort("radio", 2e6, buffer_packets, 8),
                *(SetFlow(key, "radio", flow, flow, 0.0) for flow, key in enumerate(KEYS)),
            ]
        )

    def _receive(self, datagrams: Datagrams, class_of: Callable[[int], int]) -> Sequence[Unsent]:
        self.batches += 1
        numbers = [number_of(received) for _, received in datagrams]
        self.sent += [(number, self.time.now_ns) for number in numbers if number not in self.refused]
        self.classes += [class_of(place) for place in range(len(numbers))]
        unsent = [
            Unsent(place, *datagrams[place], class_of(place), self.refused[number])
            for place, number in enumerate(numbers)
            if number in self.refused
        ]
        self.waiting += [one for one in unsent if one.problem is None]
        return unsent

    def send(self, flow: int, *numbers: int, control: bool = False) -> None:
        self.plane.send([OutgoingPacket(KEYS[flow], datagram(number), control, number) for number in numbers])

    @property
    def order(self) -> list[int]:
        return [number for number, _ in self.sent]


def test_packets_leave_at_the_end_of_their_transmission() -> None:
    rig = Rig()
    rig.time.run_until(1000)
    rig.send(0, 1, 2)
    rig.time.run_until_quiet()
    assert rig.sent == [(1, 1000 + PACKET_NS), (2, 1000 + 2 * PACKET_NS)]
    assert rig.outcomes == [
        (1, Outcome.delivered, 1000, 1000 + PACKET_NS),
        (2, Outcome.delivered, 1000, 1000 + 2 * PACKET_NS),
    ]


@pytest.mark.parametrize("flows", [(3, 1, 0, 2), (0, 1, 2, 3), (2, 3, 1, 0)])
def test_an_idle_port_starts_with_the_highest_class_of_the_moment(flows: tuple[int, ...]) -> None:
    rig = Rig()
    packets = [OutgoingPacket(KEYS[flow], datagram(flow), False, flow) for flow in flows]
    rig.plane.send([*packets, OutgoingPacket(KEYS[3], datagram(9), True, 9)])
    rig.time.run_until_quiet()
    assert rig.sent == [(9, PACKET_NS), *((flow, (flow + 2) * PACKET_NS) for flow in range(4))]


@pytest.mark.parametrize("flows", [(3, 1, 0, 2), (0, 1, 2, 3)])
def test_a_full_buffer_keeps_the_highest_classes_of_the_moment(flows: tuple[int, ...]) -> None:
    rig = Rig(buffer_packets=2)
    rig.plane.send([OutgoingPacket(KEYS[flow], datagram(flow), False, flow) for flow in flows])
    rig.time.run_until_quiet()
    assert rig.order == [0, 1]
    assert {token for token, outcome, *_ in rig.outcomes if outcome is Outcome.dropped_by_buffer} == {2, 3}


def test_fates_of_dropped_and_unmanaged_packets() -> None:
    rig = Rig(buffer_packets=2)
    rig.plane.apply([RemoveFlow(KEYS[2])])
    rig.send(1, 1, 2)
    rig.send(0, 3)
    rig.send(2, 5)
    assert rig.sent == [(5, 0)]
    assert rig.outcomes == [
        (2, Outcome.dropped_by_buffer, 0, None),
        (5, Outcome.delivered, None, None),
    ]
    unmanaged = rig.plane.counters().unmanaged
    assert (unmanaged.packets, unmanaged.control_packets, unmanaged.bytes) == (1, 0, 142)
    rig.time.run_until_quiet()
    assert rig.order == [5, 1, 3]


def test_control_packets_and_packets_without_token_have_no_fate() -> None:
    rig = Rig(buffer_packets=1)
    rig.send(0, 1, 2, 3, control=True)
    rig.plane.send([OutgoingPacket(KEYS[0], datagram(4), control=False)] * 2)
    rig.time.run_until_quiet()
    rig.plane.send([OutgoingPacket(KEYS[0], datagram(5), control=False)])
    rig.time.run_until_quiet()
    assert rig.order == [1, 2, 3, 5]
    assert rig.outcomes == []
    assert rig.plane.counters().flows[KEYS[0]].dropped_by_buffer == 2


def test_what_the_socket_refuses_is_lost_on_the_link_and_not_delivered() -> None:
    rig = Rig()
    rig.plane.apply([RemoveFlow(KEYS[3])])
    rig.refused = {2: errno.ENETUNREACH, 9: errno.ENETUNREACH}
    rig.send(1, 1, 2, 3)
    rig.send(3, 8, 9)
    rig.time.run_until_quiet()
    assert {number: outcome for number, outcome, _, _ in rig.outcomes} == {
        1: Outcome.delivered,
        2: Outcome.lost_on_link,
        3: Outcome.delivered,
        8: Outcome.delivered,
        9: Outcome.lost_on_link,
    }
    assert rig.order == [8, 1, 3]


def test_what_waits_for_a_full_socket_has_no_fate_until_it_has_left() -> None:
    rig = Rig()
    rig.refused = {1: None, 2: None, 3: None}
    rig.send(1, 1, 2, 3, 4)
    rig.time.run_until_quiet()
    assert [number for number, *_ in rig.outcomes] == [4]
    assert rig.classes == [1] * 4
    rig.time.run_until(rig.time.now_ns + 5000)
    for one, problem in zip(rig.waiting, (0, errno.ENOBUFS, errno.EAGAIN), strict=True):
        one.problem = problem
    rig.plane.settled_later(rig.waiting)
    assert rig.outcomes[1:] == [
        (1, Outcome.delivered, 0, rig.time.now_ns),
        (2, Outcome.lost_on_link, 0, 2 * PACKET_NS),
        (3, Outcome.in_flight, 0, None),
    ]


def test_a_flow_put_into_a_lower_class_keeps_its_order() -> None:
    rig = Rig()
    rig.send(1, 1, 2, 3)
    rig.plane.apply([SetFlow(KEYS[1], "radio", 1, 5, 0.0)])
    rig.send(1, 4, 5)
    rig.time.run_until_quiet()
    assert rig.order == [1, 2, 3, 4, 5]


def test_a_flow_put_into_a_higher_class_is_served_so_at_once() -> None:
    """What waits in the old class stays there, behind others; what comes is urgent and does not wait for it."""
    rig = Rig()
    rig.send(2, 1, 2)
    rig.send(3, 3)
    rig.plane.apply([SetFlow(KEYS[3], "radio", 3, 0, 0.0)])
    rig.send(3, 4, 5)
    rig.time.run_until_quiet()
    assert rig.order == [1, 4, 5, 2, 3]


def test_a_removed_port_is_drained_and_then_forgotten() -> None:
    rig = Rig()
    rig.send(0, 1, 2)
    rig.send(1, 3, control=True)
    rig.plane.apply([*(RemoveFlow(key) for key in KEYS), RemovePort("radio")])
    counters = rig.plane.counters()
    assert counters.flows == {}
    assert counters.ports["radio"].control.backlog_packets == 1
    rig.time.run_until_quiet()
    assert rig.sent == [(1, PACKET_NS), (3, 2 * PACKET_NS), (2, 3 * PACKET_NS)]
    assert [outcome[1] for outcome in rig.outcomes] == [Outcome.delivered] * 2
    counters = rig.plane.counters()
    assert (counters.ports, counters.flows) == ({}, {})


def test_a_port_that_comes_back_while_drained_goes_on_and_a_flow_starts_anew() -> None:
    rig = Rig()
    rig.send(0, 1, 2)
    rig.plane.apply([*(RemoveFlow(key) for key in KEYS), RemovePort("radio")])
    rig.plane.apply([SetPort("radio", 1e6, 10, 8), SetFlow(KEYS[0], "radio", 0, 0, 0.0)])
    rig.send(0, 3)
    rig.time.run_until_quiet()
    # The bandwidth is a new one from the second transmission on.
    assert rig.sent == [(1, PACKET_NS), (2, 3 * PACKET_NS), (3, 5 * PACKET_NS)]
    assert rig.plane.counters().flows[KEYS[0]].packets_out == 1


def test_a_smaller_buffer_drops_nothing_that_is_queued() -> None:
    rig = Rig()
    rig.send(1, *range(10))
    rig.plane.apply([SetPort("radio", 2e6, 3, 8)])
    rig.send(1, 10)
    rig.send(0, 11)
    rig.time.run_until_quiet()
    assert rig.order == [0, 11, *range(1, 9)]
    assert [outcome[0] for outcome in rig.outcomes if outcome[1] == Outcome.dropped_by_buffer] == [10, 9]


def test_fewer_classes_still_report_what_the_others_hold() -> None:
    rig = Rig()
    rig.send(3, 1, 2)
    rig.plane.apply([SetPort("radio", 2e6, 100, 1), *(SetFlow(key, "radio", 0, 0, 0.0) for key in KEYS)])
    assert rig.plane.counters().ports["radio"].queues[3].backlog_packets == 2


def test_ports_do_not_wait_for_each_other() -> None:
    rig = Rig()
    rig.plane.apply([SetPort("cable", 4e6, 10, 8), SetFlow(KEYS[1], "cable", 1, 7, 0.0)])
    rig.send(0, 1, 2)
    rig.send(1, 3, 4)
    rig.time.run_until_quiet()
    assert dict(rig.sent) == {1: PACKET_NS, 2: 2 * PACKET_NS, 3: PACKET_NS // 2, 4: PACKET_NS}


def test_closing_sends_control_packets_and_reports_the_rest_in_flight() -> None:
    rig = Rig()
    rig.send(0, 1, 2)
    rig.send(0, 3, control=True)
    rig.time.run_until(PACKET_NS)
    rig.plane.close()
    assert rig.order == [1, 3]
    assert rig.outcomes[1:] == [(2, Outcome.in_flight, 0, None)]
    rig.time.run_until_quiet()
    with pytest.raises(RuntimeError, match="closed"):
        rig.send(0, 4)


def test_late_wake_ups_do_not_lower_the_bandwidth() -> None:
    late_ns = 1_500_000
    rig = Rig(buffer_packets=float("inf"), late_ns=late_ns)
    rig.send(0, *range(1000))
    rig.time.run_until_quiet()
    assert rig.order == list(range(1000))
    delays = [at_ns - (number + 1) * PACKET_NS for number, at_ns in rig.sent]
    assert min(delays) >= 0
    assert max(delays) <= late_ns


def test_an_arrival_before_a_late_wake_up_finds_the_port_as_it_should_be() -> None:
    rig = Rig(buffer_packets=1, late_ns=1_500_000)
    rig.send(0, 1)
    rig.time.run_until(PACKET_NS + 1000)
    rig.send(0, 2)
    assert rig.sent == [(1, PACKET_NS + 1000)]
    rig.time.run_until_quiet()
    assert rig.order == [1, 2]
    assert rig.plane.counters().flows[KEYS[0]].dropped_by_buffer == 0


def test_packets_of_a_fast_port_share_wake_ups() -> None:
    rig = Rig(buffer_packets=float("inf"))
    rig.plane.apply([SetPort("radio", 100e6, float("inf"), 8)])
    rig.send(0, *range(1000))
    rig.time.run_until_quiet()
    assert rig.batches < 100
    assert max(at_ns - (number + 1) * 11_360 for number, at_ns in rig.sent) <= 200_000


def test_a_report_may_send_again() -> None:
    """A gateway answers the end of one packet with the next."""
    time, sent = VirtualTime(), []
    left = iter(range(2, 6))

    def send_next(outcomes: list[TransmitOutcome]) -> None:
        for number in [next(left, None) for _ in outcomes]:
            if number is not None:
                plane.send([OutgoingPacket(KEYS[0], datagram(number), False, number)])

    plane = EmbeddedDataPlane(
        lambda datagrams, class_of: sent.extend(number_of(each) for _, each in datagrams),
        send_next,
        clock=time.clock,
        alarm=time.alarm,
    )
    plane.apply([SetPort("radio", 2e6, 10, 1), SetFlow(KEYS[0], "radio", 0, 0, 0.0)])
    plane.send([OutgoingPacket(KEYS[0], datagram(1), False, 1)])
    time.run_until_quiet()
    assert sent == [1, 2, 3, 4, 5]
    assert time.now_ns == 5 * PACKET_NS


def test_packets_of_other_sizes_take_their_share_of_time() -> None:
    rig = Rig(overhead_bytes_per_packet=0)
    rig.plane.send([OutgoingPacket(KEYS[0], datagram(1) + bytes(150), False)])
    rig.time.run_until_quiet()
    assert rig.sent == [(1, 1_000_000)]
    assert rig.plane.counters().ports["radio"].queues[0].bytes_out == 250


def test_flows_to_many_at_once_are_refused_in_words() -> None:
    rig = Rig()
    for to_many in (
        SetFlow(FlowKey("239.1.2.3", 5000), "radio", 9, 0, 0.0),
        SetFlow(FlowKey("ff1e:a000::/20", 7400), "radio", 7, 0, 0.0),
    ):
        with pytest.raises(PlanError, match="sends each packet once; use --dataplane linux or openflow"):
            rig.plane.apply([to_many])


def test_a_packet_is_treated_as_it_says_whatever_its_flow_says() -> None:
    rig = Rig()
    treatments = [Treatment(5), Treatment(2, 1.0), Treatment(0), Treatment(3)]
    rig.plane.send(
        [
            OutgoingPacket(KEYS[3], datagram(place), False, place, each)
            for place, each in enumerate(treatments)
        ]
    )
    rig.time.run_until_quiet()
    assert rig.order == [2, 1, 3, 0]


def test_unseen_topics_go_before_their_class_and_by_their_worth() -> None:
    rig = Rig()
    rig.send(0, 1, 2)
    unseen = [(10, Treatment(0, 0.0, 5.0)), (11, Treatment(0, 0.0, 50.0)), (12, Treatment(1, 0.0, 90.0))]
    rig.plane.send(
        [OutgoingPacket(KEYS[1], datagram(number), False, number, each) for number, each in unseen]
    )
    rig.send(1, 3)
    rig.send(2, 9, control=True)
    rig.time.run_until_quiet()
    assert rig.order == [1, 9, 11, 10, 2, 12, 3]


def test_unseen_topics_find_room_in_a_buffer_that_is_full_of_their_class() -> None:
    rig = Rig(buffer_packets=3)
    rig.send(0, 1, 2, 3)
    rig.plane.send([OutgoingPacket(KEYS[0], datagram(7), False, 7, Treatment(0, 0.0, 1.0))])
    rig.time.run_until_quiet()
    assert rig.order == [1, 7, 2]
    # Control finds room among them.
    rig.plane.send([OutgoingPacket(KEYS[0], datagram(n), False, n, Treatment(0, 0.0, 1.0)) for n in range(4)])
    rig.send(0, 9, control=True)
    rig.time.run_until_quiet()
    assert 9 in rig.order
    counted = rig.plane.counters().ports["radio"].queues[0]
    assert (counted.backlog_packets, counted.backlog_bytes) == (0, 0)


def test_a_buffer_full_of_unseen_topics_gives_the_last_in_order_away() -> None:
    rig = Rig(buffer_packets=4)

    def arrive(number: int, priority_class: int, worth: float) -> None:
        treatment = Treatment(priority_class, 0.0, worth)
        rig.plane.send([OutgoingPacket(KEYS[1], datagram(number), False, number, treatment)])

    arrive(1, 3, 5.0)
    for number, worth in ((2, 5.0), (3, 7.0), (4, 6.0)):
        arrive(number, 3, worth)
    # A planned packet of a higher class, and an unseen one of more worth, find a place; one that ranks last does not.
    rig.send(0, 10)
    arrive(11, 3, 6.5)
    arrive(12, 3, 6.0)
    # Nor does a planned packet of their class, behind which all of them would go.
    rig.send(3, 13)
    rig.time.run_until_quiet()
    assert rig.order == [1, 10, 3, 11]
    dropped = [token for token, outcome, *_ in rig.outcomes if outcome is Outcome.dropped_by_buffer]
    assert dropped == [2, 4, 12, 13]


def test_a_new_plan_moves_what_waits() -> None:
    rig = Rig()
    rig.send(3, 1, 2, 3, 4)
    rig.send(0, 5)
    rig.send(1, 6, control=True)
    before = rig.plane.counters().ports["radio"]
    assert [queue.backlog_packets for queue in before.queues][:4] == [1, 0, 0, 4]
    rig.plane.reclassify(lambda token: Treatment(1) if token in (3, 4) else None)
    now = rig.plane.counters().ports["radio"]
    assert [queue.backlog_packets for queue in now.queues][:4] == [1, 2, 0, 2]
    rig.time.run_until_quiet()
    assert rig.order == [1, 6, 5, 3, 4, 2]
    assert all(queue.backlog_packets == 0 for queue in rig.plane.counters().ports["radio"].queues)
    assert all(queue.backlog_bytes == 0 for queue in rig.plane.counters().ports["radio"].queues)
