"""The first copy of a publication at an idle port: it starts at once, whatever its class, and the others wait for it.

Copies come in random order. Place each at a uniform point of (0, 1): copy j at 1 - z is the first if every other one
that survives lies behind it, with probability z each. Copy i comes to the port with probability k_i, so

    q_rj = integral over z from 0 to 1 of z prod_{i != r, j} (1 - k_i + k_i z)

is the chance that j is the first, given that r and j are there; it is also that of r. The product is one per batch
divided by two factors, so at each node of a quadrature sums by class are enough, and no pair is ever visited.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triagemq.theory.ladder import Ladder

__all__ = ["FirstCopies", "first_copies"]

# Gauss-Legendre with n nodes is exact for 2n copies. Beyond 16 the integrand falls like exp(-m t) from t = 1 - z = 0
# with m copies expected: 12/m of the way holds all of it but 1e-5.
_NODES = 8
_DECAY = 12.0


@dataclass(frozen=True, slots=True)
class FirstCopies:
    """Per copy r: how many copies of lower classes come before all others, and how many of higher ones r comes before.

    `lower` is the sum of k_j q_rj over the copies below r, `higher` the same sum over those above it.
    """

    lower: NDArray[np.float64]
    higher: NDArray[np.float64]


def first_copies(batches: Ladder, keep: NDArray[np.float64]) -> FirstCopies:
    """The sums over pairs for every copy; a batch is a group of the ladder, `keep` each copy's chance to be there.

    Three copies, each first in a third of the cases:

    >>> from triagemq.theory.ladder import build_ladder
    >>> first_copies(build_ladder(np.zeros(3, np.int64), np.array([0, 1, 1])), np.ones(3)).lower.round(3)
    array([0.667, 0.   , 0.   ])
    """
    lower, higher = np.zeros(keep.size), np.zeros(keep.size)
    # Only a batch of several classes has copies that come first out of turn.
    mixed = batches.steps_above + batches.steps_below > 0
    rows = np.flatnonzero(mixed[batches.step_of_row])
    if not rows.size:
        return FirstCopies(lower, higher)
    number = np.cumsum(mixed) - 1
    step = number[batches.step_of_row[rows]]
    ladder = Ladder(step, batches.steps_above[mixed], batches.steps_below[mixed])
    batch_of_step = np.cumsum(ladder.steps_above == 0) - 1
    kept, batch = keep[rows], batch_of_step[step]
    width = np.minimum(1.0, _DECAY / np.maximum(np.bincount(batch, kept), 1.0))
    points, weights = np.polynomial.legendre.leggauss(min(_NODES, (int(np.bincount(batch).max()) + 1) // 2))
    below, above = np.zeros(rows.size), np.zeros(rows.size)
    for point, weight in zip(points, weights, strict=True):
        distance = 0.5 * (1.0 + point) * width
        factor = 1.0 - kept * distance[batch]
        product = np.exp(np.bincount(batch, np.log(factor)))
        share = (0.5 * weight * width * (1.0 - distance) * product)[batch] / factor
        present = ladder.total(kept / factor)
        below += share * ladder.below(present)[step]
        above += share * ladder.above(present)[step]
    lower[rows], higher[rows] = below, above
    return FirstCopies(lower, higher)
