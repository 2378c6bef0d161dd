"""The linux data plane: HTB queues and an eBPF classifier on the network interfaces of this machine."""

from triagemq.network.linux.capabilities import Capabilities, capabilities
from triagemq.network.linux.flow_table import TrustedAddress
from triagemq.network.linux.plane import LinuxDataPlane
from triagemq.network.linux.port import Interface

__all__ = [
    "Capabilities",
    "Interface",
    "LinuxDataPlane",
    "TrustedAddress",
    "capabilities",
]
