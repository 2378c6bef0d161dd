"""A learned model as a folder: `trees.json` as xgboost writes it, and `model.json`, written last: what it is for.

    {"format": 2, "counters": "openflow", "features_version": 2, "features": [...], "ranges": [[0.0, 1.5], ...],
     "trees_sha256": "…", "about": {…}}

`ranges` are the smallest and the largest value of each feature in training, null of what was never known. `about` is
for people and for comparing models: what it was trained on, when, and how good it was.

    MODELS/<counters>/<time>/      every training adds one; the newest that is whole is in force
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

from triagemq.atomic_files import write_durably
from triagemq.delay.learning.features import VERSION, anchor_seconds, feature_names
from triagemq.delay.learning.trees import Trees, read_trees
from triagemq.errors import ModelError, OutputError

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
