"""A small model, trained here and now on queues of which everything is known."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import xgboost
from numpy.typing import NDArray
from tests.delay.feeds import SENT_PER_WINDOW, constant_backlog, queue_feed

from triagemq.delay.learning.features import anchor_seconds, feature_names, feature_rows
from triagemq.delay.learning.models import DelayModel, load_model, save_model
from triagemq.lab.queue_delay import ranges_of


@cache
def small_model(counters: str) -> DelayModel:
    """Trees for a set of counters, saved and loaded as a user's would be."""
    with TemporaryDirectory() as folder:
        save_small_model(Path(folder), counters)
        return load_model(folder)


@cache
def busy_model(counters: str) -> DelayModel:
    """Trees that have never seen an idle queue."""
    random = np.random.default_rng(1)
    with TemporaryDirectory() as folder:
        loads = [random.poisson(rate, 200) for rate in (150, 190, 205, 210) for _ in range(3)]
        _save(Path(folder), counters, *_grow(counters, loads, rounds=20))
        return load_model(folder)


def save_small_model(folder: Path, counters: str) -> None:
    _save(folder, counters, *train(counters))


def _save(folder: Path, counters: str, booster: xgboost.Booster, rows: NDArray[np.float32]) -> None:
    save_model(
        folder,
        booster.save_raw("json"),
        counters=counters,
        ranges=ranges_of(rows),
        about={"rows": len(rows)},
    )


def train(counters: str) -> tuple[xgboost.Booster, NDArray[np.float32]]:
    """Trees that have seen queues of constant backlog, and busy ones with random input; and what they have seen."""
    random = np.random.default_rng(1)
    loads = [constant_backlog(packets, 60) for packets in range(0, 3000, 50)]
    loads += [random.poisson(rate, 60) for rate in (50, 150, 190, 210, 250) for _ in range(5)]
    return _grow(counters, loads, rounds=60)


def _grow(
    counters: str, loads: Sequence[NDArray[np.int64]], rounds: int
) -> tuple[xgboost.Booster, NDArray[np.float32]]:
    rows, delays = [], []
    for packets in loads:
        known = queue_feed(packets, "linux", buffer_packets=4000)
        assert known.backlog_packets is not None
        seen = feature_rows(queue_feed(packets, counters, buffer_packets=4000))
        rows.append(seen[1:])
        delays.append(known.backlog_packets[1:] / SENT_PER_WINDOW * 0.2 - anchor_seconds(seen[1:], counters))
    seen_rows = np.concatenate(rows)
    matrix = xgboost.DMatrix(
        seen_rows, label=np.concatenate(delays), feature_names=list(feature_names(counters))
    )
    options = {"max_depth": 6, "eta": 0.3, "nthread": 1, "seed": 1}
    return xgboost.train(options, matrix, num_boost_round=rounds), seen_rows
