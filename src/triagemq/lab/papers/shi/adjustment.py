"""Shi et al. (Sensors 2019) Fig. 6, 7 and 12 in simulation: the queue rates of one port, before and after
adjustment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

import numpy as np

from triagemq.delay.control import BEST_EFFORT
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
    Style,
    duration,
    percent,
    tracked,
)
from triagemq.lab.papers.shi.network import (
    BUFFER_PACKETS,
    FLOORS_BPS,
    PACKET_BYTES,
    PORT_BPS,
    QUEUES,
    WIDTHS_BPS,
    QueueRun,
    observe,
    shi_scenario,
)
from triagemq.lab.queue_delay import ReadErrors
from triagemq.lab.simulated_control import ControlSettings
from triagemq.scenario import ArrivalProcess, Floats, Scenario

FREQUENCIES = (1_000, 3_000, 5_000, 10_000, 20_000)
"""Packets a second into each congested queue."""

ADJUSTED = ControlSettings("idm", "openflow", read_errors=ReadErrors())
PAPER_WEIGHTS = replace(ADJUSTED, paper_weights=True)

LOADS = (0.4, 0.6, 0.8, 1.0)
"""Of the port, in the proportion of the static queue rates."""

OURS = "dynamic, our weights"

BACKGROUND_RATE = 1_000.0
"""1 MB/s of 1 KB: Table 4's rate. Its interval of 5 ms would be 0.2 MB/s."""

BACKGROUND_FREQUENCIES = (3_000, 5_000, 5_500, 6_000, 6_500, 7_000, 7_500, 10_000, 15_000, 20_000)

CALM_SECONDS = 0.001
"""A delay below this is that of a queue that holds a few packets."""


@dataclass(frozen=True, slots=True)
class AdjustedCell:
    """One queue at one frequency with so many congested queues: means over a run, the width at its end, and whether the
    queue rates of all queues added up and were above their floors at every instant."""

    congested: int
    frequency: int
    queue: int
    delay_seconds: float
    lost: float
    width_bps: float
    sent_bps: float
    fits: bool


MEASURES: tuple[tuple[str, Callable[[AdjustedCell], float]], ...] = (
    ("delay, ms", lambda cell: 1e3 * cell.delay_seconds),
    ("share lost", lambda cell: cell.lost),
    ("width, Mbit/s", lambda cell: cell.width_bps / 1e6),
)


def _cells(
    frequency: int, congested: int, seconds: float, control: ControlSettings | None
) -> list[AdjustedCell]:
    rates = [frequency if queue < congested else 0 for queue in range(len(QUEUES))]
    runs = observe(shi_scenario(rates, ArrivalProcess.PERIODIC), seconds, 0, control)
    return [_cell(congested, frequency, queue, runs) for queue in range(congested)]


def _cell(congested: int, frequency: int, queue: int, runs: Mapping[int, QueueRun]) -> AdjustedCell:
    run, samples = runs[queue], runs[queue].samples
    sent = (
        8e9
        * (samples.bytes_out[-1] - samples.bytes_out[0])
        / (samples.sampled_ns[-1] - samples.sampled_ns[0])
    )
    width = float(samples.width_bps[-1])
    queue_rates = np.array([runs[each].samples.width_bps for each in range(len(QUEUES))])
    fits = (queue_rates.sum(axis=0) == PORT_BPS).all() and (
        queue_rates >= np.array(FLOORS_BPS)[:, None]
    ).all()
    return AdjustedCell(
        congested, frequency, queue, run.mean_delay_seconds, run.lost, width, float(sent), bool(fits)
    )


def _figure_6(effort: Effort, progress: Progress) -> Findings:
    before, after, papers = [], [], []
    for (congested, frequency), _ in tracked(product(range(1, len(QUEUES) + 1), FREQUENCIES), progress):
        before += _cells(frequency, congested, effort.seconds, None)
        after += _cells(frequency, congested, effort.seconds, ADJUSTED)
        papers += _cells(frequency, congested, effort.seconds, PAPER_WEIGHTS)
    rows = list(zip(before, after, papers, strict=True))
    higher = [row for row in rows if row[0].lost > 0 and row[0].queue < len(QUEUES) - 1]
    fall = [new.delay_seconds < old.delay_seconds and new.lost < old.lost for old, new, _ in higher]
    calm = [new.delay_seconds for old, new, _ in rows if old.lost == 0]
    # What has not reached a queue, or waits there when the run ends, is not sent: a window of 200 ms at the least.
    fed = [new.sent_bps / min(FLOORS_BPS[new.queue], 8 * PACKET_BYTES * new.frequency) for new in after]
    alone = next(cell for cell in after if cell.congested == 1 and cell.frequency == max(FREQUENCIES))
    static = next(cell for cell in before if cell.congested == 1 and cell.frequency == max(FREQUENCIES))
    lowest = next(cell for cell in after if cell.queue == 2 and cell.frequency == max(FREQUENCIES))
    drawn: tuple[tuple[str, list[AdjustedCell], Style], ...] = (
        ("static", before, "dashed"),
        ("adjusted", after, "line"),
    )
    full_seconds = 8 * PACKET_BYTES * BUFFER_PACKETS / alone.width_bps
    return Findings(
        tables=(
            PrintedTable.of(
                "static queue rates, then adjusted ones, and adjusted with the paper's weights 8, 7, 6; read errors on",
                rows,
                ("congested", lambda row: str(row[0].congested)),
                ("packets/s", lambda row: f"{row[0].frequency:,}"),
                ("queue", lambda row: QUEUES[row[0].queue]),
                *(
                    column
                    for place, name in enumerate(("static", "adjusted", "paper's"))
                    for column in (
                        (f"{name} delay", lambda row, place=place: duration(row[place].delay_seconds)),
                        (f"{name} loss", lambda row, place=place: percent(row[place].lost)),
                        (f"{name} Mbit/s", lambda row, place=place: f"{row[place].width_bps / 1e6:.1f}"),
                    )
                ),
            ),
        ),
        panels=tuple(
            Panel(
                f"{congested} congested: {what}",
                "packets/s",
                what,
                tuple(
                    Series.of(
                        f"{QUEUES[queue]}, {name}",
                        FREQUENCIES,
                        [value(c) for c in cells if (c.congested, c.queue) == (congested, queue)],
                        style,
                    )
                    for queue in range(congested)
                    for name, cells, style in drawn
                ),
                logarithmic_x=True,
            )
            for congested in range(1, len(QUEUES) + 1)
            for what, value in MEASURES[:2]
        ),
        differences=(
            Difference(
                "queue 7 alone is congested",
                "125 ms at 60 Mbit/s before, 83 ms at 88 Mbit/s after",
                f"{duration(static.delay_seconds)} at {static.width_bps / 1e6:.0f} Mbit/s before, "
                f"{duration(alone.delay_seconds)} at {alone.width_bps / 1e6:.0f} Mbit/s after",
                "Both are a full buffer over the width; the buffer of 0.92 MB is worked out from what is printed.",
            ),
            Difference(
                "three queues are congested",
                "delay and loss of every queue fall",
                f"those of queues 7 and 6 fall; at {max(FREQUENCIES):,} packets/s queue 5 loses "
                f"{percent(lowest.lost)} and has {lowest.width_bps / 1e6:.1f} Mbit/s",
                "Queue rates add up to the port: where all queues are full all the time, one gets what another gives. "
                f"Here the last class gives, {percent(1 - lowest.width_bps / WIDTHS_BPS[2])} of its width.",
            ),
            Difference(
                "weights",
                "8, 7 and 6",
                f"squares of the configured queue rates, of the last queue {BEST_EFFORT:.2f} of that",
                "Shares go by the root of a weight, so the paper's make rates nearly equal, and take from queue 7 "
                "what configuration gave it; only what queues have a right to, which is not in the paper, stops that. "
                "The weights were chosen after the paper's had been seen to do this.",
            ),
        ),
        claims=(
            Claim(
                "queue 7 alone gets all but the floors of the others, and waits a full buffer over that",
                alone.width_bps == PORT_BPS - sum(FLOORS_BPS[1:])
                and abs(alone.delay_seconds / full_seconds - 1) < 0.02,
                f"{alone.width_bps / 1e6:.1f} Mbit/s, {duration(alone.delay_seconds)} of {duration(full_seconds)}",
            ),
            Claim(
                "wherever queue 7 or 6 lost packets, its delay and its loss fall",
                all(fall),
                f"in {sum(fall)} of {len(fall)} cases",
            ),
            Claim(
                f"a queue that lost nothing does not wait more than {duration(CALM_SECONDS)} for it",
                max(calm) < CALM_SECONDS,
                duration(max(calm)),
            ),
            Claim(
                "queue rates add up to the port and are above their floors at every instant",
                all(cell.fits for cell in (*before, *after, *papers)),
                f"in {sum(cell.fits for cell in after)} of {len(after)} cases",
            ),
            Claim(
                "no queue starves: each sends its floor, or all that comes",
                min(fed) > 0.95,
                f"{percent(min(fed))} of the smaller of the two",
            ),
        ),
        figures={
            name: [
                {
                    "congested": cell.congested,
                    "packets_per_second": cell.frequency,
                    "queue": QUEUES[cell.queue],
                    "delay_seconds": cell.delay_seconds,
                    "lost": cell.lost,
                    "width_bps": cell.width_bps,
                }
                for cell in cells
            ]
            for name, cells in (("static", before), ("adjusted", after), ("paper_weights", papers))
        },
    )


def _figure_7(effort: Effort, progress: Progress) -> Findings:
    settings: dict[str, tuple[bool, ControlSettings | None]] = {
        "none": (True, None),
        "static": (False, None),
        "dynamic": (False, PAPER_WEIGHTS),
        OURS: (False, ADJUSTED),
    }
    found: dict[str, Floats] = {name: np.zeros((len(LOADS), effort.seeds, len(QUEUES))) for name in settings}
    for (load, seed), _ in tracked(product(range(len(LOADS)), range(effort.seeds)), progress):
        rates = [LOADS[load] * width / 8 / PACKET_BYTES for width in WIDTHS_BPS]
        for name, (equal, control) in settings.items():
            scenario = shi_scenario(rates, ArrivalProcess.ON_OFF)
            runs = observe(
                _with_equal_queue_rates(scenario) if equal else scenario, effort.seconds, seed, control
            )
            found[name][load, seed] = [runs[queue].mean_delay_seconds * runs[queue].lost for queue in runs]
    mean = {name: each.mean(axis=(1, 2)) for name, each in found.items()}
    overall = {name: float(each.mean()) for name, each in mean.items()}
    higher = {name: float(each[:, :, :-1].mean()) for name, each in found.items()}
    gain = (found["static"] - found["dynamic"]).mean(axis=(0, 2))
    spread = float(gain.std(ddof=1) / np.sqrt(len(gain))) if len(gain) > 1 else 0.0
    return Findings(
        tables=(
            PrintedTable.of(
                f"delay times loss, mean over queues and {effort.seeds} seeds, in ms",
                range(len(LOADS)),
                ("load of the port", lambda load: f"{LOADS[load]:g}"),
                *((name, lambda load, name=name: f"{1e3 * mean[name][load]:.2f}") for name in settings),
            ),
            PrintedTable.of(
                "over all loads, in ms",
                settings,
                ("queue rates", str),
                ("all queues", lambda name: f"{1e3 * overall[name]:.2f}"),
                ("queues 7 and 6", lambda name: f"{1e3 * higher[name]:.2f}"),
            ),
        ),
        panels=(
            Panel(
                "delay times loss",
                "load of the port",
                "ms",
                tuple(Series.of(name, LOADS, 1e3 * mean[name]) for name in settings),
            ),
        ),
        differences=(
            Difference(
                "traffic",
                "not printed",
                "on and off for half a second each on average, in the proportion of the static queue rates",
                "Static rates are right for what they are configured for; what control can gain is what queues need "
                "at different moments.",
            ),
            Difference(
                "none",
                "no bandwidth adjustment, nothing more",
                "three queues of equal queue rates",
                "With one queue for all there would be no queues to compare.",
            ),
            Difference(
                "weights",
                "8, 7 and 6",
                f"these, and beside them our own, with which the mean is {1e3 * overall[OURS]:.2f} ms",
                "The paper's make rates nearly equal where all are full: that is best for this mean over queues, and "
                "worst for queue 7. Ours are better than static queue rates for all, and for queues 7 and 6.",
            ),
        ),
        claims=(
            Claim(
                "static is better than none, and dynamic better than static, over all loads",
                overall["dynamic"] < overall["static"] < overall["none"],
                ", ".join(f"{name} {1e3 * value:.2f} ms" for name, value in overall.items()),
            ),
            Claim(
                "with our weights dynamic is better than static, and so it is for queues 7 and 6 alone",
                overall[OURS] < overall["static"] and higher[OURS] < higher["static"],
                f"{1e3 * higher[OURS]:.2f} and {1e3 * higher['static']:.2f} ms",
            ),
        ),
        figures={
            "loads": list(LOADS),
            "delay_times_loss_seconds": {name: each.tolist() for name, each in mean.items()},
            "higher_queues_seconds": higher,
            "static_less_dynamic_seconds": {"mean": float(gain.mean()), "standard_error": spread},
        },
    )


def _with_equal_queue_rates(scenario: Scenario) -> Scenario:
    count = len(QUEUES)
    queue_rates = (np.full(count, PORT_BPS / count),)
    floors = (np.full(count, min(FLOORS_BPS)),)
    return replace(scenario, ports=replace(scenario.ports, queue_rates_bps=queue_rates, floors_bps=floors))


def _first_fall(cells: Sequence[AdjustedCell]) -> str:
    """The first frequency at which the delay is a tenth shorter than at the one before."""
    falls = (
        f"at {after.frequency:,}"
        for before, after in pairwise(cells)
        if after.delay_seconds < 0.9 * before.delay_seconds
    )
    return next(falls, "nowhere")


def _figure_12(effort: Effort, progress: Progress) -> Findings:
    runs: dict[float, list[AdjustedCell]] = {0.0: [], BACKGROUND_RATE: []}
    starts: dict[float, int] = {}
    for frequency, _ in tracked(BACKGROUND_FREQUENCIES, progress):
        for background, cells in runs.items():
            scenario = shi_scenario([frequency, 0, 0], ArrivalProcess.PERIODIC, background_rate=background)
            seen = observe(scenario, effort.seconds, 0, ADJUSTED)
            cells.append(_cell(1, frequency, 0, seen))
            if cells[-1].width_bps > WIDTHS_BPS[0]:
                starts.setdefault(background, frequency)
    alone, shared = runs[0.0], runs[BACKGROUND_RATE]
    names = {0.0: "no background", BACKGROUND_RATE: "background"}
    worse = [
        more.delay_seconds >= less.delay_seconds and more.lost >= less.lost
        for less, more in zip(alone, shared, strict=True)
        if more.width_bps == less.width_bps
    ]
    return Findings(
        tables=(
            PrintedTable.of(
                "queue 7, adjusted, without and with 1 MB/s of Poisson background",
                zip(alone, shared, strict=True),
                ("packets/s", lambda row: f"{row[0].frequency:,}"),
                *(
                    column
                    for place, name in enumerate(names.values())
                    for column in (
                        (f"{name}: delay", lambda row, place=place: duration(row[place].delay_seconds)),
                        (f"{name}: loss", lambda row, place=place: percent(row[place].lost)),
                        (f"{name}: Mbit/s", lambda row, place=place: f"{row[place].width_bps / 1e6:.1f}"),
                    )
                ),
            ),
        ),
        panels=tuple(
            Panel(
                what,
                "packets/s",
                what,
                tuple(
                    Series.of(names[background], BACKGROUND_FREQUENCIES, [value(cell) for cell in cells])
                    for background, cells in runs.items()
                ),
            )
            for what, value in MEASURES
        ),
        differences=(
            Difference(
                "where adjustment begins",
                "at 5,000 packets/s with background, at 10,000 without",
                f"at {starts.get(BACKGROUND_RATE, 0):,} with, at {starts.get(0.0, 0):,} without",
                "Printed are the few frequencies that were tried. Ours begins where queue 7 is used to more than nine "
                "tenths of its 60 Mbit/s, which the background's 1,000 packets/s bring forward by as many.",
            ),
            Difference(
                "where the delay begins to fall",
                "at 15,000 packets/s with background, at 20,000 without",
                f"{_first_fall(shared)} with, {_first_fall(alone)} without",
                "A width that follows demand ends the delay where it begins. Beyond 88 Mbit/s the buffer is "
                "full at any rate, and the delay rises no further: there is nothing for it to fall from.",
            ),
            Difference(
                "delay and loss with background traffic",
                "larger than without",
                f"no smaller in {sum(worse)} of {len(worse)} pairs of equal width",
                "Where queue rates differ, the port with background has been given more. Only runs of equal width "
                "show what the background costs.",
            ),
            Difference(
                "the background's rate",
                "1 MB/s, and 1 KB every 5 ms, which is 0.2 MB/s",
                "1 MB/s, into queue 7",
                "The paper's Fig. 11 shows 1 MB/s. Which queue it goes to is not said; in another one queue 7 would "
                "not notice.",
            ),
        ),
        claims=(
            Claim(
                "with background traffic adjustment begins at fewer packets a second",
                starts.get(BACKGROUND_RATE, np.inf) < starts.get(0.0, 0),
                f"{starts.get(BACKGROUND_RATE)} and {starts.get(0.0)}",
            ),
            Claim(
                "at the same width delay and loss are no smaller with background traffic",
                all(worse),
                f"in {sum(worse)} of {len(worse)} cases",
            ),
        ),
        figures={
            "begins_at_packets_per_second": {names[each]: frequency for each, frequency in starts.items()},
            **{
                names[background]: [
                    {
                        "packets_per_second": cell.frequency,
                        "delay_seconds": cell.delay_seconds,
                        "lost": cell.lost,
                        "width_bps": cell.width_bps,
                    }
                    for cell in cells
                ]
                for background, cells in runs.items()
            },
        },
    )


SHI_ADJUSTMENT = Experiment(
    "delay and loss before and after bandwidth adjustment, one to three congested queues",
    _figure_6,
    Effort(seconds=60.0),
    Effort(seconds=3.0),
)
SHI_DELAY_TIMES_LOSS = Experiment(
    "delay times loss: equal, static and dynamic queue rates",
    _figure_7,
    Effort(seeds=10, seconds=60.0),
    Effort(seeds=2, seconds=15.0),
)
SHI_BACKGROUND = Experiment(
    "queue 7 with and without Poisson background traffic",
    _figure_12,
    Effort(seconds=60.0),
    Effort(seconds=3.0),
)
