"""MQTT in, MQTT-SN out: the gateway between a broker and clients on UDP.

    gateway = Gateway(GatewaySettings(), BrokerAddress.parse("mqtt://localhost"), ("0.0.0.0", 10000))
    await gateway.start()

`BrokerProcess` runs a broker for those who have none, `LiveTrace` records what happens.

One event on its way:

mqtt/                        octets of the broker become messages
gateway/                     what follows from them, or from a client's datagram: actions, and rows to store
server                       has it done: in with listening (and associations, where DTLS is spoken),
store                        kept before anything is promised,
outlets, egress              out through the socket, or through a data plane that paces, ranks and drops
live_trace, trace_journal    and told

broker/                      where the broker is, or one of our own
exposure, private_files      rules for everything that listens or keeps secrets
"""

from triagemq.errors import BrokerError, GatewayError, MqttError
from triagemq.exchange.broker.address import BrokerAddress
from triagemq.exchange.broker.ports import FurtherListener
from triagemq.exchange.broker.process import BrokerProcess, find_mosquitto
from triagemq.exchange.gateway import BrokerLoss, Credentials, GatewaySettings, Mode, Policy
from triagemq.exchange.gateway.actions import Gone, Present
from triagemq.exchange.gateway.observer import Numbers, Observer, ScenarioNumbers
from triagemq.exchange.live_trace import LiveTrace
from triagemq.exchange.server import Gateway, MakeEgress, Presence

__all__ = [
    "BrokerAddress",
    "BrokerError",
    "BrokerLoss",
    "BrokerProcess",
    "Credentials",
    "FurtherListener",
    "Gateway",
    "GatewayError",
    "GatewaySettings",
    "Gone",
    "LiveTrace",
    "MakeEgress",
    "Mode",
    "MqttError",
    "Numbers",
    "Observer",
    "Policy",
    "Presence",
    "Present",
    "ScenarioNumbers",
    "find_mosquitto",
]
