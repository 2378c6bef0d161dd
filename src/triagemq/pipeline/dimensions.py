"""Small tables that say what the ids of a run mean: names, bandwidths, utilities and forecasts from its scenario."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from triagemq.pipeline.tables.figures import FORECAST
from triagemq.scenario import Scenario, port_depths

Columns = Mapping[str, Any]

_IN_JSON = {"forecast_p95": "p95_seconds", "forecast_p99": "p99_seconds"}
"""What `triage forecast --json` calls them."""

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
            for said in (_in_scenario(each), _named(each)):
                for name, columns in said.items():
                    tables[name].append(_table(schemas[name], run, columns))
        frames = {
            name: in_one_piece(
                from_arrow(spark, pa.concat_tables([schemas[name].empty_table(), *parts])), partitions
            )
            for name, parts in tables.items()
        }
        return cls(**frames)


def _named(run: TraceInput) -> dict[str, Columns]:
    """What the run itself says: names of ids behind the last rows of the scenario, and how copies are counted."""

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
    promised, class_promised = _forecasts(run, scenario)
    ports, subscribers, subscriptions = scenario.ports, scenario.subscribers, scenario.subscriptions
    alone = np.flatnonzero(np.asarray(port_depths(scenario))[subscribers.port] == 0)
    share = subscriptions.max_latency_share
    asked = {
        name: getattr(subscriptions, name)
        for name in ("utility_shape", "utility_weight", "utility_threshold", "freshness_seconds")
    }
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
            "subscriber": np.array(subscribers.name, dtype=object)[subscriptions.subscriber],
            "topic_id": subscriptions.topic,
            "topic": np.array(scenario.topics.name, dtype=object)[subscriptions.topic],
            "max_latency_seconds": subscriptions.max_latency_seconds,
            "max_latency_share": np.where(share > 0, share, np.nan),
            **asked,
            **promised,
        },
        "class_forecasts": class_promised,
    }


def _forecasts(run: TraceInput, scenario: Scenario) -> tuple[Columns, Columns]:
    """What the run's plan promised every subscription, and every class by which copies are counted."""
    if run.plan is None:
        return {}, {}
    predicted = best_forecast(scenario, run.plan)
    own = {
        "forecast_success_rate": predicted.success,
        "forecast_mean_latency_seconds": predicted.latency_seconds,
        "forecast_p95": predicted.percentile_seconds(0.95),
        "forecast_p99": predicted.percentile_seconds(0.99),
        "forecast_sampled": predicted.sampled,
        "forecast_flag": [REASONS[code] or None for code in predicted.reason],
        "forecast_latency_error": predicted.latency_error,
        "forecast_success_error": predicted.success_error,
    }
    own_classes = len(run.classes) == len(scenario.subscriptions)
    level = np.array(run.classes) if own_classes else run.plan.subscription_class
    classes = figures_by_class(predicted, level)
    by_class = {
        name: [row[_IN_JSON.get(name, name.removeprefix("forecast_"))] for row in classes]
        for name in ("priority_class", *own)
    }
    return own | {"forecast_share_within_max_latency": predicted.share_within}, by_class


def _arrow_schema(columns: str) -> pa.Schema:
    wanted = StructType.fromDDL(columns)
    assert isinstance(wanted, StructType)
    return to_arrow_schema(wanted)


def _table(schema: pa.Schema, run: int, columns: Columns) -> pa.Table:
    """The columns of the schema; null in those that are not given."""
    length = max(map(len, columns.values()), default=0)
    given = {"run": np.full(length, run), **columns}
    return pa.table([_array(given.get(each.name), each.type, length) for each in schema], schema)


def _array(values: Any, kind: pa.DataType, length: int) -> pa.Array:
    if values is None:
        return pa.nulls(length, kind)
    if kind == pa.float64():
        # Infinity stands for "no limit" in a scenario; a table has null for it.
        numbers = np.asarray(values, dtype=np.float64)
        return pa.array(numbers, kind, mask=~np.isfinite(numbers))
    return pa.array(np.asarray(values, dtype=np.int32) if kind == pa.int32() else values, kind)
