"""The gateway process: MQTT from brokers in, MQTT-SN and MQTT to clients out, with or without a coordinator.

    gateway = Gateway(GatewaySettings(), BrokerAddress.parse("mqtt://localhost"), ("0.0.0.0", 10000))
    await gateway.start()

One event:

core/                        from a broker's octets or a client's datagram to actions, and rows to store
server                       carries out the actions; datagrams come in by sockets (and associations, with DTLS)
store                        written before anything is acknowledged
sockets                      copies leave by the socket, or by a data plane that paces and ranks
live_trace                   the record
front/                       MQTT clients, each with a connection of its own to the broker, in the same ports

The process, managed by a coordinator, or with files in its place:

process, config              its start
joining                      how it finds a coordinator elsewhere
managed                      puts the desired state in force, stores it (stored_state), and reports counts
observed                     unannounced clients, for the coordinator's policy
policy                       classes, drops and rights, by that state, or by priorities and tokens
binder                       addresses of clients become flows of the data plane, in it or elsewhere
queue_control                rates of the queues of ports, divided anew by the delays in them
trace                        the place, the ids and the rows of its trace
"""

from triagemq.gateway.core import GatewaySettings, Policy
from triagemq.gateway.core.state import Gone, Present
from triagemq.gateway.live_trace import LiveTrace, Numbers
from triagemq.gateway.server import Gateway

__all__ = [
    "Gateway",
    "GatewaySettings",
    "Gone",
    "LiveTrace",
    "Numbers",
    "Policy",
    "Present",
]
