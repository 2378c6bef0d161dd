"""The tables of a Trace: every column, its type, and what one row means. No files and no threads here.

Times are whole nanoseconds (`_ns`, int64) on one clock per run: simulated time from 0, or Unix time of a live
run. Numbers are never negative; a column marked nullable is null where the thing did not happen or is not
known. Ids are the row numbers of the scenario (topic, publisher, subscriber, subscription, port) and of the
plan (flow); what a run counts itself (publications) is int64, what a scenario lists is int32. Only signed
integers and strings are used: every Parquet reader, Spark's vectorised one included, takes them without
conversion.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType

import pyarrow as pa

SCHEMA_VERSION = 1
"""Raised whenever a column changes its name, type or meaning; a reader refuses any version but its own."""


class Outcome(IntEnum):
    """What became of one copy of a publication for one subscription."""

    delivered = 0
    dropped_by_policy = 1
    dropped_by_buffer = 2
    limited = 3
    lost_on_link = 4
    subscriber_gone = 5
    in_flight = 6
    unacknowledged = 7
    """Sent as often as the protocol wants to a subscriber that is there, and never acknowledged: QoS 1 and 2 only."""


# Writers hand in the code of an Outcome, files hold its name: in Parquet this is an ordinary string column
# with a dictionary of eight entries, so it costs bits per row, Spark and DuckDB show it as text, and pandas
# as a category.
OUTCOME_TYPE = pa.dictionary(pa.int8(), pa.string())


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


def _nullable(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=True)


# One row per event that a publisher handed to the network.
_PUBLICATIONS = pa.schema(
    [
        _required("publication_id", pa.int64()),
        _required("topic_id", pa.int32()),
        _nullable("publisher_id", pa.int32()),  # a foreign broker does not say who published
        _required("published_ns", pa.int64()),
        _required("size_bytes", pa.int32()),
    ]
)

# One row per publication and subscription that matches it, whatever became of that copy.
_DELIVERIES = pa.schema(
    [
        _required("publication_id", pa.int64()),
        _required("subscription_id", pa.int32()),
        _required("subscriber_id", pa.int32()),
        _required("topic_id", pa.int32()),
        _nullable("flow_id", pa.int32()),  # null where no plan covers the subscription
        _nullable("priority_class", pa.int32()),
        _required("published_ns", pa.int64()),
        _nullable("enqueued_ns", pa.int64()),  # at the first managed port
        _nullable("dequeued_ns", pa.int64()),  # from the last managed port
        _nullable("delivered_ns", pa.int64()),  # null unless the outcome is `delivered`
        _required("size_bytes", pa.int32()),
        _required("outcome", OUTCOME_TYPE),
    ]
)

# One row per delivery and managed port it came to; an option, because it multiplies the rows by the length of
# the path. Of emulated runs always, with those ports only that it left.
_HOPS = pa.schema(
    [
        _required("publication_id", pa.int64()),
        _required("subscription_id", pa.int32()),
        _required("hop", pa.int32()),  # 0 is the first managed port on the path
        _required("port_id", pa.int32()),
        _required("queue", pa.int32()),
        _nullable("enqueued_ns", pa.int64()),
        _nullable("dequeued_ns", pa.int64()),
        _required("outcome", OUTCOME_TYPE),  # at this hop: `delivered` means passed on
    ]
)

# One row per port, queue and sampling instant (every 200 ms). Counters count from the start of the run; the
# backlog is that of the instant.
_QUEUE_SAMPLES = pa.schema(
    [
        _required("port_id", pa.int32()),
        _required("queue", pa.int32()),
        _required("sampled_ns", pa.int64()),
        _required("bytes_in", pa.int64()),
        _required("packets_in", pa.int64()),
        _required("bytes_out", pa.int64()),
        _required("packets_out", pa.int64()),
        _required("drops", pa.int64()),
        _required("backlog_bytes", pa.int64()),
        _required("backlog_packets", pa.int64()),
        _nullable("width_bps", pa.int64()),  # bandwidth the queue may use; null where there is no limit
    ]
)

# One row per decision of a planner or of the control loop, in the words of the plan.
_DECISIONS = pa.schema(
    [
        _required("decided_ns", pa.int64()),
        _required("kind", pa.string()),
        _required("subject", pa.string()),
        _nullable("before", pa.string()),
        _nullable("after", pa.string()),
        _required("reason", pa.string()),
    ]
)

TABLES: Mapping[str, pa.Schema] = MappingProxyType(
    {
        "publications": _PUBLICATIONS,
        "deliveries": _DELIVERIES,
        "hops": _HOPS,
        "queue_samples": _QUEUE_SAMPLES,
        "decisions": _DECISIONS,
    }
)
"""Table name to schema. `hops` is there only in runs that record them.

>>> TABLES["publications"].names
['publication_id', 'topic_id', 'publisher_id', 'published_ns', 'size_bytes']
>>> Outcome.dropped_by_buffer.name, int(Outcome.dropped_by_buffer)
('dropped_by_buffer', 2)
"""


def delta_columns(schema: pa.Schema) -> list[str]:
    """Columns stored as DELTA_BINARY_PACKED: the 64-bit ones, which are times and counters that mostly grow.

    Measured on deliveries with zstd level 1: 15 % smaller than plain and 10 % faster: zstd has less to do.
    BYTE_STREAM_SPLIT is another 12 % faster and 5 % larger, but only recent Sparks (4.3 does) read it.
    """
    return [field.name for field in schema if field.type == pa.int64()]


def dictionary_columns(schema: pa.Schema) -> list[str]:
    """Columns stored with a dictionary: text and outcomes. For ids it costs time and saves nothing."""
    return [field.name for field in schema if field.type in (OUTCOME_TYPE, pa.string())]
