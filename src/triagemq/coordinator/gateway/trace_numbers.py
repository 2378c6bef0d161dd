"""The ids and the place of a gateway's trace: rows of a scenario, or numbers in order of appearance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from triagemq.coordinator.gateway.config import GatewayConfig
from triagemq.exchange import Numbers, ScenarioNumbers

__all__ = ["PortNumbers", "next_run", "numbering"]


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
