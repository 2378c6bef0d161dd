"""Ports whose queues have widths: every class is a queue of its own, with nobody above or below it.

Partitioned, it is served at its width, and the theory of one class holds as it stands. Where queues borrow, it is taken
for a queue that is served at what it would get if it always had something to send: its share of all that the others do
not use (generalised processor sharing). That is a simplification, and flagged: in truth a packet travels at the full
rate once it is its turn, and what the others leave comes and goes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from triagemq.forecast.ports import AtPorts
from triagemq.plan.demands import total_by
from triagemq.scenario import Discipline, Floats, OutputPorts
from triagemq.theory import FirstPackets


def by_queues(copies: AtPorts, ports: OutputPorts, first_port: int) -> AtPorts:
    """The copies with a port of its own for each queue with a width, numbered behind the ports, as slow as it is."""
    count = len(copies.buffer_packets)
    numbers = range(first_port, first_port + count)
    has_widths = ports.discipline[numbers] == Discipline.WIDTHS
    if not has_widths.any():
        return copies
    classes = max(len(ports.widths_bps[number]) for number in numbers)
    share = np.ones((count, classes))
    for row in np.flatnonzero(has_widths).tolist():
        share[row] = ports.widths_bps[numbers[row]] / ports.bandwidth_bps[numbers[row]]
    here = has_widths[copies.port]
    level = np.where(here, copies.priority_class, 0)
    borrowing = ports.borrowing[numbers] > 0
    if borrowing.any():
        cell = copies.port.astype(np.int64) * classes + level
        load = total_by(cell, np.where(here, copies.load, 0.0), count * classes).reshape(count, classes)
        share[borrowing] = available_share(share[borrowing], load[borrowing])
    first = count + (np.cumsum(has_widths) - 1) * classes
    slower = np.where(here, 1 / share[copies.port, level], 1.0)
    packets = copies.first_packets
    return replace(
        copies,
        buffer_packets=np.append(
            copies.buffer_packets, np.repeat(copies.buffer_packets[has_widths], classes)
        ),
        port=np.where(here, first[copies.port] + level, copies.port).astype(copies.port.dtype),
        event_seconds=copies.event_seconds * slower,
        packet_square_seconds=copies.packet_square_seconds * slower**2,
        own_event_seconds=copies.own_event_seconds * slower,
        last_packet_seconds=copies.last_packet_seconds * slower,
        first_packets=FirstPackets(
            mean=packets.mean * slower, product=packets.product * slower**2, single=packets.single * slower
        ),
    )


def available_share(share: Floats, load: Floats) -> Floats:
    """What each queue of each port would get of the port if it always had something to send.

    The others get what they need, up to their part by their shares; what they leave is divided by shares again.

    >>> available_share(np.array([[0.5, 0.3, 0.2]]), np.array([[0.1, 0.9, 0.1]])).round(3).tolist()
    [[0.562, 0.8, 0.255]]
    """
    classes = share.shape[1]
    # Rows are ports and, of each, the queue that always sends; columns are all its queues.
    share = np.repeat(share[:, None, :], classes, axis=1)
    load = np.repeat(load[:, None, :], classes, axis=1)
    itself = np.eye(classes, dtype=bool)[None]
    content = np.zeros(share.shape, dtype=bool)
    for _ in range(classes):
        left = 1.0 - np.where(content, load, 0.0).sum(axis=2, keepdims=True)
        level = left / np.where(content, 0.0, share).sum(axis=2, keepdims=True)
        content = ~itself & (load <= share * level)
    return np.asarray((share * level).diagonal(axis1=1, axis2=2))
