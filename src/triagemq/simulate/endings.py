"""How a copy ends: delivered, dropped, lost, gone or still under way. Every copy ends exactly once."""

from __future__ import annotations

from triagemq.simulate.kernel import step
from triagemq.simulate.records import Buffer, Pool, Record, append, give_back
from triagemq.trace.schema import Outcome

__all__ = [
    "DELIVERED",
    "DROPPED_BY_BUFFER",
    "DROPPED_BY_POLICY",
    "IN_FLIGHT",
    "LOST_ON_LINK",
    "SUBSCRIBER_GONE",
    "end_copy",
    "end_packet",
    "nanoseconds",
]

# Plain integers: kernels compile faster with them than with members of an enumeration.
DELIVERED = int(Outcome.delivered)
DROPPED_BY_POLICY = int(Outcome.dropped_by_policy)
DROPPED_BY_BUFFER = int(Outcome.dropped_by_buffer)
LOST_ON_LINK = int(Outcome.lost_on_link)
SUBSCRIBER_GONE = int(Outcome.subscriber_gone)
IN_FLIGHT = int(Outcome.in_flight)


@step
def nanoseconds(seconds: float) -> int:
    """Whole nanoseconds, rounded to the nearest (times are never negative)."""
    return int(seconds * 1e9 + 0.5)


@step
def end_copy(
    ended: Buffer,
    event: int,
    published_ns: int,
    size_bytes: float,
    subscription: int,
    priority_class: int,
    outcome: int,
) -> None:
    """End a copy that never came to a managed port."""
    record = ended.records[append(ended)]
    record.event = event
    record.published_ns = published_ns
    record.enqueued_ns = -1
    record.dequeued_ns = -1
    record.delivered_ns = -1
    record.size_bytes = size_bytes
    record.subscription = subscription
    record.priority_class = priority_class
    record.outcome = outcome


@step
def end_packet(
    ended: Buffer,
    groups: Pool,
    packet: Record,
    priority_class: int,
    outcome: int,
    dequeued_ns: int,
    delivered_ns: int,
) -> None:
    """End a packet and, if it is the last one under way of its event, the copy.

    An event is delivered with its last packet; a packet lost loses it, whatever becomes of the others. Where packets
    end in several ways the first of them in the list of outcomes counts, so that the order of calls does not matter.
    """
    enqueued_ns = packet.enqueued_ns
    number = packet.group
    if number >= 0:
        group = groups.records[number]
        group.remaining -= 1
        group.dequeued_ns = max(group.dequeued_ns, dequeued_ns)
        group.delivered_ns = max(group.delivered_ns, delivered_ns)
        if outcome != DELIVERED and (group.outcome == DELIVERED or outcome < group.outcome):
            group.outcome = outcome
        if group.remaining > 0:
            return
        outcome = group.outcome
        priority_class = group.priority_class
        enqueued_ns = group.enqueued_ns
        dequeued_ns = group.dequeued_ns
        delivered_ns = group.delivered_ns
        give_back(groups, number)
    record = ended.records[append(ended)]
    record.event = packet.event
    record.published_ns = packet.published_ns
    record.enqueued_ns = enqueued_ns
    record.dequeued_ns = dequeued_ns
    record.delivered_ns = delivered_ns if outcome == DELIVERED else -1
    record.size_bytes = packet.size_bytes
    record.subscription = packet.subscription
    record.priority_class = priority_class
    record.outcome = outcome
