"""MIDAS Fig. 6 to 8 with real packets: the same three topics through queues of the kernel, SLOWER times slower.

This machine sends no gigabit in time, and stops now and then: timers ring milliseconds late where it has other work,
and a virtual machine stands still as a whole. So links are slower, and separations and latencies longer, by the same
factor, so large that such a pause is a small part of what bounds leave; messages and packets are as long as the
paper's, so that every queue holds what it would hold there. Times are divided by the factor again, and compared
with those of the paper. The limiter is the kernel's, and tolerates what the model of such a switch says.

Best effort is fair queueing by flows, as in the simulation; but there all flows share one buffer, and the kernel has no
such queues: here each flow has half of it, which is what it gets there next to one other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from triagemq.lab.papers.experiment import (
    Claim,
    Difference,
    Effort,
    Experiment,
    Findings,
    Progress,
    duration,
    part_of,
    percent,
    tracked,
)
from triagemq.lab.papers.midas.network import (
    BUFFER_FRAMES,
    PUBLISHERS,
    TOPICS,
    Observed,
    midas_scenario,
)
from triagemq.lab.papers.midas.simulated import (
    by_topic,
    latency_panel,
    promise_claims,
    shown,
    topics_table,
    within_claim,
)
from triagemq.lab.papers.real_packets import emulated, in_box, share_done
from triagemq.scenario import Discipline, Floats, Scenario
from triagemq.scenario.files.models import figures, known_models

SLOWER = 100.0
KERNEL = "linux-htb"

SHARE_FRAMES = BUFFER_FRAMES // 2
"""Of the buffer of a port, for each flow."""


@dataclass(frozen=True, slots=True, eq=False)
class RealWindow:
    """One window of observation, and what the machine added at an idle port and in hosts: not divided by anything."""

    observed: Observed
    limited: Floats
    beside: dict[str, Any]


def slower_scenario(buffer_frames: float = np.inf) -> Scenario:
    """Table II as this machine can carry it."""
    made = midas_scenario(Discipline.PRIORITY, buffer_frames, slower=SLOWER)
    tolerance = figures(known_models()[KERNEL])["limiter_tolerance_seconds"]
    return made.with_tables(
        switches=replace(made.switches, limiter_tolerance_seconds=np.full(len(made.switches), tolerance))
    )


def best_effort(effort: Effort, seed: int, progress: Progress, babbling: tuple[str, ...] = ()) -> RealWindow:
    """The network is not managed."""
    # Late: only experiments with packets need a network.
    from triagemq.lab.emulate.best_effort import run_best_effort

    # Fair queueing is set up in the kernel: a file in which a fair port has guarantees would be refused.
    run = in_box(
        slower_scenario(float(BUFFER_FRAMES)),
        lambda file, state: run_best_effort(
            file,
            state,
            seconds=effort.seconds,
            seed=seed,
            babbling=babbling,
            on_tick=share_done(progress, effort.seconds),
        ),
    )
    return _window(run, bounds=False)


def managed(effort: Effort, seed: int, progress: Progress, babbling: tuple[str, ...] = ()) -> RealWindow:
    """As `triage emulate` runs it: promised by a coordinator, all topics together at first."""
    return emulated(
        slower_scenario(),
        lambda result: _window(result.promised, bounds=True),
        seconds=effort.seconds,
        progress=progress,
        seed=seed,
        babbling=babbling,
        synchronised=seed == 0,
    )


def _window(run: Any, *, bounds: bool) -> RealWindow:
    table = run.results
    row = [table.topic.index(topic) for topic in TOPICS]
    ended = np.maximum(table.messages, 1)
    sent, copies = run.sent, run.copies
    begun_ns = int(sent["published_ns"].min())
    published, latency = [], []
    for number in row:
        mine = copies["promise"] == number
        moments = (sent["published_ns"][copies["message"][mine]] - begun_ns) * 1e-9 / SLOWER
        taken = copies["latency_ns"][mine]
        published.append(moments)
        latency.append(np.where(taken >= 0, taken * 1e-9 / SLOWER, np.nan))
    return RealWindow(
        observed=Observed(
            lost=((table.lost + table.limited) / ended)[row],
            late=(table.late / np.maximum(table.delivered, 1))[row],
            worst_seconds=table.worst_latency_seconds[row] / SLOWER,
            bound_seconds=table.bound_seconds[row] / SLOWER if bounds else np.full(len(row), np.inf),
            published_seconds=tuple(published),
            latency_seconds=tuple(latency),
        ),
        limited=table.limited[row].astype(np.float64),
        beside=run.as_json(),
    )


def _figure_6(effort: Effort, progress: Progress) -> Findings:
    windows = _windows(effort, progress, best_effort)
    ours = [each.observed for each in windows]
    missed = np.mean([each.missed for each in ours], axis=0)
    t2 = [float(each.lost[1]) for each in ours]
    return Findings(
        tables=(
            topics_table(
                f"best effort, real packets {SLOWER:g} times slower, {SHARE_FRAMES} frames of buffer for each flow",
                ours,
                {
                    "T1": "misses its deadline",
                    "T2": "misses its deadline; 48 % lost",
                    "T3": "meets its deadline",
                },
            ),
        ),
        panels=(latency_panel("T2, best effort, real packets", shown(ours, 1), 1),),
        differences=(
            Difference(
                "messages of T2 that never arrive",
                "48 %",
                f"{percent(float(np.mean(t2)))}, from {percent(min(t2))} to {percent(max(t2))} over {len(t2)} phases",
                f"Phases and buffer are not printed. Each flow may hold {SHARE_FRAMES} of the {BUFFER_FRAMES} frames "
                "that we assume for a port, as if one other were there: the kernel has no fair queueing with one "
                "buffer for all.",
            ),
            _slower_difference(windows),
        ),
        claims=(
            Claim(
                "best effort: messages of T1 and of T2 are lost or late",
                bool((missed[:2] > 0).all()),
                ", ".join(f"{TOPICS[row]} {percent(float(missed[row]))}" for row in (0, 1)),
            ),
        ),
        figures=_figures(windows) | {"lost_t2_by_phase": t2},
    )


def _figure_7(effort: Effort, progress: Progress) -> Findings:
    windows = _windows(effort, progress, managed)
    ours = [each.observed for each in windows]
    worst, bound = np.max([each.worst_seconds for each in ours], axis=0), ours[0].bound_seconds
    return Findings(
        tables=(
            topics_table(
                f"managed, real packets {SLOWER:g} times slower",
                ours,
                {"T2": "none lost, 4 ms or less with 1 ms of the host"},
            ),
        ),
        panels=(latency_panel("T2, managed, real packets", ours[0], 1, bound),),
        differences=(
            Difference(
                "latency of T2",
                "all within 3 ms, with 1 ms of the host all within 4 ms",
                f"worst {duration(float(worst[1]))}, proven {duration(float(bound[1]))}",
                "Ours is the network alone, from the publisher's first packet to the last at the subscriber's "
                "interface. What hosts take is measured beside it.",
            ),
            _slower_difference(windows),
        ),
        claims=promise_claims("managed", ours, TOPICS),
        figures=_figures(windows) | {"worst_seconds": by_topic(worst), "bound_seconds": by_topic(bound)},
    )


def _figure_8(effort: Effort, progress: Progress) -> Findings:
    babbling = PUBLISHERS[:2]
    fair = _windows(effort, part_of(progress, 0, 2), best_effort, babbling)
    limited = _windows(effort, part_of(progress, 1, 2), managed, babbling)
    ours, lost = [each.observed for each in limited], [float(each.observed.lost[2]) for each in fair]
    worst, bound = max(float(each.worst_seconds[2]) for each in ours), float(ours[0].bound_seconds[2])
    cut = sum(float(each.limited[:2].sum()) for each in limited)
    return Findings(
        tables=(
            topics_table(
                f"best effort, {SHARE_FRAMES} frames of buffer for each flow, T1 and T2 babble",
                [each.observed for each in fair],
                {"T3": "all lost"},
            ),
            topics_table("managed, T1 and T2 babble", ours, {"T3": "none lost, all below 8 ms"}),
        ),
        panels=(latency_panel("T3, managed, real packets", shown(ours, 2), 2, ours[0].bound_seconds),),
        differences=(
            Difference(
                "T3 beside babbling publishers, managed",
                "none lost, all below 8 ms",
                f"{percent(max(float(each.lost[2]) for each in ours))} lost, worst {duration(worst)}, proven "
                f"{duration(bound)}",
                "What T1 and T2 send beyond what they declared is cut at the switch where it enters. T3 waits for no "
                "more of it than its bound counts.",
            ),
            _slower_difference([*fair, *limited]),
        ),
        claims=(
            *promise_claims("managed", ours, ("T3",)),
            within_claim("managed", ours, ("T3",)),
            Claim("managed: limiters cut T1 and T2", cut > 0, f"{cut:.0f} messages"),
            Claim("best effort: most messages of T3 are lost", min(lost) > 0.5, percent(min(lost), 2)),
        ),
        figures=_figures([*fair, *limited])
        | {"best_effort_lost_t3": lost, "worst_t3_seconds": worst, "bound_t3_seconds": bound},
    )


def _windows(
    effort: Effort, progress: Progress, observe: Any, babbling: tuple[str, ...] = ()
) -> list[RealWindow]:
    return [observe(effort, seed, part, babbling) for seed, part in tracked(range(effort.seeds), progress)]


def _slower_difference(windows: list[RealWindow]) -> Difference:
    idle = max(float(each.beside["idle_port"]["p99_9_seconds"] or 0.0) for each in windows)
    hosts = max(float(each.beside["host_delay"]["subscribers"]["p99_9_seconds"] or 0.0) for each in windows)
    return Difference(
        "what was run",
        "a gigabit, windows of 10 s, hosts with a real-time kernel that add 1 ms",
        f"1/{SLOWER:g} of a gigabit; the p99.9 of an idle port took {duration(idle)}, that of subscribers' hosts "
        f"{duration(hosts)}",
        f"Messages, packets and buffers are the paper's, and all times {SLOWER:g} times its; they are divided by that "
        "here. A message is late beyond its bound and the p99.9 of an idle port, which was measured beside it.",
    )


def _figures(windows: list[RealWindow]) -> dict[str, Any]:
    return {"slower": SLOWER, "share_frames": SHARE_FRAMES, "beside": [each.beside for each in windows]}


_NORMAL, _QUICK = Effort(seeds=2, seconds=120.0), Effort(seeds=1, seconds=20.0)

PACKETS_BEST_EFFORT = Experiment(
    f"three topics over one port, best effort, real packets {SLOWER:g} times slower",
    _figure_6,
    Effort(seeds=8, seconds=30.0),
    Effort(seeds=3, seconds=10.0),
)
PACKETS_MANAGED = Experiment("the same, managed: what was promised holds", _figure_7, _NORMAL, _QUICK)
PACKETS_BABBLING = Experiment(
    "two of the three publishers babble; latency of T3, real packets", _figure_8, _NORMAL, _QUICK
)
