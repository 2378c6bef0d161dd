"""Planners: from what is wanted to flows, priority classes and drop rates.

In comes a Scenario, out goes a Plan (`model`); `files` writes and reads one, `explaining` says why.

- `planner` goes through it: `demands` is what a subscription asks of the network, with a margin for steps; `ranking`
  orders subscriptions by worth and cuts flows and classes; `drops` decides, by algorithms that pass one `contract`.
- `admission` comes before: it proves what guaranteed subscriptions are promised, and leaves the rest to these.
- `clusters` is a scenario with clusters of brokers: `placement` says which broker serves which topic, `balancing` who
  moves when one has too much.
- `rounds` leads: it plans, forecasts and plans again where worth depends on latency (`plan`); one round is `make_plan`.
- `difference` says what changed between two plans, and what an earlier plan still says.
- `dataplane` has the instructions that carry a plan out, and the contract of what follows them. It needs nothing of the
  rest, which is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triagemq.plan.contract import ContractError, check_policy
    from triagemq.plan.demands import Demand, demand
    from triagemq.plan.difference import PlanDifference, diff
    from triagemq.plan.drops import DROP_POLICIES, DropPolicy, DropProblem, DropResult
    from triagemq.plan.explaining import explain
    from triagemq.plan.files import dump_plan, load_plan, parse_plan, save_plan
    from triagemq.plan.model import Decision, Flows, LatencyFactors, Plan, PlannerChoice
    from triagemq.plan.planner import make_plan
    from triagemq.plan.ranking import (
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
    "PRIORITY_ALGORITHMS",
    "ContractError",
    "Decision",
    "Demand",
    "DropPolicy",
    "DropProblem",
    "DropResult",
    "FlowAlgorithm",
    "FlowProblem",
    "Flows",
    "LatencyFactors",
    "Plan",
    "PlanDifference",
    "PlannerChoice",
    "PriorityAlgorithm",
    "PriorityProblem",
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
    *("model", "files", "contract", "demands", "difference", "ranking", "drops", "explaining"),
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
