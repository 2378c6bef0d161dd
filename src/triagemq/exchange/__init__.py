"""MQTT in, MQTT-SN out: the gateway between a broker and clients on UDP.

    gateway = Gateway(GatewaySettings(), BrokerAddress.parse("mqtt://localhost"), ("0.0.0.0", 10000))
    await gateway.start()

`BrokerProcess` runs a broker for those who have none, `LiveTrace` records what happens.

One event:

mqtt/                        octets of the broker become messages
gateway/                     what follows from them, or from a client's datagram: actions, and rows to store
server                       has it done: in with listening (and associations, where DTLS is spoken),
store                        written before anything is acknowledged,
senders                      out through the socket, or through a data plane that paces and ranks
live_trace                   and recorded

broker/                      where the broker is, or one of our own
exposure, private_files      rules for everything that listens or keeps secrets
"""

from triagemq.errors import BrokerError, GatewayError, MqttError
from triagemq.exchange.broker.address import BrokerAddress
from triagemq.exchange.broker.process import BrokerProcess, FurtherListener, find_mosquitto
from triagemq.exchange.gateway import BrokerLoss, Credentials, GatewaySettings, Mode, Policy
from triagemq.exchange.gateway.core import Gone, Present
from triagemq.exchange.gateway.observer import Numbers, Observer, ScenarioNumbers
from triagemq.exchange.live_trace import LiveTrace
from triagemq.exchange.server import Gateway, MakePlane, Presence

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
    "MakePlane",
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
