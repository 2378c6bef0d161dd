"""How much of a port control packets may take: they go first, and must not starve the first class of events.

The exchange's own control packets (answers to clients, REST, handshakes) may use a quarter of the port's bandwidth, and
a second's worth of that at once; what the network itself needs (ARP, neighbour discovery), which any stranger can
send, has a bound of its own: a sixteenth. Neither burst is less than four full frames: on a slow port, too, a handshake
goes through. What exceeds a bound is not dropped but goes last.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ControlBound", "control_bounds"]

OWN_SHARE, NETWORK_SHARE = 1 / 4, 1 / 16
_BURST_SECONDS = 1.0
_LEAST_BURST_BYTES = 4 * 1514
# The classifier multiplies in 64 bits; no port is so slow.
_LEAST_BYTES_PER_SECOND = 100.0


class ControlBound(NamedTuple):
    """So many bytes a second in the long run, and so many at once."""

    bytes_per_second: float
    burst_bytes: float

    @property
    def ns_per_byte(self) -> float:
        return 1e9 / self.bytes_per_second

    @property
    def burst_ns(self) -> int:
        """What the burst takes at this rate."""
        return round(self.burst_bytes * self.ns_per_byte)


def control_bounds(bandwidth_bps: float) -> tuple[ControlBound, ControlBound]:
    """Of the exchange's own control packets, and of the network's, at a port with this bandwidth.

    >>> own, network = control_bounds(2e6)
    >>> own, network
    (ControlBound(bytes_per_second=62500.0, burst_bytes=62500.0),
     ControlBound(bytes_per_second=15625.0, burst_bytes=15625.0))
    >>> control_bounds(20e3)[0]
    ControlBound(bytes_per_second=625.0, burst_bytes=6056)
    """
    own, network = (_bound(min(bandwidth_bps, 1e12) / 8 * share) for share in (OWN_SHARE, NETWORK_SHARE))
    return own, network


def _bound(bytes_per_second: float) -> ControlBound:
    rate = max(bytes_per_second, _LEAST_BYTES_PER_SECOND)
    return ControlBound(rate, max(rate * _BURST_SECONDS, _LEAST_BURST_BYTES))
