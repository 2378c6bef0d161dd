"""What performance tables have in common: success, mean, percentiles and maximum from a latency histogram."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from triagemq.pipeline.latency_bins import percentile_bins
from triagemq.pipeline.tables.latency_histogram import OUTCOMES
from triagemq.trace.latency_bins import bin_middles

FIGURES = f"""
    count                 bigint  COMMENT 'copies of events published after warm-up',
    {", ".join(f"{outcome} bigint" for outcome in OUTCOMES)},
    late                  bigint  COMMENT 'delivered after the time that is judged: no success',
    success_rate          double  COMMENT '(delivered - late) / count; null if nothing was published',
    mean_latency_seconds  double  COMMENT 'of the delivered; from whole nanoseconds, exact',
    p50                   double  COMMENT 'latency in seconds, within 0.8 %, equal to the simulator',
    p95                   double  COMMENT 'latency in seconds',
    p99                   double  COMMENT 'latency in seconds',
    max                   double  COMMENT 'latency in seconds, exact'
"""
"""Columns that `figures` makes."""

FORECAST = """
    forecast_success_rate          double  COMMENT 'of the plan that the run came with; null without one',
    forecast_mean_latency_seconds  double,
    forecast_p95                   double  COMMENT 'latency in seconds',
    forecast_p99                   double  COMMENT 'latency in seconds',
    forecast_sampled               int     COMMENT 'subscriptions that a sample was followed of: no formula',
    forecast_flag                  string  COMMENT 'what makes it approximate; null where it claims to be right',
    forecast_latency_error         double  COMMENT 'the relative error to expect; 0 where it claims to be right',
    forecast_success_error         double  COMMENT 'the same of the success rate'
"""
"""Columns that dimensions.py makes."""

_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_SECONDS = 1e-9


def figures(added: pa.Table) -> pa.Table:
    """Add count, success_rate, mean_latency_seconds and max; and p50, p95 and p99 where there are `bins`."""
    count, delivered, late = (
        sum(added[name].to_numpy() for name in names) for names in (OUTCOMES, ("delivered",), ("late",))
    )
    total_ns = added["latency_sum_ns"].cast(pa.float64()).to_numpy()
    longest_ns = added["latency_max_ns"].cast(pa.float64()).to_numpy()
    columns = {
        "count": pa.array(count),
        "success_rate": _ratio(delivered - late, count),
        "mean_latency_seconds": _ratio(total_ns, delivered, _SECONDS),
        "max": pa.array(longest_ns * _SECONDS, from_pandas=True),
    }
    if "bins" in added.column_names:
        found = percentile_bins(added["bins"].combine_chunks(), list(_SHARES.values()))
        for name, number in zip(_SHARES, found, strict=True):
            # The middle of a bin may lie above everything in it.
            middle = bin_middles()[number.fill_null(0).to_numpy()]
            columns[name] = pa.array(np.minimum(middle, longest_ns) * _SECONDS, from_pandas=True)
    for name, values in columns.items():
        added = added.append_column(name, values)
    return added


def _ratio(above: Any, below: Any, scale: float = 1.0) -> pa.Array:
    """Null where nothing is divided by."""
    divided = np.divide(above, below, out=np.zeros(len(below)), where=below != 0)
    return pa.array(divided * scale, mask=below == 0)


def exact_mean(column: str) -> Column:
    """The mean, the same to the last bit however the rows are spread: decimals add up exactly."""
    return F.expr(f"double(avg(try_cast({column} AS decimal(28,12)))) AS {column}")
