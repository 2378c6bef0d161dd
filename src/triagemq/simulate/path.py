"""The path of every event through the network, stage by stage, up to a frontier in time.

Before the frontier nothing new can appear anywhere, because no delay is negative: so each stage takes all that
reaches it before then, in the order of arrival, and keeps the rest. Memory holds what is under way and no more. In the
end every queue runs empty; where a run is cut off in time, what ends after that is `in_flight`.

Where promised messages are under way, too, or ports serve otherwise than by priority, ports cannot be taken one after
the other (`MixedPath`): below the brokers' copies, all of them are on one list of events.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from triagemq.scenario import Floats, Scenario
from triagemq.simulate.brokers import (
    BrokerState,
    fan_out,
    new_broker_queues,
    pass_brokers,
)
from triagemq.simulate.changes import Epochs
from triagemq.simulate.network import RecordedLosses, broker_side, network_side
from triagemq.simulate.ports import catch_up_all
from triagemq.simulate.promised.direct import Direct
from triagemq.simulate.promised.event_list import run_events
from triagemq.simulate.promised.packets import release
from triagemq.simulate.promised.state import (
    DONE,
    LEG,
    NEXT_EVENT,
    PLACE,
    SimulationState,
    Tags,
    Turns,
    UnderWay,
    new_limiters,
    new_promise_tally,
    new_under_way,
)
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
    PortState,
    enlarged_buffer,
    enlarged_pool,
    new_buffer,
    new_port_queues,
)
from triagemq.simulate.switches import Order, ThinningState, cross_switches, due, keep_later, thin

_ENDED_CAPACITY = 1 << 14


class Path:
    """All queues of one replication, into which `block_events` are published at a time. `collect` is called whenever a
    buffer of endings, hops or samples has to be emptied: it reads `ended`, `hops` and `samples`, and the path forgets
    them."""

    def __init__(
        self,
        scenario: Scenario,
        epochs: Epochs,
        classes: int,
        losses: RecordedLosses,
        seeds: Seeds,
        clock: Clock,
        block_events: int,
        collect: Callable[[Path], None],
    ) -> None:
        self.clock = clock
        self._epochs, self._seeds, self._collect = epochs, seeds, collect
        self._above = broker_side(scenario, losses)
        self._below = network_side(scenario, classes, losses)
        self._broker_queues = new_broker_queues(self._above, len(scenario.subscribers))
        interval = 1 / scenario.subscriptions.max_rate_per_second
        self._thinning = ThinningState(interval, np.zeros(len(interval)), np.full(len(interval), -1))
        self._switch_free = np.zeros(len(scenario.switches))
        self.ports = new_port_queues(self._below, clock.sample_seconds)
        self.published = new_buffer(EVENT, max(1024, block_events))
        self._arriving = new_buffer(EVENT, 1024)
        self._matched = new_buffer(EVENT, 1024)
        hops = self._below.route.shape[1]
        self._inboxes = [new_buffer(PACKET, 1024) for _ in range(hops + 1)]
        self.promise_tally = new_promise_tally(0, len(scenario.publications))
        self.ended = new_buffer(ENDED, max(_ENDED_CAPACITY, 2 * self._above.most_members))
        self.hops = new_buffer(HOP, _ENDED_CAPACITY)
        self.samples = new_buffer(SAMPLE, max(4096, 2 * classes))
        self._headroom = max(1024, self._above.most_members, self._above.links)

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
        if self._thinning.seconds.any():
            self._thin(until)

    def _thin(self, until: float) -> None:
        """Subscriptions that take so many copies a second at most get the newest of each interval."""
        order, count = self._due(0, until)

        def step(begin: int) -> int:
            inbox, thinning = self._inboxes[0], self._thinning
            return thin(self._network(0), inbox, order, begin, count, until, thinning)

        self._repeat(step, count)

    def _cross_switches(self, hop: int, until: float) -> None:
        order, count = self._due(hop, until)

        def arrivals(begin: int) -> int:
            return cross_switches(self._network(hop), hop, self._inboxes[hop], order, begin, count)

        def departures(begin: int) -> int:
            return catch_up_all(self._network(hop), hop, begin, until)

        self._repeat(arrivals, count)
        keep_later(self._inboxes[hop], until)
        self._repeat(departures, len(self.ports.free_at))

    def _due(self, hop: int, until: float) -> tuple[Order, int]:
        """Which packets reach the switches of a hop before `until`, in the order of arrival, and how many they are."""
        inbox = self._inboxes[hop]
        waiting = int(inbox.filled[0])
        order, spare = np.empty(waiting, dtype=np.int32), np.empty(waiting, dtype=np.int32)
        # Below hop 0 a switch is fed by one port, which sends in order: nothing to sort.
        return order, due(inbox, until, hop == 0, order, np.empty(waiting), spare)

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


class MixedPath(Path):
    """As Path; made with what Path is made with, and the direct routes."""

    def __init__(
        self,
        direct: Direct,
        promises: int,
        scenario: Scenario,
        epochs: Epochs,
        classes: int,
        *others: Any,
    ) -> None:
        super().__init__(scenario, epochs, classes, *others)
        self._direct = direct
        rows, ports = len(direct.port_of), direct.ports
        self._turns = Turns(*(np.full(length, -1) for length in (rows, ports, ports)))
        self._tags = Tags(first=np.zeros((direct.ports, classes)), sent=np.zeros(direct.ports))
        self.promise_tally = new_promise_tally(promises, direct.stream.shape[1])
        self._under_way = new_under_way(direct, self.promise_tally)
        self._event_queue = new_buffer(NEXT_EVENT, 1024)
        self._limiters = new_limiters(direct.stream.shape[1])
        self._progress = np.zeros(2, dtype=np.int64)
        self.ports = new_port_queues(
            self._below, self.clock.sample_seconds, len(direct.port_of) - direct.ports
        )
        self._onward = new_buffer(PACKET, 1)

    def advance(self, until: float) -> None:
        """Bring everything forward to `until`; the published events are used up."""
        self._enlarge(max(self._headroom, int(self.published.filled[0]) + 1))
        release(self._world(), self.published)
        self._pass_brokers(until)
        self._fan_out(until)
        order, count = self._due(0, until)
        self._progress[PLACE], before, wanted = 0, -1, self._headroom
        while not run_events(self._world(), self._inboxes[0], order, count, until):
            wanted = 2 * wanted if before == self._progress[DONE] else self._headroom
            before = int(self._progress[DONE])
            self.collect()
            self._enlarge(wanted)
        keep_later(self._inboxes[0], until)

    def sent(self, time: float) -> tuple[Floats, Floats]:
        """A queue with a width of its own counts with its share of the port, and only up to `time`."""
        sent, until = super().sent(time)
        direct, epochs, epoch = self._direct, self._epochs, self.clock.epoch
        for port in np.flatnonzero((direct.queue_first >= 0) & (direct.borrowing == 0)).tolist():
            queues = direct.queue_first[port] + np.arange(self._below.classes)
            ahead = np.maximum(self.ports.free_at[queues] - time, 0.0)
            share = epochs.seconds_per_byte[epoch, port] / epochs.queue_seconds_per_byte[epoch, port]
            sent[port] -= (ahead * share).sum()
        return sent, until

    def _enlarge(self, wanted: int) -> None:
        super()._enlarge(wanted)
        if len(self._event_queue.records) - int(self._event_queue.filled[0]) < wanted:
            self._event_queue = enlarged_buffer(self._event_queue, wanted)
        messages, legs, tally = self._under_way
        if messages.free_count[0] < wanted:
            messages = enlarged_pool(messages, wanted)
            more = np.zeros(len(messages.records) * self._direct.most_legs, dtype=LEG)
            more[: len(legs)] = legs
            self._under_way = UnderWay(messages, more, tally)

    def _world(self) -> SimulationState:
        network = self._network(0)
        return SimulationState(
            self._direct,
            network._replace(outlets=network.outlets._replace(onward=self._onward)),
            self._turns,
            self._tags,
            self._under_way,
            self._event_queue,
            self._limiters,
            self._progress,
        )
