"""Scenarios to lay out: switches in any tree, shared and single ports, backups, several brokers."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from triagemq.lab.box import Host, Layout, Link
from triagemq.lab.box.box import forwarding
from triagemq.scenario import Scenario, loads

TWO_SWITCHES = """
brokers: {hall: }
unmanaged_switches: {sensors: {bandwidth_bps: 1e6}}
switches:
  core:
  floor: {fed_by: trunk}
ports:
  trunk: {switch: core, bandwidth_bps: 1e6}
  radio: {switch: floor, bandwidth_bps: 320000}
  desk: {switch: floor, bandwidth_bps: 320000}
  office: {switch: core, bandwidth_bps: 320000}
publishers:
  smoke-1: {switch: sensors, publishes: {smoke: {rate_per_second: 2, size_bytes: 60}}}
  door-1: {publishes: {door: {rate_per_second: 1, size_bytes: 60}}}
subscribers:
  engine-1: {port: radio, subscribes: {smoke: log:10}}
  engine-2: {port: radio, subscribes: {smoke: log:10}}
  engine-3: {port: radio, subscribes: {door: log:10}}
  commander: {port: desk, subscribes: {smoke: log:10}}
  janitor: {port: office, subscribes: {door: log:1}}
"""
"""Five subscribers: three share a port of the second switch, two have one of their own at each."""


@dataclass(frozen=True)
class Campus:
    """A scenario and the backups of its switches."""

    scenario: Scenario
    backups: dict[str, str]


@st.composite
def campuses(draw: st.DrawFn) -> Campus:
    """A tree of switches; every port leads to a switch, to subscribers, to nobody, or waits as a backup."""
    brokers = draw(st.integers(1, 3))
    parents = [draw(st.integers(-1, number - 1)) for number in range(draw(st.integers(1, 6)))]
    ports, switches, backups = [], [], {}
    for number, parent in enumerate(parents):
        if parent < 0:
            switches.append(f"  s{number}:")
            continue
        ports.append(f"  feed{number}: {{switch: s{parent}, bandwidth_bps: 1e6}}")
        backup = ""
        if draw(st.booleans()):
            # Numbered before it, so that it does not hang below it.
            host = draw(st.integers(0, number - 1))
            ports.append(f"  spare{number}: {{switch: s{host}, bandwidth_bps: 5e5}}")
            backup = f", backup: spare{number}"
            backups[f"s{number}"] = f"spare{number}"
        switches.append(f"  s{number}: {{fed_by: feed{number}{backup}}}")
    places = [draw(st.integers(0, len(parents) - 1)) for _ in range(draw(st.integers(1, 6)))]
    ports += [
        f"  out{number}: {{switch: s{place}, bandwidth_bps: 3e5}}" for number, place in enumerate(places)
    ]
    unmanaged = draw(st.integers(0, 3))
    publishers = [
        f"  p{number}: {{broker: b{draw(st.integers(0, brokers - 1))}"
        + (f", switch: u{draw(st.integers(0, unmanaged - 1))}" if unmanaged and draw(st.booleans()) else "")
        + ", publishes: {smoke: {rate_per_second: 1, size_bytes: 60}}}"
        for number in range(draw(st.integers(1, 4)))
    ]
    subscribers = [
        f"  c{number}: {{broker: b0, port: out{draw(st.integers(0, len(places) - 1))}, subscribes: {{smoke: log:1}}}}"
        for number in range(draw(st.integers(1, 12)))
    ]
    links = [f"  - {{between: [b0, b{number}]}}" for number in range(1, brokers)]
    text = "\n".join(
        [
            "brokers:",
            *(f"  b{number}:" for number in range(brokers)),
            "broker_links:",
            *links,
            "unmanaged_switches:",
            *(f"  u{number}: {{bandwidth_bps: 1e6}}" for number in range(unmanaged)),
            "switches:",
            *switches,
            "ports:",
            *ports,
            "publishers:",
            *publishers,
            "subscribers:",
            *subscribers,
        ]
    )
    return Campus(loads(text), backups)


def path_to(layout: Layout, host: Host) -> list[Link]:
    """The links that a frame from the backbone to a host crosses if it follows the tables of the bridges."""
    leaves_by = {(entry.bridge, entry.mac): entry.interface for entry in forwarding(layout, layout.feeding)}
    behind = {link.near.interface: link for link in layout.links}
    (node,) = (bridge.name for bridge in layout.bridges if bridge.role == "backbone")
    path = [behind[leaves_by[node, host.mac]]]
    while (bridge := path[-1].far.bridge) is not None:
        path.append(behind[leaves_by[bridge, host.mac]])
    assert path[-1].far.namespace == host.namespace
    return path
