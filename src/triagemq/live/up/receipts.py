"""What clients sent and got, noted by themselves: four numbers an event, appended to a file.

Where the network drops packets behind the gateway, only the subscribers know what arrived; where it drops them before,
only the publishers know what was sent.
"""

from __future__ import annotations

import os
from array import array
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["RECEIPT", "SENT", "Receipts", "read_receipts"]

RECEIPT = np.dtype(
    [("subscriber", np.int64), ("topic", np.int64), ("published_ns", np.int64), ("received_ns", np.int64)]
)
"""Of a subscriber. Rows of the scenario, and the time that the event carries: together they name it."""

SENT = np.dtype(
    [("publisher", np.int64), ("topic", np.int64), ("published_ns", np.int64), ("size_bytes", np.int64)]
)
"""Of a publisher."""

_AT_ONCE = 4 * 500


class Receipts:
    """Appends; what is not yet written is lost with the process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._numbers = array("q")

    def add(self, client: int, topic: int, published_ns: int, number: int) -> None:
        """An event has been sent, and is so long; or it has arrived, at that time."""
        self._numbers.extend((client, topic, published_ns, number))
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
