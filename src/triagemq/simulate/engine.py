"""One replication: time moves forward in blocks of publications; changes, warm-up and the end fall between blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triagemq.scenario import Floats, Scenario
from triagemq.simulate.changes import Control, Timeline, steered
from triagemq.simulate.endings import (
    BATCHES,
    NO_DEADLINE,
    Tally,
    arriving_after,
    count_endings,
    count_late,
    new_tally,
)
from triagemq.simulate.network import drawn_losses
from triagemq.simulate.path import MixedPath, Path
from triagemq.simulate.promised.state import PromiseTally
from triagemq.simulate.random import seeds_for
from triagemq.simulate.records import Clock, Records
from triagemq.simulate.replay import Replayed
from triagemq.simulate.sink import (
    SAMPLE_SECONDS,
    Sink,
    TraceColumns,
    cut_publishers,
    queue_sample_columns,
)
from triagemq.simulate.source import Generated
from triagemq.trace.latency_bins import percentiles_ns

COPIES_PER_BLOCK = 1 << 15
"""Copies that a block makes on average: enough to forget the cost of calling a kernel, few enough for the caches."""

LARGEST_BLOCK = 1 << 15

STEERING_LAG_SECONDS = 1e-9
"""A control decides so much after queues were sampled: a block ends before the instant at its end happens."""

PERCENTILES = (0.95, 0.99)
"""The latencies that these shares of a subscription's deliveries do not exceed."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How far a run goes and from when it is measured. `expected_seconds` is how long it will take on average."""

    publications: float
    ends_seconds: float
    expected_seconds: float
    measured_from_ns: int
    block_events: int
    percentiles: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Replication:
    """What one replication counted. `utilisation` is per output port, over the measured time, or as long as it was
    followed.

    `drained_seconds` is how long after the last publication the last copy arrived; 0 where none did.
    `percentiles_ns` has a row for each of PERCENTILES and a column per subscription, none if they are not requested.
    """

    tally: Tally
    publications: int
    measured_publications: int
    simulated_seconds: float
    drained_seconds: float
    utilisation: Floats
    percentiles_ns: Floats
    promises: PromiseTally


class Run:
    """One replication: it publishes, follows everything through the network, and counts."""

    def __init__(
        self,
        scenario: Scenario,
        timeline: Timeline,
        extent: Extent,
        *,
        seed: int,
        replication: int,
        replay: Replayed | None = None,
        sink: Sink | None = None,
        control: Control | None = None,
    ) -> None:
        self._scenario, self._extent, self._control = scenario, extent, control
        if control is not None:
            # Its queue rates are those of this replication only.
            own = timeline.epochs.queue_seconds_per_byte.copy()
            timeline = replace(timeline, epochs=timeline.epochs._replace(queue_seconds_per_byte=own))
        self._timeline = timeline
        ends = timeline.epochs.ends
        epoch = int(np.searchsorted(ends, 0.0, side="right"))
        seeds = seeds_for(seed, replication)
        releases = timeline.releases
        self._feed = replay or Generated(
            releases.scenario,
            timeline.publication_rates[epoch],
            seeds,
            largest_bytes=releases.largest_bytes,
            at_once=releases.at_once,
        )
        self._trace = TraceColumns(sink, scenario) if sink is not None else None
        clock = Clock(
            epoch=epoch,
            run_ends=extent.ends_seconds,
            sample_seconds=np.inf if sink is None and control is None else SAMPLE_SECONDS,
            with_hops=bool(getattr(sink, "with_hops", False)),
        )
        losses = drawn_losses() if replay is None else replay.losses
        common = (
            scenario,
            timeline.epochs,
            timeline.classes,
            losses,
            seeds,
            clock,
            extent.block_events,
            self._collect,
        )
        self._path: Path = (
            Path(*common)
            if timeline.direct is None
            else MixedPath(timeline.direct, len(timeline.promised.publication), *common)
        )
        self._tally = new_tally(
            len(scenario.subscriptions),
            timeline.classes,
            len(timeline.phases),
            own_histograms=extent.percentiles,
            deadline_ns=_deadline_ns(scenario.subscriptions.max_latency_seconds),
        )
        self._phase_begins_ns = np.array([round(each.begins_seconds * 1e9) for each in timeline.phases])
        self._measured_from = extent.measured_from_ns * 1e-9
        measured_seconds = max(extent.expected_seconds - self._measured_from, 1e-9)
        self._batches_per_ns = BATCHES / (measured_seconds * 1e9)
        self._ahead: list[Records] = []
        self._frontier_ns, self._over = 0, False
        self._published = 0
        self._measured = 0
        self._last_published = 0.0
        self._sampled: list[dict[str, NDArray[Any]]] = []
        self._periods = 0
        self._rate_share = np.ones(len(scenario.publications))

    def run(self, progress: Callable[[float], None] | None = None) -> Replication:
        """Bring it to its end. `progress` may raise to stop it."""
        extent = self._extent
        if self._trace:
            self._trace.plan(self._timeline.plans[self._path.clock.epoch], 0)
        boundaries = self._boundaries()
        sent_before, followed_from = self._path.sent(0.0)
        frontier = 0.0
        while self._published < extent.publications and frontier < extent.ends_seconds:
            boundary = min(boundaries[0] if boundaries else np.inf, self._next_steering())
            frontier = min(self._publish_block(boundary), boundary)
            if nothing_more := frontier == np.inf:
                frontier = self._last_published
            self._advance(frontier)
            if frontier == self._next_steering():
                self._steer(frontier)
            if boundaries and frontier == boundaries[0]:
                boundaries.pop(0)
                self._pass_boundary(frontier)
                if frontier == self._measured_from:
                    sent_before, followed_from = self._path.sent(frontier)
            if progress:
                progress(self._fraction(frontier))
            if nothing_more:
                break
        sent, followed_until = self._path.sent(frontier)
        self._finish(boundaries)
        measured = frontier > self._measured_from
        drained_ns = int(self._tally.last_delivered_ns[0]) - self._frontier_ns
        own = self._tally.own_histogram
        promises = self._path.promise_tally
        if self._trace:
            self._trace.decisions(*cut_publishers(self._scenario, promises))
        return Replication(
            # Histograms of all subscriptions take room: what is needed of them is computed here.
            tally=self._tally._replace(own_histogram=own[:0]),
            publications=self._published,
            measured_publications=self._measured,
            simulated_seconds=frontier,
            drained_seconds=max(drained_ns, 0) * 1e-9,
            utilisation=(sent - sent_before) / (followed_until - followed_from)
            if measured
            else sent * np.nan,
            percentiles_ns=np.stack([percentiles_ns(own, share) for share in PERCENTILES]),
            promises=promises,
        )

    def _boundaries(self) -> list[float]:
        """The times at which a block has to end: changes, the end of warm-up and the end of the run."""
        times = {*self._timeline.epochs.ends.tolist(), self._measured_from, self._extent.ends_seconds}
        return sorted(time for time in times if 0 < time < np.inf and time <= self._extent.ends_seconds)

    def _publish_block(self, until: float) -> float:
        """Publish the next events before `until`; returns the time of the first one not published."""
        path = self._path
        most = min(self._extent.block_events, self._extent.publications - self._published)
        self._feed.publish(path.published, int(most), until)
        count = int(path.published.filled[0])
        self._published += count
        times = path.published.records["published_ns"][:count]
        if count:
            self._last_published = float(path.published.records["time"][count - 1])
        self._measured += count - int(np.searchsorted(times, self._extent.measured_from_ns, side="left"))
        if self._trace:
            self._trace.publications(path.published)
        return self._feed.next_time()

    def _pass_boundary(self, time: float) -> None:
        timeline, path = self._timeline, self._path
        before, after = path.clock.epoch, int(np.searchsorted(timeline.epochs.ends, time, side="right"))
        if before == after:
            return
        path.collect()
        path.clock = path.clock._replace(epoch=after)
        if not np.array_equal(timeline.publication_rates[after], timeline.publication_rates[before]):
            self._feed.change_rate(timeline.publication_rates[after] * self._rate_share, time)
        if self._trace and timeline.plans[after] is not timeline.plans[before]:
            self._trace.plan(timeline.plans[after], round(time * 1e9))

    def _next_steering(self) -> float:
        """When the control decides next."""
        if self._control is None:
            return np.inf
        return SAMPLE_SECONDS * (self._periods + 1) + STEERING_LAG_SECONDS

    def _steer(self, time: float) -> None:
        """Show the control what was sampled, and do as it says."""
        assert self._control is not None
        self._path.collect()
        self._periods += 1
        sampled = {name: np.concatenate([part[name] for part in self._sampled]) for name in self._sampled[0]}
        self._sampled.clear()
        steering = self._control.sampled(time, sampled)
        epoch, timeline = self._path.clock.epoch, self._timeline
        steered(timeline.epochs, self._scenario, epoch, steering.width_bps)
        if steering.rate_share is not None:
            self._rate_share = steering.rate_share
            self._feed.change_rate(timeline.publication_rates[epoch] * self._rate_share, time)
        if self._trace:
            when = np.full(len(steering.decisions), round(time * 1e9), dtype=np.int64)
            self._trace.decisions(steering.decisions, when)

    def _advance(self, frontier: float) -> None:
        """Bring everything forward, and forget of those that arrive later when they have."""
        self._frontier_ns = round(frontier * 1e9)
        self._ahead = [rows[rows["delivered_ns"] > self._frontier_ns] for rows in self._ahead]
        self._ahead = [rows for rows in self._ahead if len(rows)]
        self._path.advance(frontier)

    def _finish(self, boundaries: list[float]) -> None:
        """Let every queue run empty, so that no latency is missing."""
        path = self._path
        path.collect()
        self._over = True
        for rows in self._ahead:
            count_late(self._tally, rows, self._phase_begins_ns)
        # No more queue samples.
        path.ports.next_sample[:] = np.inf
        for boundary in boundaries:
            path.advance(boundary)
            self._pass_boundary(boundary)
        path.advance(np.inf)
        path.collect()

    def _fraction(self, frontier: float) -> float:
        extent = self._extent
        return float(min(1.0, max(self._published / extent.publications, frontier / extent.ends_seconds)))

    def _collect(self, path: Path) -> None:
        measured_from_ns = self._extent.measured_from_ns
        count_endings(self._tally, path.ended, measured_from_ns, self._batches_per_ns, self._phase_begins_ns)
        ahead = arriving_after(path.ended, self._frontier_ns, measured_from_ns)
        if self._over:
            count_late(self._tally, ahead, self._phase_begins_ns)
        else:
            # Whether they arrive before the end is not known yet.
            self._ahead.append(ahead)
        epoch = path.clock.epoch
        if self._trace:
            self._trace.deliveries(path.ended, self._timeline.plans[epoch])
            self._trace.hops(path.hops)
        if self._trace or self._control:
            queue_rates_bps = 8 / self._timeline.epochs.queue_seconds_per_byte[epoch]
            sampled = queue_sample_columns(path.samples, queue_rates_bps)
            if self._trace:
                self._trace.queue_samples(sampled)
            if self._control:
                self._sampled.append(sampled)


def _deadline_ns(max_latency_seconds: Floats) -> NDArray[np.int64]:
    limited = max_latency_seconds < 1e-9 * NO_DEADLINE
    found = np.full(len(limited), NO_DEADLINE)
    found[limited] = np.rint(max_latency_seconds[limited] * 1e9).astype(np.int64)
    return found
