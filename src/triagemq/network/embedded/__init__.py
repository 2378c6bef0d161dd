"""The embedded data plane: paced strict-priority output ports inside the gateway's process, without privileges.

plane        instructions and packets in; datagrams to a sender, and their fates, out
output_port  one port: queues, buffer and transmitter, without a clock
window       how much of a limited flow may still pass
alarm        when the next transmission ends
"""

from triagemq.network.embedded.alarm import Alarm
from triagemq.network.embedded.plane import UDP_OVER_ETHERNET_BYTES, EmbeddedDataPlane, SendDatagrams

__all__ = ["UDP_OVER_ETHERNET_BYTES", "Alarm", "EmbeddedDataPlane", "SendDatagrams"]
