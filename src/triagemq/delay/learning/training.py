"""Growing trees with xgboost in this process, choosing among parameters, and how good a model is.

The pipeline grows them on Spark, with the same rows, parameters and choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triagemq.delay.learning.features import anchor_seconds, feature_names
from triagemq.delay.learning.model_files import DelayModel
from triagemq.delay.learning.parameters import GRID, JUDGED_BY, MOST_TREES, ParameterSet
from triagemq.delay.learning.rows import LearningRows
from triagemq.delay.learning.trees import Trees, read_trees
from triagemq.errors import ParameterError

LEAST_ROWS = 500
"""With fewer rows to learn from, trees would know single windows by heart."""


@dataclass(frozen=True, slots=True, eq=False)
class Grown:
    """Trees of one set of parameters, as xgboost writes them, and their error in the rows that judge."""

    parameters: ParameterSet
    trees_json: bytes
    trees: int
    judged_seconds: float

    def as_json(self) -> dict[str, Any]:
        """What is kept of it beside the model."""
        return {
            "parameters": self.parameters.name,
            "trees": self.trees,
            "judged_seconds": self.judged_seconds,
        }


def check_enough(growing: int, judging: int) -> None:
    """Refuse to learn from next to nothing.

    >>> check_enough(20, 5)
    Traceback (most recent call last):
    triagemq.errors.ParameterError: rows: 20 to learn from and 5 to judge by are too few, of 500 and 100; ...
    """
    if growing < LEAST_ROWS or judging < LEAST_ROWS // 5:
        raise ParameterError(
            "rows",
            f"{growing} to learn from and {judging} to judge by are too few, of {LEAST_ROWS} and "
            f"{LEAST_ROWS // 5}; give longer runs, or more, in whose queues packets waited",
        )


def grow(
    rows: LearningRows, counters: str, parameters: ParameterSet, *, seed: int = 0, metric: str = JUDGED_BY
) -> Grown:
    """Trees of these parameters, as many as the judging rows found useful by xgboost's `metric`."""
    import xgboost

    growing, judging = (
        (each.features, each.differences(counters))
        for each in (rows.take(~rows.judges), rows.take(rows.judges))
    )
    names = list(feature_names(counters))
    matrix = xgboost.QuantileDMatrix(growing[0], label=growing[1], feature_names=names)
    judges = xgboost.QuantileDMatrix(judging[0], label=judging[1], feature_names=names, ref=matrix)
    booster = xgboost.train(
        {**parameters.options(seed), "eval_metric": metric},
        matrix,
        MOST_TREES,
        evals=[(judges, "judging")],
        early_stopping_rounds=parameters.early_stopping_rounds,
        verbose_eval=False,
    )
    return grown_of(booster, parameters)


def grown_of(booster: Any, parameters: ParameterSet) -> Grown:
    """What a booster that stopped early has grown: its trees up to the best one, since all that are written count."""
    best = booster.best_iteration + 1
    return Grown(parameters, bytes(booster[:best].save_raw("json")), best, float(booster.best_score))


def best_of(
    rows: LearningRows,
    counters: str,
    sets: Sequence[ParameterSet] = GRID,
    *,
    seed: int = 0,
    on_grown: Callable[[], None] = lambda: None,
) -> tuple[Grown, tuple[Grown, ...]]:
    """The best of the grid by the judging rows, and all of it."""
    judging = int(rows.judges.sum())
    check_enough(len(rows) - judging, judging)
    found = []
    for parameters in sets:
        found.append(grow(rows, counters, parameters, seed=seed))
        on_grown()
    return least(found), tuple(found)


def least(found: Sequence[Grown]) -> Grown:
    """The one with the smallest error in the judging rows."""
    return min(found, key=lambda each: each.judged_seconds)


def predicted_seconds(trees: Trees, features: NDArray[np.float32], counters: str) -> NDArray[np.float64]:
    """The delay that follows on each row: as a model in use says it."""
    said = anchor_seconds(features, counters).astype(np.float64) + trees.predict_rows(features)
    return np.maximum(0.0, said)


def errors_of(trees_json: bytes, rows: LearningRows, counters: str) -> dict[str, float]:
    """How far a model is from the truth in some rows: mean absolute and root mean square, in seconds."""
    difference = predicted_seconds(read_trees(trees_json), rows.features, counters) - rows.delay_seconds
    return {
        "rows": len(rows),
        "mean_absolute_seconds": float(np.abs(difference).mean()) if len(rows) else float("nan"),
        "root_mean_square_seconds": float(np.sqrt((difference**2).mean())) if len(rows) else float("nan"),
    }


def ranges_of(features: NDArray[np.float32]) -> tuple[tuple[float, float], ...]:
    """The smallest and the largest value of every feature; NaN of one that was never known."""
    known = np.isfinite(features)
    smallest = np.where(known, features, np.inf).min(axis=0, initial=np.inf)
    largest = np.where(known, features, -np.inf).max(axis=0, initial=-np.inf)
    return tuple(
        (float(low), float(high)) if low <= high else (float("nan"), float("nan"))
        for low, high in zip(smallest, largest, strict=True)
    )


def model_of(
    best: Grown, grid: Sequence[Grown], rows: LearningRows, counters: str, **stated: Any
) -> DelayModel:
    """The best of a grid as a model; `stated` is what else is to be known of it."""
    about = {**stated, "chosen": best.as_json(), "grid": [each.as_json() for each in grid]}
    return DelayModel(counters, read_trees(best.trees_json), ranges_of(rows.features), about)
