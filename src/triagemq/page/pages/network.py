"""Network: brokers, switches, ports and subscribers as a map with live load; a port's queues over time; gateways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from triagemq.coordinator.api.gateways import gateways
from triagemq.coordinator.decide.decide import Decided
from triagemq.page.frame import Frame, TemplatePanel
from triagemq.page.readings import Readings

_MOST_PORTS = 40
_NAMED = 3
_LAST_SECONDS = 120
_CLICKED = (
    "(event) => { const found = event.target.closest('[data-port]'); if (found) emit(found.dataset.port); }"
)


def network_map(decided: Decided, ports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The network that is planned for, with the load there is: publishers, brokers, switches, ports, subscribers."""
    scenario = decided.scenario
    readings = {port["port"]: port for port in ports}
    subscribers = scenario.subscribers
    counts = np.bincount(subscribers.port, minlength=len(scenario.ports)).tolist()
    shown = [
        {
            "name": name,
            "switch": scenario.switches.name[scenario.ports.switch[row]] if len(scenario.switches) else "",
            "reading": readings.get(name),
            "subscribers": counts[row],
            "such_as": [subscribers.name[each] for each in np.flatnonzero(subscribers.port == row)[:_NAMED]],
        }
        for row, name in enumerate(scenario.ports.name[:_MOST_PORTS])
    ]
    return {
        "publishers": len(scenario.publishers),
        "brokers": scenario.brokers.name,
        "switches": [*dict.fromkeys(port["switch"] for port in shown if port["switch"])],
        "ports": shown,
        "hidden": len(scenario.ports) - len(shown),
    }


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
    TemplatePanel("network_head.html", "").show()
    drawn, queues = TemplatePanel("network_map.html"), TemplatePanel("network_queues.html")
    panel = TemplatePanel("network_gateways.html")
    chosen = next(iter(coordinator.runtime.port_names), "")

    async def refresh() -> None:
        decided, now = coordinator.runtime.decided, readings.latest
        found = None if decided is None else network_map(decided, () if now is None else now.ports)
        drawn.show(map=found, chosen=chosen)
        queues.show(**_queues(readings, chosen))
        moved = [] if now is None else [row for row in now.decisions if row.kind in ("moved", "joined")]
        panel.show(gateways=await gateways(frame.session.caller, coordinator), moved=moved[::-1][:8])

    async def choose(event: Any) -> None:
        nonlocal chosen
        chosen = str(event.args)
        await refresh()

    drawn.on("click", choose, js_handler=_CLICKED)
    frame.every_second(refresh)
