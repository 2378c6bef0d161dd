"""Children that end with their parent, whatever ends that: a killed supervisor leaves nothing that holds its ports."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

__all__ = ["dying_with_parent"]

_PR_SET_PDEATHSIG = 1


def dying_with_parent(nice: int = 0) -> Callable[[], None]:
    """What a child does between fork and exec (`preexec_fn`); where the system has no such thing, only `nice`."""
    parent = os.getpid()
    # Looked up here: there is little that may be done after a fork.
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None

    def prepare() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # It has died in between.
                os.kill(os.getpid(), signal.SIGKILL)
        if nice:
            os.nice(nice)

    return prepare
