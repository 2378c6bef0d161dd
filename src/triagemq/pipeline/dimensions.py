"""Small tables that say what the ids of a run mean: names, bandwidths, utilities and forecasts from its scenario."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from triagemq.forecast import REASONS, best_forecast, figures_by_class
from triagemq.pipeline.inputs import TraceInput
from triagemq.pipeline.partitions import from_arrow, in_one_piece
from triagemq.scenario import Scenario, port_depths

_FORECAST = {
    "forecast_success_rate": "success_rate",
    "forecast_mean_latency_seconds": "mean_latency_seconds",
    "forecast_p95": "p95_seconds",
    "forecast_p99": "p99_seconds",
    "forecast_sampled": "sampled",
    "forecast_flag": "flag",
    "forecast_latency_error": "latency_error",
    "forecast_success_error": "success_error",
}
"""Columns for what a run's plan promised, by what `triage forecast --json` calls it."""

_FORECAST_COLUMNS = ", ".join(
    f"{name} { {'flag': 'string', 'sampled': 'int'}.get(key, 'double') }" for name, key in _FORECAST.items()
)

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
    + _FORECAST_COLUMNS,
    "class_forecasts": f"priority_class int, {_FORECAST_COLUMNS}",
    # By which class copies are counted, of runs that say so.
    "classes": "subscription_id int, counted_class int",
}


@dataclass(frozen=True, slots=True)
class Dimensions:
    """What the scenarios of a job's runs say, and what live runs call what their scenarios do not know."""

    topics: DataFrame
    publishers: DataFrame
    ports: DataFrame
    subscribers: DataFrame
    subscriptions: DataFrame
    class_forecasts: DataFrame
    classes: DataFrame

    @classmethod
    def of(cls, spark: SparkSession, runs: Mapping[int, TraceInput], partitions: int) -> Dimensions:
        """From the scenario and the manifest of each run, by the run's number."""
        schemas = {name: _arrow_schema(f"run int, {columns}") for name, columns in _COLUMNS.items()}
        tables: dict[str, list[pa.Table]] = {name: [] for name in schemas}
        for run, each in runs.items():
            if each.scenario is not None:
                for name, columns in _columns(each, each.scenario).items():
                    tables[name].append(_table(schemas[name], run, columns))
            for name, rows in _named(each).items():
                tables[name].append(
                    pa.Table.from_pylist([{"run": run, **row} for row in rows], schema=schemas[name])
                )
            tables["classes"].append(
                _table(
                    schemas["classes"],
                    run,
                    {"subscription_id": np.arange(len(each.classes)), "counted_class": each.classes},
                )
            )
        frames = {
            name: in_one_piece(
                from_arrow(spark, pa.concat_tables([schemas[name].empty_table(), *parts])), partitions
            )
            for name, parts in tables.items()
        }
        return cls(**frames)


def _named(run: TraceInput) -> dict[str, list[dict[str, Any]]]:
    """Ids behind the last rows of the scenario, by the names that the run itself gives them."""
    scenario = run.scenario

    def beyond(kind: str) -> list[tuple[int, Any]]:
        first = 0 if scenario is None else len(getattr(scenario, kind))
        return [(number, name) for number, name in enumerate(run.names(kind)) if number >= first]

    return {
        "topics": [{"topic_id": number, "topic": name} for number, name in beyond("topics")],
        "publishers": [{"publisher_id": number, "publisher": name} for number, name in beyond("publishers")],
        # A filter, where it is not one of the scenario's topics.
        "subscriptions": [
            {"subscription_id": number, "subscriber": pair[0], "topic": pair[1]}
            for number, pair in beyond("subscriptions")
            if pair is not None
        ],
    }


def _columns(run: TraceInput, scenario: Scenario) -> dict[str, dict[str, Any]]:
    promised, class_promised = _forecasts(run, scenario)
    ports, subscribers, subscriptions = scenario.ports, scenario.subscribers, scenario.subscriptions
    alone = np.flatnonzero(np.asarray(port_depths(scenario))[subscribers.port] == 0)
    subscriber_names, topic_names = np.array(subscribers.name), np.array(scenario.topics.name)
    return {
        "topics": {"topic_id": np.arange(len(scenario.topics)), "topic": scenario.topics.name},
        "publishers": {
            "publisher_id": np.arange(len(scenario.publishers)),
            "publisher": scenario.publishers.name,
        },
        "ports": {"port_id": np.arange(len(ports)), "port": ports.name, "bandwidth_bps": ports.bandwidth_bps},
        "subscribers": {"subscriber_id": alone, "port_id": subscribers.port[alone]},
        "subscriptions": {
            "subscription_id": np.arange(len(subscriptions)),
            "subscriber_id": subscriptions.subscriber,
            "subscriber": subscriber_names[subscriptions.subscriber],
            "topic_id": subscriptions.topic,
            "topic": topic_names[subscriptions.topic],
            "utility_shape": subscriptions.utility_shape,
            "utility_weight": subscriptions.utility_weight,
            "utility_threshold": subscriptions.utility_threshold,
            "freshness_seconds": subscriptions.freshness_seconds,
            "max_latency_seconds": subscriptions.max_latency_seconds,
            "max_latency_share": np.where(
                subscriptions.max_latency_share > 0, subscriptions.max_latency_share, np.nan
            ),
            **promised,
        },
        "class_forecasts": class_promised,
    }


def _forecasts(run: TraceInput, scenario: Scenario) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the run's plan promised every subscription, and every class by which copies are counted; else nulls."""
    count, in_time = len(scenario.subscriptions), "forecast_share_within_max_latency"
    if run.plan is None:
        return dict.fromkeys([in_time, *_FORECAST], [None] * count), dict.fromkeys(
            ["priority_class", *_FORECAST], ()
        )
    predicted = best_forecast(scenario, run.plan)
    own = {
        "success_rate": predicted.success,
        "mean_latency_seconds": predicted.latency_seconds,
        "p95_seconds": predicted.percentile_seconds(0.95),
        "p99_seconds": predicted.percentile_seconds(0.99),
        "sampled": predicted.sampled,
        "flag": [REASONS[code] or None for code in predicted.reason],
        "latency_error": predicted.latency_error,
        "success_error": predicted.success_error,
    }
    level = np.array(run.classes) if len(run.classes) == count else run.plan.subscription_class
    classes = figures_by_class(predicted, level)
    return {in_time: predicted.share_within} | {name: own[key] for name, key in _FORECAST.items()}, {
        name: [row[key] for row in classes]
        for name, key in {"priority_class": "priority_class", **_FORECAST}.items()
    }


def _arrow_schema(columns: str) -> pa.Schema:
    wanted = StructType.fromDDL(columns)
    assert isinstance(wanted, StructType)
    return to_arrow_schema(wanted)


def _table(schema: pa.Schema, run: int, columns: Mapping[str, Any]) -> pa.Table:
    length = len(next(iter(columns.values())))
    arrays = [pa.array(np.full(length, run, dtype=np.int32))]
    arrays += [_array(columns[field.name], field.type) for field in schema if field.name != "run"]
    return pa.Table.from_arrays(arrays, schema=schema)


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    if kind == pa.float64():
        # Infinity stands for "no limit" in a scenario; a table has null for it.
        numbers = np.asarray(values, dtype=np.float64)
        return pa.array(numbers, kind, mask=~np.isfinite(numbers))
    if kind == pa.string():
        return pa.array([None if value is None else str(value) for value in values], kind)
    if isinstance(values, np.ndarray):
        return pa.array(values.astype(np.int32), kind)
    return pa.array([None if value is None else int(value) for value in values], kind)
