"""The MQTT front: ordinary MQTT 3.1.1 and 5 clients connect to the gateway, and are served by its plan.

Each keeps a connection of its own to the broker: its user, rights, session and will are the broker's affair.

session         octets of client and broker in, events out; between 3.1.1 and 5; no sockets
downlink        what waits for a client, and what of it is in its output port
connection      the sockets of a client: its own, and its broker_leg
managed         the front of a managed gateway, with its ports and as its coordinator sees its clients
server          the port where they connect, its limits, and packets to the data plane
"""

from triagemq.gateway.front.server import Front

__all__ = ["Front"]
