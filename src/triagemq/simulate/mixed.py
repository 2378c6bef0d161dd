"""The way of every event where promised messages are under way, too, or ports are fair: `Path` down to the brokers'
copies, then all ports on one list of events."""

from __future__ import annotations

import numpy as np

from triagemq.scenario import Scenario
from triagemq.simulate.direct import Direct
from triagemq.simulate.event_list import (
    LEG,
    PromiseTally,
    World,
    cut_short,
    new_shared,
    release,
    run_events,
)
from triagemq.simulate.path import Path
from triagemq.simulate.records import enlarged_buffer, enlarged_pool, new_buffer, new_port_queues
from triagemq.simulate.switches import due, keep_later


class MixedPath(Path):
    """As Path; made with what Path is made with, and the direct ways."""

    def __init__(self, scenario: Scenario, direct: Direct, promises: int, *rest: object) -> None:
        super().__init__(scenario, *rest)  # type: ignore[arg-type]
        self._direct = direct
        self._shared = new_shared(direct, promises, len(scenario.publications))
        access_links = len(scenario.publishers)
        self.ports = new_port_queues(self._below, self.clock.sample_seconds, access_links)
        self._onward = new_buffer(self._inboxes[0].records.dtype, 1)

    @property
    def promise_tally(self) -> PromiseTally:
        return self._shared.tally

    def advance(self, until: float) -> None:
        """Bring everything forward to `until`; the published events are used up."""
        self._enlarge(max(self._headroom, int(self.published.filled[0])))
        release(self._world(), self.published)
        self._pass_brokers(until)
        self._fan_out(until)
        self._make_order(int(self._inboxes[0].filled[0]))
        count = due(self._inboxes[0], until, True, self._order, self._times, self._spare)
        progress = self._shared.progress
        progress[0], before, wanted = 0, -1, self._headroom
        while not run_events(self._world(), self._inboxes[0], self._order, count, until):
            wanted = 2 * wanted if before == progress[1] else self._headroom
            before = int(progress[1])
            self.collect()
            self._enlarge(wanted)
        keep_later(self._inboxes[0], until)

    def _cut_below(self) -> None:
        self._cut_packets(0)
        reached, wanted = -1, self._headroom
        while (reached := cut_short(self._world(), reached)) < len(self.ports.free_at):
            self.collect()
            wanted *= 2
            self._enlarge(wanted)

    def _enlarge(self, wanted: int) -> None:
        super()._enlarge(wanted)
        shared = self._shared
        if len(shared.happenings.records) - int(shared.happenings.filled[0]) < wanted:
            shared = shared._replace(happenings=enlarged_buffer(shared.happenings, wanted))
        if shared.messages.free_count[0] < wanted:
            messages = enlarged_pool(shared.messages, wanted)
            legs = np.zeros(len(messages.records) * self._direct.most_legs, dtype=LEG)
            legs[: len(shared.legs)] = shared.legs
            shared = shared._replace(messages=messages, legs=legs)
        self._shared = shared

    def _world(self) -> World:
        outlets = self._outlets(0)._replace(onward=self._onward)
        return World(
            self._direct,
            self._below,
            self._epochs,
            self._seeds,
            self._switch_free,
            self.ports,
            self._shared,
            outlets,
            self.clock,
        )
