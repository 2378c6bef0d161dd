"""A network in a box: real packets between namespaces of this machine, laid out from a scenario."""

from triagemq.network.emulated.box import Box, new_run
from triagemq.network.emulated.changes import Actors, play
from triagemq.network.emulated.layout import lay_out
from triagemq.network.emulated.parts import Bridge, End, Host, Layout, Link, ManagedPort
from triagemq.network.emulated.vswitch import (
    Closing,
    StartSwitches,
    VirtualSwitches,
    require_open_vswitch,
    start_virtual_switches,
)

__all__ = [
    "Actors",
    "Box",
    "Bridge",
    "Closing",
    "End",
    "Host",
    "Layout",
    "Link",
    "ManagedPort",
    "StartSwitches",
    "VirtualSwitches",
    "lay_out",
    "new_run",
    "play",
    "require_open_vswitch",
    "start_virtual_switches",
]
