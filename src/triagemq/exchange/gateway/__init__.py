"""The MQTT-SN gateway as a decision core: events in, actions out, no sockets, no files, no clock of its own.

model/        what a gateway knows: nouns
settings      what it can be told            actions     what it wants done
observer      who is told what happened      core        all state, the time, and the table of handlers

and what is done, each above the one before:

naming        what topic ids mean to a client
delivering    messages on their way to one client
spreading     a message of the broker, and to whom it goes
broker_link   what the broker is asked, and what it says
publishing, subscribing     what clients ask for
leaving, connecting         how sessions end and begin
retrying, broker_events     clients that do not answer, and a broker that does not
probing       how long it is to clients
handlers      the table: who does something about what comes in
restoring     everything as it was before a restart
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
