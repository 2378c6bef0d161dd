"""The way of every event through the network, stage by stage, up to a frontier in time.

Before the frontier nothing new can appear anywhere, because no delay is negative: so each stage takes all that
reaches it before then, in the order of arrival, and keeps the rest. Memory holds what is under way and no more. Where a
run is cut off in time, every copy still under way ends as `in_flight`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from triagemq.compiled import kernel
from triagemq.scenario import Floats, Scenario
from triagemq.simulate.brokers import (
    BrokerState,
    fan_out,
    lose_event,
    lose_event_at,
    new_broker_queues,
    pass_brokers,
)
from triagemq.simulate.changes import Epochs
from triagemq.simulate.endings import IN_FLIGHT, end_copy, end_packet
from triagemq.simulate.network import Fates, broker_side, network_side
from triagemq.simulate.ports import catch_up_all, empty_queues
from triagemq.simulate.random import Seeds
from triagemq.simulate.records import (
    ENDED,
    EVENT,
    HOP,
    PACKET,
    SAMPLE,
    Buffer,
    Clock,
    Outlets,
    Pool,
    PortState,
    enlarged_buffer,
    enlarged_pool,
    new_buffer,
    new_port_queues,
    room,
)
from triagemq.simulate.switches import cross_switches, due, keep_later

_ENDED_CAPACITY = 1 << 14


class Path:
    """All queues of one replication. `collect` is called whenever a buffer of endings, hops or samples has to be
    emptied: it reads `ended`, `hops` and `samples`, and the path forgets them."""

    def __init__(
        self,
        scenario: Scenario,
        epochs: Epochs,
        classes: int,
        fates: Fates,
        seeds: Seeds,
        clock: Clock,
        collect: Callable[[Path], None],
    ) -> None:
        self.clock = clock
        self._epochs, self._seeds, self._collect = epochs, seeds, collect
        self._above = broker_side(scenario, fates)
        self._below = network_side(scenario, classes, fates)
        self._broker_queues = new_broker_queues(self._above, len(scenario.subscribers))
        self._switch_free = np.zeros(len(scenario.switches))
        self.ports = new_port_queues(self._below, clock.sample_seconds)
        self.published = new_buffer(EVENT, 1024)
        self._arriving = new_buffer(EVENT, 1024)
        self._matched = new_buffer(EVENT, 1024)
        hops = self._below.route.shape[1]
        self._inboxes = [new_buffer(PACKET, 1024) for _ in range(hops + 1)]
        self.ended = new_buffer(ENDED, max(_ENDED_CAPACITY, 2 * self._above.most_members))
        self.hops = new_buffer(HOP, _ENDED_CAPACITY)
        self.samples = new_buffer(SAMPLE, max(4096, 2 * classes))
        self._order = np.zeros(1024, dtype=np.int32)
        self._spare = np.zeros(1024, dtype=np.int32)
        self._times = np.zeros(1024)
        self._headroom = max(1024, self._above.most_members, self._above.links)

    def make_room(self, events: int) -> None:
        """See to it that the buffer of published events holds `events` of them."""
        if len(self.published.records) < events:
            self.published = enlarged_buffer(self.published, events)

    def advance(self, until: float) -> None:
        """Bring everything forward to `until`; the published events are used up."""
        self._pass_brokers(until)
        self._fan_out(until)
        for hop in range(len(self._inboxes) - 1):
            self._cross_switches(hop, until)

    def sent(self, time: float) -> tuple[Floats, Floats]:
        """How long each port has been sending, and until when it is followed, having caught up with `time`.

        A port is ahead by the packet that it sends, and behind a switch that is slower than what comes by all that the
        switch will look up later.
        """
        ports, count = self.ports, len(self._below.hop_of_port)
        return ports.busy_seconds[:count].copy(), np.maximum(ports.free_at[:count], time)

    def stop_sampling(self) -> None:
        """No more queue samples: what follows is only the emptying of queues."""
        self.ports.next_sample[:] = np.inf

    def cut_off(self) -> None:
        """The run is over: every copy still under way ends as `in_flight`."""
        self._cut_events(lambda: self._arriving, False)
        self._cut_events(lambda: self._matched, True)
        self._cut_below()

    def collect(self) -> None:
        """Hand over what has ended, and forget it."""
        self._collect(self)
        self.ended.filled[0] = self.hops.filled[0] = self.samples.filled[0] = 0

    def _pass_brokers(self, until: float) -> None:
        def step(begin: int) -> int:
            return pass_brokers(self._brokers(), self.published, begin, until)

        self._repeat(step, int(self.published.filled[0]) + 1)
        self.published.filled[0] = 0

    def _fan_out(self, until: float) -> None:
        def step(begin: int) -> int:
            return fan_out(self._brokers(), self.clock.epoch, begin, until)

        self._repeat(step, int(self._matched.filled[0]))
        keep_later(self._matched, until)

    def _cross_switches(self, hop: int, until: float) -> None:
        self._make_order(int(self._inboxes[hop].filled[0]))
        # Below hop 0 a switch is fed by one port, which sends in order: nothing to sort.
        count = due(self._inboxes[hop], until, hop == 0, self._order, self._times, self._spare)

        def arrivals(begin: int) -> int:
            return cross_switches(self._network(hop), hop, self._inboxes[hop], self._order, begin, count)

        def departures(begin: int) -> int:
            return catch_up_all(self._network(hop), hop, begin, until)

        self._repeat(arrivals, count)
        keep_later(self._inboxes[hop], until)
        self._repeat(departures, len(self.ports.free_at))

    def _make_order(self, waiting: int) -> None:
        """See to it that so many packets can be put in order."""
        if len(self._order) < waiting:
            size = 2 * waiting
            self._order, self._spare = np.zeros(size, dtype=np.int32), np.zeros(size, dtype=np.int32)
            self._times = np.zeros(size)

    def _cut_events(self, events: Callable[[], Buffer], matched: bool) -> None:
        def step(begin: int) -> int:
            return cut_events(self._brokers(), events(), matched, begin)

        self._repeat(step, int(events().filled[0]))

    def _cut_below(self) -> None:
        """End what is on its way from the brokers."""
        for hop in range(len(self._inboxes)):
            self._cut_packets(hop)
        self._repeat(lambda begin: empty_queues(self.ports, self.ended, begin), len(self.ports.free_at))

    def _cut_packets(self, hop: int) -> None:
        def step(begin: int) -> int:
            inbox, groups = self._inboxes[hop], self.ports.groups
            return cut_packets(self._epochs, self.clock.epoch, groups, inbox, hop, self.ended, begin)

        self._repeat(step, int(self._inboxes[hop].filled[0]))

    def _brokers(self) -> BrokerState:
        return BrokerState(
            self._above,
            self._epochs,
            self._seeds,
            self._broker_queues,
            self._arriving,
            self._matched,
            self._inboxes[0],
            self.ended,
            self.clock.run_ends,
        )

    def _network(self, hop: int) -> PortState:
        outlets = Outlets(self._inboxes[hop + 1], self.ended, self.hops, self.samples)
        return PortState(
            self._below, self._epochs, self._seeds, self._switch_free, self.ports, outlets, self.clock
        )

    def _repeat(self, step: Callable[[int], int], end: int) -> None:
        """Call a kernel until it is through; whenever it stops short, empty and enlarge what it may have filled."""
        done, wanted = 0, self._headroom
        while (reached := step(done)) < end:
            # No progress with everything empty: a single event needs more room than there is.
            wanted = 2 * wanted if reached == done else self._headroom
            done = reached
            self.collect()
            self._enlarge(wanted)

    def _enlarge(self, wanted: int) -> None:
        """Give everything room for `wanted` more. An enlarged buffer is another one, and changes to the old one
        would be lost: every step takes its buffers from the path anew."""

        def with_room(buffer: Buffer) -> Buffer:
            left = len(buffer.records) - int(buffer.filled[0])
            return buffer if left >= wanted else enlarged_buffer(buffer, wanted)

        self._arriving, self._matched = with_room(self._arriving), with_room(self._matched)
        self.ended, self.hops, self.samples = map(with_room, (self.ended, self.hops, self.samples))
        self._inboxes = [with_room(inbox) for inbox in self._inboxes]
        packets, groups = self.ports.packets, self.ports.groups
        if packets.free_count[0] < wanted:
            packets = enlarged_pool(packets, wanted)
        if groups.free_count[0] < wanted:
            groups = enlarged_pool(groups, wanted)
        self.ports = self.ports._replace(packets=packets, groups=groups)


@kernel
def cut_events(state: BrokerState, events: Buffer, matched: bool, begin: int) -> int:
    """End the copies of events on their way to a broker, or matched there; returns how many events were done."""
    above, count = state.above, events.filled[0]
    for number in range(begin, count):
        if not room(state.ended, above.most_members):
            return number
        event = events.records[number]
        source, broker = event.source_broker, event.broker
        lose_event_at(state, event, broker, np.inf)
        if matched:
            continue
        here = source * above.brokers + broker
        for place in range(above.tree_first[here], above.tree_first[here + 1]):
            behind = above.beyond[source, above.tree_link[place]]
            lose_event(state, event, behind, np.inf)
        if broker == source:
            lose_event(state, event, above.unreachable[source], np.inf)
    return count  # type: ignore[no-any-return]


@kernel
def cut_packets(
    epochs: Epochs, epoch: int, groups: Pool, packets: Buffer, hop: int, ended: Buffer, begin: int
) -> int:
    """End the packets on their way to a switch; returns how many were done."""
    count = packets.filled[0]
    for number in range(begin, count):
        if not room(ended, 1):
            return number
        packet = packets.records[number]
        if hop == 0:
            end_copy(
                ended,
                packet,
                packet.subscription,
                epochs.priority_class[epoch, packet.subscription],
                IN_FLIGHT,
            )
        else:
            end_packet(ended, groups, packet, packet.priority_class, IN_FLIGHT, -1, -1)
    return count  # type: ignore[no-any-return]
