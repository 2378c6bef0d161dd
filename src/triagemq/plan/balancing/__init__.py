"""Balancing: when a broker of a campus has too much, and who goes where (PEER-WD sections 4.2 to 4.4).

Decisions without input, output or a clock: what is measured goes in as events that carry their time, migrations come
out. The simulator and the exchange use the same.

- `settings` has thresholds and times, `events` what goes in and comes out;
- `rates` predicts the next interval, `detection` says which brokers are in LOW, HIGH and OVERLOAD;
- `offloading` is the order in which clients leave; `basis` what is known then;
- `selection` who leaves an edge for where, tried out in a `trial`, and `heads` who leaves a head;
- `balancer` is the state machine around these: one balancing at a time for a broker, time-outs, no ping-pong;
- `policies` has the policies by name; PEER, the baseline, is in `lab.clusters`.
"""

from triagemq.plan.balancing.balancer import BALANCINGS, Balancer, BalancingPolicy, balancing_policy
from triagemq.plan.balancing.detection import (
    BalancingSettings,
    Completed,
    Detected,
    LoadReport,
    LoadState,
    LoadWatch,
    Migration,
    SmoothedRates,
    Thresholds,
    detect,
    queue_threshold,
)

__all__ = [
    "BALANCINGS",
    "Balancer",
    "BalancingPolicy",
    "BalancingSettings",
    "Completed",
    "Detected",
    "LoadReport",
    "LoadState",
    "LoadWatch",
    "Migration",
    "SmoothedRates",
    "Thresholds",
    "balancing_policy",
    "detect",
    "queue_threshold",
]
