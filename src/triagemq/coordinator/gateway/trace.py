"""What a gateway's trace needs: its place, ids (rows of a scenario, or numbers in order of appearance), and rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from triagemq.coordinator.channel.messages import ControlError
from triagemq.coordinator.gateway.config import GatewayConfig
from triagemq.exchange import Numbers, ScenarioNumbers
from triagemq.plan import PortCounters, QueueCounters

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


class PortNumbers:
    """port_id of a port: its row in the scenario, or the next number.

    >>> numbers = PortNumbers(["radio"])
    >>> numbers("radio"), numbers("cable"), numbers("radio")
    (0, 1, 0)
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        self._numbers = {name: number for number, name in enumerate(names)}

    def __call__(self, name: str) -> int:
        return self._numbers.setdefault(name, len(self._numbers))


def numbering(
    config: GatewayConfig, name_of: Callable[[str], str]
) -> tuple[Numbers, PortNumbers, str, str | None]:
    """Ids as the scenario has them, its text and its fingerprint; without one, ids in order of appearance."""
    if config.scenario is None:
        return Numbers(name_of), PortNumbers(), "", None
    from triagemq.scenario import load

    scenario = load(config.scenario)
    text = Path(config.scenario).read_text(encoding="utf-8")
    return ScenarioNumbers(scenario, name_of), PortNumbers(scenario.ports.name), text, scenario.fingerprint


def next_run(directory: Path) -> Path:
    """The directory of the next run: behind all that are there, for the first ones may have been removed."""
    there = (each.name.removeprefix("run-") for each in directory.glob("run-*"))
    return directory / f"run-{1 + max((int(number) for number in there if number.isdigit()), default=-1)}"


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
