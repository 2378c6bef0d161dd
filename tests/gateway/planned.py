"""Drops as planned: a policy with one rate for everyone, and what share may be delivered under it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from triagemq.gateway.core import Policy
from triagemq.plan.dataplane import Treatment

DROP_RATE = 0.67


@dataclass(frozen=True)
class OneDropRate(Policy):
    rate: float = DROP_RATE

    def treatment(self, client_id: str, topic: str) -> Treatment:
        return super().treatment(client_id, topic)._replace(drop_rate=self.rate)


@dataclass(frozen=True)
class ByClient(Policy):
    """How each client is treated, by the id it has."""

    treated: Mapping[str, Treatment] = field(default_factory=dict)

    def treatment(self, client_id: str, topic: str) -> Treatment:
        return self.treated.get(client_id, Treatment(0))


def is_as_planned(delivered: int, published: int) -> bool:
    """Within the binomial distribution of the plan: beyond four standard deviations lie 6 of 100,000 runs."""
    share = 1 - DROP_RATE
    return abs(delivered - published * share) < 4 * math.sqrt(published * share * DROP_RATE)
