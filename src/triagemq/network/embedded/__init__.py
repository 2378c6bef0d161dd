"""The embedded data plane: paced strict-priority output ports inside the gateway's process, without privileges.

plane        instructions and packets in; datagrams to a sender, and their outcomes, out
output_port  one port: queues, buffer and transmitter, without a clock
queue rates       ports whose queues have a bandwidth each
"""

from triagemq.network.embedded.plane import UDP_OVER_ETHERNET_BYTES, EmbeddedDataPlane

__all__ = ["UDP_OVER_ETHERNET_BYTES", "EmbeddedDataPlane"]
