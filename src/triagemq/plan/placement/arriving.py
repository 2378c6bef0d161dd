"""Subscribers that come to a campus one by one, each with all its topics to one edge, by the rules for all at once.

Where a broker serves a topic already, another subscriber costs it no more of its downlink and its matching.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from triagemq.plan.balancing.settings import Thresholds
from triagemq.plan.campus import Campus, Metric, Placement


class Newcomers:
    """`take` says where each is to be served, and counts it there."""

    def __init__(self, campus: Campus, placement: Placement) -> None:
        """Beside those who are served as `placement` says; subscriptions at broker -1 are nowhere."""
        topic, broker = campus.scenario.subscriptions.topic, placement.subscriptions
        served = broker >= 0
        self._campus = campus
        self._use = campus.use(placement, present=served)
        self._serves = np.zeros((len(campus.cluster), len(campus.scenario.topics)), dtype=np.bool_)
        self._serves[broker[served], topic[served]] = True
        events, size = campus.published(placement)
        self._need = np.stack([size.sum(axis=0), events.sum(axis=0)])

    def take(self, topics: Sequence[int], brokers: Sequence[int]) -> int:
        """Of these brokers, the one that is to serve these topics to one more subscriber.

        Among those that stay in LOW it is the one to which least has to come that it has not; then, or if none stays
        there, the one whose most used metric stays lowest.
        """
        wanted, edges = np.array(topics, dtype=np.int64), np.array(brokers, dtype=np.int64)
        size, events = self._need[:, wanted]
        new = ~self._serves[np.ix_(edges, wanted)]
        asked = np.stack([new @ size, new @ events, np.full(len(edges), size.sum())])
        after = self._use[:, edges] + asked / self._campus.capacity[:, edges]
        most = after.max(axis=0)
        anew = np.where(most < Thresholds().low, asked[Metric.DOWNLINK], np.inf)
        best = int(np.lexsort((most, anew))[0])
        self._use[:, edges[best]] = after[:, best]
        self._serves[edges[best], wanted] = True
        return int(edges[best])
