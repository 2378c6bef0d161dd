"""How the simulator's kernels are compiled: like every kernel, but without reference counting.

Kernels hand tuples of arrays to one another many times per packet. Counting a reference to each array each time took
nine tenths of the run, and calls that copy the tuples most of the rest. Kernels allocate nothing and keep nothing, so
there is nothing to count; and their steps are compiled into them, so that there is nothing to copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

__all__ = ["kernel", "step"]

Kernel = TypeVar("Kernel", bound=Callable[..., object])


_OPTIONS: Any = {"cache": True, "nogil": True, "error_model": "numpy", "_nrt": False}


def kernel(function: Kernel) -> Kernel:
    """Compile a function that allocates no array; later processes read the machine code from numba's disk cache."""
    return cast(Kernel, numba.njit(**_OPTIONS)(function))


def step(function: Kernel) -> Kernel:
    """Compile a part of kernels into each of them: a call would copy the tuples, which takes longer than the step."""
    return cast(Kernel, numba.njit(forceinline=True, **_OPTIONS)(function))
