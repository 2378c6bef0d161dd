"""The MQTT-SN gateway as a decision core: events in, actions out, no sockets, no files, no clock of its own.

State:
messages      messages on their way, and how many there are of each topic
topics        what topic ids mean to a client
sessions      clients, their timers, their links to the broker, and the routes from there to them
settings, observer
core          all of it, the time, the actions that come out, and the table of handlers

and what is done, each above the one before:

delivery      messages to one client: order, window, acknowledgement, retries
fanout        a message of the broker, and to whom it goes
broker_link   subscriptions at the broker, and its messages
requests      PUBLISH, REGISTER, SUBSCRIBE, wills
lifecycle     how sessions begin, sleep and end
handlers      the table: who does something about what comes in
restoring     sessions without a CONNECT: of before a restart, or expected
"""

from triagemq.exchange.gateway.core import GatewayCore
from triagemq.exchange.gateway.handlers import HANDLERS
from triagemq.exchange.gateway.observer import GatewayCounters
from triagemq.exchange.gateway.settings import BrokerLoss, Credentials, GatewaySettings, Mode, Policy

__all__ = [
    "HANDLERS",
    "BrokerLoss",
    "Credentials",
    "GatewayCore",
    "GatewayCounters",
    "GatewaySettings",
    "Mode",
    "Policy",
]
