"""Network: brokers, switches, ports and subscribers as a map with live load; a port's queues over time; gateways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from triagemq.coordinator.api.gateways import gateways
from triagemq.coordinator.decide.decide import Decided
from triagemq.page.frame import Frame, update
from triagemq.page.readings import PortReading, Readings
from triagemq.page.rendering import render

_MOST_PORTS = 40
_NAMED = 3
_LAST_SECONDS = 120
_ROW = 74
_CLICKED = (
    "(event) => { const found = event.target.closest('[data-port]'); if (found) emit(found.dataset.port); }"
)


@dataclass(frozen=True, slots=True)
class MapPort:
    """An output port on the map: its place, the switch it belongs to, and who is behind it."""

    name: str
    y: float
    switch: str
    reading: PortReading | None
    subscribers: int
    such_as: Sequence[str]


@dataclass(frozen=True, slots=True)
class NetworkMap:
    """Columns from left to right: publishers, brokers, switches, ports, subscribers. `y` is the middle of each."""

    height: float
    publishers: int
    brokers: Sequence[tuple[str, float]]
    switches: Sequence[tuple[str, float]]
    ports: Sequence[MapPort]
    left_out: int

    def y_of_switch(self, name: str) -> float:
        return dict(self.switches).get(name, self.height / 2)


def network_map(decided: Decided, ports: Sequence[PortReading]) -> NetworkMap:
    """The network that is planned for, with the load there is."""
    scenario = decided.scenario
    readings = {port.name: port for port in ports}
    people = scenario.subscribers
    counts = np.bincount(people.port, minlength=len(scenario.ports))
    rows = range(min(len(scenario.ports), _MOST_PORTS))
    height = max(len(rows), 1) * _ROW + 20
    shown_ports = [
        MapPort(
            name=scenario.ports.name[row],
            y=20 + _ROW * (place + 0.5) - 10,
            switch=scenario.switches.name[scenario.ports.switch[row]] if len(scenario.switches) else "",
            reading=readings.get(scenario.ports.name[row]),
            subscribers=int(counts[row]),
            such_as=[people.name[each] for each in np.flatnonzero(people.port == row)[:_NAMED]],
        )
        for place, row in enumerate(rows)
    ]
    return NetworkMap(
        height=height,
        publishers=len(scenario.publishers),
        brokers=_spread(scenario.brokers.name, height),
        switches=_spread([*dict.fromkeys(port.switch for port in shown_ports if port.switch)], height),
        ports=shown_ports,
        left_out=len(scenario.ports) - len(rows),
    )


def _spread(names: Sequence[str], height: float) -> list[tuple[str, float]]:
    return [(name, height * (place + 0.5) / len(names)) for place, name in enumerate(names)]


def _queues(readings: Readings, port: str) -> dict[str, Any]:
    series = list(readings.queues.get(port, ()))[-_LAST_SECONDS:]
    return {
        "port": port,
        "series": series,
        "highest": max((sum(row) for row in series), default=0),
        "now": series[-1] if series else (),
        "seconds": len(series),
    }


async def show(frame: Frame) -> None:
    """The map, the chosen port, and the gateways."""
    coordinator, readings = frame.context.coordinator, frame.context.readings
    frame.panel("", render("network_head.html"))
    drawn, queues, led = frame.panel("panel"), frame.panel("panel"), frame.panel("panel")
    chosen = next(iter(coordinator.runtime.port_names), "")

    async def refresh() -> None:
        decided, now = coordinator.runtime.decided, readings.latest
        found = None if decided is None else network_map(decided, () if now is None else now.ports)
        update(drawn, render("network_map.html", map=found, chosen=chosen))
        update(queues, render("network_queues.html", **_queues(readings, chosen)))
        moved = (
            [] if now is None else [row for row in now.decisions if row.decision.kind in ("moved", "joined")]
        )
        update(
            led,
            render(
                "network_gateways.html",
                gateways=await gateways(frame.session.caller, coordinator),
                moved=moved[::-1][:8],
            ),
        )

    async def choose(event: Any) -> None:
        nonlocal chosen
        chosen = str(event.args)
        await refresh()

    drawn.on("click", choose, js_handler=_CLICKED)
    frame.every_second(refresh)
