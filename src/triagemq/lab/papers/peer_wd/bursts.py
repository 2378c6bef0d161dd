"""Correlated bursts: topics that move together on one broker, or apart (PEER-WD 4.1).

The paper states the principle and shows no figure. Here topics of five groups burst group by group; how they correlate
is worked out from counts of earlier bursts, as the pipeline does, and no client moves, so that placement alone decides.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from triagemq.lab.clusters import ALL_PLACEMENTS, simulate_clusters
from triagemq.lab.papers.experiment import (
    Claim,
    Effort,
    Experiment,
    Findings,
    Panel,
    PrintedTable,
    Progress,
    Series,
    percent,
    tracked,
)
from triagemq.lab.papers.peer_wd.network import (
    EDGE_MBPS,
    EVENTS_PER_SECOND,
    TopicSpecifications,
    experiment_scenario,
    topic_name,
)
from triagemq.plan.placement import Correlations, place
from triagemq.scenario import Floats, Scenario
from triagemq.scenario.conditions import Condition, Conditions

GROUPS, TOPICS_PER_GROUP = 5, 8
LOAD, BURST_FACTOR = 0.5, 4.0
"""What all topics offer to all uplinks without a burst, and how much more a group publishes in one: spread evenly, 80 %
are offered in a burst."""

BURST_LENGTH, SECONDS, HISTORY_SECONDS = 10, 120, 600
ALGORITHMS = ("apart", "least_used", "round_robin", "random")


def bursting(seed: int) -> tuple[Scenario, Conditions, Correlations]:
    """A scenario of Table 5's brokers, bursts of one group after another, and what counts of before say of topics."""
    draw = np.random.default_rng(seed)
    topics = GROUPS * TOPICS_PER_GROUP
    group = draw.permutation(np.repeat(np.arange(GROUPS), TOPICS_PER_GROUP))
    publishers, subscribers = draw.integers(1, 6, topics), draw.integers(1, 9, topics)
    size = 100 * draw.integers(2, 11, topics)
    offered = 8 * EVENTS_PER_SECOND * float((publishers * subscribers * size).sum())
    scale = LOAD * 1e6 * sum(EDGE_MBPS) / offered
    table = TopicSpecifications(
        publishers=tuple(int(each) for each in publishers),
        subscribers=tuple(int(each) for each in subscribers),
        latency_seconds=(2.0,) * topics,
        size_bytes=tuple(int(each) for each in size),
        events_per_second=scale * EVENTS_PER_SECOND,
    )
    scenario, _ = experiment_scenario(table)
    rate = scale * EVENTS_PER_SECOND * publishers
    history = _factors(draw, HISTORY_SECONDS)[:, group]
    counts = draw.poisson(rate * history)
    ahead = _factors(draw, SECONDS)
    changes = [
        Condition(float(second), topic=topic_name(topic + 1), rate_factor=float(ahead[second, group[topic]]))
        for second in range(SECONDS)
        for topic in range(topics)
        if second == 0 or ahead[second, group[topic]] != ahead[second - 1, group[topic]]
    ]
    return scenario, Conditions(tuple(changes)), _correlations(counts)


def _factors(draw: np.random.Generator, seconds: int) -> Floats:
    """Per second and group, how much of its usual rate is published: one group at a time bursts, in random order."""
    factors = np.ones((seconds, GROUPS))
    for begin in range(BURST_LENGTH, seconds, 2 * BURST_LENGTH):
        factors[begin : begin + BURST_LENGTH, draw.integers(GROUPS)] = BURST_FACTOR
    return factors


def _correlations(counts: NDArray[np.int64]) -> Correlations:
    matrix = np.asarray(np.corrcoef(counts.T))
    pairs = np.array(list(combinations(range(counts.shape[1]), 2)), dtype=np.int32)
    return Correlations(pairs[:, 0], pairs[:, 1], matrix[pairs[:, 0], pairs[:, 1]])


def overload_seconds(seed: int) -> dict[str, float]:
    """How long brokers were overloaded in all, by how topics were placed."""
    scenario, conditions, correlations = bursting(seed)
    return {
        name: float(
            simulate_clusters(
                scenario,
                conditions,
                placement=place(
                    scenario, name, correlations=correlations, seed=seed, known=ALL_PLACEMENTS
                ).placement,
                balancing="none",
                seconds=SECONDS,
                step_seconds=0.2,
            ).overload_seconds.sum()
        )
        for name in ALGORITHMS
    }


def _placements(effort: Effort, progress: Progress) -> Findings:
    found = [overload_seconds(seed) for seed, _ in tracked(range(effort.seeds), progress)]
    total = {name: sum(each[name] for each in found) for name in ALGORITHMS}
    share = total["apart"] / total["least_used"] if total["least_used"] else np.nan
    return Findings(
        tables=(
            PrintedTable.of(
                f"broker-seconds of overload in {effort.seeds} times {SECONDS} s",
                ALGORITHMS,
                ("placement", str),
                ("overload", lambda name: f"{total[name]:.0f} s"),
                (
                    "beside least used",
                    lambda name: percent(total[name] / total["least_used"]) if total["least_used"] else "-",
                ),
            ),
        ),
        panels=(
            Panel(
                "overload by seed",
                "seed",
                "broker-seconds",
                tuple(
                    Series.of(name, range(effort.seeds), [each[name] for each in found])
                    for name in ALGORITHMS
                ),
            ),
        ),
        differences=(),
        claims=(
            Claim(
                "with correlated topics apart, overload takes at most half as long as with the least used broker alone",
                bool(share <= 0.5),
                percent(float(share)),
            ),
        ),
        figures={"overload_seconds": total, "by_seed": found},
    )


PEER_WD_BURSTS = Experiment(
    "placement of topics that burst together: overload time", _placements, Effort(seeds=20), Effort(seeds=3)
)
