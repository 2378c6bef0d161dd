"""When datagrams reached this host, by the kernel's clock: a client that is busy, or waits for its turn, reads later.

`TimedSocket` is a UDP socket that remembers the time of the datagram that was read last. Who handles a datagram before
the next is read can ask `Arrival` for its time.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Any

__all__ = ["Arrival", "TimedSocket"]

# SO_TIMESTAMPNS of Linux, which the socket module does not name; the kernel answers with the same number.
_TIMESTAMPS = 35
_TIME = struct.Struct("@ll")
_ANCILLARY_BYTES = socket.CMSG_SPACE(_TIME.size)


class Arrival:
    """The time of the datagram that was read last, in Unix ns; 0 where the kernel does not tell."""

    def __init__(self) -> None:
        self.last_ns = 0

    def of(self, received_ns: int) -> int:
        """When an event came that was seen at `received_ns`, and that is handled now.

        >>> arrival = Arrival()
        >>> arrival.of(700)
        700
        >>> arrival.last_ns = 500
        >>> arrival.of(700)
        500
        """
        # One that was held for a while was seen before what has been read last.
        return min(received_ns, self.last_ns) if self.last_ns else received_ns


class TimedSocket(socket.socket):
    """Tells `arrival` the time of every datagram that is read by `recv`."""

    def __init__(self, arrival: Arrival, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._arrival = arrival
        with contextlib.suppress(OSError):
            self.setsockopt(socket.SOL_SOCKET, _TIMESTAMPS, 1)

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        datagram, ancillary, _, _ = self.recvmsg(size, _ANCILLARY_BYTES, flags)
        self._arrival.last_ns = 0
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, _TIMESTAMPS) and len(data) >= _TIME.size:
                seconds, nanoseconds = _TIME.unpack_from(data)
                self._arrival.last_ns = seconds * 1_000_000_000 + nanoseconds
        return datagram
