"""Argument checks for the formulas: array-likes in, float64 or int64 arrays out, or a ParameterError."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triagemq.errors import ParameterError

# A product of five arguments stays far from the largest float64, so no formula can overflow to NaN.
LARGEST = 1e50
SMALLEST_POSITIVE = 1e-50
LARGEST_INTEGER = 2**62


def reals(
    parameter: str,
    value: ArrayLike,
    *,
    positive: bool = False,
    low: float = 0.0,
    high: float = LARGEST,
    infinite: bool = False,
) -> NDArray[np.float64]:
    """Return `value` as float64 after checking that every element lies in [low, high].

    `positive` excludes zero; `infinite` admits +inf beside the finite values.

    >>> reals("keep", [0, 0.5], high=1.0)
    array([0. , 0.5])
    >>> reals("keep", [0.2, 1.5], high=1.0)
    Traceback (most recent call last):
    triagemq.errors.ParameterError: keep: element 1 is 1.5; must be a number in [0, 1]
    """
    array = _numeric(parameter, value, "biuf").astype(np.float64)
    least = max(low, SMALLEST_POSITIVE) if positive else low
    good = (array >= least) & (array <= high)
    if infinite:
        good |= array == np.inf
    if not good.all():
        wanted = _interval(low, high, positive=positive) + (" or infinite" if infinite else "")
        raise ParameterError(parameter, f"{_first_offender(array, good)}; must be {wanted}")
    return array


def integers(parameter: str, value: ArrayLike, length: int) -> NDArray[np.int64]:
    """Return `value` as int64 after checking for `length` whole non-negative numbers.

    >>> integers("classes", [0, 3], 2)
    array([0, 3])
    >>> integers("classes", [0, 0.5], 2)
    Traceback (most recent call last):
    triagemq.errors.ParameterError: classes: element 1 is 0.5; must be a whole number, 0 or more
    """
    array = _numeric(parameter, value, "iuf")
    if array.shape != (length,):
        raise ParameterError(
            parameter, f"has shape {array.shape}; must hold one integer for each of {length} rows"
        )
    good = (array >= 0) & (array < LARGEST_INTEGER)
    if array.dtype.kind == "f":
        good &= array == np.floor(array)
    if not good.all():
        raise ParameterError(parameter, f"{_first_offender(array, good)}; must be a whole number, 0 or more")
    return array.astype(np.int64)


def per_row(
    parameter: str, value: ArrayLike, length: int | None = None, **bounds: Any
) -> NDArray[np.float64]:
    """Return `value`, within the bounds of `reals`, with one element per row.

    A scalar serves every row if the `length` is known.

    >>> per_row("scv", 1.0, 3)
    array([1., 1., 1.])
    >>> per_row("arrival_rates", np.zeros((2, 2)))
    Traceback (most recent call last):
    triagemq.errors.ParameterError: arrival_rates: has shape (2, 2); must be one-dimensional
    """
    array = reals(parameter, value, **bounds)
    if length is None:
        if array.ndim != 1:
            raise ParameterError(parameter, f"has shape {array.shape}; must be one-dimensional")
        return array
    if np.ndim(array) == 0:
        return np.full(length, array)
    if array.shape != (length,):
        raise ParameterError(parameter, f"has shape {array.shape}; must be a scalar or hold {length} values")
    return array


def broadcast(**arguments: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
    """Return the arguments at their common shape; the error names the first that does not fit.

    >>> first, second = broadcast(load=np.zeros(2), mean_service=np.ones(()))
    >>> second
    array([1., 1.])
    """
    shape: tuple[int, ...] = ()
    for parameter, array in arguments.items():
        try:
            shape = np.broadcast_shapes(shape, array.shape)
        except ValueError:
            raise ParameterError(
                parameter,
                f"has shape {array.shape}; does not broadcast with {shape} of the arguments before it",
            ) from None
    return tuple(np.broadcast_to(array, shape) for array in arguments.values())


def scalar_or_array(array: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a zero-dimensional result as a NumPy scalar, which prints and formats like a float.

    >>> f"{scalar_or_array(np.asarray(0.25)):.1%}"
    '25.0%'
    """
    unwrapped: NDArray[np.float64] = array[()]
    return unwrapped


def _numeric(parameter: str, value: ArrayLike, kinds: str) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise ParameterError(parameter, f"is not a regular array of numbers ({error})") from None
    if array.dtype.kind not in kinds:
        raise ParameterError(parameter, f"holds {array.dtype.name} values; must hold numbers")
    return array


def _first_offender(array: NDArray[Any], good: NDArray[np.bool_]) -> str:
    if array.ndim == 0:
        return f"is {array[()]}"
    index = tuple(int(i) for i in np.argwhere(~good)[0])
    where = index[0] if len(index) == 1 else index
    return f"element {where} is {array[index]}"


def _interval(low: float, high: float, *, positive: bool) -> str:
    if high < LARGEST:
        return f"a number in {'(' if positive else '['}{low:g}, {high:g}]"
    if positive:
        return f"a finite number above 0 (from {SMALLEST_POSITIVE:g} to {LARGEST:g})"
    return f"a finite number from {low:g} to {LARGEST:g}"
