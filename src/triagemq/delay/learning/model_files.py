"""A learned model as a folder: `trees.json` as xgboost writes it, and `model.json`, written last: what it is for.

    {"format": 1, "counters": "openflow", "features_version": 1, "features": [...], "trees_sha256": "…", "about": {…}}

`about` is for people and for comparing models: what it was trained on, when, and how good it was.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triagemq.delay.learning.features import VERSION, feature_names
from triagemq.delay.learning.trees import Trees, read_trees
from triagemq.errors import ModelError, OutputError

FORMAT = 1
TREES_NAME, MODEL_NAME = "trees.json", "model.json"


@dataclass(frozen=True, slots=True)
class DelayModel:
    """Trees that predict the mean queueing delay of the next window, in seconds, from a set of counters."""

    counters: str
    trees: Trees
    about: Mapping[str, Any]


def save_model(
    folder: str | Path, trees_json: bytes | bytearray, *, counters: str, about: Mapping[str, Any]
) -> None:
    """Write a model (what `Booster.save_raw("json")` gives, and what is to be known of it) into a folder."""
    check_fit(read_trees(trees_json), counters)
    description = {
        "format": FORMAT,
        "counters": counters,
        "features_version": VERSION,
        "features": feature_names(counters),
        "trees_sha256": hashlib.sha256(trees_json).hexdigest(),
        "about": about,
    }
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        (place / MODEL_NAME).unlink(missing_ok=True)
        (place / TREES_NAME).write_bytes(trees_json)
        written = place / f".{MODEL_NAME}"
        written.write_text(json.dumps(description, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        os.replace(written, place / MODEL_NAME)
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
        sha256, about = description["trees_sha256"], description["about"]
        expected = feature_names(counters)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{place / MODEL_NAME}: damaged: {error!r}") from error
    if found != FORMAT:
        raise ModelError(f"{place}: has the format {found}; this program reads {FORMAT}: train it again")
    if version != VERSION or features != expected:
        raise ModelError(
            f"{place}: learned from other features (version {version}) than there are: train it again"
        )
    if hashlib.sha256(trees_json).hexdigest() != sha256:
        raise ModelError(f"{place / TREES_NAME}: damaged: is not what was written; restore it or train again")
    trees = read_trees(trees_json)
    check_fit(trees, counters)
    return DelayModel(counters, trees, about)


def check_fit(trees: Trees, counters: str) -> None:
    """Refuse trees that take another number of features than the set of counters has."""
    expected = len(feature_names(counters))
    if trees.features != expected:
        raise ModelError(f"trees: take {trees.features} features; the set {counters!r} has {expected}")
