"""The MQTT-SN gateway as a decision core: events in, actions out, no sockets, no files, no clock of its own."""

from triagemq.exchange.gateway.core import GatewayCore
from triagemq.exchange.gateway.counters import GatewayCounters
from triagemq.exchange.gateway.settings import BrokerLoss, Credentials, GatewaySettings, Mode, Policy

__all__ = [
    "BrokerLoss",
    "Credentials",
    "GatewayCore",
    "GatewayCounters",
    "GatewaySettings",
    "Mode",
    "Policy",
]
