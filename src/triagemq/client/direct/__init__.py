"""Direct topics: from publisher to subscriber without a broker, for events that have a promise.

DirectPublisher, DirectSubscriber                    for asyncio
BlockingDirectPublisher, BlockingDirectSubscriber    the same for programs without it

A publisher sends each message as packets (`wire`) to the topic's multicast address (`udp`). Both ends are in `ends`.
"""

from triagemq.client.direct.ends import (
    BlockingDirectPublisher,
    BlockingDirectSubscriber,
    DirectEvent,
    DirectPublisher,
    DirectSubscriber,
    ReceivedCounters,
    SentCounters,
)
from triagemq.client.direct.udp import GroupAddress, NetworkSettings
from triagemq.client.direct.wire import HEADER_BYTES

__all__ = [
    "HEADER_BYTES",
    "BlockingDirectPublisher",
    "BlockingDirectSubscriber",
    "DirectEvent",
    "DirectPublisher",
    "DirectSubscriber",
    "GroupAddress",
    "NetworkSettings",
    "ReceivedCounters",
    "SentCounters",
]
