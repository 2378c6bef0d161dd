"""OpenFlow 1.3 switches that follow a plan: rules and marks, with the queues of a data plane behind their ports."""

from triagemq.errors import SwitchError, VirtualSwitchError
from triagemq.network.openflow.controller import Timing
from triagemq.network.openflow.rules import RateLimit
from triagemq.network.openflow.switches import FlowAtSwitch, OpenFlowSwitches, SwitchCounters
from triagemq.network.openflow.topology import Host, Network, PortId
from triagemq.network.openflow.vswitch import VirtualSwitches, require_open_vswitch

__all__ = [
    "FlowAtSwitch",
    "Host",
    "Network",
    "OpenFlowSwitches",
    "PortId",
    "RateLimit",
    "SwitchCounters",
    "SwitchError",
    "Timing",
    "VirtualSwitchError",
    "VirtualSwitches",
    "require_open_vswitch",
]
