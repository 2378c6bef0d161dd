"""Random numbers by counter: a draw is a function of (seed, purpose, who draws), never of what was drawn before.

Each purpose has its own seed, and each draw its own counter (the number of an event, of a copy, of a packet). So the
order in which the simulator visits its queues changes nothing: any block size and any number of threads give the
same run to the last bit, two plans see the same publications, and the coin that decides whether a copy is dropped
is the same under both. The generator is SplitMix64 (Steele, Lea, Flood 2014), which can jump to any counter. One
uniform number chooses among any number of weighted things in constant time, by Walker's alias method.
"""

from __future__ import annotations

import math
from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triagemq.compiled import draw, routine
from triagemq.scenario import Floats, Integers

Seeds = NDArray[np.uint64]

_WEYL = np.uint64(0x9E3779B97F4A7C15)
_FIRST_FACTOR = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_FACTOR = np.uint64(0x94D049BB133111EB)
_TO_UNIT = 2.0**-53

# Where the tail of the ziggurat begins, and the area of each of its layers (Marsaglia and Tsang 2000, 256 layers).
_TAIL_BEGINS = 7.69711747013104972
_LAYER_AREA = 0.0039496598225815571993


def _layer_edges() -> NDArray[np.float64]:
    """Right edges of the layers from the bottom up; the bottom one counts the tail as part of its width."""
    edges = [_LAYER_AREA * math.exp(_TAIL_BEGINS), _TAIL_BEGINS]
    while len(edges) < 256:
        edges.append(-math.log(math.exp(-edges[-1]) + _LAYER_AREA / edges[-1]))
    return np.array([*edges, 0.0])


_EDGES = _layer_edges()
_WIDTH = _EDGES[:256] * _TO_UNIT
_INSIDE = (_EDGES[1:] / _EDGES[:256] * 2.0**53).astype(np.uint64)
_HEIGHT = np.exp(-_EDGES)


class Purpose(IntEnum):
    """What a number is drawn for; one independent stream each."""

    ARRIVAL = 0
    CHOICE = 1
    SIZE = 2
    PUBLISHER_LINK = 3
    BROKER_INBOUND = 4
    BROKER_LINK = 5
    BROKER_OUTBOUND = 6
    SWITCH_INBOUND = 7
    DROP = 8
    PORT_LINK = 9
    SUBSCRIBER_LINK = 10
    SENDING_ORDER = 11


def seeds_for(seed: int, replication: int) -> Seeds:
    """One seed per purpose, for one replication of a run.

    >>> bool((seeds_for(1, 0) != seeds_for(1, 1)).all())
    True
    """
    sequence = np.random.SeedSequence([seed, replication])
    return np.asarray(sequence.generate_state(len(Purpose), np.uint64))


@draw
def bits(seed: np.uint64, counter: int) -> np.uint64:
    """64 random bits: number `counter` of the SplitMix64 sequence that starts at `seed`."""
    mixed = seed + np.uint64(counter) * _WEYL
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST_FACTOR
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND_FACTOR
    return mixed ^ (mixed >> np.uint64(31))


@draw
def split(seed: np.uint64, part: int) -> np.uint64:
    """The seed of a part of a purpose (a hop, a fragment); part 0 is the purpose itself."""
    return seed if part == 0 else bits(seed, part)


@draw
def uniform(seed: np.uint64, counter: int) -> float:
    """Uniform in (0, 1]: never 0, so that its logarithm is finite."""
    return float((bits(seed, counter) >> np.uint64(11)) + np.uint64(1)) * _TO_UNIT


@draw
def exponential(seed: np.uint64, counter: int) -> float:
    """Exponential with mean 1, by the ziggurat of Marsaglia and Tsang (2000): half the time of a logarithm.

    256 layers of equal area cover the density. The low byte chooses a layer, the high 53 bits a place across it; 99
    times of 100 that lies under the curve, and neither a logarithm nor a call is needed.
    """
    drawn = bits(seed, counter)
    layer = int(drawn & np.uint64(255))
    across = drawn >> np.uint64(11)
    if across < _INSIDE[layer]:
        return float(across) * _WIDTH[layer]  # type: ignore[no-any-return]
    return _outside(drawn, layer, float(across) * _WIDTH[layer])


@routine
def _outside(drawn: np.uint64, layer: int, place: float) -> float:
    """The rare cases: the tail beyond the last layer, which is an exponential again, and the corners of layers."""
    part = 1
    while True:
        if layer == 0:
            return _TAIL_BEGINS - math.log(uniform(drawn, part))
        height = _HEIGHT[layer] + uniform(drawn, part) * (_HEIGHT[layer + 1] - _HEIGHT[layer])
        if height < math.exp(-place):
            return place
        again = bits(drawn, part + 1)
        part += 2
        layer = int(again & np.uint64(255))
        across = again >> np.uint64(11)
        place = float(across) * _WIDTH[layer]
        if across < _INSIDE[layer]:
            return place


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


@draw
def draw_alias(share: Floats, alias: Integers, first: int, count: int, drawn: float) -> int:
    """The place chosen by a uniform number among `count` places from `first` on."""
    place = min(int(drawn * count), count - 1)
    if drawn * count - place > share[first + place]:
        return alias[first + place]  # type: ignore[no-any-return]
    return place
