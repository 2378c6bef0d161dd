"""The OpenFlow data plane: flow rules and marks on OpenFlow 1.3 switches, queues and drops in a port behind them."""

from triagemq.errors import RuleError, SwitchError, VirtualSwitchError
from triagemq.network.openflow.controller import Timing
from triagemq.network.openflow.plane import (
    FlowAtSwitch,
    OpenFlowCounters,
    OpenFlowDataPlane,
    SwitchCounters,
)
from triagemq.network.openflow.rules import RateLimit
from triagemq.network.openflow.topology import Host, Network, PortId
from triagemq.network.openflow.vswitch import VirtualSwitches, require_open_vswitch

__all__ = [
    "FlowAtSwitch",
    "Host",
    "Network",
    "OpenFlowCounters",
    "OpenFlowDataPlane",
    "PortId",
    "RateLimit",
    "RuleError",
    "SwitchCounters",
    "SwitchError",
    "Timing",
    "VirtualSwitchError",
    "VirtualSwitches",
    "require_open_vswitch",
]
