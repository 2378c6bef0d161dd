"""Make a plan: rank subscriptions, cut them into flows, flows into classes, and set drop rates where flows compete."""

from __future__ import annotations

import difflib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from triagemq.errors import ParameterError, PlanError
from triagemq.plan import ranking
from triagemq.plan.admission.planning import AdmissionResult, admit_promises
from triagemq.plan.admission.promises import CONTROL_QUEUES
from triagemq.plan.demands import Demand, demand, minimum_shares, survival_to_port, total_by, with_margin
from triagemq.plan.difference import carry
from triagemq.plan.drops import DROP_POLICIES, DropPolicy, DropProblem, DropResult
from triagemq.plan.drops.minima import fitting_minima, with_minima
from triagemq.plan.drops.optimal import optimal
from triagemq.plan.model import TINY, Decision, Flows, LatencyFactors, Plan, PlannerChoice, PortLoads
from triagemq.plan.ranking import (
    FLOW_ALGORITHMS,
    PRIORITY_ALGORITHMS,
    FlowAlgorithm,
    FlowProblem,
    PriorityAlgorithm,
    PriorityProblem,
)
from triagemq.scenario import Discipline, Floats, Integers, Scenario, port_paths
from triagemq.scenario.model import take

Setting = TypeVar("Setting")
Algorithm = TypeVar("Algorithm", bound=Callable[..., Any])

RANKINGS: dict[str, ranking.Ranking] = {"info": ranking.value}
"""Priority algorithms that rank subscriptions by something else than value per byte."""

SCOPES = ("port", "global")

NAMED = 3
"""Subscriptions that a decision names, of those whose minimum does not fit."""


def algorithms(
    flows: str, priorities: str, drops: str
) -> tuple[FlowAlgorithm, PriorityAlgorithm, DropPolicy]:
    """The algorithms of these names; ParameterError if one of them is nothing."""
    return (
        resolve("flow algorithm", flows, FLOW_ALGORITHMS),
        resolve("priority algorithm", priorities, PRIORITY_ALGORITHMS),
        resolve("drop policy", drops, DROP_POLICIES),
    )


def resolve(kind: str, name: str, known: Mapping[str, Algorithm]) -> Algorithm:
    """The algorithm of that name.

    >>> resolve("drop policy", "flt", {"flat": print, "linear": print})
    Traceback (most recent call last):
    ...
    triagemq.errors.ParameterError: drop policy: 'flt' is unknown; did you mean 'flat'? known: flat, linear, ...
    """
    if name in known:
        return known[name]
    if ":" in name:
        return cast(Algorithm, _load(kind, name))
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ParameterError(
        kind, f"{name!r} is unknown; {hint}known: {', '.join(known)}, or your own as module:function"
    )


def _load(kind: str, name: str) -> Any:
    try:
        function = pkgutil.resolve_name(name)
    except Exception as error:  # a user's module may fail anyhow while it is imported
        raise ParameterError(
            kind,
            f"{name!r} cannot be imported ({type(error).__name__}: {error}); write module:function, and have the "
            "module in the current directory or on PYTHONPATH",
        ) from error
    if not callable(function):
        raise ParameterError(kind, f"{name!r} is a {type(function).__name__}, not a function")
    return function


def make_plan(
    scenario: Scenario,
    *,
    flows: str = "greedy",
    priorities: str = "greedy",
    drops: str = "optimal",
    scope: str = "port",
    seed: int = 0,
    previous: Plan | None = None,
    before: Scenario | None = None,
    flows_per_subscriber: int | None = None,
    priority_classes: int | None = None,
    rho_tolerance: float | None = None,
    latency: LatencyFactors | None = None,
    no_promises: str = "",
) -> Plan:
    """The plan of the named algorithms (PrioDeX section 4); what is not given is taken from the scenario.

    An algorithm is named by its key in FLOW_ALGORITHMS, PRIORITY_ALGORITHMS or DROP_POLICIES, or is a
    function of your own named `module:function`. With `latency` factors of an earlier forecast, drops are set by
    worth times factor, and flows and classes cut by rank times urgency (`plan.plan` does that).

    With a `previous` plan, which was made for the scenario `before` (this one, if not given), ranks that have changed
    by less than RANK_BAND stay as they are, so that small changes of rates move nothing between flows and classes; and
    what it promised stays promised.

    Guaranteed subscriptions come first (`admission`): what is promised takes the upper classes and its share of ports,
    and all else is planned with what is left. One that is refused is planned like any other, by what it is worth
    without a promise; if that is nothing, it gets nothing. `no_promises` is why all are, if they are.

    >>> from triagemq.scenario.building import building
    >>> plan = make_plan(building(), drops="flat", flows_per_subscriber=3)
    >>> bool((plan.ports.rho_planned <= 0.9 + 1e-12).all()), int(plan.subscription_class.max())
    (True, 6)
    """
    choice = _choice(
        scenario,
        PlannerChoice(
            flows=flows,
            priorities=priorities,
            drops=drops,
            scope=scope,
            seed=seed,
            flows_per_subscriber=_given(flows_per_subscriber, scenario.planning.flows_per_subscriber),
            priority_classes=_given(priority_classes, scenario.planning.priority_classes),
            rho_tolerance=_given(rho_tolerance, scenario.planning.rho_tolerance),
        ),
    )
    cut_flows, cut_classes, set_drops = algorithms(flows, priorities, drops)

    admission = admit_promises(scenario, previous, before, no_promises)
    choice = _classes_left(scenario, choice, admission.levels)
    demanded = demand(scenario)
    load = demanded.load_bytes_per_second
    rank = RANKINGS.get(priorities, ranking.value_per_byte)(scenario.subscriptions, load)
    earlier = None if previous is None else carry(previous, before or scenario, scenario)
    if earlier is not None and RANKINGS.get(earlier.made_by.priorities) is RANKINGS.get(priorities):
        rank = earlier.held(rank)
    if latency is None:
        factors, cut_by = np.ones(len(rank)), rank
    else:
        factors, cut_by = _checked(latency, len(rank)).factor, rank * latency.precedence
    rows = _utility_rows(scenario, admission)
    subscriber = scenario.subscriptions.subscriber[rows]
    place = _called(
        "flow algorithm",
        flows,
        cut_flows,
        FlowProblem(subscriber, cut_by[rows], choice.flows_per_subscriber, seed),
        len(subscriber),
        choice.flows_per_subscriber,
    )
    flow, owner = _number_flows(subscriber, place, choice.flows_per_subscriber)
    count = len(owner)
    made = Flows(
        subscriber=owner,
        port=scenario.subscribers.port[owner],
        priority_class=np.zeros(count, dtype=np.int32),
        drop_rate=np.zeros(count),
        value=total_by(flow, cut_by[rows], count),
        load_bytes_per_second=total_by(flow, load[rows], count),
    )
    group = made.port if scope == "port" else np.zeros(count, dtype=np.int32)
    classes = _called(
        "priority algorithm",
        priorities,
        cut_classes,
        PriorityProblem(made.value, group, choice.priority_classes, seed),
        count,
        choice.priority_classes,
    )
    made = replace(made, priority_class=classes + np.int32(admission.levels))
    check_queue_rates(scenario, int(made.priority_class.max(initial=0)) + 1, with_drops=drops != "none")
    where = places(scenario, made)
    problem = _drop_problem(scenario, where, made, flow, rows, demanded, choice, factors, admission)
    if earlier is not None and earlier.made_by == choice:
        problem = replace(problem, flow_keep_before=earlier.flow_keep(flow, count, rows))
    problem, reduced = _with_minima(scenario, problem, demanded, rows)
    result = _drops(drops, set_drops, problem)
    carried_by = np.full(len(rank), -1, dtype=np.int32)
    carried_by[rows] = flow
    plan = Plan(
        scenario_fingerprint=scenario.fingerprint,
        made_by=choice,
        flow=carried_by,
        rank=rank,
        flows=replace(made, drop_rate=result.drop_rate),
        ports=PortLoads(
            rho_offered=_rho(scenario, where, problem, admission),
            rho_planned=_rho(scenario, where, problem, admission, 1.0 - result.drop_rate),
        ),
        decisions=(*admission.decisions, *reduced, *result.decisions),
        latency=latency,
        promises=admission.promises,
        hops=admission.hops,
        limiters=admission.limiters,
        ledger=admission.ledger,
    )
    return replace(plan, decisions=(*plan.decisions, *_changes(scenario, previous, plan)))


@dataclass(frozen=True, slots=True, eq=False)
class ContendedPlaces:
    """`flow_places` has a row per flow, as `port_paths` has ports. The others are columns over places: first the ports,
    then the queues of partitioned ones, each with the name, the number of its `port`, and its bandwidth."""

    flow_places: Integers
    names: tuple[str, ...]
    port: Integers
    bandwidth_bps: Floats


def places(scenario: Scenario, flows: Flows) -> ContendedPlaces:
    """The places that flows cross. Queues that borrow compete for the whole port, and are none."""
    ports = scenario.ports
    crossed = port_paths(scenario)[flows.port]
    partitioned = (ports.discipline == Discipline.QUEUE_RATES) & (ports.borrowing == 0)
    rows = np.flatnonzero(partitioned)
    queue_rates = [ports.queue_rates_bps[row] for row in rows.tolist()]
    counts = np.array([len(each) for each in queue_rates], dtype=np.int32)
    first = np.zeros(len(ports), dtype=np.int32)
    first[rows] = len(ports) + np.cumsum(counts) - counts
    in_queue = (crossed >= 0) & partitioned[crossed]
    queue = (first[crossed] + flows.priority_class[:, None]).astype(crossed.dtype)
    return ContendedPlaces(
        flow_places=np.where(in_queue, queue, crossed),
        names=(
            *ports.name,
            *(
                f"{ports.name[row]} queue {queue}"
                for row in rows
                for queue in range(len(ports.queue_rates_bps[row]))
            ),
        ),
        port=np.concatenate([np.arange(len(ports)), np.repeat(rows, counts)]).astype(np.int32),
        bandwidth_bps=np.concatenate([ports.bandwidth_bps, *queue_rates]),
    )


def check_queue_rates(scenario: Scenario, classes: int, *, with_drops: bool) -> None:
    """Refuse more classes than queues with queue rates, and drop rates where places are no trees."""
    ports = scenario.ports
    for row in np.flatnonzero(ports.discipline == Discipline.QUEUE_RATES).tolist():
        name, count = ports.name[row], len(ports.queue_rates_bps[row])
        if classes > count:
            raise PlanError(
                f"{classes} priority classes do not fit port {name!r}, which has {count} queue rates; "
                f"ask for at most {count} classes"
            )
        if with_drops and not ports.borrowing[row]:
            _check_tree(scenario, row)


def _check_tree(scenario: Scenario, row: int) -> None:
    """Drop rates are set along trees: what shares a place further down shares all places before it."""
    ports = scenario.ports
    fed = np.flatnonzero(scenario.switches.fed_by_port == row)
    together = (ports.discipline != Discipline.QUEUE_RATES) | (ports.borrowing > 0)
    behind = np.flatnonzero(np.isin(ports.switch, fed) & together & (ports.to_switch < 0))
    if behind.size:
        raise PlanError(
            f"port {ports.name[row]!r} is partitioned, and port {ports.name[behind[0]]!r} behind it is not: no drop "
            "rates can be set for both; give that one queue rates without borrowing, or plan with drops: none"
        )


def _utility_rows(scenario: Scenario, admission: AdmissionResult) -> ranking.Rows | slice:
    """The subscriptions that no promise carries, but for those that are worth nothing without one."""
    asking = admission.promises.subscription
    if not len(asking):
        return slice(None)
    admitted = admission.promises.admitted > 0
    left = np.ones(len(scenario.subscriptions), dtype=bool)
    left[asking[admitted | (scenario.subscriptions.utility_weight[asking] <= 0)]] = False
    return np.flatnonzero(left)


def _classes_left(scenario: Scenario, choice: PlannerChoice, levels: int) -> PlannerChoice:
    """As many classes as the queues of every port leave, with those of promises and control traffic taken."""
    queues = scenario.ports.queues[scenario.ports.queues > 0]
    if not levels or not len(queues):
        return choice
    left = int(queues.min()) - CONTROL_QUEUES - levels
    return replace(choice, priority_classes=min(choice.priority_classes, left))


def _rho(
    scenario: Scenario,
    where: ContendedPlaces,
    problem: DropProblem,
    admission: AdmissionResult,
    keep: Floats | None = None,
) -> Floats:
    """The load of every port by utility flows, of which this share is sent, and by promises."""
    utility = total_by(where.port, problem.arriving(problem.port_loads(keep)), len(scenario.ports))
    return np.asarray((utility + admission.port_bytes_per_second) * 8 / scenario.ports.bandwidth_bps)


def _choice(scenario: Scenario, choice: PlannerChoice) -> PlannerChoice:
    """The choice, if every setting is possible."""
    for name in ("flows_per_subscriber", "priority_classes"):
        number = getattr(choice, name)
        if not isinstance(number, int | np.integer) or isinstance(number, bool) or number < 1:
            raise ParameterError(name, f"is {number!r}; a whole number of at least 1 is needed")
    if not 0 <= choice.rho_tolerance < 1:
        raise ParameterError(
            "rho_tolerance", f"is {choice.rho_tolerance!r}; the share of a port to leave free lies in [0, 1)"
        )
    if choice.scope not in SCOPES:
        raise ParameterError("scope", f"is {choice.scope!r}; it is one of {', '.join(SCOPES)}")
    if not isinstance(choice.seed, int | np.integer) or choice.seed < 0:
        raise ParameterError("seed", f"is {choice.seed!r}; a whole number of at least 0 is needed")
    queues = scenario.ports.queues
    classes = 1 if choice.priorities == "none" else choice.priority_classes
    short = np.flatnonzero((queues > 0) & (queues < classes))
    if len(short):
        port = int(short[0])
        others = f" (and {len(short) - 1} more ports)" if len(short) > 1 else ""
        raise PlanError(
            f"{choice.priority_classes} priority classes do not fit port {scenario.ports.name[port]!r}, "
            f"which has {queues[port]} queues{others}; ask for at most {queues[short].min()} classes"
        )
    # NumPy's numbers are welcome; plain ones are stored, because they are written to files.
    return replace(
        choice,
        seed=int(choice.seed),
        flows_per_subscriber=int(choice.flows_per_subscriber),
        priority_classes=int(choice.priority_classes),
        rho_tolerance=float(choice.rho_tolerance),
    )


def _given(setting: Setting | None, otherwise: Setting) -> Setting:
    return otherwise if setting is None else setting


def _checked(latency: LatencyFactors, count: int) -> LatencyFactors:
    if len(latency) != count:
        raise ParameterError(
            "latency", f"has {len(latency)} factors; one per subscription, {count}, is needed"
        )
    if not ((latency.factor >= 0) & (latency.factor <= 1)).all():
        raise ParameterError("latency", "holds factors outside [0, 1]")
    if not (np.isfinite(latency.urgency) & (latency.urgency >= 0)).all():
        raise ParameterError("latency", "holds urgencies below 0 or without bound")
    return latency


def _called(
    kind: str, name: str, algorithm: Callable[[Any], Integers], problem: Any, count: int, labels: int
) -> Integers:
    """The labels an algorithm gives, one of `labels` per row or refused: it may be a user's own."""
    answer = np.asarray(algorithm(problem))
    if answer.shape != (count,) or not np.issubdtype(answer.dtype, np.integer):
        raise PlanError(
            f"{kind} {name!r} returned {answer.dtype} of shape {answer.shape}; {count} integers are needed"
        )
    if count and (answer.min() < 0 or answer.max() >= labels):
        raise PlanError(
            f"{kind} {name!r} returned {answer.min()}..{answer.max()}; 0..{labels - 1} are allowed"
        )
    return answer.astype(np.int32)


def _number_flows(subscriber: Integers, place: Integers, most: int) -> tuple[Integers, Integers]:
    """Numbers of flows by subscriber and place, empty ones left out: per subscription, and owners."""
    slot = subscriber.astype(np.int64) * most + place
    used = np.zeros((int(subscriber.max(initial=-1)) + 1) * most, dtype=bool)
    used[slot] = True
    number = np.cumsum(used, dtype=np.int64) - 1
    return number[slot].astype(np.int32), (np.flatnonzero(used) // most).astype(np.int32)


def _drop_problem(
    scenario: Scenario,
    where: ContendedPlaces,
    flows: Flows,
    flow: Integers,
    rows: ranking.Rows | slice,
    demanded: Demand,
    choice: PlannerChoice,
    freshness: Floats,
    admission: AdmissionResult,
) -> DropProblem:
    survival = survival_to_port(scenario)[where.port]
    capacity = where.bandwidth_bps / 8 * (1 - choice.rho_tolerance)
    # No promise leads over a port with queue rates.
    capacity = np.maximum(capacity - admission.port_bytes_per_second[where.port], 0.0)
    wanted = with_margin(scenario, demanded)
    return DropProblem(
        flow_load_bytes_per_second=flows.load_bytes_per_second,
        flow_class=flows.priority_class,
        flow_ports=where.flow_places,
        port_names=where.names,
        # What a link before it has lost takes no room at a port, so more may be sent towards it.
        port_capacity_bytes_per_second=capacity / np.maximum(survival, TINY),
        subscription_flow=flow,
        subscription_success=demanded.ideal_success[rows],
        subscription_freshness=freshness[rows],
        subscriptions=wanted if isinstance(rows, slice) else take(wanted, rows),
        port_survival=survival,
    )


def _with_minima(
    scenario: Scenario, problem: DropProblem, demanded: Demand, rows: ranking.Rows | slice
) -> tuple[DropProblem, tuple[Decision, ...]]:
    """The problem with the minima of its subscriptions, as far as they fit; a decision where a port is too small."""
    share, rank = minimum_shares(scenario, demanded)[rows], scenario.subscriptions.role_rank[rows]
    floor, reduced = fitting_minima(problem, share, rank)
    if not reduced:
        return replace(problem, flow_floor=floor), ()
    ranks, number = np.unique(rank, return_inverse=True)
    stated = np.flatnonzero(share > 0)
    crossed = problem.flow_ports[problem.subscription_flow[stated]]
    kind = (crossed.astype(np.int64) * len(ranks) + number[stated][:, None]).ravel()
    order = np.argsort(np.where(crossed.ravel() >= 0, kind, -1), kind="stable")
    kind, loser = kind[order], np.repeat(stated, crossed.shape[1])[order]
    row_of = np.arange(len(demanded.port))[rows]
    decisions = []
    for port, of_rank, needed, left in reduced:
        first, end = np.searchsorted(kind, port * len(ranks) + np.searchsorted(ranks, of_rank) + np.arange(2))
        named = [_named(scenario, row_of[row]) for row in loser[first:end][:NAMED]]
        more = f" and {end - first - len(named)} more" if end - first > len(named) else ""
        arriving = 1.0 if problem.port_survival is None else float(problem.port_survival[port])
        decisions.append(
            Decision(
                kind="minima_reduced",
                subject=problem.port_names[port],
                before=f"minima of {arriving * needed:.6g} bytes/s",
                after=f"{arriving * left:.6g} bytes/s",
                reason=f"the port has no room for the minima of rank {of_rank:g}: {left / needed:.2%} of each is left "
                f"for {', '.join(named)}{more}",
            )
        )
    return replace(problem, flow_floor=floor), tuple(decisions)


def _named(scenario: Scenario, row: int) -> str:
    wanted = scenario.subscriptions
    return f"{scenario.subscribers.name[wanted.subscriber[row]]} {scenario.topics.name[wanted.topic[row]]}"


def _drops(name: str, policy: Callable[[DropProblem], DropResult], problem: DropProblem) -> DropResult:
    result = optimal(problem) if policy is optimal else with_minima(policy, problem)
    if not isinstance(result, DropResult):
        raise PlanError(f"drop policy {name!r} returned a {type(result).__name__}; a DropResult is needed")
    rates: NDArray[Any] = np.asarray(result.drop_rate)
    count = len(problem.flow_class)
    if rates.shape != (count,) or not np.issubdtype(rates.dtype, np.floating):
        raise PlanError(
            f"drop policy {name!r} returned {rates.dtype} of shape {rates.shape}; {count} floats are needed"
        )
    if not ((rates >= 0) & (rates <= 1)).all():
        raise PlanError(f"drop policy {name!r} returned drop rates outside [0, 1]")
    return replace(result, drop_rate=rates.astype(np.float64))


def _changes(scenario: Scenario, previous: Plan | None, plan: Plan) -> tuple[Decision, ...]:
    """What the plan changes for subscriptions, when the earlier plan is of the same scenario."""
    if previous is None or previous.scenario_fingerprint != plan.scenario_fingerprint:
        return ()
    reclassed = int((previous.subscription_class != plan.subscription_class).sum())
    rated = int((previous.subscription_keep != plan.subscription_keep).sum())
    if not reclassed and not rated:
        return ()
    before, after = (
        f"{made.flows}/{made.priorities}/{made.drops}" for made in (previous.made_by, plan.made_by)
    )
    return (
        Decision(
            kind="replanned",
            subject=scenario.name,
            before=before,
            after=after,
            reason=f"{reclassed} of {len(plan.flow)} subscriptions change class, {rated} change drop rate",
        ),
    )
