"""Drops as planned: a policy with one rate for everyone, and what share may be delivered under it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from triagemq.exchange.gateway import Policy

DROP_RATE = 0.67


@dataclass(frozen=True)
class OneDropRate(Policy):
    rate: float = DROP_RATE

    def drop_rate(self, client_id: str, topic: str) -> float:
        return self.rate


def is_as_planned(delivered: int, published: int) -> bool:
    """Within the binomial distribution of the plan: beyond four standard deviations lie 6 of 100,000 runs."""
    share = 1 - DROP_RATE
    return abs(delivered - published * share) < 4 * math.sqrt(published * share * DROP_RATE)
