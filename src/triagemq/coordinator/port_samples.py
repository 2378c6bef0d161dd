"""Counters of output ports as rows of the trace's queue_samples, and decisions as rows of its table of decisions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from triagemq.coordinator.control_lines import ControlError
from triagemq.coordinator.trace_numbers import PortNumbers
from triagemq.plan import PortCounters, QueueCounters

__all__ = ["PortNumbers", "decision_columns", "sample_columns"]

_COUNTERS = (
    "bytes_in",
    "packets_in",
    "bytes_out",
    "packets_out",
    "drops",
    "backlog_bytes",
    "backlog_packets",
)
_DECISION = {
    "kind": str,
    "subject": str,
    "before": (str, type(None)),
    "after": (str, type(None)),
    "reason": str,
}


def sample_columns(
    ports: Mapping[str, PortCounters], number: PortNumbers, sampled_ns: int
) -> dict[str, list[int]]:
    """A row per port and priority class. Control packets have no row: they belong to no class."""
    rows: list[tuple[int, int, QueueCounters]] = [
        (number(name), priority_class, queue)
        for name, port in ports.items()
        for priority_class, queue in enumerate(port.queues)
    ]
    columns = {counter: [getattr(queue, counter) for _, _, queue in rows] for counter in _COUNTERS}
    return {
        "port_id": [port_id for port_id, _, _ in rows],
        "queue": [queue for _, queue, _ in rows],
        "sampled_ns": [sampled_ns] * len(rows),
        **columns,
        "width_bps": [-1 if queue.width_bps is None else queue.width_bps for _, _, queue in rows],
    }


def decision_columns(rows: object) -> dict[str, list[Any]]:
    """What a coordinator decided, as it came over the control channel; ControlError if it is something else."""
    if not isinstance(rows, list):
        raise ControlError("decisions: `rows` must be a list")
    for row in rows:
        if not isinstance(row, dict) or type(row.get("decided_ns")) is not int:
            raise ControlError("decisions: every row needs `decided_ns`, a whole number")
        for name, kind in _DECISION.items():
            if not isinstance(row.get(name), kind):  # type: ignore[arg-type]
                raise ControlError(f"decisions: {name!r} must be text, is {row.get(name)!r}")
    return {name: [row.get(name) for row in rows] for name in ("decided_ns", *_DECISION)}
