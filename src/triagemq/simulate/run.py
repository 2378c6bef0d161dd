"""simulate(): checks its arguments, warms the kernels, and runs replications on all cores until they are enough."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from triagemq.errors import ParameterError
from triagemq.plan.demands import copy_rate
from triagemq.plan.model import Plan
from triagemq.scenario import Scenario
from triagemq.simulate.changes import Change, Control, Timeline, timeline
from triagemq.simulate.engine import COPIES_PER_BLOCK, LARGEST_BLOCK, Extent, Replication, Run
from triagemq.simulate.network import RecordedLosses, without_chances
from triagemq.simulate.promised.direct import DirectRoutes
from triagemq.simulate.replay import Replayed
from triagemq.simulate.result import SimulationResult, class_latencies, summarise
from triagemq.simulate.sink import Sink

Progress = Callable[[float], None]

DEFAULT_PUBLICATIONS = 1_000_000

MOST_REPLICATIONS = 256
"""Where the search for a precision gives up."""

_FIRST_REPLICATIONS = 8
_PROGRESS_SECONDS = 0.1


def simulate(
    scenario: Scenario,
    plan: Plan,
    *,
    publications: int | None = None,
    duration_seconds: float | None = None,
    seed: int = 0,
    replications: int = 1,
    warmup: float = 0.1,
    precision: float | None = None,
    changes: Sequence[Change] = (),
    replay: Mapping[str, ArrayLike] | None = None,
    losses: RecordedLosses | None = None,
    sink: Sink | None = None,
    progress: Callable[[float], None] | None = None,
    threads: int | None = None,
    block_events: int | None = None,
    late_counts: bool = False,
    percentiles: bool = False,
    babbling: Sequence[str] = (),
    synchronised: bool = False,
    limiter: str | None = None,
    routes: DirectRoutes | None = None,
    control: Callable[[int], Control] | None = None,
) -> SimulationResult:
    """Simulate a plan: every queue from the publishers to the subscribers, event by event.

    A run ends after `publications` events (a million, if nothing else is said), and then goes on until every queue is
    empty, so that no latency is missing; where that takes long, what arrives only then is no success (see
    SimulationResult), unless `late_counts`. Or a run is cut off after `duration_seconds`, and what is under way then
    ends as `in_flight`. Events published in the first `warmup` share of the expected time do not count. Several
    `replications` differ in their random numbers only and run on `threads` threads (default: all cores); the
    result is the same whatever their number, and whatever `block_events`, the number of events published at a time.

    `precision` adds replications until the 95 % interval of every class's mean latency is within that share of it on
    either side. `replay` publishes a recorded table (published_ns, publication, size_bytes) instead of random events.
    `losses` says which of their copies are dropped on purpose or lost on a link. Then nothing else is, whatever plan
    and error rates say; only buffers may still be full.

    Promised messages take direct routes next to the others, and are released periodically, at the least separation of
    their publication, in a random phase; all at time 0 if they are `synchronised`. Publishers that are named as
    `babbling` send as fast as their access links carry it, and meet their limiters. These are of the kind that the
    switch has, which bounds count with, or all of the one that `limiter` names: a token `bucket` lets a babbling
    publisher send up to a message more than a `window` (docs/background/experiments.md, MIDAS). `routes` are direct
    routes in the place of those that the plan promises (see triagemq.simulate.promised.direct).

    `control` makes, for the number of a replication, what decides the rates of queues while it runs, every 200 ms.

    `percentiles` counts those of every subscription, too, which takes 16 KB for each. `sink` records one replication as
    a Trace. `progress` is called with the share done, from 0 to 1.

    >>> from triagemq.scenario.building import building
    >>> from triagemq.plan import make_plan
    >>> scenario = building()
    >>> found = simulate(scenario, make_plan(scenario), publications=2000)
    >>> found.publications
    2000
    """
    when = timeline(
        scenario, plan, changes, routes=routes, babbling=babbling, synchronised=synchronised, limiter=limiter
    )
    if losses is not None and replay is None:
        raise ParameterError("losses", "are those of the copies of recorded events: give replay, too")
    recorded = None if replay is None else Replayed(scenario, replay, losses)
    if losses is not None:
        when = replace(when, epochs=without_chances(when.epochs))
    extent = _extent(scenario, when, publications, duration_seconds, warmup, recorded, block_events)
    extent = replace(extent, percentiles=percentiles)
    _check(replications, precision, sink, recorded, changes, threads, babbling, synchronised)
    compile_seconds = _warm_kernels(scenario, when, extent)

    def run_one(number: int, note: Progress | None) -> Replication:
        return Run(
            scenario,
            when,
            extent,
            seed=seed,
            replication=number,
            replay=recorded and recorded.again(),
            sink=sink,
            control=control and control(number),
        ).run(note)

    started, threads = time.perf_counter(), threads or os.cpu_count() or 1
    wanted = replications if precision is None else max(replications, _FIRST_REPLICATIONS)
    done = _replicate(run_one, range(wanted), threads, progress)
    reached = None if precision is None else _tight(done, precision)
    while precision is not None and not reached and len(done) < MOST_REPLICATIONS:
        # Half-queue rates shrink with the square root of the number: take about what is needed, at most double.
        more = range(len(done), min(2 * len(done), MOST_REPLICATIONS))
        done += _replicate(run_one, more, threads, progress)
        reached = _tight(done, precision)
    return summarise(
        scenario,
        when.phases,
        done,
        measured_from_ns=extent.measured_from_ns,
        wall_seconds=time.perf_counter() - started,
        compile_seconds=compile_seconds,
        precision_reached=reached,
        late_counts=late_counts,
        promised=when.promised,
    )


class _Stopped(BaseException):
    """Raised inside a replication when another one failed or the user interrupted the run."""


def _replicate(
    run_one: Callable[[int, Progress | None], Replication],
    numbers: range,
    threads: int,
    progress: Progress | None,
) -> list[Replication]:
    """Replications side by side, in their order. The first failure stops the others; progress is reported from here."""
    if len(numbers) == 1:
        return [run_one(numbers[0], progress)]
    stop, fractions = threading.Event(), dict[int, float]()

    def noting(number: int) -> Progress:
        def note(fraction: float) -> None:
            if stop.is_set():
                raise _Stopped
            fractions[number] = fraction

        return note

    with ThreadPoolExecutor(min(threads, len(numbers))) as pool:
        futures = [pool.submit(run_one, number, noting(number)) for number in numbers]
        try:
            pending = set(futures)
            while pending:
                finished, pending = wait(pending, timeout=_PROGRESS_SECONDS, return_when=FIRST_COMPLETED)
                for future in finished:
                    future.result()
                if progress:
                    progress(sum(list(fractions.values())) / len(futures))
            return [future.result() for future in futures]
        except BaseException:
            stop.set()
            for future in futures:
                future.cancel()
            raise


def _tight(done: Sequence[Replication], precision: float) -> bool:
    """Whether every class with deliveries knows its mean latency within `precision` of it."""
    mean, half_width = class_latencies([each.tally for each in done])
    known = np.isfinite(mean) & (mean > 0)
    return bool((half_width[known] <= precision * mean[known]).all())


def _check(
    replications: int,
    precision: float | None,
    sink: Sink | None,
    recorded: Replayed | None,
    changes: Sequence[Change],
    threads: int | None,
    babbling: Sequence[str],
    synchronised: bool,
) -> None:
    if recorded is not None and (babbling or synchronised):
        raise ParameterError("replay", "publishes what was recorded; leave out babbling and synchronised")
    if replications < 1:
        raise ParameterError("replications", f"is {replications}; must be 1 or more")
    if threads is not None and threads < 1:
        raise ParameterError("threads", f"is {threads}; must be 1 or more")
    if precision is not None and not 0 < precision < 1:
        raise ParameterError("precision", f"is {precision}; must be between 0 and 1")
    if sink is not None and (replications > 1 or precision is not None):
        raise ParameterError("sink", "a trace records one replication; leave out replications and precision")
    if recorded is not None and precision is not None:
        raise ParameterError("precision", "a replay publishes the same events in every replication")
    if recorded is not None and any(change.publication_rate is not None for change in changes):
        raise ParameterError("changes", "a replay publishes what was recorded; leave out publication_rate")


def _extent(
    scenario: Scenario,
    when: Timeline,
    publications: int | None,
    duration_seconds: float | None,
    warmup: float,
    recorded: Replayed | None,
    block_events: int | None,
) -> Extent:
    if publications is not None and publications < 1:
        raise ParameterError("publications", f"is {publications}; must be 1 or more")
    if duration_seconds is not None and not (np.isfinite(duration_seconds) and duration_seconds > 0):
        raise ParameterError("duration_seconds", f"is {duration_seconds}; must be positive and finite")
    if not 0 <= warmup < 1:
        raise ParameterError("warmup", f"is {warmup}; must be a share from 0 to below 1")
    if block_events is not None and block_events < 1:
        raise ParameterError("block_events", f"is {block_events}; must be 1 or more")
    if recorded is not None:
        limit = float(min(publications or len(recorded), len(recorded)))
        expected = recorded.last_seconds
    else:
        limit = float(publications or (np.inf if duration_seconds is not None else DEFAULT_PUBLICATIONS))
        expected = _expected_seconds(when, limit)
    ends = np.inf if duration_seconds is None else float(duration_seconds)
    expected = min(expected, ends)
    if not np.isfinite(expected):
        raise ParameterError("scenario", "publishes nothing: give it publications with a rate above 0")
    return Extent(
        publications=limit,
        ends_seconds=ends,
        expected_seconds=expected,
        measured_from_ns=round(warmup * expected * 1e9),
        block_events=block_events or _block_events(scenario),
    )


def _expected_seconds(when: Timeline, publications: float) -> float:
    """How long so many publications take at the mean rates, changes of rate included."""
    left, now = publications, 0.0
    for ends, rates in zip(when.epochs.ends, when.publication_rates, strict=True):
        rate = float(rates.sum())
        if rate > 0 and now + left / rate <= ends:
            return now + left / rate
        left -= rate * (ends - now) if np.isfinite(ends) else 0.0
        now = float(ends)
    return float("inf")


def _block_events(scenario: Scenario) -> int:
    copies = copy_rate(scenario) / max(float(scenario.publications.rate_per_second.sum()), 1e-300)
    return int(min(max(COPIES_PER_BLOCK / max(copies, 1.0), 16), LARGEST_BLOCK))


def _warm_kernels(scenario: Scenario, when: Timeline, extent: Extent) -> float:
    """Compile or load every kernel with a handful of events, so that wall_seconds is the engine's time alone."""
    started = time.perf_counter()
    few = replace(
        extent,
        publications=min(extent.publications, 8),
        ends_seconds=np.inf,
        measured_from_ns=0,
        block_events=8,
    )
    Run(scenario, when, few, seed=0, replication=0).run()
    return time.perf_counter() - started
