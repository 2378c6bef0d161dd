"""MQTT in, MQTT-SN out: the gateway between a broker and clients on UDP.

    gateway = Gateway(GatewaySettings(), BrokerAddress.parse("mqtt://localhost"), ("0.0.0.0", 10000))
    await gateway.start()

`BrokerProcess` runs a broker for those who have none, `LiveTrace` records what happens.
"""

from triagemq.errors import BrokerError, GatewayError, MqttError
from triagemq.exchange.broker_address import BrokerAddress
from triagemq.exchange.broker_ports import FurtherListener
from triagemq.exchange.broker_process import BrokerProcess, find_mosquitto
from triagemq.exchange.gateway import BrokerLoss, Credentials, GatewaySettings, Mode, Policy
from triagemq.exchange.gateway.actions import Gone, Present
from triagemq.exchange.gateway.observer import Numbers, Observer
from triagemq.exchange.live_trace import LiveTrace
from triagemq.exchange.scenario_numbers import ScenarioNumbers
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
