"""The conditions of a scenario as changes of a run, each with the plan that the coordinator would make then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from triagemq.plan.model import Plan
from triagemq.scenario import Scenario
from triagemq.scenario.conditions import Conditions
from triagemq.scenario.model import take
from triagemq.scenario.situations import Situation, situations
from triagemq.simulate.changes import Change

__all__ = ["condition_changes"]

Planner = Callable[[Scenario], Plan]


def condition_changes(
    scenario: Scenario,
    conditions: Conditions,
    planner: Planner | None,
    *,
    until_seconds: float = np.inf,
    with_rates: bool = True,
) -> tuple[Change, ...]:
    """What happens before `until_seconds`; nothing for a scenario without conditions.

    `planner` plans each situation anew, as the coordinator does when it has heard of it; here it hears at once. Without
    one, the plan of the start stays in force. A replay publishes what was recorded: leave rates out, `with_rates`.

    >>> from triagemq.plan import make_plan
    >>> from triagemq.scenario.conditions import PortBandwidth
    >>> from triagemq.scenario.generators import prototype
    >>> scenario = prototype(subscribers=2)
    >>> slower = Conditions((PortBandwidth(20.0, scenario.ports.name[0], 32000.0),))
    >>> [(each.at_seconds, each.bandwidth_bps.tolist()) for each in condition_changes(scenario, slower, make_plan)]
    [(0.0, [64000.0]), (20.0, [32000.0])]
    """
    if not conditions.timeline:
        return ()
    return tuple(
        Change(
            at_seconds=situation.at_seconds,
            plan=None if planner is None else _plan(scenario, situation, planner),
            active_subscriptions=situation.active_subscriptions(scenario),
            bandwidth_bps=situation.carried_bps(scenario),
            publication_rate=situation.publication_rate(scenario) if with_rates else None,
            port_error=situation.port_error,
            publisher_error=situation.publisher_error,
            subscriber_error=situation.subscriber_error,
            utility_weight=situation.utility_weight,
        )
        for situation in situations(scenario, conditions)
        if situation.at_seconds < until_seconds
    )


def _plan(scenario: Scenario, situation: Situation, planner: Planner) -> Plan:
    """What is decided in a situation: whoever has left takes nothing from the others."""
    network, wanted = situation.network(scenario), scenario.subscriptions
    there = np.flatnonzero(situation.subscriber_present[wanted.subscriber])
    if not there.size:
        there = np.arange(len(wanted))
    plan = planner(replace(network, subscriptions=take(network.subscriptions, there)))
    # Those of nobody need a flow, too; what is on its way to them is in nobody's.
    last = int(np.argmax(plan.flows.priority_class))
    flow, rank = np.full(len(wanted), last, dtype=plan.flow.dtype), np.zeros(len(wanted))
    flow[there], rank[there] = plan.flow, plan.rank
    return replace(plan, scenario_fingerprint=scenario.fingerprint, flow=flow, rank=rank)
