"""Detects a period in the packets that come into a queue, and the phase in it, without looking ahead.

Sensors that report every so many seconds make queues long at the same moments; the next peak can be foreseen.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from triagemq.delay.learning.periods import track_periods
from triagemq.pipeline.partitions import by_group


def add_periods(samples: DataFrame) -> DataFrame:
    """Samples that are `measured`, with period_seconds, phase and period_strength, from `packets_in_gained` of all."""
    fields = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in samples.schema)
    schema = f"{fields}, period_seconds double, phase double, period_strength double"
    return by_group(samples, ("run", "port_id", "queue"), _with_periods, schema)


def _with_periods(table: pa.Table) -> pa.Table:
    ordered = table.sort_by("sampled_ns")
    counts = ordered.column("packets_in_gained").to_numpy().astype(np.float64)
    seconds = ordered.column("seconds").to_numpy()
    interval = float(np.median(seconds)) if len(seconds) else 0.2
    for name, values in zip(
        ("period_seconds", "phase", "period_strength"), track_periods(counts), strict=True
    ):
        scaled = values * interval if name == "period_seconds" else values
        ordered = ordered.append_column(name, pa.array(scaled, pa.float64(), from_pandas=True))
    return ordered.filter(ordered["measured"])
