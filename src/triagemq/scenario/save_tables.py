"""Publications and subscriptions of a Scenario as Parquet tables; columns at their default are left out."""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triagemq.scenario.kinds import ArrivalProcess, SizeDistribution, UtilityShape
from triagemq.scenario.model import Codes, Floats, Integers, Scenario

__all__ = ["write_publication_table", "write_subscription_table"]


def write_publication_table(scenario: Scenario, path: Path) -> None:
    """One row per publication."""
    table = scenario.publications
    columns = {
        "publisher": _names(table.publisher, scenario.publishers.name),
        "topic": _names(table.topic, scenario.topics.name),
        "rate_per_second": _numbers(table.rate_per_second),
        "size_bytes": _numbers(table.size_bytes),
    }
    if (table.size_distribution != SizeDistribution.EXPONENTIAL).any():
        columns["size_distribution"] = _words(table.size_distribution, SizeDistribution)
    if (table.arrival_process != ArrivalProcess.POISSON).any():
        columns["arrival_process"] = _words(table.arrival_process, ArrivalProcess)
    for name, none in (
        ("pareto_shape", 0.0),
        ("on_seconds", 0.0),
        ("off_seconds", 0.0),
        ("min_separation_seconds", 0.0),
        ("max_separation_seconds", np.inf),
    ):
        _add_optional(columns, name, getattr(table, name), none)
    if len(scenario.size_samples):
        columns["size_values"] = _lists(table.size_samples, scenario.size_samples.size_bytes)
        columns["size_weights"] = _lists(table.size_samples, scenario.size_samples.weight)
    _write(columns, path)


def write_subscription_table(scenario: Scenario, path: Path) -> None:
    """One row per subscription."""
    table = scenario.subscriptions
    columns = {
        "subscriber": _names(table.subscriber, scenario.subscribers.name),
        "topic": _names(table.topic, scenario.topics.name),
        "utility_shape": _words(table.utility_shape, UtilityShape),
        "utility_weight": _numbers(table.utility_weight),
    }
    for name, none in (
        ("utility_threshold", 0.0),
        ("freshness_seconds", np.inf),
        ("max_latency_seconds", np.inf),
        ("max_latency_share", 0.0),
        ("max_separation_seconds", np.inf),
    ):
        _add_optional(columns, name, getattr(table, name), none)
    _write(columns, path)


def _names(rows: Integers, names: tuple[str, ...]) -> Any:
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.array(rows, pa.int32()), pa.array(names, pa.string()))


def _words(codes: Codes, kinds: type[IntEnum]) -> Any:
    return _names(codes.astype(np.int32), tuple(kind.name.lower() for kind in sorted(kinds)))


def _numbers(values: Floats, missing: NDArray[np.bool_] | None = None) -> Any:
    import pyarrow as pa

    return pa.array(values, pa.float64(), mask=missing)


def _add_optional(columns: dict[str, Any], name: str, values: Floats, none: float) -> None:
    missing = values == none
    if not missing.all():
        columns[name] = _numbers(values, missing)


def _lists(rows: Integers, lists: tuple[Floats, ...]) -> Any:
    import pyarrow as pa

    ends = np.concatenate([[0], np.cumsum([len(values) for values in lists])])
    table = pa.ListArray.from_arrays(
        pa.array(ends, pa.int32()), pa.array(np.concatenate(lists), pa.float64())
    )
    return table.take(pa.array(rows, pa.int32(), mask=rows < 0))


def _write(columns: dict[str, Any], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path, compression="zstd")
