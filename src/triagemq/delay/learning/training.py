"""Training: rows of features with the delay that followed, their split, the grid of parameters, the facts of runs.

The last fifth of the time of a run is for validation: it stops the growth and chooses among parameters. Some runs of
each kind of traffic are held out to test the model. Rows are not shuffled: neighbours in time are nearly equal.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triagemq.delay.learning.features import SwitchConstants, anchor_seconds, feature_names, feature_rows
from triagemq.delay.samples import ReadErrorModel, Samples
from triagemq.errors import ParameterError
from triagemq.scenario import ArrivalProcess

if TYPE_CHECKING:
    from triagemq.scenario import Scenario


MOST_TREES = 400
"""Where growth ends if nothing has stopped it before."""

EVAL_METRIC = "mae"
"""The mean absolute error in seconds."""


@dataclass(frozen=True, slots=True)
class ParameterSet:
    """One point of the grid: xgboost's names. Growing stops when so many trees in a row have made nothing better."""

    name: str
    max_depth: int
    min_child_weight: float
    subsample: float
    colsample_bytree: float
    early_stopping_rounds: int
    eta: float = 0.1
    objective: str = "reg:squarederror"

    def options(self, seed: int) -> dict[str, Any]:
        """The parameters of xgboost, but for when to stop. One thread: sums are the same every time."""
        chosen = asdict(self)
        for own in ("name", "early_stopping_rounds"):
            del chosen[own]
        return {**chosen, "eval_metric": EVAL_METRIC, "tree_method": "hist", "nthread": 1, "seed": seed}


PAPER = (
    ParameterSet("shi-1", 4, 10, 0.7, 0.7, 30),
    ParameterSet("shi-2", 6, 10, 0.7, 0.7, 40),
    ParameterSet("shi-3", 10, 10, 1.0, 1.0, 50),
)
"""Shi et al., Table 2, without scale_pos_weight: that weighs classes, and regression has none."""

GRID = (
    *PAPER,
    ParameterSet("absolute-6", 6, 10, 0.7, 0.7, 30, objective="reg:absoluteerror"),
    ParameterSet("absolute-8", 8, 10, 0.7, 0.7, 30, objective="reg:absoluteerror"),
)
"""With the paper's, two that are grown by the error that validation counts: seconds, not their squares."""


def chosen_sets(names: str | None) -> tuple[ParameterSet, ...]:
    """The whole grid, or those named, separated by commas.

    >>> [each.max_depth for each in chosen_sets("shi-1,shi-3")]
    [4, 10]
    """
    known = {each.name: each for each in GRID}
    if names is None:
        return GRID
    unknown = [name for name in names.split(",") if name not in known]
    if unknown:
        raise ParameterError("parameters", f"{unknown[0]!r} is no set; there are {', '.join(known)}")
    return tuple(known[name] for name in names.split(","))


VALIDATION_SHARE = 0.2
"""Of the time of each run, the last part; and of the runs of each kind of traffic, those that are held out."""


@dataclass(frozen=True, slots=True, eq=False)
class LearningRows:
    """Features, the delay that came next, and whether the row is for validation."""

    features: NDArray[np.float32]
    delay_seconds: NDArray[np.float64]
    validates: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.delay_seconds)

    def take(self, rows: NDArray[np.bool_]) -> LearningRows:
        """Some of the rows."""
        return LearningRows(self.features[rows], self.delay_seconds[rows], self.validates[rows])

    def columns(self, counters: str) -> dict[str, NDArray[Any]]:
        """All of it by name, each feature a column."""
        features = dict(zip(feature_names(counters), self.features.T.copy(), strict=True))
        known = {"validates": self.validates, "delay_seconds": self.delay_seconds}
        return {**known, "difference_seconds": self.differences(counters), **features}

    def differences(self, counters: str) -> NDArray[np.float64]:
        """The target of trees: the difference of the delay from its anchor."""
        return self.delay_seconds - anchor_seconds(self.features, counters)


def learning_rows(
    samples: Samples,
    next_delay_seconds: ArrayLike,
    *,
    switch: SwitchConstants | None = None,
    errors: Sequence[ReadErrorModel | None] = (None,),
    seed: int = 0,
) -> LearningRows:
    """The rows of one queue in one run: those with features after which packets came, read with each of the errors.

    >>> samples = Samples.of({"sampled_ns": np.arange(6) * 200_000_000, "width_bps": [8e6] * 6,
    ...     **{name: np.arange(6) for name in ("bytes_in", "packets_in", "bytes_out", "packets_out", "drops")}},
    ...     "openflow")
    >>> rows = learning_rows(samples, [0.1, 0.1, 0.1, np.nan, 0.1, 0.1])
    >>> len(rows), rows.validates.tolist()
    (4, [False, False, False, True])
    """
    delay = np.asarray(next_delay_seconds, np.float64)
    known = np.isfinite(delay)
    # The first sample has no increments.
    known[:1] = False
    seen = [samples if each is None else each.disturbed(samples, seed) for each in errors]
    found = [
        LearningRows(
            feature_rows(each, switch)[known], delay[known], is_validation(samples.sampled_ns)[known]
        )
        for each in seen
    ]
    return together(found, samples.counters)


def together(rows: Sequence[LearningRows], counters: str) -> LearningRows:
    """The rows of several queues and runs as one."""
    empty = LearningRows(
        np.empty((0, len(feature_names(counters))), np.float32), np.empty(0), np.empty(0, np.bool_)
    )
    columns = ([getattr(each, field.name) for each in (empty, *rows)] for field in fields(LearningRows))
    return LearningRows(*(np.concatenate(each) for each in columns))


def is_validation(sampled_ns: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each sample of a run is of the last part of its time."""
    if not len(sampled_ns):
        return np.empty(0, np.bool_)
    first, last = int(sampled_ns[0]), int(sampled_ns[-1])
    return np.asarray(sampled_ns - first > (1.0 - VALIDATION_SHARE) * (last - first))


def held_out(kinds: Mapping[str, str]) -> frozenset[str]:
    """Of the runs of each kind of traffic a fifth, but at least one where there are two; the same for the same ids.

    >>> sorted(held_out({"a": "poisson", "b": "poisson", "c": "poisson", "d": "pareto"}))
    ['c']
    """
    runs = defaultdict(list)
    for run_id, kind in kinds.items():
        runs[kind].append(run_id)
    found: set[str] = set()
    for of_kind in runs.values():
        count = max(int(VALIDATION_SHARE * len(of_kind)), int(len(of_kind) > 1))
        found.update(sorted(of_kind, key=lambda run_id: hashlib.sha256(run_id.encode()).digest())[:count])
    return frozenset(found)


UNKNOWN_TRAFFIC = "unknown"
"""Of a run whose scenario is not stored."""


@dataclass(frozen=True, slots=True)
class KnownRun:
    """The facts about a run that its samples lack; `number` is its place among the runs of a training."""

    number: int
    traffic: str
    held_out: bool
    ports: Mapping[int, SwitchConstants]


def known_runs(scenarios: Mapping[str, Scenario | None]) -> dict[str, KnownRun]:
    """The runs that are learned from, by id, in their order."""
    kinds = {run_id: traffic_kind(scenario) for run_id, scenario in scenarios.items()}
    aside = held_out(kinds)
    runs = {}
    for number, (run_id, scenario) in enumerate(scenarios.items()):
        rows = range(0 if scenario is None else len(scenario.ports))
        ports = {row: switch_constants(scenario, row) for row in rows if scenario is not None}
        runs[run_id] = KnownRun(number, kinds[run_id], run_id in aside, ports)
    return runs


def traffic_kind(scenario: Scenario | None) -> str:
    """How publications arrive, all kinds in order of their names.

    >>> traffic_kind(None)
    'unknown'
    """
    if scenario is None or not len(scenario.publications):
        return UNKNOWN_TRAFFIC
    kinds = np.unique(scenario.publications.arrival_process).tolist()
    return "+".join(sorted(ArrivalProcess(kind).name.lower() for kind in kinds))


def switch_constants(scenario: Scenario, port: int) -> SwitchConstants:
    """Of a port (a row of the scenario) and of its switch, from the model that this names (Shi et al., Table 1).

    A scenario counts buffers in packets: in bytes they are what as many mean packets have. What a scenario lacks is
    unknown; no model has the number of addresses that a switch learns.

    >>> from triagemq.scenario.building import building
    >>> found = switch_constants(building(), 0)
    >>> found.largest_packet_bytes, found.smallest_delay_seconds, found.largest_mac_table
    (1500.0, 0.0, nan)
    """
    publications, switches = scenario.publications, scenario.switches
    switch = int(scenario.ports.switch[port])
    sizes = np.minimum(publications.size_bytes + scenario.overhead_bytes, scenario.mtu_bytes)
    rates = publications.rate_per_second
    mean = np.average(sizes, weights=rates) if rates.sum() > 0 else math.nan
    largest = _known(switches.packet_bytes[switch])
    return SwitchConstants(
        buffer_bytes=_known(scenario.ports.buffer_packets[port] * mean),
        largest_packet_bytes=float(sizes.max(initial=0.0)) if math.isnan(largest) else largest,
        smallest_delay_seconds=_known(switches.multiplexing_seconds[switch]),
        largest_routing_table=_known(switches.rules[switch]),
    )


def _known(value: float) -> float:
    return float(value) if math.isfinite(value) else math.nan


LEAST_ROWS = 500
"""With fewer rows to learn from, trees would know single windows by heart."""


@dataclass(frozen=True, slots=True, eq=False)
class Grown:
    """Trees of one set of parameters, as xgboost writes them, and their error in the validation rows."""

    parameters: ParameterSet
    trees_json: bytes
    trees: int
    validation_seconds: float

    def as_json(self) -> dict[str, Any]:
        """JSON, for the description of a model."""
        return {
            "parameters": self.parameters.name,
            "trees": self.trees,
            "validation_seconds": self.validation_seconds,
        }


def check_enough(training: int, validation: int) -> None:
    """Refuse to learn from next to nothing.

    >>> check_enough(20, 5)
    Traceback (most recent call last):
    triagemq.errors.ParameterError: rows: 20 for training and 5 for validation are too few, of 500 and 100; ...
    """
    if training < LEAST_ROWS or validation < LEAST_ROWS // 5:
        raise ParameterError(
            "rows",
            f"{training} for training and {validation} for validation are too few, of {LEAST_ROWS} and "
            f"{LEAST_ROWS // 5}; give longer runs, or more, in whose queues packets waited",
        )


def grown_of(booster: Any, parameters: ParameterSet) -> Grown:
    """The trees of a booster that stopped early: up to the best one, since all that are written count."""
    best = booster.best_iteration + 1
    return Grown(parameters, bytes(booster[:best].save_raw("json")), best, float(booster.best_score))
