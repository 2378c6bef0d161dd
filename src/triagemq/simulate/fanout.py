"""At the home broker: one copy of a matched event per active subscription, through the subscriber's outbound queue."""

from __future__ import annotations

import numpy as np

from triagemq.scenario import Floats
from triagemq.simulate.changes import Epochs, epoch_at
from triagemq.simulate.endings import SUBSCRIBER_GONE, end_copy
from triagemq.simulate.kernel import kernel
from triagemq.simulate.network import Above
from triagemq.simulate.random import Purpose, Seeds, bits, exponential
from triagemq.simulate.records import Buffer, append, room

__all__ = ["fan_out"]

_BROKER_OUTBOUND = int(Purpose.BROKER_OUTBOUND)
_SENDING_ORDER = int(Purpose.SENDING_ORDER)

_RANDOM_BITS = 24
"""Of a copy's rank, below its class."""


@kernel
def fan_out(
    above: Above,
    epochs: Epochs,
    epoch: int,
    seeds: Seeds,
    outbound_free: Floats,
    matched: Buffer,
    begin: int,
    copies: Buffer,
    ended: Buffer,
    until: float,
) -> int:
    """Copy the events matched before `until`, from number `begin` on; later ones move to the front of their buffer.

    Returns how many of the matched events were looked at: fewer than there are when `copies` or `ended` is full.
    A copy exists if its subscription is active now; one that was active when the event was published and has left
    since ends as `subscriber_gone`.

    A gateway that sends by class takes one outbound time for all copies of an event: to every subscriber's queue it is
    the same as one of its own, and those that do not wait there leave together, ranked by class.
    """
    count = matched.filled[0]
    seed = seeds[_BROKER_OUTBOUND]
    by_class = above.by_class
    for number in range(begin, count):
        event = matched.records[number]
        if event.time >= until:
            continue
        cell = event.broker * above.topics + above.topic[event.publication]
        first, last = above.member_first[cell], above.member_first[cell + 1]
        if not (room(copies, last - first) and room(ended, last - first)):
            return number
        service = above.outbound_seconds[event.broker]
        together = 0.0
        if by_class and service > 0.0:
            together = service * exponential(seed, event.event * above.subscriptions + above.member[first])
        for place in range(first, last):
            subscription = above.member[place]
            if not epochs.active[epoch, subscription]:
                before = epoch_at(epochs.ends, 0, event.published_ns * 1e-9)
                if epochs.active[before, subscription]:
                    end_copy(
                        ended,
                        event.event,
                        event.published_ns,
                        event.size_bytes,
                        subscription,
                        epochs.priority_class[epoch, subscription],
                        SUBSCRIBER_GONE,
                    )
                continue
            subscriber = above.subscriber[subscription]
            time = max(event.time, outbound_free[subscriber])
            counter = event.event * above.subscriptions + subscription
            rank = 0
            if by_class:
                time += together
                rank = epochs.priority_class[epoch, subscription] << _RANDOM_BITS
            elif service > 0.0:
                time += service * exponential(seed, counter)
            if by_class or service == 0.0:
                rank |= int(bits(seeds[_SENDING_ORDER], counter) >> np.uint64(64 - _RANDOM_BITS))
            outbound_free[subscriber] = time
            copy = copies.records[append(copies)]
            copy.time = time
            copy.published_ns = event.published_ns
            copy.event = event.event
            copy.size_bytes = event.size_bytes
            copy.subscription = subscription
            copy.fragment = 0
            copy.group = -1
            copy.next = rank
    return count  # type: ignore[no-any-return]
