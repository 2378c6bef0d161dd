"""Planners: from what is wanted to flows, priority classes and drop rates.

In comes a Scenario, out goes a Plan (`model`); `files` writes and reads one, `explaining` says why.

- `planner` goes through it: `demands` is what a subscription asks of the network, with a margin for steps, and
  `ranking` what it is worth for that; then `priorities` and `drops` decide, by algorithms that pass one `contract`.
- `admission` comes before: it proves what guaranteed subscriptions are promised, and leaves the rest to these.
- `campus` is a scenario with clusters of brokers: `placement` says which broker serves which topic, `balancing` who
  moves when one has too much.
- `rounds` leads: it plans, forecasts and plans again where worth depends on latency (`plan`); one round is `make_plan`.
- `difference` says what changed between two plans, and what an earlier plan still says.
- `instructions` carry a plan out, on a `dataplane`. Who only follows them starts without the rest, which is loaded when
  it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from triagemq.plan.dataplane import (
    Counters,
    DataPlane,
    Egress,
    Fate,
    FlowCounters,
    Instructed,
    OnFate,
    OutgoingPacket,
    PortCounters,
    QueueCounters,
    Treatment,
    UnmanagedCounters,
)
from triagemq.plan.instructions import (
    LIMITER_PACKETS,
    FlowKey,
    Instruction,
    RemoveFlow,
    RemoveLimiter,
    RemovePort,
    SetFlow,
    SetLimiter,
    SetPort,
)

if TYPE_CHECKING:
    from triagemq.plan.contract import ContractError, check_policy
    from triagemq.plan.demands import Demand, demand
    from triagemq.plan.difference import PlanDifference, diff
    from triagemq.plan.drops import DROP_POLICIES, DropPolicy, DropProblem, DropResult
    from triagemq.plan.explaining import explain
    from triagemq.plan.files import dump_plan, load_plan, parse_plan, save_plan
    from triagemq.plan.model import Decision, Flows, LatencyFactors, Plan, PlannerChoice
    from triagemq.plan.planner import make_plan
    from triagemq.plan.priorities import (
        FLOW_ALGORITHMS,
        PRIORITY_ALGORITHMS,
        FlowAlgorithm,
        FlowProblem,
        PriorityAlgorithm,
        PriorityProblem,
    )
    from triagemq.plan.rounds import plan

__all__ = [
    "DROP_POLICIES",
    "FLOW_ALGORITHMS",
    "LIMITER_PACKETS",
    "PRIORITY_ALGORITHMS",
    "ContractError",
    "Counters",
    "DataPlane",
    "Decision",
    "Demand",
    "DropPolicy",
    "DropProblem",
    "DropResult",
    "Egress",
    "Fate",
    "FlowAlgorithm",
    "FlowCounters",
    "FlowKey",
    "FlowProblem",
    "Flows",
    "Instructed",
    "Instruction",
    "LatencyFactors",
    "OnFate",
    "OutgoingPacket",
    "Plan",
    "PlanDifference",
    "PlannerChoice",
    "PortCounters",
    "PriorityAlgorithm",
    "PriorityProblem",
    "QueueCounters",
    "RemoveFlow",
    "RemoveLimiter",
    "RemovePort",
    "SetFlow",
    "SetLimiter",
    "SetPort",
    "Treatment",
    "UnmanagedCounters",
    "check_policy",
    "demand",
    "diff",
    "dump_plan",
    "explain",
    "load_plan",
    "make_plan",
    "parse_plan",
    "plan",
    "save_plan",
]

_MAKING = (
    *("model", "files", "contract", "demands", "difference", "priorities", "drops", "explaining"),
    *("planner", "rounds"),
)


def __getattr__(name: str) -> Any:
    if name in __all__:
        for each in _MAKING:
            module = import_module(f"{__name__}.{each}")
            if hasattr(module, name):
                globals()[name] = found = getattr(module, name)
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
