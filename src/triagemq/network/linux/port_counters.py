"""The contract's counters of a port, from what the kernel's queues and a classifier have counted."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triagemq.network.linux.queues import QueueStatistics
from triagemq.network.linux.records import STRANGERS, UNMANAGED, UNMANAGED_CONTROL
from triagemq.plan import QueueCounters

__all__ = ["add_unmanaged", "queue_counters"]


def add_unmanaged(sums: list[int], put_in: NDArray[np.uint64]) -> None:
    """Add a port's packets of no flow to the sums of packets, control packets and bytes."""
    plain, control = (put_in[UNMANAGED] + put_in[STRANGERS]).tolist(), put_in[UNMANAGED_CONTROL].tolist()
    sums[0] += plain[0] + control[0]
    sums[1] += control[0]
    sums[2] += plain[1] + control[1]


def queue_counters(
    counted: QueueStatistics, put_in: NDArray[np.uint64] | None, width_bps: int | None
) -> QueueCounters:
    """The kernel does not say how large packets were that found no room: the classifier knows what was put in."""
    packets_in = counted.packets_out + counted.drops + counted.backlog_packets
    bytes_in = counted.bytes_out + counted.backlog_bytes
    if counted.drops and put_in is not None:
        packets, octets = put_in.tolist()
        # It was read at another moment, and may know of some packets more or fewer.
        bytes_in = max(bytes_in, octets + (packets_in - packets) * octets // max(packets, 1))
    return QueueCounters(
        bytes_in=bytes_in,
        packets_in=packets_in,
        bytes_out=counted.bytes_out,
        packets_out=counted.packets_out,
        drops=counted.drops,
        backlog_bytes=counted.backlog_bytes,
        backlog_packets=counted.backlog_packets,
        width_bps=width_bps,
    )
