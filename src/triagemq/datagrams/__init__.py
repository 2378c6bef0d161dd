"""UDP below the level of Python's sockets, for the gateway and the data planes, which both send by the thousand.

messages    what the kernel wants for `sendmmsg`: addresses and messages in memory; the marks of packets
sender      where datagrams leave, and what a full socket could not take
"""

from triagemq.datagrams.messages import CLASS_DSCP, CONTROL_DSCP, AddressList, socket_address
from triagemq.datagrams.sender import CONTROL_CLASS, Datagrams, DatagramSender, Seal, Unsent

__all__ = [
    "CLASS_DSCP",
    "CONTROL_CLASS",
    "CONTROL_DSCP",
    "AddressList",
    "DatagramSender",
    "Datagrams",
    "Seal",
    "Unsent",
    "socket_address",
]
