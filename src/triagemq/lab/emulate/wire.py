"""What real events take of a wire: headers, fragments, and the transmission that latencies of kernel queues lack."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triagemq.scenario import Floats

_SHORT_HEADER_BYTES, _LONG_HEADER_BYTES, _LONGEST_SHORT = 8 + 7, 8 + 9, 248
"""UDP and MQTT-SN before an event, before a longer one, and up to which size it is none."""
_FRAGMENT_HEADER_BYTES, FRAGMENT_BYTES = 14 + 20, 1480
"""Ethernet and IP before a packet, whole or a fragment, and what it has room for."""


@dataclass(frozen=True, slots=True, eq=False)
class Transmission:
    """How long packets take on the wire, where ports send them at the start of that time and latencies lack it.

    `seconds_per_byte` has a row for each time of `since_ns` (in order) and a column for each subscription. Of an event
    that is sent in fragments only the last counts: it does not start before the others have been sent.
    """

    since_ns: NDArray[np.int64]
    seconds_per_byte: Floats

    def seconds(
        self, at_ns: NDArray[np.int64], subscription: NDArray[np.int32], size_bytes: NDArray[np.int64]
    ) -> Floats:
        """Of the last packet of each event.

        >>> wire = Transmission(np.array([0, 50]), np.array([[0.5], [1.0]]))
        >>> wire.seconds(np.array([10, 60]), np.array([0, 0]), np.array([8, 8])).tolist()
        [28.5, 57.0]
        >>> wire.seconds(np.array([10]), np.array([0]), np.array([2 * FRAGMENT_BYTES])).tolist()
        [25.5]
        """
        row = np.maximum(np.searchsorted(self.since_ns, at_ns, side="right") - 1, 0)
        cost: Floats = self.seconds_per_byte[row, subscription]
        in_last = _datagram_bytes(size_bytes) - (packets_of(size_bytes) - 1) * FRAGMENT_BYTES
        return (in_last + _FRAGMENT_HEADER_BYTES) * cost


def packets_of(size_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of how many packets each event is.

    >>> packets_of(np.array([0, 1463, 1464])).tolist()
    [1, 1, 2]
    """
    return -(-_datagram_bytes(size_bytes) // FRAGMENT_BYTES)


def wire_bytes(size_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
    """What the packets of each event take of a port.

    >>> wire_bytes(np.array([0, 248, 249, 1463, 1464])).tolist()
    [49, 297, 300, 1514, 1549]
    """
    return _datagram_bytes(size_bytes) + packets_of(size_bytes) * _FRAGMENT_HEADER_BYTES


def _datagram_bytes(size_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
    return size_bytes + np.where(size_bytes > _LONGEST_SHORT, _LONG_HEADER_BYTES, _SHORT_HEADER_BYTES)
