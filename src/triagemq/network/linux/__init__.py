"""The linux data plane: HTB queues and an eBPF classifier on the network interfaces of this machine.

plane         instructions in, counters out: keeps the contract of plan/dataplane.py as far as kernel queues can
port          an interface with our queues, and what was there before
queues        HTB and FIFO queues, by netlink
flow_table    the flows that classifiers know, changed all at once; whom they believe, how much control may take
programs.c    the eBPF programs of a port (`make programs` compiles them); `records` is what they and Python share
queue_times   how long each packet waited, where ports are timed
bpf           compiled eBPF programs and maps, loaded without a library
netlink       requests to the kernel, in this namespace or another
"""

from triagemq.network.linux.flow_table import TrustedAddress
from triagemq.network.linux.plane import LinuxDataPlane, capabilities
from triagemq.network.linux.port import Interface

__all__ = [
    "Interface",
    "LinuxDataPlane",
    "TrustedAddress",
    "capabilities",
]
