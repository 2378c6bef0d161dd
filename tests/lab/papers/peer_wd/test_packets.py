"""PEER-WD with five real brokers in a box."""

from __future__ import annotations

import json

import numpy as np
import pytest

from triagemq.lab.papers import reproduce
from triagemq.lab.papers.peer_wd.network import EDGES, experiment_scenario, table_7
from triagemq.lab.papers.peer_wd.packets import SCALE, WAY_SECONDS, boxed_scenario
from triagemq.plan.clusters import BrokerClusters


def test_brokers_have_the_loads_of_the_paper_and_events_may_wait_as_long() -> None:
    paper, small = experiment_scenario()[0], boxed_scenario("ours")[0]
    placed = table_7(paper)
    assert BrokerClusters.of(small).use(placed) == pytest.approx(
        BrokerClusters.of(paper).use(placed), rel=1e-9
    )
    limits = paper.subscriptions.max_latency_seconds - small.subscriptions.max_latency_seconds
    assert limits == pytest.approx(np.full(len(limits), WAY_SECONDS))
    assert (small.subscribers.broker == placed.subscriptions).all()
    everyone = boxed_scenario("peer")[0]
    assert {everyone.brokers.name[row] for row in everyone.subscribers.broker.tolist()} == {"b1"}


@pytest.mark.slow
@pytest.mark.needs_root("it makes namespaces of the network")
def test_real_brokers_relieve_each_other_and_nobody_misses_an_event_or_gets_one_twice() -> None:
    made = reproduce("peer-wd", "3", packets=True, quick=True)
    figures = json.loads(json.dumps(made.as_json(), allow_nan=False))["figures"]["ours"]
    assert figures["scale"] == SCALE
    # When a client moves, and how long each waits, is up to the machine, too.
    assert "b1" in {each["source"] for each in figures["migrations"]}
    assert {each["target"] for each in figures["migrations"]} <= set(EDGES)
    assert figures["delivered_events"] > 0
    assert (figures["missing_events"], figures["repeated_events"]) == (0, 0)
