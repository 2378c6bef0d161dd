"""What every algorithm of flows and classes must satisfy: rows of groups are put into lists."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import fields, replace
from typing import Any

import numpy as np

from triagemq.plan import ContractError, FlowProblem, PriorityProblem
from triagemq.scenario import Integers

PROBLEMS = 24


def check_lists(
    algorithm: Callable[[Any], Integers],
    kind: type[FlowProblem] | type[PriorityProblem],
    promises: Collection[str] = ("equal_lists", "ordered"),
) -> None:
    """Raise ContractError unless an algorithm keeps the contract of its kind, and some optional promises.

    equal_lists: lists differ by one row at most, the larger first. ordered: no better row is in a worse list.
    """
    for seed in range(PROBLEMS):
        draw = np.random.default_rng(seed)
        count = int(draw.integers(1, 60))
        group = draw.integers(0, 4, count).astype(np.int32)
        worth, lists = draw.lognormal(0, 2, count), int(draw.integers(1, 10))
        flows = kind is FlowProblem
        problem = (
            FlowProblem(np.sort(group), worth, lists, seed)
            if flows
            else PriorityProblem(worth, group, lists, seed)
        )
        _check_lists(algorithm, problem, promises, f"problem {seed}")


def _demand(check: str, holds: bool | np.bool_, explanation: str) -> None:
    if not holds:
        raise ContractError(check, explanation)


def _check_lists(
    algorithm: Callable[[Any], Integers],
    problem: FlowProblem | PriorityProblem,
    promised: Collection[str],
    where: str,
) -> None:
    group_name, worth_name, lists_name, _ = (each.name for each in fields(problem))
    if isinstance(problem, PriorityProblem):
        group_name, worth_name = worth_name, group_name
    group, worth, lists = (getattr(problem, name) for name in (group_name, worth_name, lists_name))

    def labels_of(**changed: Any) -> Integers:
        labels = np.asarray(algorithm(replace(problem, **changed)))
        right = labels.shape == worth.shape and np.issubdtype(labels.dtype, np.integer)
        wrong = f"{where}: {labels.dtype} of shape {labels.shape}; one integer per row is needed"
        _demand("result", right, wrong)
        inside = ((labels >= 0) & (labels < lists)).all()
        _demand("range", inside, f"{where}: a label lies outside 0..{lists - 1}")
        return labels

    def same(check: str, found: Integers, expected: Integers, explanation: str) -> None:
        _demand(check, np.array_equal(expected, found), f"{where}: {explanation}")

    labels = labels_of()
    same(
        "deterministic", labels_of(), labels, "two calls with the same problem and seed give different lists"
    )
    for which in np.unique(group):
        rows = np.flatnonzero(group == which)
        if "equal_lists" in promised:
            sizes = np.bincount(labels[rows], minlength=lists)
            right = (np.diff(sizes) <= 0).all() and np.ptp(sizes) <= 1
            _demand("equal_lists", right, f"{where}: {len(rows)} rows are cut into lists of {sizes.tolist()}")
        if "ordered" in promised:
            descending = labels[rows[np.argsort(-worth[rows])]]
            _demand("ordered", (np.diff(descending) >= 0).all(), f"{where}: a better row is in a worse list")
    same("units", labels_of(**{worth_name: worth * 1000}), labels, "another unit changes the lists")
    if np.array_equal(labels, labels_of(seed=problem.seed + 1)):
        # What a seed draws belongs to the canonical order of rows; what ranks decide must not.
        order = np.random.default_rng(1).permutation(len(worth))
        moved = labels_of(**{group_name: group[order], worth_name: worth[order]})
        same("order", moved, labels[order], "rows listed in another order change the lists")
