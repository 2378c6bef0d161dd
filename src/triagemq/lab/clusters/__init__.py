"""Clusters of brokers over time: brokers with bandwidths, matching rates and output queues, and balancing that moves
clients.

In come a scenario with clusters, what happens in it, a placement and a policy; out comes a CampusResult, interval by
interval. Events are a fluid here: what matters are bandwidths, queues and deadlines of seconds, and policies act on
what they see on their path, which the event simulator's epochs cannot. Nothing is random.

- `sharing` is how an uplink is shared;
- `run` goes through time, with the output queues and who was late in them, asks the policy, and has the figures;
- `peer` is PEER, which looks at loads alone, and `placements` has the baselines of placement.
"""

from triagemq.lab.clusters.peer import BASELINES
from triagemq.lab.clusters.placements import ALL_PLACEMENTS
from triagemq.lab.clusters.run import ClustersResult, Moved, simulate_clusters
from triagemq.lab.clusters.sharing import SHARINGS

__all__ = ["ALL_PLACEMENTS", "BASELINES", "SHARINGS", "ClustersResult", "Moved", "simulate_clusters"]
