"""What clients sent and got, noted by themselves: some numbers an event, appended to a file.

Where the network drops packets behind the gateway, only the subscribers know what arrived; where it drops them before,
only the publishers know what was sent. An event arrives when its datagram reaches this host, by the kernel's clock: a
client that is busy, or waits for its turn, reads later.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

RECEIPT = np.dtype(
    [("subscriber", np.int64), ("topic", np.int64), ("published_ns", np.int64), ("received_ns", np.int64)]
)
"""Of a subscriber. Rows of the scenario, and the time that the event carries: together they name it."""

SENT = np.dtype(
    [("publisher", np.int64), ("topic", np.int64), ("published_ns", np.int64), ("size_bytes", np.int64)]
)
"""Of a publisher."""

PROMISED_SENT = np.dtype(
    [
        ("publication", np.int64),
        ("generation", np.int64),
        ("published_ns", np.int64),
        ("sent_ns", np.int64),
        ("size_bytes", np.int64),
        ("handed_over_ns", np.int64),
        ("begun_ns", np.int64),
    ]
)
"""Of a publisher of direct messages: a row of the scenario, the generation of the orders that it follows, when the
event was published and the message sent, when the system had its last packet, and when the first one began to leave the
host."""

PROMISED_RECEIPT = np.dtype(
    [
        ("subscriber", np.int64),
        ("topic", np.int64),
        ("sent_ns", np.int64),
        ("arrived_ns", np.int64),
        ("received_ns", np.int64),
    ]
)
"""Of a subscriber that gets them: when its host had the last packet, and when the program had the message."""

_AT_ONCE = 2000
# SO_TIMESTAMPNS of Linux, which the socket module does not name; the kernel answers with the same number.
_TIMESTAMPS = 35
_TIME = struct.Struct("@ll")
_ANCILLARY_BYTES = socket.CMSG_SPACE(_TIME.size)
_MOST_WAITING_SECONDS = 30.0


class Receipts:
    """Appends; what is not yet written is lost with the process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._numbers = array("q")

    def add(self, *row: int) -> None:
        """A row of one of the kinds above."""
        self._numbers.extend(row)
        if len(self._numbers) >= _AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Write what there is."""
        if self._numbers:
            os.write(self._file, self._numbers.tobytes())
            self._numbers = array("q")

    def close(self) -> None:
        """Write the rest."""
        self.flush()
        os.close(self._file)


def read_receipts(path: Path, rows: np.dtype[np.void] = RECEIPT) -> NDArray[np.void]:
    """All whole rows of a file, of either kind; none if there is no file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     receipts = Receipts(Path(folder) / "receipts")
    ...     receipts.add(0, 7, 100, 250)
    ...     receipts.close()
    ...     read_receipts(Path(folder) / "receipts").tolist()
    [(0, 7, 100, 250)]
    """
    if not path.exists():
        return np.empty(0, dtype=rows)
    content = path.read_bytes()
    return np.frombuffer(content[: len(content) - len(content) % rows.itemsize], dtype=rows)


class LastArrival:
    """The time of the datagram that was read last, in Unix ns; 0 where the kernel does not know it."""

    def __init__(self) -> None:
        self.last_ns = 0

    def of(self, received_ns: int) -> int:
        """When an event came that was seen at `received_ns`, and that is handled now.

        >>> arrival = LastArrival()
        >>> arrival.of(700)
        700
        >>> arrival.last_ns = 500
        >>> arrival.of(700)
        500
        """
        # One that was held for a while was seen before what has been read last.
        return min(received_ns, self.last_ns) if self.last_ns else received_ns


class TimedSocket(socket.socket):
    """Notes the time of every datagram that is read in `arrival`."""

    def __init__(self, arrival: LastArrival, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._arrival = arrival
        with contextlib.suppress(OSError):
            self.setsockopt(socket.SOL_SOCKET, _TIMESTAMPS, 1)

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        datagram: bytes = self.recvmsg(size, _ANCILLARY_BYTES, flags)[0]
        return datagram

    def recvmsg(self, *arguments: int) -> Any:
        datagram, ancillary, flags, address = super().recvmsg(*arguments)
        self._arrival.last_ns = 0
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, _TIMESTAMPS) and len(data) >= _TIME.size:
                seconds, nanoseconds = _TIME.unpack_from(data)
                self._arrival.last_ns = seconds * 1_000_000_000 + nanoseconds
        return datagram, ancillary, flags, address


@contextlib.contextmanager
def stamping() -> Iterator[None]:
    """Meanwhile the kernel stamps datagrams when they come.

    It begins with that a while after the first socket requested it, when one of its workers gets a processor; until
    then it gives the time of reading. Waits until it has begun, though not for ever: the time of reading is what there
    is where the kernel does not stamp.
    """
    arrival = LastArrival()
    with TimedSocket(arrival, socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        probe.settimeout(1.0)
        deadline = time.monotonic() + _MOST_WAITING_SECONDS
        while time.monotonic() < deadline:
            probe.sendto(b"", probe.getsockname())
            time.sleep(0.001)
            before_ns = time.time_ns()
            with contextlib.suppress(TimeoutError):
                probe.recv(1)
                if arrival.last_ns <= before_ns:
                    break
        yield
