"""Networks with guaranteed subscriptions: small ones by hand, others at random."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from triagemq.scenario import (
    Brokers,
    OutputPorts,
    Publications,
    Publishers,
    Scenario,
    SizeDistribution,
    Subscribers,
    Subscriptions,
    Switches,
    Topics,
)
from triagemq.scenario.model import filled


@dataclass(frozen=True)
class Wish:
    """A topic with one publisher and one guaranteed subscriber, plugged into these switches."""

    size_bytes: float
    separation_seconds: float
    max_latency_seconds: float
    source: int = 0
    target: int = 0


def _network(
    wishes: Sequence[Wish],
    *,
    switches: int = 1,
    bps: float = 1e9,
    access_bps: float | None = None,
    ring: bool = False,
    one_port: bool = True,
    publishers: int | None = None,
    utility_subscribers: int = 0,
    queues: int = 0,
    **switch_columns: object,
) -> Scenario:
    """Switches in a row, each with a link to the next and back (and the last to the first in a `ring`).

    All subscribers of a switch share its port `out`, or have one each; publishers are shared round robin.
    """
    count = len(wishes)
    names = [f"s{each}" for each in range(switches)]
    pairs = [(each, each + 1) for each in range(switches - 1)] + ([(switches - 1, 0)] if ring else [])
    trunks = [pair for first, second in pairs for pair in ((first, second), (second, first))]
    ends = list(range(switches)) if one_port else [wish.target for wish in wishes]
    port_names = [f"s{first}-s{second}" for first, second in trunks]
    port_names += [f"out{each}" for each in range(len(ends))]
    port_switch = [first for first, _ in trunks] + ends
    to_switch = [second for _, second in trunks] + [-1] * len(ends)
    own_port = [len(trunks) + (wish.target if one_port else number) for number, wish in enumerate(wishes)]
    people = publishers or max(count, 1)
    utility = range(utility_subscribers)
    subscriber_count = count + utility_subscribers
    topics = [f"t{number:04}" for number in range(count)] + [f"u{number:04}" for number in utility]
    return Scenario.of(
        name="promises",
        topics=Topics(tuple(topics)),
        brokers=filled(Brokers, 1, name=("broker",)),
        switches=filled(Switches, switches, name=tuple(names), **switch_columns),
        ports=filled(
            OutputPorts,
            len(port_names),
            name=tuple(port_names),
            switch=port_switch,
            bandwidth_bps=bps,
            queues=queues,
            to_switch=to_switch,
        ),
        publishers=filled(
            Publishers,
            people,
            name=tuple(f"p{each:04}" for each in range(people)),
            broker=0,
            access_switch=[wishes[each % max(count, 1)].source if count else 0 for each in range(people)],
            access_bps=bps if access_bps is None else access_bps,
        ),
        publications=filled(
            Publications,
            len(topics),
            publisher=[number % people for number in range(len(topics))],
            topic=np.arange(len(topics)),
            rate_per_second=[0.8 / wish.separation_seconds for wish in wishes] + [50.0] * utility_subscribers,
            size_bytes=[wish.size_bytes for wish in wishes] + [800.0] * utility_subscribers,
            size_distribution=SizeDistribution.CONSTANT,
            min_separation_seconds=[wish.separation_seconds for wish in wishes] + [0.0] * utility_subscribers,
            max_size_bytes=[wish.size_bytes for wish in wishes] + [np.inf] * utility_subscribers,
        ),
        subscribers=filled(
            Subscribers,
            subscriber_count,
            name=tuple(f"w{each:04}" for each in range(subscriber_count)),
            broker=0,
            port=own_port + [len(trunks)] * utility_subscribers,
        ),
        subscriptions=filled(
            Subscriptions,
            subscriber_count,
            subscriber=np.arange(subscriber_count),
            topic=np.arange(subscriber_count),
            utility_weight=[0.0] * count + [1.0] * utility_subscribers,
            max_latency_seconds=[wish.max_latency_seconds for wish in wishes]
            + [np.inf] * utility_subscribers,
            guaranteed=[1] * count + [0] * utility_subscribers,
        ),
        overhead_bytes=46.0,
    )


MIDAS = (Wish(192_192, 3e-3, 2e-3), Wish(96_000, 3e-3, 3e-3), Wish(64_000, 11e-3, 8e-3))
"""MIDAS, Table II."""


@pytest.fixture(scope="session")
def make_network() -> Callable[..., Scenario]:
    return _network


@pytest.fixture(scope="session")
def wish() -> type[Wish]:
    return Wish


@pytest.fixture(scope="session")
def midas() -> tuple[Wish, ...]:
    return MIDAS
