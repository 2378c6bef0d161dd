"""What a gateway's trace needs: its place, ids (rows of a scenario, or numbers in order of appearance), and rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import Strict, TypeAdapter

from triagemq.channel.messages import part_parser
from triagemq.gateway import Numbers
from triagemq.gateway.config import GatewayConfig
from triagemq.gateway.live_trace import Names
from triagemq.plan.dataplane import PortCounters, QueueCounters

_COUNTERS = tuple(each.name for each in fields(QueueCounters) if each.name != "width_bps")


@dataclass(frozen=True, slots=True)
class TracedDecision:
    """A decision as it comes over the control channel."""

    decided_ns: Annotated[int, Strict()]
    kind: str
    subject: str
    reason: str
    before: str | None = None
    after: str | None = None


_parse_decisions = part_parser("decisions", TypeAdapter(list[TracedDecision]), depth=2)


def numbering(config: GatewayConfig) -> tuple[Numbers, Names[str], str, str | None]:
    """Ids as the scenario has them, its text and its fingerprint; without one, ids in order of appearance."""
    if config.scenario is None:
        return Numbers(), Names[str](), "", None
    from triagemq.scenario import load

    scenario = load(config.scenario)
    text = Path(config.scenario).read_text(encoding="utf-8")
    return Numbers(scenario), Names(scenario.ports.name), text, scenario.fingerprint


def next_run(directory: Path) -> Path:
    """The directory of the next run: behind all that are there, for the first ones may have been removed."""
    there = (each.name.removeprefix("run-") for each in directory.glob("run-*"))
    return directory / f"run-{1 + max((int(number) for number in there if number.isdigit()), default=-1)}"


def sample_columns(
    ports: Mapping[str, PortCounters], numbers: Names[str], sampled_ns: int
) -> dict[str, list[int]]:
    """A row per port and priority class. Control packets have no row: they belong to no class."""
    rows: list[tuple[int, int, QueueCounters]] = [
        (numbers.number(name), priority_class, queue)
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
    decisions = _parse_decisions(rows)
    return {each.name: [getattr(row, each.name) for row in decisions] for each in fields(TracedDecision)}
