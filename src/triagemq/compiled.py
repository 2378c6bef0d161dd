"""The one way to compile a kernel: numba's njit, cached on disk, the GIL released, with a type mypy can follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

__all__ = ["compiled", "inlined"]

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def compiled(function: Kernel) -> Kernel:
    """Compile `function` on its first call; later processes read the machine code from numba's disk cache."""
    return cast(Kernel, numba.njit(cache=True, nogil=True, error_model="numpy")(function))


def inlined(function: Kernel) -> Kernel:
    """Compile a small step of a kernel so that its caller pays no call for it."""
    return cast(Kernel, numba.njit(cache=True, nogil=True, error_model="numpy", inline="always")(function))
