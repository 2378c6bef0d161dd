"""Trees without xgboost predict what xgboost predicts; models are read whole, or refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost
from tests.delay.trained import save_small_model, train

from triagemq.delay.learning.features import feature_names
from triagemq.delay.learning.models import load_model, model_folders, newest_model, read_trees, save_model
from triagemq.errors import ModelError
from triagemq.lab.queue_delay import predict_rows, ranges_of

FEATURES = 12


def _rows(count: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    rows = random.normal(size=(count, FEATURES)).astype(np.float32)
    rows[random.random(rows.shape) < 0.3] = np.nan
    # Values that are thresholds of others: which way equal goes has to be right, too.
    rows[:, 0] = np.round(rows[:, 0])
    return rows


def _grown(**options: Any) -> xgboost.Booster:
    rows = _rows(3000, seed=1)
    label = np.nansum(rows[:, :4], axis=1) * 0.02 + np.isnan(rows[:, 5]) * 0.1
    settings = {"max_depth": 6, "eta": 0.2, "nthread": 1, "seed": 1, **options}
    return xgboost.train(settings, xgboost.DMatrix(rows, label=label), num_boost_round=50)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"objective": "reg:absoluteerror"},
        {"grow_policy": "lossguide", "max_leaves": 30, "tree_method": "hist"},
        {"gamma": 0.001, "tree_method": "exact"},
        {"base_score": 0.25, "min_child_weight": 10, "subsample": 0.7, "colsample_bytree": 0.7},
    ],
)
def test_predictions_with_missing_values_are_those_of_xgboost(options: dict[str, Any]) -> None:
    booster, rows = _grown(**options), _rows(10_000, seed=2)
    trees = read_trees(booster.save_raw("json"))
    assert np.abs(predict_rows(trees, rows) - booster.inplace_predict(rows)).max() < 1e-5
    assert trees.predict(rows[7]) == pytest.approx(predict_rows(trees, rows[7:8])[0])


def test_a_file_of_save_model_is_read(tmp_path: Path) -> None:
    booster, rows = _grown(), _rows(10, seed=3)
    booster.save_model(tmp_path / "trees.json")
    trees = read_trees((tmp_path / "trees.json").read_bytes())
    assert predict_rows(trees, rows) == pytest.approx(booster.predict(xgboost.DMatrix(rows)), abs=1e-5)


def _document() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(_grown().save_raw("json"))
    return document


def _tree(document: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = document["learner"]["gradient_booster"]["model"]["trees"][3]
    return tree


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("left_children", 0, "leads out of its tree"),
        ("right_children", 10_000, "leads out of its tree"),
        ("left_children", 2, "met twice"),
        ("split_indices", FEATURES, "a feature that there is not"),
        ("split_type", 1, "splits by category"),
        ("split_conditions", "x", "not what xgboost writes"),
    ],
)
def test_damaged_trees_are_refused(name: str, value: Any, said: str) -> None:
    document = _document()
    _tree(document)[name][0] = value
    with pytest.raises(ModelError, match=said):
        read_trees(json.dumps(document))


def test_trees_that_are_not_a_sum_of_leaves_are_refused() -> None:
    document = _document()
    document["learner"]["objective"]["name"] = "reg:gamma"
    with pytest.raises(ModelError, match="the objective 'reg:gamma' is not one of"):
        read_trees(json.dumps(document))
    with pytest.raises(ModelError, match="not what xgboost writes"):
        read_trees(b"{")
    with pytest.raises(ModelError, match="take 12 features"):
        predict_rows(read_trees(_grown().save_raw("json")), np.zeros((2, 3), np.float32))


def test_a_model_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    booster, seen = train("openflow")
    save_model(
        tmp_path,
        booster.save_raw("json"),
        counters="openflow",
        ranges=ranges_of(seen),
        about={"trained": "today"},
    )
    model = load_model(tmp_path)
    rows = np.random.default_rng(1).random((50, len(feature_names("openflow")))).astype(np.float32)
    assert predict_rows(model.trees, rows) == pytest.approx(
        booster.inplace_predict(rows, validate_features=False), abs=1e-5
    )
    assert (model.counters, model.about) == ("openflow", {"trained": "today"})
    assert str(model.ranges) == str(ranges_of(seen))  # as text, NaN is equal
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.json", "trees.json"]


def test_a_model_that_does_not_fit_or_is_damaged_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"model\.json: cannot be read: No such file"):
        load_model(tmp_path)
    with pytest.raises(ModelError, match="take 12 features; the set 'linux' has 66"):
        save_model(tmp_path, _grown().save_raw("json"), counters="linux", ranges=(), about={})
    save_small_model(tmp_path, "linux")
    description = json.loads((tmp_path / "model.json").read_text())
    for change, said in [
        ({"format": 1}, "has the format 1; this program reads 2"),
        ({"features_version": 0}, "learned from other features"),
        ({"features": description["features"][:-1]}, "learned from other features"),
        ({"ranges": description["ranges"][:-1]}, "learned from other features"),
        ({"counters": "sflow"}, "damaged"),
        ({"trees_sha256": "0"}, "is not what was written"),
        ({"about": ...}, "lacks|damaged"),
    ]:
        changed = {key: value for key, value in (description | change).items() if value is not ...}
        (tmp_path / "model.json").write_text(json.dumps(changed))
        with pytest.raises(ModelError, match=said) as refused:
            load_model(tmp_path)
        assert "\n" not in str(refused.value)
    (tmp_path / "model.json").write_text("{")
    with pytest.raises(ModelError, match="damaged"):
        load_model(tmp_path)


def test_the_model_in_force_is_the_newest_whole_one_for_the_counters(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no model for openflow there; make one with"):
        newest_model(tmp_path, "openflow")
    for counters, time in (("openflow", "2026-01-01"), ("openflow", "2026-01-02"), ("linux", "2026-01-03")):
        save_small_model(tmp_path / counters / time, counters)
    # What a training that was killed leaves.
    (tmp_path / "openflow" / "2026-01-04").mkdir()
    (tmp_path / "openflow" / "2026-01-04" / "trees.json").write_text("{")
    assert [each.name for each in model_folders(tmp_path, "openflow")] == ["2026-01-01", "2026-01-02"]
    assert newest_model(tmp_path, "linux").counters == "linux"
    (tmp_path / "openflow" / "2026-01-02" / "trees.json").write_text("{")
    with pytest.raises(ModelError, match="is not what was written"):
        newest_model(tmp_path, "openflow")
