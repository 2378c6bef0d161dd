"""The end of a run that is cut off in time: every copy still under way ends as `in_flight`."""

from __future__ import annotations

import numpy as np

from triagemq.simulate.brokers import lose_event, lose_event_at
from triagemq.simulate.changes import Epochs
from triagemq.simulate.endings import IN_FLIGHT, end_copy, end_packet
from triagemq.simulate.kernel import kernel
from triagemq.simulate.network import Above
from triagemq.simulate.records import Buffer, Pool, room

__all__ = ["cut_events", "cut_packets"]


@kernel
def cut_events(
    above: Above, epochs: Epochs, events: Buffer, matched: bool, run_ends: float, ended: Buffer, begin: int
) -> int:
    """End the copies of events on their way to a broker, or matched there; returns how many events were done."""
    count = events.filled[0]
    for number in range(begin, count):
        if not room(ended, above.most_members):
            return number
        event = events.records[number]
        source, broker = event.source_broker, event.broker
        lose_event_at(above, epochs, ended, event, broker, np.inf, run_ends)
        if matched:
            continue
        here = source * above.brokers + broker
        for place in range(above.tree_first[here], above.tree_first[here + 1]):
            behind = above.beyond[source, above.tree_link[place]]
            lose_event(above, epochs, ended, event, behind, np.inf, run_ends)
        if broker == source:
            lose_event(above, epochs, ended, event, above.unreachable[source], np.inf, run_ends)
    return count  # type: ignore[no-any-return]


@kernel
def cut_packets(
    epochs: Epochs, epoch: int, groups: Pool, packets: Buffer, hop: int, ended: Buffer, begin: int
) -> int:
    """End the packets on their way to a switch; returns how many were done."""
    count = packets.filled[0]
    for number in range(begin, count):
        if not room(ended, 1):
            return number
        packet = packets.records[number]
        if hop == 0:
            end_copy(
                ended,
                packet.event,
                packet.published_ns,
                packet.size_bytes,
                packet.subscription,
                epochs.priority_class[epoch, packet.subscription],
                IN_FLIGHT,
            )
        else:
            end_packet(ended, groups, packet, packet.priority_class, IN_FLIGHT, -1, -1)
    return count  # type: ignore[no-any-return]
