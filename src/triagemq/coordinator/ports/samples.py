"""Counters of output ports: over the control channel, and as rows of the trace; decisions as rows, too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple
from typing import Any

from triagemq.coordinator.channel.messages import ControlError
from triagemq.coordinator.gateway.trace_numbers import PortNumbers
from triagemq.plan import FlowCounters, FlowKey, PortCounters, QueueCounters

__all__ = ["PortNumbers", "counted_from_json", "counted_to_json", "decision_columns", "sample_columns"]

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


Counted = tuple[dict[str, PortCounters], dict[FlowKey, FlowCounters], list[FlowKey], int]
"""All ports, the flows that have changed, those that are gone, and when that was counted."""


def counted_to_json(
    ports: Mapping[str, PortCounters],
    flows: Mapping[FlowKey, FlowCounters],
    gone: Iterable[FlowKey],
    at_ns: int,
) -> dict[str, Any]:
    """What the queues of ports have counted, for whoever sends through them."""
    return {
        "ports": {name: astuple(port) for name, port in ports.items()},
        "flows": [(key.address, key.udp_port, *astuple(flow)) for key, flow in flows.items()],
        "gone": [(key.address, key.udp_port) for key in gone],
        "at_ns": at_ns,
    }


def counted_from_json(value: Mapping[str, Any]) -> Counted:
    """The same, from the control channel; ControlError if it is something else.

    >>> key = FlowKey("10.0.0.1", 20000)
    >>> said = {"radio": PortCounters((QueueCounters(1, 1),), QueueCounters())}, {key: FlowCounters(0, 5)}, [key], 7
    >>> counted_from_json(counted_to_json(*said)) == said
    True
    """
    try:
        return (
            {
                str(name): PortCounters(
                    tuple(QueueCounters(*queue) for queue in queues), QueueCounters(*control), *others
                )
                for name, (queues, control, *others) in value["ports"].items()
            },
            {
                FlowKey(str(address), int(port)): FlowCounters(*map(int, counted))
                for address, port, *counted in value["flows"]
            },
            [FlowKey(str(address), int(port)) for address, port in value["gone"]],
            int(value["at_ns"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ControlError("queues: `ports`, `flows`, `gone` and `at_ns` as a port counts them") from None


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
