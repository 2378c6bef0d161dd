"""The trees that xgboost grew, as flat arrays that a compiled kernel walks: a prediction takes microseconds.

xgboost's own prediction of one row takes a hundred times as long, most of it before the first tree is looked at.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triagemq.compiled import kernel
from triagemq.errors import ModelError

OBJECTIVES = ("reg:squarederror", "reg:absoluteerror", "reg:pseudohubererror")
"""Those that predict the sum of leaves itself, without a function around it."""

_FEATURE, _LEFT, _RIGHT, _MISSING = range(4)
_LEAF = -1


@dataclass(frozen=True, slots=True)
class Trees:
    """All nodes of all trees: `links` has a feature (-1 of a leaf) and where to go if it is below the threshold, if it
    is not, and if it is missing; `values` has the thresholds, and what leaves add."""

    links: NDArray[np.int32]
    values: NDArray[np.float32]
    roots: NDArray[np.int32]
    base: float
    features: int

    def predict(self, row: NDArray[np.float32]) -> float:
        """The prediction for one row; NaN in it is missing."""
        return _walk(self.links, self.values, self.roots, self.base, row)

    def predict_rows(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """The predictions for many rows."""
        if rows.ndim != 2 or rows.shape[1] != self.features:
            raise ModelError(f"rows have the shape {rows.shape}; the trees take {self.features} features")
        predictions = np.empty(len(rows), np.float32)
        _walk_all(
            self.links,
            self.values,
            self.roots,
            self.base,
            np.ascontiguousarray(rows, np.float32),
            predictions,
        )
        return predictions


def read_trees(text: str | bytes | bytearray) -> Trees:
    """The trees of a file that `Booster.save_model("….json")` wrote; all of them count, as in `Booster.predict`.

    >>> read_trees('{"learner": {}}')
    Traceback (most recent call last):
    triagemq.errors.ModelError: trees: not what xgboost writes: lacks 'objective'
    """
    try:
        learner = json.loads(text)["learner"]
        objective, parameters = learner["objective"]["name"], learner["learner_model_param"]
        booster = learner["gradient_booster"]
        if objective not in OBJECTIVES:
            raise ModelError(f"trees: the objective {objective!r} is not one of {', '.join(OBJECTIVES)}")
        if booster["name"] != "gbtree" or int(parameters.get("num_target", 1)) != 1:
            raise ModelError(
                f"trees: a booster {booster['name']!r} of several targets or another kind than gbtree"
            )
        # A list of one since xgboost 3.1, a number before.
        base = float(parameters["base_score"].strip("[]"))
        return _flat(
            [_nodes(tree) for tree in booster["model"]["trees"]], base, int(parameters["num_feature"])
        )
    except KeyError as error:
        raise ModelError(f"trees: not what xgboost writes: lacks {error}") from error
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise ModelError(f"trees: not what xgboost writes: {error}") from error


def _nodes(tree: dict[str, Any]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    if any(tree["split_type"]) or int(tree["tree_param"].get("size_leaf_vector", 1)) > 1:
        raise ModelError("trees: splits by category or leaves of several values are not read")
    left, right = (np.asarray(tree[name], np.int64) for name in ("left_children", "right_children"))
    leaf = left == _LEAF
    missing = np.where(np.asarray(tree["default_left"], np.int64) != 0, left, right)
    feature = np.where(leaf, _LEAF, np.asarray(tree["split_indices"], np.int64))
    values = np.asarray(tree["split_conditions"], np.float32)
    return np.column_stack((feature, left, right, missing)), values


def _flat(trees: list[tuple[NDArray[np.int64], NDArray[np.float32]]], base: float, features: int) -> Trees:
    sizes = [len(links) for links, _ in trees]
    roots = np.cumsum([0, *sizes])[:-1]
    links = np.concatenate([np.empty((0, 4), np.int64), *(links for links, _ in trees)])
    values = np.concatenate([np.empty(0, np.float32), *(values for _, values in trees)])
    begins = np.repeat(roots, sizes)[:, np.newaxis]
    ends = begins + np.repeat(sizes, sizes)[:, np.newaxis]
    inner = links[:, _FEATURE] != _LEAF
    children = links[:, _LEFT:] + begins
    wrong = (links[:, _LEFT:] <= 0) | (children >= ends)
    if (
        wrong[inner].any()
        or not (links[inner, _FEATURE] < features).all()
        or (links[inner, _FEATURE] < 0).any()
    ):
        raise ModelError("trees: damaged: a node leads out of its tree, or to a feature that there is not")
    if not np.isfinite(values).all() or len(values) != len(links) or not np.isfinite(base):
        raise ModelError("trees: damaged: a threshold or leaf is no number")
    links[:, _LEFT:] = np.where(inner[:, np.newaxis], children, _LEAF)
    # Every node has one parent, and is met once: else a walk might not end.
    seen, front = np.zeros(len(links), np.int64), roots
    while len(front):
        np.add.at(seen, front, 1)
        if seen.max() > 1:
            raise ModelError("trees: damaged: a node is met twice")
        parents = front[inner[front]]
        front = links[parents][:, (_LEFT, _RIGHT)].ravel()
    return Trees(links.astype(np.int32), values, roots.astype(np.int32), base, features)


@kernel
def _walk(
    links: NDArray[np.int32],
    values: NDArray[np.float32],
    roots: NDArray[np.int32],
    base: float,
    row: NDArray[np.float32],
) -> float:
    total = np.float32(base)
    for tree in range(len(roots)):
        node = roots[tree]
        while links[node, _FEATURE] != _LEAF:
            value = row[links[node, _FEATURE]]
            if value < values[node]:
                node = links[node, _LEFT]
            elif value >= values[node]:
                node = links[node, _RIGHT]
            else:  # It is neither: it is missing.
                node = links[node, _MISSING]
        total += values[node]
    return float(total)


@kernel
def _walk_all(
    links: NDArray[np.int32],
    values: NDArray[np.float32],
    roots: NDArray[np.int32],
    base: float,
    rows: NDArray[np.float32],
    predictions: NDArray[np.float32],
) -> None:
    for number in range(len(rows)):
        predictions[number] = _walk(links, values, roots, base, rows[number])
