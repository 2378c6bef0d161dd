"""A network in a box: real packets between namespaces of this machine, laid out from a scenario.

layout       a scenario in: the hosts, bridges, links and managed ports that stand for it
interfaces   commands of iproute2 that make and change them
losing       links that lose packets at random, and the events that those carried
vswitch      Open vSwitch run by hand, for the switches of a box
box          the layout made real, changed during a run, and removed; which member of a bridge leads to which host
namespaces   network namespaces, made and removed
processes    commands inside namespaces, ended by their ids; `launch` is what runs them
journal      what a box makes on this machine, written down before it does; `restore` undoes what a killed run left
changes      the conditions of a scenario, played during a run
"""

from triagemq.lab.box.box import Box, new_run, packets_lost_by_machine
from triagemq.lab.box.changes import Actors, play
from triagemq.lab.box.layout import Bridge, End, Host, Layout, Link, ManagedPort, lay_out
from triagemq.lab.box.losing import LostEvent, packet_events
from triagemq.lab.box.vswitch import (
    VirtualSwitches,
    require_open_vswitch,
)

__all__ = [
    "Actors",
    "Box",
    "Bridge",
    "End",
    "Host",
    "Layout",
    "Link",
    "LostEvent",
    "ManagedPort",
    "VirtualSwitches",
    "lay_out",
    "new_run",
    "packet_events",
    "packets_lost_by_machine",
    "play",
    "require_open_vswitch",
]
