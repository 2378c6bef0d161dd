"""Place the subscriptions of a scenario, and say why each topic is where it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from triagemq.errors import PlanError
from triagemq.plan.campus import CAPACITIES, Campus, Placement
from triagemq.plan.model import Decision
from triagemq.plan.placement.problem import NO_CORRELATIONS, STRONG, Correlations, PlacementProblem
from triagemq.plan.placement.spreading import PLACEMENTS, PlacementAlgorithm
from triagemq.plan.planner import resolve
from triagemq.scenario import Floats, Scenario


@dataclass(frozen=True, slots=True, eq=False)
class CampusPlan:
    """A placement, what made it, and how much of every broker it uses."""

    algorithm: str
    problem: PlacementProblem
    placement: Placement
    use: Floats

    @property
    def campus(self) -> Campus:
        return self.problem.campus

    @property
    def imbalance(self) -> float:
        """The most used metric of the most used edge, over the mean of all edges."""
        most = self.use.max(axis=0)[self.campus.edge]
        return float(most.max() / most.mean()) if most.any() else 1.0

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Topics that no edge serves in time."""
        names, problem = self.campus.scenario.topics.name, self.problem
        return tuple(
            Decision(
                "placement",
                names[problem.topic[row]],
                "",
                self.campus.scenario.brokers.name[self._brokers(row)[0]],
                "the way to every edge broker of the cluster takes longer than a subscriber allows",
            )
            for row in np.flatnonzero(problem.late).tolist()
        )

    def _brokers(self, bundle: int) -> list[int]:
        return [int(each) for each in np.unique(self.placement.subscriptions[self.problem.bundle == bundle])]

    def as_json(self) -> dict[str, Any]:
        """One object: what every broker has of topics and subscriptions, and how much of it is used."""
        scenario, served = self.campus.scenario, self.placement.subscriptions
        topic = scenario.subscriptions.topic
        rows = []
        for broker, name in enumerate(scenario.brokers.name):
            here = np.unique(topic[served == broker])
            published = scenario.publications.topic[self.placement.publications == broker]
            rows.append(
                {
                    "broker": name,
                    "cluster": scenario.brokers.cluster[broker],
                    "head": bool(scenario.brokers.head[broker]),
                    "subscriptions": int((served == broker).sum()),
                    "topics": [scenario.topics.name[each] for each in here],
                    "published_topics": len(np.unique(published)),
                    **{
                        f"{metric.name.lower()}_use": float(self.use[metric, broker]) for metric in CAPACITIES
                    },
                }
            )
        return {"placement": self.algorithm, "imbalance": self.imbalance, "brokers": rows}


def place(
    scenario: Scenario,
    algorithm: str = "apart",
    *,
    correlations: Correlations = NO_CORRELATIONS,
    seed: int = 0,
    known: Mapping[str, PlacementAlgorithm] = PLACEMENTS,
) -> CampusPlan:
    """The placement of the named algorithm: a key of `known`, or a function of your own as `module:function`."""
    campus = Campus.of(scenario)
    problem = PlacementProblem.of(campus, correlations, seed)
    found = np.asarray(resolve("placement", algorithm, known)(problem))
    if found.shape != problem.bundle.shape or not np.issubdtype(found.dtype, np.integer):
        raise PlanError(
            f"placement {algorithm!r} returned {found.dtype} of shape {found.shape}; "
            f"{len(problem.bundle)} integers are needed"
        )
    if not np.isin(found, np.flatnonzero(campus.edge)).all():
        raise PlanError(f"placement {algorithm!r} put subscriptions where there is no edge broker")
    placement = Placement(found.astype(np.int32), campus.stated.publications)
    return CampusPlan(algorithm, problem, placement, campus.use(placement))


def explain_placement(placed: CampusPlan, row: int) -> str:
    """Why a subscription is served by its broker, in words."""
    campus, problem, scenario = placed.campus, placed.problem, placed.campus.scenario
    bundle = int(problem.bundle[row])
    broker = int(placed.placement.subscriptions[row])
    name = scenario.brokers.name[broker]
    cluster = campus.clusters[problem.cluster[bundle]]
    shares = ", ".join(f"{metric.words} {placed.use[metric, broker]:.1%}" for metric in CAPACITIES)
    lines = [f"Broker: {name} of {cluster}, with {shares} in use."]
    if placed.algorithm in ("apart", "least_used"):
        lines.append(
            f"All subscribers of a topic in a cluster have one broker, so that its events come there once. "
            f"This topic asks for {problem.use[bundle]:.1%} of an average edge broker; larger ones came before it, "
            "and it went where the most used metric stays lowest."
        )
    else:
        lines.append(f"As {placed.algorithm} decided.")
    beside = _partners_of(placed, bundle) if placed.algorithm == "apart" else []
    if beside:
        lines.append(
            f"It was kept from topics that move with it (correlation {STRONG:g} or more): {'; '.join(beside)}."
        )
    if problem.late[bundle]:
        lines.append("No edge broker of the cluster is near enough for what a subscriber allows.")
    elif not problem.possible[bundle, campus.edges_of(int(problem.cluster[bundle]))].all():
        far = [
            scenario.brokers.name[each]
            for each in campus.edges_of(int(problem.cluster[bundle])).tolist()
            if not problem.possible[bundle, each]
        ]
        lines.append(f"Too far for what a subscriber allows: {', '.join(far)}.")
    return "\n".join(lines)


def _partners_of(placed: CampusPlan, bundle: int) -> list[str]:
    """The topics that move with a bundle's, with their brokers."""
    problem, scenario = placed.problem, placed.campus.scenario
    pairs, topic = problem.correlations, problem.topic[bundle]
    mine = (pairs.correlation >= STRONG) & ((pairs.topic == topic) | (pairs.other_topic == topic))
    others = np.where(pairs.topic == topic, pairs.other_topic, pairs.topic)[mine]
    found = []
    for other in np.unique(others).tolist():
        rows = (scenario.subscriptions.topic == other) & (
            problem.cluster[problem.bundle] == problem.cluster[bundle]
        )
        served = [scenario.brokers.name[each] for each in np.unique(placed.placement.subscriptions[rows])]
        if served:
            found.append(f"{scenario.topics.name[other]} on {', '.join(served)}")
    return found
