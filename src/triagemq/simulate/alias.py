"""Walker's alias method: one uniform number chooses among any number of weighted things in constant time."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from triagemq.scenario import Floats, Integers
from triagemq.simulate.kernel import step

__all__ = ["alias_table", "draw_alias"]


def alias_table(weights: ArrayLike) -> tuple[Floats, Integers]:
    """For each thing, the share of its own cell that it keeps, and who has the rest (Vose 1991).

    >>> share, alias = alias_table([1.0, 3.0])
    >>> share.tolist(), alias.tolist()
    ([0.5, 1.0], [1, 1])
    """
    weight = np.asarray(weights, dtype=np.float64)
    share = np.ones(len(weight))
    alias = np.arange(len(weight), dtype=np.int32)
    if len(weight) == 0:
        return share, alias
    scaled = weight * (len(weight) / weight.sum())
    small = [index for index in range(len(weight)) if scaled[index] < 1]
    large = [index for index in range(len(weight)) if scaled[index] >= 1]
    while small and large:
        less, more = small.pop(), large[-1]
        share[less], alias[less] = scaled[less], more
        scaled[more] -= 1 - scaled[less]
        if scaled[more] < 1:
            small.append(large.pop())
    # What is left over differs from a full cell by rounding only.
    return share, alias


@step
def draw_alias(share: Floats, alias: Integers, first: int, count: int, drawn: float) -> int:
    """The place chosen by a uniform number among `count` places from `first` on."""
    place = min(int(drawn * count), count - 1)
    if drawn * count - place > share[first + place]:
        return alias[first + place]  # type: ignore[no-any-return]
    return place
