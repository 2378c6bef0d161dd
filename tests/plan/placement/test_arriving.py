"""Subscribers that come one by one go where all at once would have been placed."""

from __future__ import annotations

import numpy as np
import pytest
from tests.plan.campuses import campus_scenario

from triagemq.plan.campus import Campus, Metric, Placement
from triagemq.plan.placement import Newcomers


def campus_of(*rates: float) -> Campus:
    """Two edges of 8 Mbit/s (rows 1 and 2), and topics of so many events of 1,000 bytes."""
    return Campus.of(campus_scenario(rates=[list(rates)], subscribers=[[1] * len(rates)]))


def arrivals(campus: Campus, *brokers: int) -> Newcomers:
    return Newcomers(campus, Placement(np.array(brokers, dtype=np.int32), campus.stated.publications))


def test_one_goes_where_its_topics_come_already_as_long_as_that_stays_in_low() -> None:
    campus = campus_of(200, 50)
    coming = arrivals(campus, 1, 2)
    # 1.6 Mbit/s each: the first edge has 1.6, and takes three more below 7.2.
    assert [coming.take([0], [1, 2]) for _ in range(6)] == [1, 1, 1, 2, 2, 2]


def test_without_topics_or_with_new_ones_it_is_the_least_used() -> None:
    campus = campus_of(200, 50, 10)
    coming = arrivals(campus, 1, 2, -1)
    assert coming.take([], [1, 2]) == 2
    assert coming.take([2], [1, 2]) == 2


def test_whoever_comes_is_counted() -> None:
    campus = campus_of(200, 50)
    coming = arrivals(campus, -1, -1)
    homes = np.array([coming.take([topic], [1, 2]) for topic in (0, 1)], dtype=np.int32)
    assert sorted(homes.tolist()) == [1, 2]
    after = campus.use(Placement(homes, campus.stated.publications))
    assert coming._use[Metric.UPLINK] == pytest.approx(after[Metric.UPLINK])
