"""Which priority class each flow gets."""

from triagemq.plan.priorities.cluster import cluster, cluster_classes, within_class_variance
from triagemq.plan.priorities.greedy import greedy
from triagemq.plan.priorities.info import info
from triagemq.plan.priorities.none import none
from triagemq.plan.priorities.problem import PriorityAlgorithm, PriorityProblem
from triagemq.plan.priorities.random import random

PRIORITY_ALGORITHMS: dict[str, PriorityAlgorithm] = {
    "greedy": greedy,
    "cluster": cluster,
    "info": info,
    "random": random,
    "none": none,
}

__all__ = [
    "PRIORITY_ALGORITHMS",
    "PriorityAlgorithm",
    "PriorityProblem",
    "cluster_classes",
    "within_class_variance",
]
