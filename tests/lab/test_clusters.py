"""Clusters over time: fluids are conserved, uplinks shared, queues left behind are emptied, and deadlines judged."""

from __future__ import annotations

import numpy as np
import pytest
from tests.plan.clusters import campus_scenario

from triagemq.errors import ParameterError
from triagemq.lab.clusters import simulate_clusters
from triagemq.lab.clusters.sharing import shared
from triagemq.plan.balancing.detection import Completed, LoadReport, Migration
from triagemq.plan.clusters import BrokerClusters, Metric
from triagemq.scenario.conditions import Condition, Conditions


class Moving:
    """Moves everybody of a topic to another broker at a given time."""

    def __init__(self, clusters: BrokerClusters, topic: int, target: int, at_seconds: float) -> None:
        self._rows = np.flatnonzero(clusters.scenario.subscriptions.topic == topic).astype(np.int32)
        self._target, self._at = target, at_seconds
        self.completed: list[float] = []

    def handle(self, event: LoadReport | Completed) -> tuple[Migration, ...]:
        if isinstance(event, Completed):
            self.completed.append(event.at_seconds)
        elif event.at_seconds == self._at:
            source = int(event.placement.subscriptions[self._rows[0]])
            return (
                Migration(1, self._at, source, self._target, Metric.UPLINK, "as the test says", self._rows),
            )
        return ()


def test_capacity_is_shared_by_weights_and_what_one_leaves_goes_to_the_others() -> None:
    broker = np.array([0, 0, 0, 1], dtype=np.int32)
    given = shared(
        np.array([1.0, 9.0, 9.0, 3.0]), np.array([1.0, 1.0, 3.0, 1.0]), broker, np.array([9.0, 2.0])
    )
    assert given.tolist() == [1.0, 2.0, 6.0, 2.0]


def test_a_queue_grows_by_what_is_too_much_and_everything_else_arrives() -> None:
    # 2 topics of 4 Mbit/s on an uplink of 8; the first then doubles for 10 s and the broker has half of that too much.
    scenario = campus_scenario(
        edges=((8e6,),), rates=[[250, 250]], subscribers=[[2, 2]], max_latency_seconds=[3.0, 3.0]
    )
    burst = Conditions(
        (Condition(10.0, topic="t00", rate_factor=2.0), Condition(20.0, topic="t00", rate_factor=0.5))
    )
    result = simulate_clusters(scenario, burst, balancing="none", seconds=60)
    waiting = result.topic_queue(0)
    assert waiting[9] == 0
    # Of 1000 events/s to two subscribers 500 are served.
    assert waiting[19] == pytest.approx(10 * 500, rel=1e-6)
    assert result.topic_queue(1).max() == 0, "who keeps to the stated rate does not wait"
    # From then on 250 come and 500 are served, so that 5000 take 20 s.
    assert waiting[38] > 0
    assert waiting[40] == 0
    assert result.arrived_events.sum() == pytest.approx(2 * (250 * 60 + 2500 - 5000) + 2 * 250 * 60)
    assert result.overload_seconds[1] == pytest.approx(30, abs=0.2)
    # What comes at second t of the burst waits t seconds, what comes s seconds after it 10 - s / 2: of each of both
    # subscribers 7 s of 500 events and 14 s of 125 are late.
    assert result.late_events.sum() == pytest.approx(2 * (7 * 500 + 14 * 125), rel=1e-3)
    assert result.longest_wait_seconds.max() == pytest.approx(10, rel=0.02)


def test_who_moves_gets_what_waits_at_the_old_broker_before_it_is_left() -> None:
    scenario = campus_scenario(edges=((8e6, 8e6),), rates=[[600, 600]], subscribers=[[1, 1]])
    policies: list[Moving] = []

    def moving(clusters: BrokerClusters) -> Moving:
        policies.append(Moving(clusters, 0, 2, 10.0))
        return policies[0]

    result = simulate_clusters(scenario, balancing=moving, seconds=30)
    # 200 events/s too many for 10 s, half of them of each topic; of these 1000 half the uplink takes 500/s.
    assert result.queue_events[9].sum() == pytest.approx(2000, rel=1e-6)
    assert result.queue_events[10, 0] == 0, "nothing waits at the new one"
    assert policies[0].completed == [12.0]
    assert result.use[-1, Metric.UPLINK, 1:].tolist() == pytest.approx([0.6, 0.6])
    assert result.queue_events[-1].sum() == 0
    assert result.moved_subscriptions == 1


def test_ours_keeps_deadlines_that_nobody_else_would_and_moves_nobody_without_need() -> None:
    scenario = campus_scenario(
        edges=((8e6, 8e6),),
        rates=[[400, 400]],
        subscribers=[[1, 1]],
        max_latency_seconds=[2.0, 20.0],
    )
    burst = Conditions((Condition(10.0, topic="t00", rate_factor=1.8),))
    ours, nothing = (
        simulate_clusters(scenario, burst, balancing=name, seconds=60) for name in ("ours", "none")
    )
    assert ours.late_subscriptions == 0 < nothing.late_subscriptions
    assert len(ours.moved) == 1
    assert ours.needless == 0
    assert ours.queue_events[-1].sum() == 0
    calm = simulate_clusters(scenario, balancing="ours", seconds=30)
    assert not calm.moved


def test_a_head_that_takes_less_than_comes_makes_everyone_wait() -> None:
    scenario = campus_scenario(
        edges=((80e6,),), heads=(4e6,), rates=[[625]], subscribers=[[1]], max_latency_seconds=[1.0]
    )
    result = simulate_clusters(scenario, balancing="none", seconds=20)
    # 5 Mbit/s on 4: four fifths come, and after 4 s the wait in front of the head is a second.
    assert result.arrived_events.sum() == pytest.approx(0.8 * 625 * 20, rel=0.01)
    assert result.use[-1, Metric.UPLINK, 0] == pytest.approx(1.25)
    assert result.overload_seconds[0] == pytest.approx(20, abs=0.1)


def test_who_leaves_takes_what_waits_along_and_a_publisher_that_fails_publishes_nothing() -> None:
    scenario = campus_scenario(edges=((8e6,),), rates=[[1250, 100]], subscribers=[[1, 1]])
    name, publisher = scenario.subscribers.name[0], scenario.publishers.name[1]
    happens = Conditions(
        (
            Condition(10.0, subscriber=name, state="leaves"),
            Condition(15.0, publisher=publisher, state="fails"),
        )
    )
    result = simulate_clusters(scenario, happens, balancing="none", seconds=20)
    assert result.queue_events[9].sum() > 0
    assert result.queue_events[10].sum() == 0
    assert result.use[-1, Metric.UPLINK, 1] == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"balancing": "best"}, "balancing: 'best' is unknown; known: ours, none"),
        ({"sharing": "fifo"}, "sharing: is 'fifo'; known: stated, topics, subscriptions"),
        ({"seconds": 0.5}, "seconds: is 0.5; at least 1 is needed"),
        ({"step_seconds": 0.3}, "step_seconds: is 0.3; 1 s is to be a multiple of it"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_line(options: dict[str, object], words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        simulate_clusters(campus_scenario(rates=[[1]], subscribers=[[1]]), **options)  # type: ignore[arg-type]
