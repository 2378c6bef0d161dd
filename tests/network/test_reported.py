"""The data plane whose queues are behind it: outcomes are as many as were counted, and nothing waiting is delivered."""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

from triagemq.datagrams import Datagrams, DatagramSender, TermsOf, Unsent
from triagemq.network import ReportedDataPlane
from triagemq.plan.dataplane import (
    FlowCounters,
    FlowKey,
    OutgoingPacket,
    PortCounters,
    QueueCounters,
    RemoveFlow,
    RemovePort,
    SetFlow,
    SetPort,
    TransmitOutcome,
    Treatment,
    WaitingTerms,
)
from triagemq.trace import Outcome

KEY, OTHER, UNKNOWN = (FlowKey("10.0.0.1", 20000 + number) for number in range(3))
TENTH = 100_000_000
LEVEL = 3


class Rig:
    """The plane, a socket that takes everything unless told otherwise, and what was reported of its packets."""

    def __init__(self) -> None:
        self.now_ns = 10 * TENTH
        self.outcomes: list[TransmitOutcome] = []
        self.sent: list[tuple[bytes, int]] = []
        self.controls: list[bytes] = []
        self.problem: int | None = 0
        self.waiting: list[Unsent] = []
        self.plane = ReportedDataPlane(
            cast(DatagramSender, self), self.outcomes.extend, clock=lambda: self.now_ns, seed=1
        )
        self.plane.apply(
            [
                SetPort("radio", 1e6, 100, 7),
                *(SetFlow(key, "radio", number, LEVEL, 0.5) for number, key in enumerate((KEY, OTHER))),
            ]
        )

    def close(self) -> None:
        """As a sender that nothing waits for."""

    def __call__(
        self, datagrams: Datagrams, class_of: Callable[[int], int], terms_of: TermsOf
    ) -> Sequence[Unsent]:
        if self.problem != 0:
            unsent = [
                Unsent(place, *one, class_of(place), self.problem) for place, one in enumerate(datagrams)
            ]
            self.waiting += unsent
            return unsent
        self.sent += [(datagram, class_of(place)) for place, (_, datagram) in enumerate(datagrams)]
        return ()

    def rerank(self, class_of: Callable[[Unsent], int]) -> None:
        for one in self.waiting:
            one.priority_class = class_of(one)

    def control(self, datagrams: Datagrams) -> Sequence[Unsent]:
        self.controls += [datagram for _, datagram in datagrams]
        return ()

    def publish(self, *numbers: int, key: FlowKey = KEY, size: int = 10, level: int | None = None) -> None:
        treatment = None if level is None else Treatment(level)
        self.plane.send([OutgoingPacket(key, bytes(size), False, number, treatment) for number in numbers])

    def report(self, came: int, dropped: int, left: int, level: int = LEVEL) -> None:
        """What the queue of a class has counted by now; the others are empty."""
        self.now_ns += 2 * TENTH
        queue = QueueCounters(
            packets_in=came, packets_out=left, drops=dropped, backlog_packets=came - dropped - left
        )
        queues = [queue if each == level else QueueCounters() for each in range(7)]
        self.plane.report({"radio": PortCounters(tuple(queues), QueueCounters())}, {}, self.now_ns)

    def by_number(self) -> dict[Any, str]:
        return {number: outcome.name for number, outcome, _, _ in self.outcomes}


def test_the_newest_waits_before_a_queue_with_a_backlog_until_the_one_in_it_has_left() -> None:
    rig = Rig()

    def publish(number: int, *, seconds: float = 100.0) -> None:
        terms = WaitingTerms("a", rig.now_ns + round(seconds * 1e9))
        rig.plane.send([OutgoingPacket(KEY, b"%d" % number, False, number, Treatment(LEVEL), terms)])

    # Nothing is known of the queue, and then nothing waits in it.
    publish(0)
    publish(1)
    rig.report(2, 0, 2)
    publish(2)
    rig.publish(*range(90, 95))
    rig.report(8, 0, 2)
    for number in (3, 4, 5):
        publish(number)
    assert rig.by_number() == dict.fromkeys((0, 1), "delivered") | dict.fromkeys((3, 4), "superseded")
    rig.report(8, 0, 3)
    assert rig.by_number()[2] == "delivered"
    assert [datagram for datagram, _ in rig.sent if len(datagram) == 1] == [b"0", b"1", b"2", b"5"]
    # What has expired meanwhile is not sent, and holds nothing back.
    rig.report(9, 0, 4)
    publish(6, seconds=0.1)
    rig.report(9, 0, 9)
    assert rig.by_number()[5] == "delivered"
    assert rig.by_number()[6] == "expired"
    publish(7)
    rig.publish(96)
    rig.report(11, 0, 9)
    publish(8)
    rig.plane.close()
    assert rig.by_number()[8] == "in_flight"
    assert len(rig.by_number()) == len(rig.outcomes)


def test_what_waits_in_a_queue_behind_has_no_fate_and_what_left_has_the_time_between_two_reports() -> None:
    rig = Rig()
    rig.publish(*range(10))
    assert rig.outcomes == []
    begun_ns = rig.now_ns
    rig.report(10, 0, 4)
    assert rig.by_number() == dict.fromkeys(range(4), "delivered")
    rig.report(10, 0, 6)
    assert list(rig.by_number()) == [0, 1, 2, 3, 4, 5]
    assert rig.outcomes[4:] == [
        (4, Outcome.delivered, begun_ns, begun_ns + 3 * TENTH),
        (5, Outcome.delivered, begun_ns, begun_ns + 4 * TENTH),
    ]
    rig.plane.close()
    assert [outcome[1] for outcome in rig.outcomes[6:]] == [Outcome.in_flight] * 4


def test_packets_of_one_call_are_sent_in_the_order_of_their_classes_and_bear_them() -> None:
    rig = Rig()
    packets = [(UNKNOWN, 0), (OTHER, None), (KEY, 0), (OTHER, 9), (KEY, 0)]
    rig.plane.send(
        [
            OutgoingPacket(key, bytes([number]), False, None, None if level is None else Treatment(level))
            for number, (key, level) in enumerate(packets)
        ]
    )
    # A class that the port does not have is its last; what nobody has ranked has none.
    assert rig.sent == [(b"\2", 0), (b"\4", 0), (b"\1", LEVEL), (b"\3", 6), (b"\0", 8)]


def test_where_the_queue_was_empty_a_packet_left_as_it_came() -> None:
    rig = Rig()
    rig.report(0, 0, 0)
    rig.publish(1)
    came_ns = rig.now_ns
    rig.report(1, 0, 1)
    assert rig.outcomes == [(1, Outcome.delivered, came_ns, came_ns)]


def test_outcomes_are_as_many_as_a_queue_has_counted() -> None:
    """A queue that really drops and serves, by its own dice: every report is met exactly."""
    rig = Rig()
    dice = random.Random(3)
    waiting: list[int] = []
    counted = [0, 0, 0]
    numbers = 0
    for _ in range(200):
        for _ in range(dice.randrange(30)):
            rig.publish(numbers, key=(KEY, OTHER)[numbers % 2])
            counted[0] += 1
            if len(waiting) >= 20:
                counted[1] += 1
            else:
                waiting.append(numbers)
            numbers += 1
            if dice.random() < 0.4 and waiting:
                waiting.pop(0)
                counted[2] += 1
        rig.report(*counted)
        found = Counter(outcome for _, outcome, _, _ in rig.outcomes)
        assert found[Outcome.dropped_by_buffer] == counted[1]
        assert found[Outcome.delivered] == counted[2]
        assert len(rig.outcomes) == numbers - len(waiting)
    assert len(set(rig.by_number())) == len(rig.outcomes)
    flows = rig.plane.counters().flows
    assert sum(flow.packets_in for flow in flows.values()) == numbers
    assert sum(flow.backlog_packets for flow in flows.values()) == len(waiting)


def test_packets_of_others_in_the_same_queue_have_their_places_among_ours() -> None:
    rig = Rig()
    rig.report(0, 0, 0)
    rig.publish(*range(10))
    rig.report(30, 0, 15)
    assert rig.by_number() == dict.fromkeys(range(5), "delivered")
    rig.report(30, 0, 30)
    assert rig.by_number() == dict.fromkeys(range(10), "delivered")


def test_what_was_sent_and_never_counted_is_lost_on_the_link() -> None:
    rig = Rig()
    rig.publish(*range(10))
    rig.report(10, 0, 10)
    # The link is down: the socket takes them, and they come nowhere.
    rig.publish(*range(10, 15))
    rig.report(10, 0, 10)
    assert {rig.by_number()[number] for number in range(10)} == {"delivered"}
    assert {rig.by_number()[number] for number in range(10, 15)} == {"lost_on_link"}
    # One that is on its way while the queue is read is not.
    rig.publish(15)
    rig.now_ns -= 2 * TENTH
    rig.report(10, 0, 10)
    assert 15 not in rig.by_number()


def test_what_was_sent_before_a_port_was_there_belongs_to_no_queue() -> None:
    rig = Rig()
    rig.publish(1, 2)
    rig.now_ns += TENTH
    rig.publish(3)
    rig.report(1, 1, 0)
    assert rig.by_number() == {1: "delivered", 2: "delivered", 3: "dropped_by_buffer"}


def test_a_port_that_came_and_went_between_two_reports_is_forgotten() -> None:
    rig = Rig()
    rig.publish(1)
    rig.plane.apply([RemoveFlow(KEY), RemoveFlow(OTHER), RemovePort("radio")])
    for _ in range(30):
        rig.now_ns += TENTH
        rig.plane.report({}, {}, rig.now_ns)
    assert rig.by_number() == {1: "in_flight"}
    assert rig.plane._lines == {}


def test_a_queue_that_loses_what_it_holds_has_dropped_it() -> None:
    rig = Rig()
    rig.publish(*range(10))
    rig.report(10, 0, 2)
    rig.report(10, 8, 2)
    assert Counter(rig.by_number().values()) == {"delivered": 2, "dropped_by_buffer": 8}


def test_a_full_or_refusing_socket_is_no_delivery() -> None:
    rig = Rig()
    rig.problem = errno.ENETUNREACH
    rig.publish(1)
    assert rig.by_number() == {1: "lost_on_link"}
    rig.problem = None
    rig.publish(2, 3)
    assert [one.priority_class for one in rig.waiting[1:]] == [LEVEL, LEVEL]
    assert list(rig.by_number()) == [1]
    rig.waiting[1].problem, rig.waiting[2].problem = 0, errno.EAGAIN
    rig.plane.settled_later(rig.waiting[1:])
    assert rig.by_number() == {1: "lost_on_link", 3: "in_flight"}
    rig.report(1, 0, 1)
    assert rig.by_number()[2] == "delivered"


def test_what_waits_for_the_socket_goes_to_the_queue_of_a_new_plan() -> None:
    rig = Rig()
    rig.report(0, 0, 0)
    rig.problem = None
    rig.publish(1, 2)
    rig.plane.reclassify(lambda token: Treatment(0) if token == 2 else None)
    assert [one.priority_class for one in rig.waiting] == [LEVEL, 0]
    for one in rig.waiting:
        one.problem = 0
    rig.plane.settled_later(rig.waiting)
    rig.report(1, 0, 1, level=0)
    assert rig.by_number() == {1: "lost_on_link", 2: "delivered"}


def test_fragments_count_as_packets_of_one_event() -> None:
    rig = Rig()
    rig.publish(*range(6), size=4000)
    rig.report(18, 6, 9)
    assert Counter(rig.by_number().values()) == {"delivered": 3, "dropped_by_buffer": 2}


def test_a_gateway_that_comes_later_than_the_queues_does_not_take_others_packets_for_its_own() -> None:
    rig = Rig()
    rig.publish(1, 2)
    # A thousand came before this gateway was started; five wait, and the last two of them are ours.
    rig.report(1002, 100, 897)
    assert rig.outcomes == []
    rig.report(1002, 100, 900)
    assert rig.outcomes == []
    rig.report(1002, 100, 902)
    assert rig.by_number() == {1: "delivered", 2: "delivered"}


def test_control_goes_first_and_packets_of_no_flow_are_as_good_as_sent() -> None:
    rig = Rig()
    rig.plane.apply([RemoveFlow(OTHER)])
    rig.plane.send(
        [
            OutgoingPacket(UNKNOWN, b"event", False, 1),
            OutgoingPacket(KEY, b"answer", True),
        ]
    )
    assert (rig.controls, rig.sent) == ([b"answer"], [(b"event", 8)])
    assert rig.by_number() == {1: "delivered"}


def test_a_port_is_gone_when_what_waited_has_left_and_what_was_not_reported_stays_in_flight() -> None:
    rig = Rig()
    rig.publish(1, 2)
    rig.report(2, 0, 1)
    rig.publish(3)
    rig.now_ns += TENTH
    rig.plane.report({}, {}, rig.now_ns)
    assert rig.by_number() == {1: "delivered", 2: "delivered", 3: "in_flight"}
    assert rig.plane._lines == {}


def test_copies_that_have_left_are_counted_however_many_packets_they_were_sent_in() -> None:
    rig = Rig()
    rig.publish(1, 2, size=3_000)
    rig.report(6, 0, 3)
    assert rig.plane.counters().flows[KEY] == FlowCounters(0, 2, 0, 1, copies_out=1)
    rig.report(6, 0, 6)
    assert rig.plane.counters().flows[KEY].copies_out == 2


def test_promised_flows_are_known_as_they_were_reported() -> None:
    rig = Rig()
    topic = FlowKey("239.1.2.3", 5000)
    rig.plane.report({}, {topic: FlowCounters(7, 5, packets_out=5)}, rig.now_ns)
    assert rig.plane.counters().flows[topic].packets_out == 5
    rig.plane.report({}, {}, rig.now_ns)
    assert rig.plane.counters().flows == {}
