"""The clock by which everything in a trace is stamped."""

from __future__ import annotations

import time
from collections.abc import Callable

UNIX_TIMES_FROM_NS = 10**18
"""2001-09-09. Times below are of simulations, which begin at 0, or of a clock that was not set."""


def unix_clock() -> Callable[[], int]:
    """A clock in nanoseconds that starts as Unix time and never steps, whatever is done to the machine's time.

    >>> clock = unix_clock()
    >>> clock() <= clock()
    True
    """
    offset_ns = time.time_ns() - time.monotonic_ns()
    monotonic_ns = time.monotonic_ns
    return lambda: offset_ns + monotonic_ns()
