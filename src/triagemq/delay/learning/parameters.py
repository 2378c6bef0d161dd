"""The parameters that trees are grown with: a small grid, in which the paper's three sets are."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from triagemq.errors import ParameterError

MOST_TREES = 400
"""Where growing ends if nothing has stopped it before."""

JUDGED_BY = "mae"
"""Trees are judged by how many seconds they are off in the mean."""


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
        """What xgboost is told, but for when to stop. One thread: sums are the same every time."""
        chosen = asdict(self)
        for own in ("name", "early_stopping_rounds"):
            del chosen[own]
        return {**chosen, "eval_metric": JUDGED_BY, "tree_method": "hist", "nthread": 1, "seed": seed}


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
"""Beside the paper's two that are grown by the error they are judged by: seconds off, not their squares."""


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
