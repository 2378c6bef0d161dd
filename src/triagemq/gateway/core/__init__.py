"""The MQTT-SN gateway as a decision core: events in, actions out, no sockets, no files, no clock of its own.

messages      messages in transit, and how many there are of each topic
topics        what topic ids mean to a client
thinning      events of a topic to one client, thinned by time
sessions      clients, their timers, and the routes to them
settings
state         all state, the time, counters, and the actions that come out

broker_link   the links to brokers: filters, requests, answers, messages

delivery      messages to one client: order, window, acknowledgement, retries
fanout        the recipients of a message of the broker
requests      PUBLISH, REGISTER, SUBSCRIBE, wills
lifecycle     how sessions begin, sleep and end
restoring     sessions without a CONNECT: of before a restart, or expected
handlers      the reactions to each message, and the gateway as a whole
"""

from triagemq.gateway.core.broker_link import GatewayCore
from triagemq.gateway.core.handlers import MqttSnCore
from triagemq.gateway.core.settings import GatewaySettings, Policy
from triagemq.gateway.core.state import GatewayCounters

__all__ = [
    "GatewayCore",
    "GatewayCounters",
    "GatewaySettings",
    "MqttSnCore",
    "Policy",
]
