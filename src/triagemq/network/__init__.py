"""Data planes: what carries out a plan with packets. Instructions come in; packets, counters and outcomes go out.

state       ports and flows as instructions leave them: a data plane checks a change there first
embedded/   paced ports inside the gateway's process; needs nothing
reported    sends at once, and learns from reports what queues behind the gateway did with it
linux/      the kernel's queues and an eBPF classifier on interfaces of this machine; needs root
openflow/   rules and marks on OpenFlow 1.3 switches, which follow the same instructions before a data plane's queues
"""

from triagemq.datagrams import DatagramSender
from triagemq.network.embedded import UDP_OVER_ETHERNET_BYTES, EmbeddedDataPlane
from triagemq.network.reported import UDP_HEADER_BYTES, ReportedDataPlane

__all__ = [
    "UDP_HEADER_BYTES",
    "UDP_OVER_ETHERNET_BYTES",
    "DatagramSender",
    "EmbeddedDataPlane",
    "ReportedDataPlane",
]
