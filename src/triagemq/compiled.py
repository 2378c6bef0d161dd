"""How kernels are compiled: numba's njit, cached on disk, the GIL released, with a type mypy can follow.

The simulator's own (`kernel`, `step`) are compiled without reference counting. They hand tuples of arrays to one
another many times per packet: counting a reference to each array each time took nine tenths of the run, and calls that
copy the tuples most of the rest. They allocate nothing and keep nothing, so there is nothing to count; and their steps
are compiled into them, so that there is nothing to copy. Parts of kernels (`step`, `routine`) are for kernels alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.core import caching, event

SAY_COMPILING = "TRIAGE_SAY_COMPILING"
"""An environment variable: a user waits at a terminal, and a message says why."""

Kernel = TypeVar("Kernel", bound=Callable[..., object])

# No kernel is called from C by its address.
_OPTIONS: Any = {"cache": True, "nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
_UNCOUNTED: Any = {**_OPTIONS, "_nrt": False}
# What takes a hundred arrays from Python and hands them on took half the time of compiling.
_OF_KERNELS: Any = {**_UNCOUNTED, "no_cpython_wrapper": True}


def compiled(function: Kernel) -> Kernel:
    """Compile `function` on its first call; later processes read the machine code from numba's disk cache."""
    return cast(Kernel, numba.njit(**_OPTIONS)(function))


def inlined(function: Kernel) -> Kernel:
    """Compile a small step of a kernel so that its caller pays no call for it."""
    return cast(Kernel, numba.njit(inline="always", **_OPTIONS)(function))


def kernel(function: Kernel) -> Kernel:
    """Compile a function of the simulator, which allocates no array."""
    return cast(Kernel, numba.njit(**_UNCOUNTED)(function))


def step(function: Kernel) -> Kernel:
    """Compile a part of kernels into each of them: a call would copy the tuples, which takes longer than the step."""
    return cast(Kernel, _of_kernels(numba.njit(forceinline=True, **_OF_KERNELS)(function)))


def routine(function: Kernel) -> Kernel:
    """Compile a part of kernels that they call: it is rare, or long."""
    return cast(Kernel, _of_kernels(numba.njit(**_OF_KERNELS)(function)))


def draw(function: Kernel) -> Kernel:
    """Compile a step that Python calls too: it takes a few numbers."""
    return cast(Kernel, numba.njit(forceinline=True, **_UNCOUNTED)(function))


def _of_kernels(part: Any) -> Any:
    """Python finds nothing that it could call, where it would call at no address."""

    def refuse(*_: object) -> None:
        raise TypeError(f"{part.__name__} is a part of kernels, which Python cannot call")

    part._insert = lambda *_: None
    part._compile_for_args = refuse
    return part


class _Index(caching.IndexDataCacheFile):
    """The list of what numba has compiled of one function. One that names a class which is elsewhere by now, since
    another version of the program wrote it, is like none: numba sees that it is out of date only after reading it."""

    def _load_index(self) -> Any:
        try:
            return super()._load_index()  # type: ignore[no-untyped-call]
        except (AttributeError, ImportError):
            return {}


class _Saying(event.Listener):
    """Says once that a kernel is being compiled; one that is read from the cache takes no time to speak of."""

    def on_start(self, event: object) -> None:
        if os.environ.pop(SAY_COMPILING, None):
            print("compiling for this machine: once, and for up to a minute", file=sys.stderr, flush=True)

    def on_end(self, event: object) -> None:
        pass


event.register("numba:compile", _Saying())  # type: ignore[no-untyped-call]
caching.IndexDataCacheFile = _Index  # type: ignore[misc]
