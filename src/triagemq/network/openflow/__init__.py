"""OpenFlow 1.3 switches that follow a plan: rules and marks, with the queues of a data plane behind their ports."""

from triagemq.errors import SwitchError
from triagemq.network.openflow.controller import Timing
from triagemq.network.openflow.rules import RateLimit
from triagemq.network.openflow.switches import FlowAtSwitch, OpenFlowSwitches, SwitchCounters
from triagemq.network.openflow.topology import HostPlace, PortId, Topology

__all__ = [
    "FlowAtSwitch",
    "HostPlace",
    "OpenFlowSwitches",
    "PortId",
    "RateLimit",
    "SwitchCounters",
    "SwitchError",
    "Timing",
    "Topology",
]
