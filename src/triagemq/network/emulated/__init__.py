"""A network in a box: real packets between namespaces of this machine, laid out from a scenario."""

from triagemq.network.emulated.box import Box, new_run
from triagemq.network.emulated.changes import Actors, play
from triagemq.network.emulated.layout import lay_out
from triagemq.network.emulated.losing import LostEvent
from triagemq.network.emulated.parts import Bridge, End, Host, Layout, Link, ManagedPort
from triagemq.network.emulated.processes import Processes, Running
from triagemq.network.emulated.restoring import Restored, restore
from triagemq.network.emulated.virtual_switches import Closing, StartSwitches, start_virtual_switches

__all__ = [
    "Actors",
    "Box",
    "Bridge",
    "Closing",
    "End",
    "Host",
    "Layout",
    "Link",
    "LostEvent",
    "ManagedPort",
    "Processes",
    "Restored",
    "Running",
    "StartSwitches",
    "lay_out",
    "new_run",
    "play",
    "restore",
    "start_virtual_switches",
]
