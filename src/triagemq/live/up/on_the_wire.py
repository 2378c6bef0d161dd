"""Events as packets: how many each is sent in, and how long the last of them takes on the links of its way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triagemq.scenario import Floats

__all__ = ["FRAGMENT_BYTES", "Transmission", "packets_of"]

_EVENT_HEADER_BYTES, _FRAGMENT_HEADER_BYTES, FRAGMENT_BYTES = 8 + 9, 14 + 20, 1480
"""UDP and MQTT-SN before a longer event, Ethernet and IP before a fragment of it, and what a fragment has room for."""


@dataclass(frozen=True, slots=True, eq=False)
class Transmission:
    """How long packets take on the wire, where ports send them at the start of that time and latencies lack it.

    `seconds_per_byte` has a row for each time of `since_ns` (in order) and a column for each subscription. Of an event
    that is sent in fragments only the last counts: it does not start before the others have been sent.
    """

    since_ns: NDArray[np.int64]
    seconds_per_byte: Floats
    overhead_bytes: float

    def seconds(
        self, at_ns: NDArray[np.int64], subscription: NDArray[np.int32], size_bytes: NDArray[np.int64]
    ) -> Floats:
        """Of the last packet of each event.

        >>> wire = Transmission(np.array([0, 50]), np.array([[0.5], [1.0]]), overhead_bytes=2)
        >>> wire.seconds(np.array([10, 60]), np.array([0, 0]), np.array([8, 8])).tolist()
        [5.0, 10.0]
        >>> wire.seconds(np.array([10]), np.array([0]), np.array([2 * FRAGMENT_BYTES])).tolist()
        [25.5]
        """
        row = np.maximum(np.searchsorted(self.since_ns, at_ns, side="right") - 1, 0)
        cost: Floats = self.seconds_per_byte[row, subscription]
        fragments = packets_of(size_bytes)
        in_last = size_bytes + _EVENT_HEADER_BYTES - (fragments - 1) * FRAGMENT_BYTES
        on_wire = np.where(fragments == 1, size_bytes + self.overhead_bytes, in_last + _FRAGMENT_HEADER_BYTES)
        return on_wire * cost


def packets_of(size_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of how many packets each event is.

    >>> packets_of(np.array([0, 1463, 1464])).tolist()
    [1, 1, 2]
    """
    return -(-(size_bytes + _EVENT_HEADER_BYTES) // FRAGMENT_BYTES)
