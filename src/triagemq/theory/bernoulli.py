"""The smooth part of 1/(e^y - 1) near zero, for formulas whose two poles cancel.

1/(e^y - 1) = 1/y - 1/2 + remainder(y). Truncated geometric and exponential means subtract two such terms
and lose every digit as y goes to 0; written with the remainder nothing is left to cancel.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["SERIES_LIMIT", "remainder", "remainder_slope"]

# B_2n / (2n)!; at |y| <= 0.3 the first term left out is below 1e-17 of the sum.
_COEFFICIENTS = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000)
SERIES_LIMIT = 0.3


def remainder(y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return 1/(e^y - 1) - 1/y + 1/2 for |y| <= SERIES_LIMIT.

    >>> bool(np.isclose(remainder(np.float64(0.3)), 1 / np.expm1(0.3) - 1 / 0.3 + 0.5, rtol=1e-13))
    True
    """
    total = np.zeros_like(y)
    for coefficient in reversed(_COEFFICIENTS):
        total = total * y**2 + coefficient
    return total * y


def remainder_slope(y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the derivative 1/y^2 - 1/(4 sinh^2(y/2)) of the remainder for |y| <= SERIES_LIMIT.

    >>> float(remainder_slope(np.float64(0.0))) == 1 / 12
    True
    """
    total = np.zeros_like(y)
    for n, coefficient in reversed(list(enumerate(_COEFFICIENTS))):
        total = total * y**2 + (2 * n + 1) * coefficient
    return total
