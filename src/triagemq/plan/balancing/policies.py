"""The policies by name: by deadlines, and without migrations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

from triagemq.plan.balancing.balancer import Balancer
from triagemq.plan.balancing.events import Completed, LoadReport, Migration
from triagemq.plan.campus import Campus
from triagemq.plan.planner import resolve


class BalancingPolicy(Protocol):
    """Who decides about migrations."""

    def handle(self, event: LoadReport | Completed) -> tuple[Migration, ...]:
        """What is to be done after this has happened."""


class Unbalanced:
    """Everybody stays."""

    def handle(self, event: LoadReport | Completed) -> tuple[Migration, ...]:
        return ()


BALANCINGS: Mapping[str, Callable[[Campus], BalancingPolicy]] = MappingProxyType(
    {"ours": Balancer, "none": lambda campus: Unbalanced()}
)


def balancing_policy(name: str) -> Callable[[Campus], BalancingPolicy]:
    """The policy of that name, or of your own as `module:function`. ParameterError if there is none.

    >>> balancing_policy("fair")
    Traceback (most recent call last):
    triagemq.errors.ParameterError: balancing: 'fair' is unknown; known: ours, none, or your own as module:function
    """
    return resolve("balancing", name, BALANCINGS)
