"""A forecast as text, stored with a run: readers of the run need not forecast."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from triagemq.errors import PlanError
from triagemq.forecast.model import REASONS, Forecast
from triagemq.forecast.summary import figures_by_class
from triagemq.plain import plain
from triagemq.scenario import Integers

COLUMNS = (
    "success_rate",
    "mean_latency_seconds",
    "p95_seconds",
    "p99_seconds",
    "sampled",
    "flag",
    "latency_error",
    "success_error",
)
"""Of subscriptions and of classes, with the names of `triage forecast --json`."""


@dataclass(frozen=True, slots=True)
class StoredForecast:
    """Columns over subscriptions (`share_within_max_latency` too) and over classes (`priority_class` too); null for
    what is unknown or infinite."""

    subscriptions: Mapping[str, list[Any]]
    classes: Mapping[str, list[Any]]

    @classmethod
    def of(cls, predicted: Forecast, level: Integers) -> StoredForecast:
        """Of classes by `level`, the one of each subscription."""
        columns: dict[str, Iterable[Any]] = {
            "success_rate": predicted.success,
            "mean_latency_seconds": predicted.latency_seconds,
            "p95_seconds": predicted.percentile_seconds(0.95),
            "p99_seconds": predicted.percentile_seconds(0.99),
            "sampled": predicted.sampled.astype(np.int32),
            "flag": [REASONS[code] or None for code in predicted.reason],
            "latency_error": predicted.latency_error,
            "success_error": predicted.success_error,
            "share_within_max_latency": predicted.share_within,
        }
        rows = figures_by_class(predicted, level)
        return cls(
            {name: plain(list(values)) for name, values in columns.items()},
            {name: [plain(row[name]) for row in rows] for name in ("priority_class", *COLUMNS)},
        )

    def dump(self) -> str:
        """As JSON text."""
        return (
            json.dumps({"subscriptions": self.subscriptions, "classes": self.classes}, allow_nan=False) + "\n"
        )

    @classmethod
    def parse(cls, text: str | bytes, subscriptions: int, source: str = "forecast") -> StoredForecast:
        """From JSON text, for so many subscriptions; `source` names it in errors."""
        try:
            document = json.loads(text)
            parts = {
                "subscriptions": (*COLUMNS, "share_within_max_latency"),
                "classes": ("priority_class", *COLUMNS),
            }
            tables = {
                part: {name: list(document[part][name]) for name in names} for part, names in parts.items()
            }
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise PlanError(f"{source}: not a forecast: {error}") from error
        lengths = {part: {len(column) for column in table.values()} for part, table in tables.items()}
        if lengths["subscriptions"] != {subscriptions} or len(lengths["classes"]) != 1:
            raise PlanError(f"{source}: not a forecast of {subscriptions} subscriptions")
        return cls(tables["subscriptions"], tables["classes"])
