"""Rows of the trace's queue_samples from the counters of any data plane."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triagemq.plan import Counters

__all__ = ["queue_samples"]

_COUNTED = (
    "bytes_in",
    "packets_in",
    "bytes_out",
    "packets_out",
    "drops",
    "backlog_bytes",
    "backlog_packets",
)


def queue_samples(counters: Counters, port_ids: Mapping[str, int], sampled_ns: int) -> dict[str, Any]:
    """Columns for `TraceWriter.queue_samples`: a row for every priority class of every port that has a number.

    Control packets are no class, and have no row: the simulator, with which samples are compared, has none of them.

    >>> from triagemq.plan import PortCounters, QueueCounters
    >>> counters = Counters(ports={"radio": PortCounters((QueueCounters(), QueueCounters(drops=3)), QueueCounters())})
    >>> columns = queue_samples(counters, {"radio": 7}, 1_000)
    >>> columns["port_id"].tolist(), columns["queue"].tolist(), columns["drops"].tolist(), columns["width_bps"].tolist()
    ([7, 7], [0, 1], [0, 3], [-1, -1])
    """
    rows = [
        (port_ids[name], number, queue)
        for name, port in counters.ports.items()
        if name in port_ids
        for number, queue in enumerate(port.queues)
    ]
    counted: dict[str, NDArray[np.int64]] = {
        name: np.array([getattr(queue, name) for _, _, queue in rows], dtype=np.int64) for name in _COUNTED
    }
    return {
        "port_id": np.array([port for port, _, _ in rows], dtype=np.int32),
        "queue": np.array([number for _, number, _ in rows], dtype=np.int32),
        "sampled_ns": np.full(len(rows), sampled_ns, dtype=np.int64),
        **counted,
        # -1 is the trace's null: there is no limit.
        "width_bps": np.array(
            [-1 if queue.width_bps is None else queue.width_bps for _, _, queue in rows], dtype=np.int64
        ),
    }
