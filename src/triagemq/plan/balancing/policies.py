"""The policies by name: ours, PEER, and nobody moves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

from triagemq.errors import ParameterError
from triagemq.plan.balancing.balancer import Balancer
from triagemq.plan.balancing.events import Completed, LoadReport, Migration
from triagemq.plan.balancing.peer import Peer
from triagemq.plan.campus import Campus


class BalancingPolicy(Protocol):
    """Who decides about migrations."""

    def handle(self, event: LoadReport | Completed) -> tuple[Migration, ...]:
        """What is to be done after this has happened."""


class Unbalanced:
    """Everybody stays."""

    def handle(self, event: LoadReport | Completed) -> tuple[Migration, ...]:
        return ()


BALANCINGS: Mapping[str, Callable[[Campus], BalancingPolicy]] = MappingProxyType(
    {"ours": Balancer, "peer": Peer, "none": lambda campus: Unbalanced()}
)


def check_balancing(name: str) -> None:
    """ParameterError if there is no policy of that name.

    >>> check_balancing("fair")
    Traceback (most recent call last):
    triagemq.errors.ParameterError: balancing: is 'fair'; known: ours, peer, none
    """
    if name not in BALANCINGS:
        raise ParameterError("balancing", f"is {name!r}; known: {', '.join(BALANCINGS)}")
