"""When this machine stood still: `python -m triagemq.live.emulate.standstill CONFIG.json`.

A virtual machine that its host does not let run stops as a whole: processes, queues and the timers of its links alike.
No time passes in the network of a box meanwhile, though the clock goes on, and what is under way seems to take longer.
So a process on each processor looks at the clock every millisecond, before everything else that wants to run; when all
of them missed the same moments, nothing else can have run either.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from triagemq.child import run_child, say_ready
from triagemq.live.receipts import Receipts, read_receipts

PAUSE = np.dtype([("from_ns", np.int64), ("until_ns", np.int64)])

_LOOK_SECONDS = 0.001
_LEAST_NS = 1_000_000
"""Beyond the millisecond that is slept: timers ring some tens of microseconds late anywhere."""
_PRIORITY = 2
"""Of real time: above publishers."""


@dataclass(frozen=True, slots=True)
class WatchConfig:
    """The processor to watch, and a file for its pauses."""

    processor: int
    pauses: str


def watched_processors() -> list[int]:
    """Those that this process may use."""
    return sorted(os.sched_getaffinity(0))


async def _run(config: WatchConfig, ended: asyncio.Event) -> None:
    os.sched_setaffinity(0, {config.processor})
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
    pauses = Receipts(Path(config.pauses))
    say_ready()
    looked_ns, looks = time.time_ns(), 0
    while not ended.is_set():
        time.sleep(_LOOK_SECONDS)
        now_ns = time.time_ns()
        if now_ns - looked_ns > _LOOK_SECONDS * 1e9 + _LEAST_NS:
            pauses.add(looked_ns + round(_LOOK_SECONDS * 1e9), now_ns)
        looked_ns, looks = now_ns, looks + 1
        if looks % 50 == 0:
            # To hear of the end.
            await asyncio.sleep(0)
    pauses.close()


@dataclass(frozen=True, slots=True, eq=False)
class Standstills:
    """Intervals in which the machine stood still, in Unix ns, in order and apart."""

    from_ns: NDArray[np.int64]
    until_ns: NDArray[np.int64]

    def within(self, from_ns: NDArray[np.int64], until_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """How much of other intervals, each, the machine stood still.

        >>> still = Standstills(np.array([100, 300]), np.array([120, 350]))
        >>> still.within(np.array([0, 110, 130]), np.array([400, 310, 200])).tolist()
        [70, 20, 0]
        """
        return self._before(until_ns) - self._before(from_ns)

    def _before(self, at_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        lengths = np.append(0, np.cumsum(self.until_ns - self.from_ns))
        place = np.searchsorted(self.from_ns, at_ns, side="right")
        started = np.append(0, self.until_ns)[place]
        # What is inside of an interval has seen less of it.
        return np.asarray(lengths[place] - np.maximum(0, started - at_ns))

    def as_json(self) -> dict[str, float | int]:
        """How often, how long altogether, and the longest."""
        lasted = (self.until_ns - self.from_ns) * 1e-9
        return {
            "count": len(lasted),
            "seconds": float(lasted.sum()),
            "longest_seconds": float(lasted.max(initial=0.0)),
        }


NO_STANDSTILLS = Standstills(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


def standstills(files: Sequence[Path]) -> Standstills:
    """When no processor ran anything, from what was noted on each."""
    found = [[(int(a), int(b)) for a, b in read_receipts(file, PAUSE)] for file in files]
    if not found:
        return NO_STANDSTILLS
    together = found[0]
    for others in found[1:]:
        together = _in_both(together, others)
    columns = np.array(together, dtype=np.int64).reshape(-1, 2)
    return Standstills(columns[:, 0], columns[:, 1])


def _in_both(some: list[tuple[int, int]], others: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """
    >>> _in_both([(0, 10), (20, 30)], [(5, 22), (25, 40)])
    [(5, 10), (20, 22), (25, 30)]
    """
    found, here, there = [], 0, 0
    while here < len(some) and there < len(others):
        begin, end = max(some[here][0], others[there][0]), min(some[here][1], others[there][1])
        if begin < end:
            found.append((begin, end))
        if some[here][1] < others[there][1]:
            here += 1
        else:
            there += 1
    return found


def main() -> int:
    """Run until told to end; the exit code."""
    return run_child("triagemq.live.emulate.standstill", WatchConfig, _run)


if __name__ == "__main__":
    sys.exit(main())
