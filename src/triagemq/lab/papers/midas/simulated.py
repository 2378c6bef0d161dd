"""MIDAS (King, Chen, Lee, ISORC 2014) Fig. 6 to 8: three topics over one gigabit port, best effort and managed, in
simulation at the paper's rates.

Best effort is what the paper calls its switch's: fair queueing over frames, where one lost frame loses the message.
Its buffer is not printed, and neither are the phases of the publishers: so one buffer is assumed, others are tried,
and phases are drawn anew with every seed.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from triagemq.lab.papers.experiment import (
    Claim,
    Difference,
    Effort,
    Experiment,
    Findings,
    Panel,
    PrintedTable,
    Progress,
    Series,
    duration,
    percent,
    tracked,
)
from triagemq.lab.papers.midas.network import (
    BUFFER_BYTES,
    BUFFER_FRAMES,
    MAX_LATENCY_SECONDS,
    PUBLISHERS,
    TOPICS,
    Observed,
    best_effort,
    managed,
)
from triagemq.scenario import Floats

OTHER_BUFFERS = (32, BUFFER_FRAMES, 64, 80, 88, 96, 112, BUFFER_BYTES // 1518)

SETTLED_SECONDS = 0.02
"""By then buckets that were full when the babbling began are empty, and what they let through has been sent."""


def _figure_6(effort: Effort, progress: Progress) -> Findings:
    runs: dict[int, list[Observed]] = {}
    while_babbling: dict[int, float] = {}
    for frames, part in tracked(OTHER_BUFFERS, progress):
        runs[frames] = [best_effort(effort, seed, frames) for seed, _ in tracked(range(effort.seeds), part)]
        while_babbling[frames] = float(best_effort(effort, 0, frames, PUBLISHERS[:2]).lost[2])
    ours = runs[BUFFER_FRAMES]
    lost = {frames: np.mean([each.lost for each in found], axis=0) for frames, found in runs.items()}
    late = {frames: np.mean([each.late for each in found], axis=0) for frames, found in runs.items()}
    printed = {
        "T1": "misses its deadline",
        "T2": "misses its deadline; 48 % lost",
        "T3": "meets its deadline",
    }
    t2 = np.array([each.lost[1] for each in ours])
    missed = np.mean([each.missed for each in ours], axis=0)
    t3 = np.array([each.lost[2] for each in ours])
    unharmed = min(frames for frames in OTHER_BUFFERS if lost[frames][2] == 0)
    everywhere = lost[max(OTHER_BUFFERS)]
    late_everywhere = late[max(OTHER_BUFFERS)]
    late_t3 = max(float(each.late[2]) for found in runs.values() for each in found)
    return Findings(
        tables=(
            topics_table(
                f"best effort, {BUFFER_FRAMES} frames of buffer, {effort.seeds} phases", ours, printed
            ),
            PrintedTable.of(
                "lost, and late of those that arrived, by buffer (frames); means over phases",
                OTHER_BUFFERS,
                ("buffer", lambda frames: f"{frames:,}"),
                *(
                    (f"{topic} {what}", lambda frames, row=row, of=of: percent(float(of[frames][row])))
                    for what, of in (("lost", lost), ("late", late))
                    for row, topic in enumerate(TOPICS)
                ),
                ("T3 lost, T1 and T2 babbling", lambda frames: percent(while_babbling[frames])),
            ),
        ),
        panels=(
            latency_panel("T2, best effort", shown(ours, 1), 1),
            Panel(
                "messages lost by buffer",
                "frames",
                "share lost",
                (
                    *(
                        Series.of(topic, OTHER_BUFFERS, [lost[frames][row] for frames in OTHER_BUFFERS])
                        for row, topic in enumerate(TOPICS)
                    ),
                    Series.of("T2, printed", OTHER_BUFFERS, [0.48] * len(OTHER_BUFFERS), "dashed"),
                ),
                logarithmic_x=True,
            ),
        ),
        differences=(
            Difference(
                "messages of T2 that never arrive",
                "48 %",
                f"{percent(float(t2.mean()))} on average over {effort.seeds} phases, from "
                f"{percent(float(t2.min()))} to {percent(float(t2.max()))}",
                "Whether a message is lost depends on how far it overlaps one of T1, which comes as often, and on the "
                "frames that a port may hold; the paper prints neither. Assumed is an equal share of 4 MB for 52 "
                f"ports; with all of it for this port {percent(float(everywhere[1]))} are lost. "
                "Which packet a full buffer loses was chosen after seeing what T3 loses otherwise; the buffer was not.",
            ),
            Difference(
                "messages of T3 that never arrive",
                "not printed; T3 still meets its latency constraint",
                f"{percent(float(t3.mean()))} on average, from {percent(float(t3.min()))} to "
                f"{percent(float(t3.max()))}; none of the others is late",
                "A frame of T3 fares the same whether T1 and T2 babble or just send a message each: both times it has "
                "a third of the port and of the buffer. A buffer in which T3 loses nothing here "
                f"({unharmed} frames) loses {percent(while_babbling[unharmed])} of it beside babbling publishers, "
                "where the paper's switch lost all.",
            ),
            Difference(
                "deadlines of what arrives",
                "T1 and T2 miss theirs, T3 meets it",
                f"with a buffer that loses nothing T1 is late in {percent(float(late_everywhere[0]))} of its "
                f"messages, T2 in {percent(float(late_everywhere[1]))}, T3 in {percent(float(late_everywhere[2]))}",
                "T1's message takes its own 1.6 ms and as much of T2's 0.8 ms as comes in between, and its deadline "
                "is 2 ms. T2 has half of the port at least, and is done after twice its own time or little more: in "
                "the network alone it is not late but lost. The paper's 5 ms include its hosts.",
            ),
        ),
        claims=(
            Claim(
                "best effort: messages of T1 and of T2 are lost or late",
                bool((missed[:2] > 0).all()),
                ", ".join(f"{TOPICS[row]} {percent(float(missed[row]))}" for row in (0, 1)),
            ),
            Claim(
                "best effort: no message of T3 that arrives is late, whatever the buffer",
                late_t3 == 0,
                f"late {percent(late_t3)}",
            ),
        ),
        figures={
            "buffer_frames": BUFFER_FRAMES,
            "lost_by_buffer": {str(frames): by_topic(found) for frames, found in lost.items()},
            "late_by_buffer": {str(frames): by_topic(found) for frames, found in late.items()},
            "lost_t2_by_phase": t2.tolist(),
            "lost_t3_by_phase": t3.tolist(),
            "lost_t3_while_babbling_by_buffer": {
                str(frames): lost for frames, lost in while_babbling.items()
            },
        },
    )


def _figure_7(effort: Effort, progress: Progress) -> Findings:
    ours = [managed(effort, seed, together=seed == 0) for seed, _ in tracked(range(effort.seeds), progress)]
    printed = {"T2": "none lost, 4 ms or less with 1 ms of the host"}
    worst = np.max([each.worst_seconds for each in ours], axis=0)
    bound = ours[0].bound_seconds
    return Findings(
        tables=(
            topics_table(
                f"managed, {effort.seeds} phases, the first with all topics together", ours, printed
            ),
        ),
        panels=(latency_panel("T2, managed", ours[0], 1, bound),),
        differences=(
            Difference(
                "latency of T2",
                "all within 3 ms, with 1 ms of the host all within 4 ms",
                f"worst {duration(float(worst[1]))}, proven {duration(float(bound[1]))}",
                "Ours is the network alone, from the first bit that the publisher sends to the last that the "
                "subscriber's interface has. Messages travel as frames of 1500 bytes, so that T1 waits for one of "
                "them at most.",
            ),
        ),
        claims=(*promise_claims("managed", ours, TOPICS), within_claim("managed", ours, TOPICS)),
        figures={"worst_seconds": by_topic(worst), "bound_seconds": by_topic(bound)},
    )


def _figure_8(effort: Effort, progress: Progress) -> Findings:
    babbling = PUBLISHERS[:2]
    limited: dict[str, list[Observed]] = {"bucket": [], "window": []}
    fair = []
    for seed, _ in tracked(range(effort.seeds), progress):
        fair.append(best_effort(effort, seed, babbling=babbling))
        for limiter, found in limited.items():
            found.append(managed(effort, seed, babbling, limiter, together=seed == 0))
    printed = {"T3": "none lost, all below 8 ms"}
    worst = {
        limiter: max(float(each.worst_seconds[2]) for each in found) for limiter, found in limited.items()
    }
    later = max(_worst_later(each, 2) for each in limited["bucket"])
    bound = float(limited["window"][0].bound_seconds[2])
    lost = [float(each.lost[2]) for each in fair]
    return Findings(
        tables=(
            topics_table(
                f"best effort, {BUFFER_FRAMES} frames of buffer, T1 and T2 babble", fair, {"T3": "all lost"}
            ),
            topics_table("managed by token buckets, T1 and T2 babble", limited["bucket"], printed),
            topics_table("managed by windows, T1 and T2 babble", limited["window"], printed),
        ),
        panels=tuple(
            latency_panel(f"T3, managed by {limiter}s", shown(found, 2), 2, found[0].bound_seconds)
            for limiter, found in limited.items()
        ),
        differences=(
            Difference(
                "T3 beside babbling publishers, best effort",
                "all messages dropped",
                f"{percent(float(np.mean(lost)), 2)} lost on average, {percent(min(lost), 2)} at least",
                "The buffer is full all the time, and a frame that comes then is dropped. A message survives if each "
                "of its frames happens to come right after a departure, ahead of the others'; clocks that never drift "
                "make that likelier.",
            ),
            Difference(
                "T3 beside babbling publishers, managed",
                "all below 8 ms",
                f"by token buckets up to {duration(worst['bucket'])}, and {duration(later)} when the babbling is "
                f"older than {duration(SETTLED_SECONDS)}; by windows up to {duration(worst['window'])}, proven "
                f"{duration(bound)}",
                "A bucket of a whole message fills while it is emptied, and passes two messages of T1 and more in one "
                "go: who is published just then waits for longer than any bound by messages and separations says. "
                "Later on it passes the declared rate, and all is as the paper shows. A window, in which no more than "
                "a message passes in any separation, keeps the bound from the first moment.",
            ),
        ),
        claims=(
            *promise_claims("managed by windows", limited["window"], ("T3",)),
            within_claim("managed by windows", limited["window"], ("T3",)),
            promise_claims("managed by token buckets", limited["bucket"], ("T3",))[0],
            Claim(
                "managed by token buckets: no message of T3 is late once the babbling is older than "
                f"{duration(SETTLED_SECONDS)}",
                later <= MAX_LATENCY_SECONDS[2],
                duration(later),
            ),
            Claim(
                "best effort: most messages of T3 are lost",
                min(lost) > 0.5,
                f"{percent(min(lost), 2)} in the best phase",
            ),
        ),
        figures={
            "best_effort_lost_t3": lost,
            "worst_t3_seconds": worst,
            "worst_t3_later_seconds": later,
            "bound_t3_seconds": bound,
        },
    )


def _worst_later(run: Observed, topic: int) -> float:
    """The worst latency of what was published when buckets had settled."""
    later = run.latency_seconds[topic][run.published_seconds[topic] >= SETTLED_SECONDS]
    return float(np.nanmax(later, initial=0.0))


def promise_claims(how: str, runs: list[Observed], topics: tuple[str, ...]) -> tuple[Claim, Claim]:
    rows = [TOPICS.index(topic) for topic in topics]
    lost = max(float(each.lost[row]) for each in runs for row in rows)
    late = max(float(each.late[row]) for each in runs for row in rows)
    names = " and ".join(topics)
    return (
        Claim(f"{how}: no message of {names} is lost", lost == 0, f"lost {percent(lost)}"),
        Claim(f"{how}: no message of {names} is late", late == 0, f"late {percent(late)}"),
    )


def within_claim(how: str, runs: list[Observed], topics: tuple[str, ...]) -> Claim:
    rows = [TOPICS.index(topic) for topic in topics]
    share = max(float((each.worst_seconds / each.bound_seconds)[row]) for each in runs for row in rows)
    return Claim(f"{how}: no latency exceeds its bound", share <= 1, f"{percent(share)} of it")


def topics_table(title: str, runs: list[Observed], printed: Mapping[str, str]) -> PrintedTable:
    def spread(values: list[float]) -> str:
        low, high = min(values), max(values)
        mean = percent(float(np.mean(values)))
        return mean if low == high else f"{mean} ({percent(low)} to {percent(high)})"

    def worst(row: int) -> str:
        known = [float(each.worst_seconds[row]) for each in runs if np.isfinite(each.worst_seconds[row])]
        return duration(max(known)) if known else "-"

    def proven(row: int) -> str:
        bound = float(runs[0].bound_seconds[row])
        return duration(bound) if np.isfinite(bound) else "-"

    return PrintedTable.of(
        title,
        range(3),
        ("topic", lambda row: TOPICS[row]),
        ("lost", lambda row: spread([float(each.lost[row]) for each in runs])),
        ("late of the others", lambda row: spread([float(each.late[row]) for each in runs])),
        ("worst", worst),
        ("bound", proven),
        ("requested", lambda row: duration(MAX_LATENCY_SECONDS[row])),
        ("printed", lambda row: printed.get(TOPICS[row], "")),
    )


def shown(runs: list[Observed], topic: int) -> Observed:
    """The phase that is plotted: the one whose loss is in the middle, so that it shows neither luck nor ruin."""
    return sorted(runs, key=lambda each: float(each.lost[topic]))[len(runs) // 2]


def latency_panel(title: str, run: Observed, topic: int, bounds: Floats | None = None) -> Panel:
    moments = run.published_seconds[topic]
    ends = (float(moments[0]), float(moments[-1]))
    lines = [Series.of("requested", ends, [1e3 * MAX_LATENCY_SECONDS[topic]] * 2, "dashed")]
    if bounds is not None:
        lines.append(Series.of("bound", ends, [1e3 * float(bounds[topic])] * 2, "dashed"))
    dots = Series.of("one message", moments, 1e3 * run.latency_seconds[topic], "marks")
    return Panel(title, "published, s", "latency, ms", (dots, *lines))


def by_topic(values: Floats) -> dict[str, float]:
    return dict(zip(TOPICS, np.asarray(values, dtype=np.float64).tolist(), strict=True))


_NORMAL, _QUICK = Effort(seeds=20, seconds=10.0), Effort(seeds=3, seconds=2.0)
_MANY_PHASES, _SOME_PHASES = Effort(seeds=200, seconds=1.0), Effort(seeds=100, seconds=0.2)
"""Phases decide what best effort loses, and stay for a window: a longer one shows the same again."""

MIDAS_BEST_EFFORT = Experiment(
    "three topics over one gigabit port, best effort", _figure_6, _MANY_PHASES, _SOME_PHASES
)
MIDAS_MANAGED = Experiment("the same, managed: what was promised holds", _figure_7, _NORMAL, _QUICK)
MIDAS_BABBLING = Experiment("two of the three publishers babble; latency of T3", _figure_8, _NORMAL, _QUICK)
