"""The one way to compile a kernel: numba's njit, cached on disk, the GIL released, with a type mypy can follow."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TypeVar, cast

import numba
from numba.core import event

__all__ = ["SAY_COMPILING", "compiled", "inlined"]

SAY_COMPILING = "TRIAGE_SAY_COMPILING"
"""An environment variable: somebody waits at a terminal, and is told why."""

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def compiled(function: Kernel) -> Kernel:
    """Compile `function` on its first call; later processes read the machine code from numba's disk cache."""
    return cast(Kernel, numba.njit(cache=True, nogil=True, error_model="numpy")(function))


def inlined(function: Kernel) -> Kernel:
    """Compile a small step of a kernel so that its caller pays no call for it."""
    return cast(Kernel, numba.njit(cache=True, nogil=True, error_model="numpy", inline="always")(function))


class _Saying(event.Listener):
    """Says once that a kernel is being compiled; one that is read from the cache takes no time to speak of."""

    def on_start(self, event: object) -> None:
        if os.environ.pop(SAY_COMPILING, None):
            print("compiling for this machine: once, and for up to a minute", file=sys.stderr, flush=True)

    def on_end(self, event: object) -> None:
        pass


event.register("numba:compile", _Saying())  # type: ignore[no-untyped-call]
