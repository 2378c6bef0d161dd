"""Placement: which broker of its cluster serves each topic (PEER-WD section 4.1).

In comes a Campus, out goes a Placement.

- `problem` is what is to be placed: the topics of every cluster, with what they ask of a broker;
- `spreading` has the algorithms by name; `lab.clusters` has the baselines;
- `planning` asks one, and says in words why each topic is where it is;
- `arriving` is for subscribers that come later, one by one.
"""

from triagemq.plan.placement.arriving import Newcomers
from triagemq.plan.placement.planning import CampusPlan, explain_placement, place
from triagemq.plan.placement.problem import NO_CORRELATIONS, Correlations, PlacementProblem
from triagemq.plan.placement.spreading import PLACEMENTS, PlacementAlgorithm

__all__ = [
    "NO_CORRELATIONS",
    "PLACEMENTS",
    "CampusPlan",
    "Correlations",
    "Newcomers",
    "PlacementAlgorithm",
    "PlacementProblem",
    "explain_placement",
    "place",
]
