"""The linux data plane: HTB queues and an eBPF classifier on the network interfaces of this machine.

plane         instructions in, counters out: keeps the contract of plan/dataplane.py as far as kernel queues can
port          an interface with our queues, and what was there before
queues        HTB and FIFO queues, by netlink
flow_table    the flows that classifiers know, changed all at once; whom they believe, how much control may take
classifier    the eBPF program of a port, from `headers` (how it reads a packet) on; `records` is what both sides share
accounting    what became of each flow's packets
queue_times   how long each packet waited, where ports are timed
bpf           eBPF programs and maps, without compiler or library
netlink       requests to the kernel, in this namespace or another
"""

from triagemq.network.linux.flow_table import TrustedAddress
from triagemq.network.linux.plane import Capabilities, LinuxDataPlane, capabilities
from triagemq.network.linux.port import Interface

__all__ = [
    "Capabilities",
    "Interface",
    "LinuxDataPlane",
    "TrustedAddress",
    "capabilities",
]
