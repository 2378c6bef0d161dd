"""Rows to write, and writers with small files, for the tests of the Trace."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from triagemq.trace import Outcome, TraceWriter

Rows = dict[str, Any]


def _deliveries(count: int, first: int = 0) -> Rows:
    """Delivery rows with every outcome in turn; times beyond 2**53 would not survive a float."""
    ids = np.arange(first, first + count, dtype=np.int64)
    outcome = (ids % len(Outcome)).astype(np.int8)
    published = ids * 1_000 + 2**60 + 1
    delivered = outcome == 0
    return {
        "publication_id": ids,
        "subscription_id": (ids % 1000).astype(np.int32),
        "subscriber_id": (ids % 10).astype(np.int32),
        "topic_id": (ids % 50).astype(np.int32),
        "flow_id": np.where(ids % 11 == 0, -1, ids % 40).astype(np.int32),
        "priority_class": (ids % 9).astype(np.int32),
        "published_ns": published,
        "enqueued_ns": np.where(outcome == 1, -1, published + 5),
        "dequeued_ns": np.where(delivered, published + 50, -1),
        "delivered_ns": np.where(delivered, published + 500, -1),
        "size_bytes": np.full(count, 100, dtype=np.int32),
        "outcome": outcome,
    }


def _publications(count: int) -> Rows:
    ids = np.arange(count, dtype=np.int64)
    return {
        "publication_id": ids,
        "topic_id": ids % 50,
        "publisher_id": np.where(ids % 3 == 0, -1, ids % 5),
        "published_ns": ids * 1_000,
        "size_bytes": np.full(count, 100),
    }


@pytest.fixture
def deliveries() -> Callable[..., Rows]:
    """`deliveries(count, first=0)`: rows of the deliveries table."""
    return _deliveries


@pytest.fixture
def publications() -> Callable[..., Rows]:
    """`publications(count)`: rows of the publications table."""
    return _publications


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., TraceWriter]:
    """`start(**options)`: a writer into tmp_path / "run"."""

    def begin(directory: Path = tmp_path / "run", **options: Any) -> TraceWriter:
        given = {"scenario_text": "topics: []\n", "plan_text": '{"flows": []}', "producer": "test"}
        return TraceWriter(directory, **(given | options))

    return begin


@pytest.fixture(autouse=True)
def _no_thread_left_behind() -> Iterator[None]:
    yield
    assert not [thread for thread in threading.enumerate() if thread.name == "trace-writer"]
