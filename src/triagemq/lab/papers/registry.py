"""Papers and their figures by name, the experiments behind them, and how one is run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from triagemq.errors import ParameterError
from triagemq.lab.papers.buffer_configurations import BUFFER_CONFIGURATIONS
from triagemq.lab.papers.class_variance import CLASS_VARIANCE
from triagemq.lab.papers.drop_policies import DROP_POLICY_UTILITY
from triagemq.lab.papers.experiment import Effort, Experiment, Findings, Progress
from triagemq.lab.papers.midas.packets import PACKETS_BABBLING, PACKETS_BEST_EFFORT, PACKETS_MANAGED
from triagemq.lab.papers.midas.simulated import MIDAS_BABBLING, MIDAS_BEST_EFFORT, MIDAS_MANAGED
from triagemq.lab.papers.model_accuracy import BY_LOAD, BY_SUBSCRIBERS
from triagemq.lab.papers.peer_wd.balancing import PEER_WD_PEER, PEER_WD_QUEUE, PEER_WD_UPLINKS
from triagemq.lab.papers.peer_wd.bursts import PEER_WD_BURSTS
from triagemq.lab.papers.peer_wd.packets import PACKETS_PEER, PACKETS_QUEUE, PACKETS_UPLINKS
from triagemq.lab.papers.prototype_packets import PROTOTYPE_PACKETS
from triagemq.lab.papers.runs import OnSpark, on_spark
from triagemq.lab.papers.shi.adjustment import SHI_ADJUSTMENT, SHI_BACKGROUND, SHI_DELAY_TIMES_LOSS
from triagemq.lab.papers.shi.bit_rates import SHI_CONSTANT_RATES, SHI_PARETO
from triagemq.lab.papers.shi.estimators import PACKETS_ESTIMATED, SHI_ESTIMATORS
from triagemq.lab.papers.shi.global_control import SHI_CONSTRAINTS, SHI_END_TO_END, SHI_WIDTHS
from triagemq.lab.papers.shi.learning import SHI_TABLE_2
from triagemq.lab.papers.shi.packets import PACKETS_ADJUSTED, PACKETS_REQUIRED
from triagemq.lab.papers.utility_gains import UTILITY_GAINS

PAPERS: Mapping[str, Mapping[str, Experiment]] = {
    # Bouloukakis et al., ACM TOIT 2021, section 6.
    "priodex": {
        "6": BUFFER_CONFIGURATIONS,
        "7": CLASS_VARIANCE,
        "8": DROP_POLICY_UTILITY,
        "9a": BY_LOAD,
        "9b": BY_SUBSCRIBERS,
        "10": PROTOTYPE_PACKETS,
    },
    # Benson et al., Middleware 2018, section 5.
    "firedex": {
        "5": BY_LOAD,
        "6": BY_SUBSCRIBERS,
        "7": BUFFER_CONFIGURATIONS,
        "8": BUFFER_CONFIGURATIONS,
        "9": UTILITY_GAINS,
        "10": DROP_POLICY_UTILITY,
    },
    # King et al., ISORC 2014, section VI.
    "midas": {"6": MIDAS_BEST_EFFORT, "7": MIDAS_MANAGED, "8": MIDAS_BABBLING},
    # Sensors 2019, section 7.
    "shi": {
        "5": SHI_ESTIMATORS,
        "6": SHI_ADJUSTMENT,
        "7": SHI_DELAY_TIMES_LOSS,
        "8": SHI_CONSTRAINTS,
        "9": SHI_END_TO_END,
        "10": SHI_WIDTHS,
        "12": SHI_BACKGROUND,
        "13": SHI_CONSTANT_RATES,
        "14": SHI_PARETO,
        "table2": SHI_TABLE_2,
    },
    # Tao and Poslad, UbiComp 2013, section 5; the last is of section 4.1, without a figure.
    "peer-wd": {
        "3": PEER_WD_UPLINKS,
        "4": PEER_WD_QUEUE,
        "5": PEER_WD_PEER,
        "placement": PEER_WD_BURSTS,
    },
}
"""Paper to figure to experiment; two figures that show one experiment share it."""

WITH_PACKETS: Mapping[str, Mapping[str, Experiment]] = {
    "priodex": {"10": PROTOTYPE_PACKETS},
    "midas": {"6": PACKETS_BEST_EFFORT, "7": PACKETS_MANAGED, "8": PACKETS_BABBLING},
    "shi": {"5": PACKETS_ESTIMATED, "6": PACKETS_ADJUSTED, "8": PACKETS_REQUIRED},
    "peer-wd": {"3": PACKETS_UPLINKS, "4": PACKETS_QUEUE, "5": PACKETS_PEER},
}
"""Those that there are with real packets; that of PrioDeX is nothing else."""


@dataclass(frozen=True, slots=True)
class Reproduction:
    """One figure, run: what was found, with how much effort, and how long it took."""

    paper: str
    figure: str
    title: str
    effort: Effort
    findings: Findings
    wall_seconds: float
    quick: bool = False
    packets: bool = False

    @property
    def name(self) -> str:
        """What its files are called: a quick run does not take the place of a full one."""
        return (
            f"{self.paper}-{self.figure}{'-packets' if self.packets else ''}{'-quick' if self.quick else ''}"
        )

    @property
    def holds(self) -> bool:
        """Whether our figures show everything that they must."""
        return all(claim.holds for claim in self.findings.claims)

    def as_json(self) -> dict[str, Any]:
        """One object: the figures, the differences to what was printed, and what must hold."""
        return {
            "paper": self.paper,
            "figure": self.figure,
            "title": self.title,
            "effort": self.effort.as_json(),
            "wall_seconds": self.wall_seconds,
            "figures": self.findings.figures,
            "differences": [asdict(each) for each in self.findings.differences],
            "claims": [asdict(each) for each in self.findings.claims],
            "holds": self.holds,
        }


def experiment(paper: str, figure: str, *, packets: bool = False) -> Experiment:
    """The experiment behind a figure, or the one that shows it with real packets.

    >>> experiment("firedex", "7") is experiment("priodex", "6")
    True
    >>> experiment("priodex", "12")
    Traceback (most recent call last):
    ...
    triagemq.errors.ParameterError: figure: is '12'; priodex has 6, 7, 8, 9a, 9b, 10
    """
    figures = figures_of(paper)
    if figure not in figures:
        raise ParameterError("figure", f"is {figure!r}; {paper} has {', '.join(figures)}")
    if not packets:
        return figures[figure]
    real = WITH_PACKETS.get(paper, {})
    if figure not in real:
        known = (
            f"those of {paper} that have them are {', '.join(real)}" if real else f"nothing of {paper} has"
        )
        raise ParameterError("packets", f"{paper} {figure} is not run with real packets; {known}")
    return real[figure]


def figures_of(paper: str) -> Mapping[str, Experiment]:
    """The figures of a paper."""
    if paper not in PAPERS:
        raise ParameterError("paper", f"is {paper!r}; known: {', '.join(PAPERS)}")
    return PAPERS[paper]


def reproduce(
    paper: str,
    figure: str,
    *,
    quick: bool = False,
    progress: Progress | None = None,
    spark: OnSpark | None = None,
    packets: bool = False,
    **requested: Any,
) -> Reproduction:
    """Run the experiment behind a figure, with the requested effort (see Effort).

    What is not given is as the experiment has it, or its `quick` variant.
    With `spark` the simulations of many seeds are Spark tasks; the figures are the same. `packets` are real ones.
    """
    chosen = experiment(paper, figure, packets=packets)
    effort = (chosen.quick if quick else chosen.normal).with_values(**requested)
    started = time.perf_counter()
    with on_spark(spark):
        findings = chosen.run(effort, progress or (lambda share: None))
    return Reproduction(
        paper, figure, chosen.title, effort, findings, time.perf_counter() - started, quick, packets
    )
