"""Trees that xgboost grew, as flat arrays that a compiled kernel walks in microseconds; and the folder of a model.

xgboost's own prediction of one row takes a hundred times as long, most of it before the first tree is looked at.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triagemq.compiled import kernel
from triagemq.delay.learning.features import VERSION, anchor_seconds, feature_names
from triagemq.errors import ModelError, OutputError
from triagemq.files import write_durably

OBJECTIVES = ("reg:squarederror", "reg:absoluteerror", "reg:pseudohubererror")
"""Objectives whose prediction is the sum of leaves itself, without a function around it."""

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
    invalid = (links[:, _LEFT:] <= 0) | (children >= ends)
    if (
        invalid[inner].any()
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


FORMAT = 2
TREES_NAME, MODEL_NAME = "trees.json", "model.json"


@dataclass(frozen=True, slots=True)
class DelayModel:
    """Trees that predict by how many seconds the mean queueing delay of the next window differs from its anchor."""

    counters: str
    trees: Trees
    ranges: tuple[tuple[float, float], ...]
    """Of each feature in training; NaN where it was never known."""
    about: Mapping[str, Any]

    def delay_seconds(self, row: NDArray[np.float32]) -> float:
        """The delay that follows on a row of features."""
        return max(0.0, float(anchor_seconds(row, self.counters)) + self.trees.predict(row))


def save_model(
    folder: str | Path,
    trees_json: bytes | bytearray,
    *,
    counters: str,
    ranges: Sequence[tuple[float, float]],
    about: Mapping[str, Any],
) -> None:
    """Write a model (what `Booster.save_raw("json")` gives, and what is to be known of it) into a folder."""
    check_fit(read_trees(trees_json), counters)
    description = {
        "format": FORMAT,
        "counters": counters,
        "features_version": VERSION,
        "features": feature_names(counters),
        "ranges": [None if math.isnan(low) else (low, high) for low, high in ranges],
        "trees_sha256": hashlib.sha256(trees_json).hexdigest(),
        "about": about,
    }
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        (place / MODEL_NAME).unlink(missing_ok=True)
        (place / TREES_NAME).write_bytes(trees_json)
        write_durably(place / MODEL_NAME, json.dumps(description, indent=2, allow_nan=False) + "\n")
    except OSError as error:
        raise OutputError(f"{place}: the model cannot be written: {error.strerror}") from error


def load_model(folder: str | Path) -> DelayModel:
    """Read a model, after checking that it is whole and that its features are those there are."""
    place = Path(folder)
    try:
        description = json.loads((place / MODEL_NAME).read_text(encoding="utf-8"))
        trees_json = (place / TREES_NAME).read_bytes()
    except OSError as error:
        raise ModelError(f"{error.filename}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(f"{place / MODEL_NAME}: damaged: {error}") from error
    try:
        found, version = description["format"], description["features_version"]
        counters, features = description["counters"], tuple(description["features"])
        sha256, about, ranges = (description[name] for name in ("trees_sha256", "about", "ranges"))
        expected = feature_names(counters)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{place / MODEL_NAME}: damaged: {error!r}") from error
    if found != FORMAT:
        raise ModelError(f"{place}: has the format {found}; this program reads {FORMAT}: train it again")
    if version != VERSION or features != expected or len(ranges) != len(expected):
        raise ModelError(
            f"{place}: learned from other features (version {version}) than there are: train it again"
        )
    if hashlib.sha256(trees_json).hexdigest() != sha256:
        raise ModelError(f"{place / TREES_NAME}: damaged: is not what was written; restore it or train again")
    trees = read_trees(trees_json)
    check_fit(trees, counters)
    known = tuple((math.nan, math.nan) if each is None else (each[0], each[1]) for each in ranges)
    return DelayModel(counters, trees, known, about)


def model_folders(models: str | Path, counters: str | None = None) -> list[Path]:
    """The folders of all models that are whole, those of each set of counters in order of time."""
    found = Path(models).glob(f"{counters or '*'}/*/{MODEL_NAME}")
    return sorted(each.parent for each in found)


def newest_model(models: str | Path, counters: str) -> DelayModel:
    """The model that is in force for a set of counters: the one that was trained last.

    >>> newest_model("nowhere", "linux")
    Traceback (most recent call last):
    triagemq.errors.ModelError: nowhere: no model for linux there; make one with: triage pipeline train TABLES ...
    """
    folders = model_folders(models, counters)
    if not folders:
        raise ModelError(
            f"{models}: no model for {counters} there; make one with: triage pipeline train TABLES --out {models}"
        )
    return load_model(folders[-1])


def check_fit(trees: Trees, counters: str) -> None:
    """Refuse trees that take another number of features than the set of counters has."""
    expected = len(feature_names(counters))
    if trees.features != expected:
        raise ModelError(f"trees: take {trees.features} features; the set {counters!r} has {expected}")
