"""The way of every event where promised messages are under way, too, or ports serve otherwise than by priority:
`Path` down to the brokers' copies, then all ports on one list of events."""

from __future__ import annotations

from typing import Any

import numpy as np

from triagemq.scenario import Floats, Scenario
from triagemq.simulate.changes import Epochs
from triagemq.simulate.path import Path
from triagemq.simulate.promised.direct import Direct
from triagemq.simulate.promised.event_list import cut_short, run_events
from triagemq.simulate.promised.packets import release
from triagemq.simulate.promised.state import (
    DONE,
    LEG,
    NEXT_EVENT,
    PLACE,
    PromiseTally,
    SimulationState,
    UnderWay,
    new_fair,
    new_limiters,
    new_tags,
    new_under_way,
)
from triagemq.simulate.records import (
    PACKET,
    enlarged_buffer,
    enlarged_pool,
    new_buffer,
    new_port_queues,
)
from triagemq.simulate.switches import due, keep_later


class MixedPath(Path):
    """As Path; made with what Path is made with, and the direct ways."""

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
        self._fair = new_fair(direct)
        self._tags = new_tags(direct.ports, classes)
        self._under_way = new_under_way(direct, promises)
        self._event_queue = new_buffer(NEXT_EVENT, 1024)
        self._limiters = new_limiters(direct.stream.shape[1])
        self._progress = np.zeros(2, dtype=np.int64)
        self.ports = new_port_queues(
            self._below, self.clock.sample_seconds, len(direct.port_of) - direct.ports
        )
        self._onward = new_buffer(PACKET, 1)

    @property
    def promise_tally(self) -> PromiseTally:
        return self._under_way.tally

    def advance(self, until: float) -> None:
        """Bring everything forward to `until`; the published events are used up."""
        self._enlarge(max(self._headroom, int(self.published.filled[0]) + 1))
        release(self._world(), self.published)
        self._pass_brokers(until)
        self._fan_out(until)
        self._make_order(int(self._inboxes[0].filled[0]))
        count = due(self._inboxes[0], until, True, self._order, self._times, self._spare)
        self._progress[PLACE], before, wanted = 0, -1, self._headroom
        while not run_events(self._world(), self._inboxes[0], self._order, count, until):
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

    def _cut_below(self) -> None:
        self._cut_packets(0)
        reached, wanted = -1, self._headroom
        while (reached := cut_short(self._world(), reached)) < len(self.ports.free_at):
            self.collect()
            wanted *= 2
            self._enlarge(wanted)

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
            self._fair,
            self._tags,
            self._under_way,
            self._event_queue,
            self._limiters,
            self._progress,
        )
