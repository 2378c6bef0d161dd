"""Why a plan treats one subscription as it does, in words."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import numpy as np

from triagemq.errors import ParameterError
from triagemq.plan.admission.planning import explain_promises
from triagemq.plan.demands import demand, minimum_shares, step_targets, survival_to_port
from triagemq.plan.drops.minima import SHORT
from triagemq.plan.model import TINY, Plan
from triagemq.plan.planner import RANKINGS, places
from triagemq.plan.ranking import Rows
from triagemq.scenario import Floats, Integers, Scenario, UtilityShape, maximum_utility


def explain(scenario: Scenario, plan: Plan, subscriber: str, topic: str) -> str:
    """The worth, rank, flow, class and drop rate of one subscription, each with its reason.

    >>> from triagemq.plan.planner import make_plan
    >>> from triagemq.scenario.building import building
    >>> scenario = building()
    >>> wanted = scenario.subscriptions
    >>> who, what = scenario.subscribers.name[wanted.subscriber[0]], scenario.topics.name[wanted.topic[0]]
    >>> len(explain(scenario, make_plan(scenario), who, what).splitlines()) >= 5
    True
    """
    plan.require(scenario)
    row = subscription_row(scenario, subscriber, topic)
    promised = explain_promises(scenario, plan, row)
    if plan.flow[row] < 0:
        return "\n".join([*promised, *_decisions(scenario, plan, row)])
    return "\n".join(
        [
            *promised,
            _in_short(scenario, plan, row, subscriber, topic),
            f"{subscriber} wants {topic}: {_worth(scenario, row)}",
            f"Rank: {_rank(scenario, plan, row)}",
            f"Flow: {_flow(scenario, plan, row)}",
            f"Class: {_class(scenario, plan, row)}",
            f"Drop rate: {_drop(scenario, plan, row)}",
            *_decisions(scenario, plan, row),
        ]
    )


def _in_short(scenario: Scenario, plan: Plan, row: int, subscriber: str, topic: str) -> str:
    """What it gets and why, in one sentence without a formula."""
    flows, flow = plan.flows, int(plan.flow[row])
    share = float(demand(scenario).ideal_success[row] * (1 - flows.drop_rate[flow]))
    level, last = int(flows.priority_class[flow]), int(flows.priority_class.max())
    gets = "everything" if share > 0.9995 else "nothing" if share < 0.0005 else f"about {share:.0%}"
    if len(queue_rates := scenario.ports.queue_rates_bps[flows.port[flow]]):
        turn = f"in a queue with {queue_rates[level]:g} bit/s"
    elif last == 0:
        turn = "in turn with all others"
    elif level in (0, last):
        turn = "before all others" if level == 0 else "after all others"
    else:
        turn = f"after {level} of {last + 1} classes"
    name, offered, _ = max(_on_the_path(scenario, plan, flow), key=lambda place: place[1])
    if offered <= 1 - plan.made_by.rho_tolerance:
        why = f"port {name} has room for all that is wanted"
    else:
        worth = "it is worth more for its size than what is dropped"
        if flows.drop_rate[flow] > 0:
            minimum, wanted = minimum_shares(scenario, demand(scenario)), scenario.subscriptions
            worth = _where_the_room_goes(
                float(wanted.role_rank[row]),
                lacks_minimum=share < minimum[row] * SHORT,
                beside_minima=bool((minimum > 0).any()),
            )
        why = f"port {name} is offered {offered:.1f} times what it can carry, and {worth}"
    return f"{subscriber} gets {gets} of {topic}, {turn}, because {why}."


def why_short(
    scenario: Scenario,
    plan: Plan,
    path: Integers,
    row: int,
    ideal_success: float,
    minimum: float,
    *,
    beside_minima: bool,
) -> str:
    """In one line, why a subscription gets nothing, or less than its minimum.

    `path` are the ports on its way; `beside_minima` is whether any subscription has a minimum.
    """
    if plan.flow[row] < 0:
        return "no promise is possible, and without one it is worth nothing"
    if ideal_success < max(minimum, TINY):
        return f"the links alone let {ideal_success:.2%} arrive"
    port = max((each for each in path.tolist() if each >= 0), key=plan.ports.rho_offered.__getitem__)
    why = _where_the_room_goes(
        float(scenario.subscriptions.role_rank[row]), lacks_minimum=minimum > 0, beside_minima=beside_minima
    )
    offered = float(plan.ports.rho_offered[port])
    return f"port {scenario.ports.name[port]} is offered {offered:.1f} times what it can carry, and {why}"


def _where_the_room_goes(rank: float, *, lacks_minimum: bool, beside_minima: bool) -> str:
    if lacks_minimum:
        return f"the minima of rank {rank:g} do not fit beside those of lower ranks"
    if beside_minima:
        return "the room goes to minima and to topics that are worth more"
    return "the room is worth more to other topics"


def subscription_row(scenario: Scenario, subscriber: str, topic: str) -> int:
    """The row of a subscription among the scenario's; ParameterError, with the nearest names, if there is none."""
    who = _index(scenario.subscribers.name, subscriber, "subscriber", "the scenario")
    wanted = scenario.subscriptions
    own = np.flatnonzero(wanted.subscriber == who)
    topics = [scenario.topics.name[each] for each in wanted.topic[own]]
    return int(own[_index(topics, topic, "topic", f"{subscriber}'s subscriptions")])


def _index(names: Sequence[str], name: str, kind: str, where: str) -> int:
    try:
        return names.index(name)
    except ValueError:
        near = difflib.get_close_matches(name, names, n=3) or list(names[:3])
        others = f"; nearest: {', '.join(near)}" if near else ""
        raise ParameterError(kind, f"there is no {kind} {name!r} among {where}{others}") from None


def _worth(scenario: Scenario, row: int) -> str:
    wanted, demanded = scenario.subscriptions, demand(scenario)
    shape = UtilityShape(int(wanted.utility_shape[row]))
    weight = wanted.utility_weight[row]
    formula = {
        UtilityShape.LOG: f"{weight:.6g} * log(1 + share delivered)",
        UtilityShape.LINEAR: f"{weight:.6g} * share delivered",
        UtilityShape.STEP: f"{weight:.6g} once {wanted.utility_threshold[row]:.6g} of all is delivered",
    }[shape]
    if shape == UtilityShape.STEP:
        target, period = step_targets(scenario, demanded)[row], scenario.planning.judged_over_seconds
        formula += f" (planned for {target:.4g}, so that nearly every period of {period:.6g} s reaches it)"
    fresh = wanted.freshness_seconds[row]
    aging = f", times exp(-latency / {fresh:.6g} s)" if np.isfinite(fresh) else ""
    if wanted.max_latency_share[row] > 0:
        share, seconds = wanted.max_latency_share[row], wanted.max_latency_seconds[row]
        aging += f", times the part that is met of {share:.4g} within {seconds:.6g} s"
    return (
        f"worth {formula}{aging}, at most {maximum_utility(wanted)[row]:.6g}. "
        f"{demanded.notify_rate[row]:.6g} events/s of {demanded.sizes.event_bytes[row]:.6g} bytes on the wire take "
        f"{demanded.load_bytes_per_second[row]:.6g} bytes/s; the links alone let "
        f"{demanded.ideal_success[row]:.2%} arrive."
    )


def _rank(scenario: Scenario, plan: Plan, row: int) -> str:
    own = np.flatnonzero(scenario.subscriptions.subscriber == scenario.subscriptions.subscriber[row])
    by = "worth alone" if plan.made_by.priorities in RANKINGS else "worth per byte per second"
    place = f"place {_place(plan.rank, own, row)} of {len(own)} subscriptions of this subscriber"
    ranked = f"{plan.rank[row]:.6g} ({by}), {place}."
    if plan.latency is None:
        return ranked
    urgency = plan.latency.precedence[row]
    return (
        f"{ranked} What loses worth by waiting goes first: by forecast this one loses {urgency:.3g} times as much "
        "of its worth per second as the most urgent, and flows and classes are cut by rank times that."
    )


def _place(values: Floats, among: Rows, row: int) -> int:
    """Where a row stands among others, the highest value first; ties go by row."""
    better, tied = values[among] > values[row], (values[among] == values[row]) & (among < row)
    return int((better | tied).sum()) + 1


def _flow(scenario: Scenario, plan: Plan, row: int) -> str:
    flow = int(plan.flow[row])
    own = np.flatnonzero(plan.flows.subscriber == plan.flows.subscriber[flow])
    members = np.flatnonzero(plan.flow == flow)
    how = {
        "greedy": "subscriptions sorted by rank are cut into nearly equal lists, the best first",
        "random": f"drawn at random with seed {plan.made_by.seed}",
    }.get(plan.made_by.flows, f"as {plan.made_by.flows} decided")
    ranks = plan.rank[members] if plan.latency is None else (plan.rank * plan.latency.precedence)[members]
    return (
        f"{flow - int(own[0]) + 1} of {len(own)}; {how}. It carries {len(members)} subscriptions with ranks "
        f"{ranks.min():.6g} to {ranks.max():.6g} and {plan.flows.load_bytes_per_second[flow]:.6g} bytes/s."
    )


def _class(scenario: Scenario, plan: Plan, row: int) -> str:
    flows, flow = plan.flows, int(plan.flow[row])
    made = plan.made_by
    port = int(flows.port[flow])
    rivals = np.flatnonzero(flows.port == port) if made.scope == "port" else np.arange(len(flows))
    among = f"port {scenario.ports.name[port]}" if made.scope == "port" else "all ports"
    equal_lists = f"flows sorted by value are cut into {made.priority_classes} nearly equal classes"
    how = {
        "greedy": equal_lists,
        "info": equal_lists,
        "cluster": f"flows of like value share a class, at most {made.priority_classes} classes",
        "random": f"drawn at random with seed {made.seed}",
        "none": "no priorities",
    }.get(made.priorities, f"as {made.priorities} decided")
    return (
        f"{flows.priority_class[flow]}; {how}. The flow's value, the sum of its ranks, is "
        f"{flows.value[flow]:.6g}: place {_place(flows.value, rivals, flow)} of {len(rivals)} flows of {among}."
    )


def _drop(scenario: Scenario, plan: Plan, row: int) -> str:
    flow = int(plan.flow[row])
    path = _on_the_path(scenario, plan, flow)
    allowed = 1 - plan.made_by.rho_tolerance
    loads = "; ".join(
        f"port {name} is offered {offered:.4g} of its bandwidth, may carry {allowed:.4g} and carries {planned:.4g}"
        for name, offered, planned in path
    )
    if plan.flows.load_bytes_per_second[flow] <= 0:
        why = "no events reach this flow"
    elif all(offered <= allowed * (1 + 1e-12) for _, offered, _ in path):
        why = "everything fits, nothing is dropped"
    else:
        why = f"policy {plan.made_by.drops}"
        minimum = float(minimum_shares(scenario, demand(scenario))[row])
        why += f", beside a minimum of {minimum:.4g}" if minimum > 0 else ""
    return f"{plan.flows.drop_rate[flow]:.6g}; {why}. On the way, {loads}."


def _on_the_path(scenario: Scenario, plan: Plan, flow: int) -> list[tuple[str, float, float]]:
    """Where a flow competes for bandwidth: the name, and what is offered there and planned, in parts of it."""
    where = places(scenario, plan.flows)
    found = []
    for place in where.flow_places[flow][where.flow_places[flow] >= 0].tolist():
        port = int(where.port[place])
        offered, planned = float(plan.ports.rho_offered[port]), float(plan.ports.rho_planned[port])
        if place != port:
            crossing = (where.flow_places == place).any(axis=1)
            loads = plan.flows.load_bytes_per_second[crossing] * survival_to_port(scenario)[port]
            width = float(where.bandwidth_bps[place]) / 8
            offered, planned = loads.sum() / width, loads @ (1 - plan.flows.drop_rate[crossing]) / width
        found.append((where.names[place], float(offered), float(planned)))
    return found


def _decisions(scenario: Scenario, plan: Plan, row: int) -> list[str]:
    """Decisions about the ports on the path, this subscriber, or the whole plan."""
    wanted = scenario.subscriptions
    who, topic = scenario.subscribers.name[wanted.subscriber[row]], scenario.topics.name[wanted.topic[row]]
    subjects = {who, f"{who} {topic}", scenario.name, "all ports"}
    if plan.flow[row] >= 0:
        subjects |= {name for name, _, _ in _on_the_path(scenario, plan, int(plan.flow[row]))}
    return [
        f"{each.subject} ({each.kind}): {each.before} -> {each.after}; {each.reason}."
        for each in plan.decisions
        if each.subject in subjects
    ]
