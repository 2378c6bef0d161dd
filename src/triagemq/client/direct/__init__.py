"""Direct topics: from publisher to subscriber without a broker, for events that have a promise.

DirectPublisher, DirectSubscriber                    for asyncio
BlockingDirectPublisher, BlockingDirectSubscriber    the same for programs without it

A `publisher` hands each message over twice: in `shared_memory`, where processes of its host find it in a `ring` and are
woken, and as packets (`wire`) to the topic's address (`multicast`), which switches carry to everybody else.
A `subscriber` takes both, puts packets together, and hands each message on once. Both `ends` measure what their host
adds (`host_delay`).
"""

from triagemq.client.direct.host_delay import HostDelay
from triagemq.client.direct.multicast import GroupAddress, NetworkSettings
from triagemq.client.direct.publisher import BlockingDirectPublisher, DirectPublisher, SentCounters
from triagemq.client.direct.subscriber import (
    BlockingDirectSubscriber,
    DirectEvent,
    DirectSubscriber,
    DirectWay,
    ReceivedCounters,
)
from triagemq.client.direct.wire import HEADER_BYTES

__all__ = [
    "HEADER_BYTES",
    "BlockingDirectPublisher",
    "BlockingDirectSubscriber",
    "DirectEvent",
    "DirectPublisher",
    "DirectSubscriber",
    "DirectWay",
    "GroupAddress",
    "HostDelay",
    "NetworkSettings",
    "ReceivedCounters",
    "SentCounters",
]
