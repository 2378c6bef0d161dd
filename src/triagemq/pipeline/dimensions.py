"""Dimension tables for the ids of a run: names, bandwidths, utilities and forecasts from its scenario."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from triagemq.pipeline.inputs import TraceInput
from triagemq.pipeline.partitions import table_of
from triagemq.pipeline.tables.latency_histogram import FORECAST
from triagemq.scenario import port_depths

Columns = Mapping[str, Any]

_PERCENTILES = ("p95_seconds", "p99_seconds")
"""Columns of tables have these without their unit."""

_COLUMNS = {
    "topics": "topic_id int, topic string",
    "publishers": "publisher_id int, publisher string",
    "ports": "port_id int, port string, bandwidth_bps double",
    # Which port each subscriber hangs on, of those that pass one managed port only: their time between the
    # first and the last port is the time in one queue.
    "subscribers": "subscriber_id int, port_id int",
    "subscriptions": "subscription_id int, subscriber_id int, subscriber string, topic_id int, topic string, "
    "utility_shape int, utility_weight double, utility_threshold double, freshness_seconds double, "
    "max_latency_seconds double, max_latency_share double, forecast_share_within_max_latency double, "
    + FORECAST,
    "class_forecasts": f"priority_class int, {FORECAST}",
    # The class by which copies are counted, of runs that have it.
    "classes": "subscription_id int, counted_class int",
}


def dimensions(runs: Mapping[int, TraceInput]) -> dict[str, pa.Table]:
    """The dimensions of each run, from its scenario and manifest: a table for each name, null where unknown."""
    found: dict[str, list[pa.Table]] = {name: [] for name in _COLUMNS}
    for run, each in runs.items():
        for name, columns in (*_in_scenario(each).items(), *_named(each).items()):
            rows = pa.table({column: _array(values) for column, values in columns.items()})
            found[name].append(rows.append_column("run", pa.repeat(run, rows.num_rows)))
    return {name: table_of(found[name], f"run int, {columns}") for name, columns in _COLUMNS.items()}


def _named(run: TraceInput) -> dict[str, Columns]:
    """Dimensions in the manifest: names of ids behind the last rows of the scenario, and how copies are counted."""

    def beyond(kind: str) -> list[tuple[int, Any]]:
        first = 0 if run.scenario is None else len(getattr(run.scenario, kind))
        return [(number, name) for number, name in enumerate(run.names(kind)) if number >= first]

    topics, publishers = beyond("topics"), beyond("publishers")
    # A filter, where it is not one of the scenario's topics.
    subscriptions = [(number, *pair) for number, pair in beyond("subscriptions") if pair is not None]
    return {
        "topics": _columns(topics, "topic_id", "topic"),
        "publishers": _columns(publishers, "publisher_id", "publisher"),
        "subscriptions": _columns(subscriptions, "subscription_id", "subscriber", "topic"),
        "classes": _columns(list(enumerate(run.classes)), "subscription_id", "counted_class"),
    }


def _columns(rows: Sequence[tuple[Any, ...]], *names: str) -> Columns:
    return {name: [row[number] for row in rows] for number, name in enumerate(names)}


def _in_scenario(run: TraceInput) -> dict[str, Columns]:
    scenario = run.scenario
    if scenario is None:
        return {}
    forecast = run.forecast
    promised, class_promised = (
        ({}, {}) if forecast is None else (_renamed(forecast.subscriptions), _renamed(forecast.classes))
    )
    topics, publishers, ports = scenario.topics, scenario.publishers, scenario.ports
    subscribers, subscriptions = scenario.subscribers, scenario.subscriptions
    alone = np.flatnonzero(np.asarray(port_depths(scenario))[subscribers.port] == 0)
    share = subscriptions.max_latency_share
    requested = {
        name: getattr(subscriptions, name)
        for name in ("utility_shape", "utility_weight", "utility_threshold", "freshness_seconds")
    }
    return {
        "topics": {"topic_id": np.arange(len(topics)), "topic": topics.name},
        "publishers": {"publisher_id": np.arange(len(publishers)), "publisher": publishers.name},
        "ports": {"port_id": np.arange(len(ports)), "port": ports.name, "bandwidth_bps": ports.bandwidth_bps},
        "subscribers": {"subscriber_id": alone, "port_id": subscribers.port[alone]},
        "subscriptions": {
            "subscription_id": np.arange(len(subscriptions)),
            "subscriber_id": subscriptions.subscriber,
            "subscriber": np.array(subscribers.name, dtype=object)[subscriptions.subscriber],
            "topic_id": subscriptions.topic,
            "topic": np.array(topics.name, dtype=object)[subscriptions.topic],
            "max_latency_seconds": subscriptions.max_latency_seconds,
            "max_latency_share": np.where(share > 0, share, np.nan),
            **requested,
            **promised,
        },
        "class_forecasts": class_promised,
    }


def _renamed(columns: Columns) -> Columns:
    """The forecast of the run's plan, with the column names of the tables."""
    return {
        name
        if name == "priority_class"
        else f"forecast_{name.removesuffix('_seconds') if name in _PERCENTILES else name}": values
        for name, values in columns.items()
    }


def _array(values: Any) -> pa.Array:
    """Infinity stands for "no limit" in a scenario; a table has null for it."""
    array = pa.array(values)
    return pc.if_else(pc.is_finite(array), array, None) if pa.types.is_floating(array.type) else array
