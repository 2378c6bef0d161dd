"""What changes during a run: plans, subscriptions, bandwidths, errors, rates and worth, cut into epochs.

The conditions of a scenario are such changes, each with the plan that the coordinator would make then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from triagemq.compiled import step
from triagemq.errors import ParameterError
from triagemq.plan.model import Decision, Plan
from triagemq.scenario import Discipline, Floats, Integers, Scenario
from triagemq.scenario.conditions import Conditions, Situation, situations
from triagemq.scenario.model import WIDTH_ROUNDING, take
from triagemq.simulate.promised.direct import (
    LIMITERS,
    Direct,
    DirectRoutes,
    PromisedRows,
    Releases,
    lay_out,
    promised_routes,
    released,
)

Planner = Callable[[Scenario], Plan]

MOST_CLASSES = 64
"""A port remembers in one 64-bit word which of its classes have packets waiting."""


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """Something that happens at a given time of a run; None leaves things as they are.

    A new plan applies to copies that reach a switch from then on; packets that wait stay in the class in which they
    were queued. `active_subscriptions` has one entry per subscription. A new bandwidth applies to packets whose
    transmission starts from then on; `bandwidth_bps` has one entry per output port, `publication_rate` (events
    per second) one per publication. New error rates, one per port, publisher or subscriber, apply to packets that leave
    from then on. `utility_weight`, one per subscription, is what events published from then on are worth. Queue rates
    of queues stay the same shares of a bandwidth that changes.
    """

    at_seconds: float
    plan: Plan | None = None
    active_subscriptions: NDArray[np.bool_] | None = None
    bandwidth_bps: Floats | None = None
    publication_rate: Floats | None = None
    port_error: Floats | None = None
    publisher_error: Floats | None = None
    subscriber_error: Floats | None = None
    utility_weight: Floats | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Steering:
    """What a control changes: the queue rates of ports (by their number), the part of its rate that each publication
    publishes at (None: as before), and why. Transmissions that have begun are finished at the old width."""

    width_bps: Mapping[int, Floats] = field(default_factory=dict)
    rate_share: Floats | None = None
    decisions: Sequence[Decision] = ()


class Control(Protocol):
    """Decides while a run goes on. It decides at every sampling instant, and its changes are in force at once."""

    def sampled(self, seconds: float, queue_samples: Mapping[str, NDArray[Any]], /) -> Steering:
        """All queues were sampled: the columns of the Trace's table, without rows of other instants."""


class Epochs(NamedTuple):
    """One row per stretch of time between changes; `ends` is when it is over, infinity for the last.

    Columns are subscriptions (`active`, `priority_class`, `drop_rate`, `subscriber_error`), ports (`seconds_per_byte`,
    `port_error`) or publications (`publisher_error`). `queue_seconds_per_byte` is that of every port and class at the
    width of its queue; where a port has no queue rates, at its bandwidth.
    """

    ends: Floats
    active: NDArray[np.uint8]
    priority_class: Integers
    drop_rate: Floats
    seconds_per_byte: Floats
    queue_seconds_per_byte: Floats
    port_error: Floats
    publisher_error: Floats
    subscriber_error: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Phase:
    """A stretch of a run in which subscriptions are worth the same; `utility_weight` has one entry for each."""

    begins_seconds: float
    utility_weight: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """The epochs of a run as kernels read them, and what only the engine needs of each."""

    epochs: Epochs
    classes: int
    publication_rates: tuple[Floats, ...]
    plans: tuple[Plan, ...]
    phases: tuple[Phase, ...]
    direct: Direct | None
    promised: PromisedRows
    releases: Releases


def timeline(
    scenario: Scenario,
    plan: Plan,
    changes: Sequence[Change],
    *,
    routes: DirectRoutes | None = None,
    babbling: Sequence[str] = (),
    synchronised: bool = False,
    limiter: str | None = None,
) -> Timeline:
    """Check the plan and the changes against the scenario and lay them out in time.

    `routes` are direct routes in the place of those that the plans promise. The others are as in `simulate`.
    """
    plan.require(scenario)
    if limiter is not None and limiter not in LIMITERS:
        raise ParameterError("limiter", f"is {limiter!r}; must be {' or '.join(LIMITERS)}")
    ordered = sorted(changes, key=lambda change: change.at_seconds)
    for change in ordered:
        _check(scenario, change)

    def course(name: str, first: Any) -> list[Any]:
        """What is in force in each epoch."""
        values = [first]
        for change in ordered:
            given = getattr(change, name)
            values.append(values[-1] if given is None else given)
        return values

    def table(name: str, first: Any, rows: Integers | None = None) -> Floats:
        values = np.array(course(name, first), dtype=np.float64, ndmin=2)
        return values if rows is None else np.ascontiguousarray(values[:, rows])

    plans = course("plan", plan)
    by_plan = {id(each): routes or promised_routes(scenario, each, limiter) for each in plans}
    direct_routes = [by_plan[id(each)] for each in plans]
    present = np.array(
        course("active_subscriptions", np.ones(len(scenario.subscriptions), dtype=np.uint8)), ndmin=2
    ).astype(np.uint8)
    brokered = present.copy()
    for epoch, each in enumerate(direct_routes):
        brokered[epoch, [route.subscription for route in each.routes]] = 0
    direct, promised = lay_out(scenario, direct_routes, np.array([each.flow for each in plans]), present)
    classes = 1 + max(int(each.flows.priority_class.max(initial=0)) for each in plans)
    classes = max(classes, direct.classes)
    bandwidth = table("bandwidth_bps", scenario.ports.bandwidth_bps)
    queue_rates = _width_course(scenario, classes, bandwidth)
    classes = queue_rates.shape[2]
    if classes > MOST_CLASSES:
        raise ParameterError("plan", f"has {classes} priority classes; the simulator takes {MOST_CLASSES}")
    publishers, subscribers, ports = scenario.publishers, scenario.subscribers, scenario.ports
    epochs = Epochs(
        ends=np.array([*(change.at_seconds for change in ordered), np.inf], dtype=np.float64),
        active=brokered,
        priority_class=np.array([each.subscription_class for each in plans], dtype=np.int32, ndmin=2),
        drop_rate=np.array([1 - each.subscription_keep for each in plans], dtype=np.float64, ndmin=2),
        seconds_per_byte=8 / bandwidth,
        queue_seconds_per_byte=8 / queue_rates,
        port_error=table("port_error", scenario.ports.error_rate),
        publisher_error=table("publisher_error", publishers.error_rate, scenario.publications.publisher),
        subscriber_error=table("subscriber_error", subscribers.error_rate, scenario.subscriptions.subscriber),
    )
    # Promises cross ports in any order, and other disciplines serve in another order than by priority.
    one_list = any(each.routes for each in direct_routes) or (ports.discipline != Discipline.PRIORITY).any()
    rates, releases = released(
        scenario,
        table("publication_rate", scenario.publications.rate_per_second),
        direct.stream >= 0,
        babbling=babbling,
        synchronised=synchronised,
    )
    return Timeline(
        epochs,
        classes,
        tuple(rates),
        tuple(plans),
        _phases(epochs.ends, course("utility_weight", scenario.subscriptions.utility_weight)),
        direct if one_list else None,
        promised,
        releases,
    )


def _phases(ends: Floats, weights: Sequence[Floats]) -> tuple[Phase, ...]:
    """Epochs one after the other with the same weights are one phase; those that are over at time 0 are none."""
    found: list[Phase] = []
    for begins, over, weight in zip([0.0, *ends], ends, weights, strict=False):
        if over > 0 and not (found and np.array_equal(found[-1].utility_weight, weight)):
            found.append(Phase(float(begins), np.asarray(weight, dtype=np.float64)))
    return tuple(found)


def steered(epochs: Epochs, scenario: Scenario, epoch: int, width_bps: Mapping[int, Floats]) -> None:
    """Set queue rates from an epoch on, in place; where a later one has another bandwidth they are the same shares of
    it."""
    ports, per_byte = scenario.ports, epochs.queue_seconds_per_byte
    for port, queue_rates in width_bps.items():
        own = np.asarray(queue_rates, dtype=np.float64)
        scale = epochs.seconds_per_byte[epoch:, port] / epochs.seconds_per_byte[epoch, port]
        bandwidth = 8 / epochs.seconds_per_byte[epoch, port]
        floors = ports.floors_bps[port] * (bandwidth / ports.bandwidth_bps[port])
        _check_queue_rates(ports.name[port], own, floors, bandwidth)
        per_byte[epoch:, port] = scale[:, None] * (8 / own)


@step
def epoch_at(ends: Floats, epoch: int, time: float) -> int:
    """The epoch that holds `time`, looking forward from `epoch`."""
    while time >= ends[epoch]:
        epoch += 1
    return epoch


def _check(scenario: Scenario, change: Change) -> None:
    if not (np.isfinite(change.at_seconds) and change.at_seconds >= 0):
        raise ParameterError("changes", f"at_seconds is {change.at_seconds}; must be a time from 0 on")
    if change.plan is not None:
        change.plan.require(scenario)
    for name, length, wanted in (
        ("active_subscriptions", len(scenario.subscriptions), None),
        ("bandwidth_bps", len(scenario.ports), "positive"),
        ("publication_rate", len(scenario.publications), "not negative"),
        ("port_error", len(scenario.ports), "from 0 to below 1"),
        ("publisher_error", len(scenario.publishers), "from 0 to below 1"),
        ("subscriber_error", len(scenario.subscribers), "from 0 to below 1"),
        ("utility_weight", len(scenario.subscriptions), "not negative"),
    ):
        values = getattr(change, name)
        if values is None:
            continue
        array: NDArray[Any] = np.asarray(values)
        if array.shape != (length,):
            raise ParameterError(f"changes.{name}", f"has shape {array.shape}; must be ({length},)")
        if wanted is None:
            continue
        fits = array > 0 if wanted == "positive" else array >= 0
        if wanted == "from 0 to below 1":
            fits &= array < 1
        if not (np.isfinite(array).all() and fits.all()):
            raise ParameterError(f"changes.{name}", f"must be finite and {wanted}")


def _width_course(scenario: Scenario, classes: int, bandwidth_bps: Floats) -> Floats:
    """The width of every queue, epoch by epoch and port by port: that of its class, or its port's bandwidth.

    `classes` is how many the plans use, and `bandwidth_bps` has a row per epoch.
    """
    ports = scenario.ports
    rows = np.flatnonzero(ports.discipline == Discipline.QUEUE_RATES)
    counts = {len(ports.queue_rates_bps[row]) for row in rows.tolist()}
    if len(counts) > 1 or (counts and min(counts) < classes):
        name, count = min((ports.name[row], len(ports.queue_rates_bps[row])) for row in rows.tolist())
        raise ParameterError("plan", f"has {classes} priority classes, and port {name!r} {count} queue rates")
    columns = max(counts, default=classes)
    found = np.repeat(bandwidth_bps[:, :, None], columns, axis=2)
    for row in rows.tolist():
        queue_rates, before = ports.queue_rates_bps[row], ports.bandwidth_bps[row]
        for epoch, bandwidth in enumerate(bandwidth_bps[:, row]):
            queue_rates, before = queue_rates * (bandwidth / before), bandwidth
            found[epoch, row] = queue_rates
    return found


def _check_queue_rates(name: str, own: Floats, least: Floats, bandwidth: float) -> None:
    """Queue rates of one port that do not fit are an error."""
    if not (own.shape == least.shape and np.isfinite(own).all() and (own > 0).all()):
        raise ParameterError("width_bps", f"port {name!r} must have finite, positive queue rates")
    if not abs(own.sum() - bandwidth) <= WIDTH_ROUNDING * bandwidth:
        what = f"those of port {name!r} add up to {own.sum():g} of its {bandwidth:g} bit/s"
        raise ParameterError("width_bps", what)
    if (own < least * (1 - WIDTH_ROUNDING)).any():
        queue = int(np.argmax(least - own))
        what = (
            f"queue {queue} of port {name!r} gets {own[queue]:g} bit/s, below its floor of {least[queue]:g}"
        )
        raise ParameterError("width_bps", what)


def condition_changes(
    scenario: Scenario,
    conditions: Conditions,
    planner: Planner | None,
    *,
    until_seconds: float = np.inf,
    with_rates: bool = True,
) -> tuple[Change, ...]:
    """What happens before `until_seconds`; nothing for a scenario without conditions.

    `planner` plans each situation anew, as the coordinator does when it has heard of it, but at once. Without
    one, the plan of the start stays in force. A replay publishes what was recorded: leave rates out, `with_rates`.

    >>> from triagemq.plan import make_plan
    >>> from triagemq.scenario.conditions import Condition
    >>> from triagemq.scenario.building import building
    >>> scenario = building()
    >>> name = scenario.ports.name[0]
    >>> slower = Conditions((Condition(20.0, port=name, bandwidth_bps=32_000.0),))
    >>> [(each.at_seconds, int(each.bandwidth_bps[0])) for each in condition_changes(scenario, slower, make_plan)]
    [(0.0, 97519), (20.0, 32000)]
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
    """The plan of a situation: absent subscribers take nothing from the others."""
    network, wanted = situation.network(scenario), scenario.subscriptions
    there = np.flatnonzero(situation.subscriber_present[wanted.subscriber])
    if not there.size:
        there = np.arange(len(wanted))
    plan = planner(replace(network, subscriptions=take(network.subscriptions, there)))
    # Absent subscribers keep a placeholder flow.
    last = int(np.argmax(plan.flows.priority_class))
    flow, rank = np.full(len(wanted), last, dtype=plan.flow.dtype), np.zeros(len(wanted))
    flow[there], rank[there] = plan.flow, plan.rank
    return replace(plan, scenario_fingerprint=scenario.fingerprint, flow=flow, rank=rank)
