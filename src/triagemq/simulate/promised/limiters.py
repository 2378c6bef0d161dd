"""Limiters where promised messages enter the network: windows, as our data planes have, or token buckets."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triagemq.compiled import step
from triagemq.plan.instructions import LIMITER_PACKETS
from triagemq.scenario import Floats
from triagemq.simulate.records import Record

_SLACK_SECONDS = 2e-9
"""Times of publication are whole nanoseconds: a message may come this much before its limiter is ready again."""

_SLACK_BYTES = 1e-3
"""What rounding may take from a message over thousands of packets."""


class LimiterStates(NamedTuple):
    """Of each publication: the tokens in its bucket at a time, `since`. Or, of its window, the octets that have ever
    passed, and the last packets in a ring (so many from `first` on): when their places are due again, and how many
    octets had passed with each."""

    octets: Floats
    since: Floats
    passed: NDArray[np.float64]
    first: NDArray[np.int64]
    remembered: NDArray[np.int64]


def new_limiters(publications: int) -> LimiterStates:
    """Nothing has passed."""
    return LimiterStates(
        octets=np.zeros(publications),
        since=np.full(publications, -np.inf),
        passed=np.zeros((publications, LIMITER_PACKETS, 2)),
        first=np.zeros(publications, dtype=np.int64),
        remembered=np.zeros(publications, dtype=np.int64),
    )


@step
def passes(limiters: LimiterStates, publication: int, limiter: Record, wire: float, time: float) -> bool:
    """Whether the limiter of a publication has room for a packet; if it has, the packet takes it."""
    if limiter.burst_bytes == np.inf:
        return True
    if limiter.separation_seconds > 0.0:
        return _passes_window(limiters, publication, limiter, wire, time)
    tokens = limiters.octets[publication] + (time - limiters.since[publication]) * limiter.rate
    tokens = min(limiter.burst_bytes, tokens)
    within = wire <= tokens + _SLACK_SECONDS * limiter.rate + _SLACK_BYTES
    limiters.octets[publication] = tokens - wire if within else tokens
    limiters.since[publication] = time
    return within  # type: ignore[no-any-return]


@step
def _passes_window(
    limiters: LimiterStates, publication: int, limiter: Record, wire: float, time: float
) -> bool:
    """The steps of network/embedded/window.py."""
    passed, first = limiters.passed[publication], limiters.first[publication]
    remembered, due = limiters.remembered[publication], time
    up_to = limiters.octets[publication] + wire
    needed = up_to - limiter.burst_bytes - _SLACK_BYTES
    if wire > limiter.burst_bytes + _SLACK_BYTES:
        return False
    if needed > 0.0:
        while passed[first, 1] < needed:
            first = (first + 1) % LIMITER_PACKETS
            remembered -= 1
        due = max(time, passed[first, 0])
        limiters.first[publication], limiters.remembered[publication] = first, remembered
        if due > time + limiter.jitter_seconds + _SLACK_SECONDS:
            return False
    last = (first + remembered) % LIMITER_PACKETS
    passed[last, 0], passed[last, 1] = due + limiter.separation_seconds, up_to
    if remembered < LIMITER_PACKETS:
        limiters.remembered[publication] = remembered + 1
    else:
        limiters.first[publication] = (first + 1) % LIMITER_PACKETS
    limiters.octets[publication] = up_to
    return True
