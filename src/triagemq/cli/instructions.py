"""`triage plan FILE --instructions`: what the gateway and the network would be told, without telling anybody."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.table import Table

from triagemq.cli.options import percent, screen

if TYPE_CHECKING:
    from triagemq.coordinator.decide.decide import Decided
    from triagemq.coordinator.decide.orders import Orders
    from triagemq.scenario import Scenario

__all__ = ["decided", "instructions", "print_instructions"]

SHOWN_FLOWS = 40
SHOWN_TOPICS = 3


def decided(scenario: Scenario, planning: Mapping[str, Any], **algorithms: Any) -> Decided:
    """The first decision of `triage up` on this scenario; what is given in `planning` replaces what it says there."""
    from triagemq.coordinator.decide.decide import PlannerSettings, Situation, decide

    given = {name: value for name, value in planning.items() if value is not None}
    changed = dataclasses.replace(scenario, planning=dataclasses.replace(scenario.planning, **given))
    return decide(Situation(changed, settings=PlannerSettings(**algorithms)))


def instructions(orders: Orders) -> dict[str, Any]:
    """Orders as one object: every port, and every flow with the client id of its connection and its topics.

    >>> from triagemq.coordinator.decide.orders import Orders
    >>> from triagemq.plan import SetFlow, SetPort
    >>> ports = {"radio": SetPort("radio", 2e6, float("inf"), 8)}
    >>> flows = {"ff-7~0": SetFlow("ff-7~0", "radio", 0, 2, 0.5)}
    >>> found = instructions(Orders(1, ports, flows, {"ff-7": {"smoke": 0}}))
    >>> found["ports"]
    [{'port': 'radio', 'bandwidth_bps': 2000000.0, 'buffer_packets': None, 'classes': 8}]
    >>> found["flows"]
    [{'client_id': 'ff-7~0', 'subscriber': 'ff-7', 'slot': 0, 'port': 'radio', 'priority_class': 2,
      'drop_rate': 0.5, 'topics': ['smoke']}]
    """
    from triagemq.coordinator.decide.orders import client_id_of, subscriber_of

    topics: dict[str, list[str]] = {}
    for subscriber, slots in orders.slots.items():
        for topic, slot in slots.items():
            topics.setdefault(client_id_of(subscriber, slot), []).append(topic)
    ports = [
        {name: None if value == math.inf else value for name, value in dataclasses.asdict(port).items()}
        for port in orders.ports.values()
    ]
    flows = []
    for (subscriber, slot), client_id in sorted((subscriber_of(one), one) for one in orders.flows):
        flow = orders.flows[client_id]
        flows.append(
            {
                "client_id": client_id,
                "subscriber": subscriber,
                "slot": slot,
                "port": flow.port,
                "priority_class": flow.priority_class,
                "drop_rate": flow.drop_rate,
                "topics": sorted(topics.get(client_id, ())),
            }
        )
    return {"ports": ports, "flows": flows}


def print_instructions(found: Mapping[str, Any]) -> None:
    """As two tables, of ports and of connections."""
    console = screen()
    console.print(_port_table(found["ports"]))
    console.print(_flow_table(found["flows"][:SHOWN_FLOWS]))
    if len(found["flows"]) > SHOWN_FLOWS:
        console.print(f"... and {len(found['flows']) - SHOWN_FLOWS} more connections (--json has all)")


def _port_table(ports: list[dict[str, Any]]) -> Table:
    table = Table(title="ports", title_justify="left")
    for column in ("port", "bandwidth bit/s", "buffer packets", "classes"):
        table.add_column(column, justify="right")
    for row in ports:
        table.add_row(
            row["port"], _number(row["bandwidth_bps"]), _number(row["buffer_packets"]), str(row["classes"])
        )
    return table


def _flow_table(flows: list[dict[str, Any]]) -> Table:
    table = Table(title="connections", title_justify="left")
    for column in ("client id", "port", "class", "drop rate"):
        table.add_column(column, justify="right")
    table.add_column("topics", overflow="fold")
    for row in flows:
        table.add_row(
            row["client_id"],
            row["port"],
            str(row["priority_class"]),
            percent(row["drop_rate"]),
            _shortened(row["topics"]),
        )
    return table


def _number(value: float | None) -> str:
    """
    >>> _number(2e6), _number(None)
    ('2,000,000', 'no limit')
    """
    return "no limit" if value is None else f"{value:,.0f}"


def _shortened(topics: list[str]) -> str:
    """
    >>> _shortened(["a", "b", "c", "d"]), _shortened(["a"])
    ('a, b, c and 1 more', 'a')
    """
    more = len(topics) - SHOWN_TOPICS
    return ", ".join(topics[:SHOWN_TOPICS]) + (f" and {more} more" if more > 0 else "")
