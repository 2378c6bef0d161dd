"""The switches of a box as Open vSwitch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from triagemq.network.emulated.parts import Layout
from triagemq.network.journal import Journal
from triagemq.network.openflow.vswitch import VirtualSwitches

__all__ = ["Closing", "StartSwitches", "datapath_id", "start_virtual_switches"]


class Closing(Protocol):
    """Something that runs until it is closed; twice is once."""

    def close(self) -> None:
        """End it."""


StartSwitches = Callable[[Layout, Journal], Closing]
"""Starts Open vSwitch in the layout's namespace of switches, with a bridge for each switch and the members it has."""


def datapath_id(layout: Layout, switch: str) -> int:
    """The number by which a controller knows a switch of the scenario: 1, 2, ... in the order of their names."""
    return 1 + list(layout.switches).index(switch)


def start_virtual_switches(layout: Layout, journal: Journal, *, controller: str | None = None) -> Closing:
    """One Open vSwitch for the whole box; its switches look for their controller at the address given."""
    running = VirtualSwitches(journal, namespace=layout.switch_namespace)
    running.open()
    try:
        for name, bridge in layout.switches.items():
            members = [end.interface for end in layout.members(bridge.name)]
            running.add_switch(bridge.name, datapath_id(layout, name), members, controller=controller)
    except BaseException:
        running.close()
        raise
    return running
