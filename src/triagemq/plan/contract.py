"""What every planning algorithm must satisfy, as a check that anyone can run over their own.

    check_policy(my_policy, "drops")

runs a battery of random problems with a fixed seed and raises ContractError at the first broken promise. Some
promises are optional, since the baselines exist to break them: name those that hold.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triagemq.plan.drops.problem import DropProblem, DropResult, subscription_columns
from triagemq.plan.priorities import FlowProblem, PriorityProblem
from triagemq.scenario import Floats, Integers, UtilityShape
from triagemq.scenario.model import take

OPTIONAL_PROMISES: dict[str, tuple[str, ...]] = {
    "flows": ("equal_lists", "ordered"),
    "priorities": ("equal_lists", "ordered"),
    "drops": ("capacity",),
}
"""equal_lists: lists differ by one row at most, the larger first. ordered: no better row is in a worse list.
capacity: every port within its capacity, and nothing dropped that would have fitted."""

PROBLEMS = 24


class ContractError(AssertionError):
    """A promise is broken: `check` is its name, the text says on which problem and how."""

    def __init__(self, check: str, explanation: str) -> None:
        self.check = check
        super().__init__(f"{check}: {explanation}")


def check_policy(policy: Callable[[Any], Any], kind: str, promises: Collection[str] | None = None) -> None:
    """Raise ContractError unless `policy` keeps the contract of its kind: "flows", "priorities" or "drops".

    `promises` are the optional promises that hold, all of the kind's if not given.

    >>> from triagemq.plan.drops import DROP_POLICIES
    >>> check_policy(DROP_POLICIES["linear"], "drops")
    >>> check_policy(DROP_POLICIES["none"], "drops")
    Traceback (most recent call last):
    ...
    triagemq.plan.contract.ContractError: capacity: problem 0: port 0 is given ... bytes/s, it may carry ...
    """
    if kind not in OPTIONAL_PROMISES:
        raise ContractError("kind", f"{kind!r} is not one of {', '.join(OPTIONAL_PROMISES)}")
    promised = set(OPTIONAL_PROMISES[kind] if promises is None else promises)
    if unknown := promised - set(OPTIONAL_PROMISES[kind]):
        raise ContractError("promises", f"{sorted(unknown)} are not promises of {kind}")
    if kind == "drops":
        for number, problem in enumerate(_drop_battery()):
            _check_drops(policy, problem, promised, f"problem {number}")
    else:
        for number, rows in enumerate(_list_battery(kind)):
            _check_lists(policy, rows, promised, f"problem {number}")


def _demand(check: str, holds: bool | np.bool_, explanation: str) -> None:
    if not holds:
        raise ContractError(check, explanation)


# Drops


def _drop_battery() -> Iterator[DropProblem]:
    """Single ports, several ports and trees; log and linear utilities; no ties: order cannot matter."""
    for seed in range(PROBLEMS):
        draw = np.random.default_rng(seed)
        ports, flows = int(draw.integers(1, 6)), int(draw.integers(2, 40))
        tree = seed % 3 == 2
        # In a tree port 0 is a trunk above all others; flows to port 0 itself have the shorter path.
        own = draw.integers(0, ports, flows).astype(np.int32)
        upstream = np.where(own > 0, 0, -1).astype(np.int32)
        flow_ports = np.stack([upstream, own], axis=1) if tree else own[:, None]
        owner = np.concatenate([np.arange(flows), draw.integers(0, flows, 2 * flows)]).astype(np.int32)
        count = len(owner)
        load = np.bincount(owner, draw.lognormal(7, 1, count), minlength=flows).astype(np.float64)
        offered = np.zeros(ports)
        for column in flow_ports.T:
            np.add.at(offered, column[column >= 0], load[column >= 0])
        # The first port of every problem is exceeded, whatever is drawn.
        share = draw.uniform(0.1, 1.2, ports)
        share[own[0]] = min(share[own[0]], 0.9)
        yield DropProblem(
            flow_load_bytes_per_second=load,
            flow_class=draw.integers(0, 4, flows).astype(np.int32),
            flow_ports=flow_ports,
            port_names=tuple(f"port {port}" for port in range(ports)),
            port_capacity_bytes_per_second=np.maximum(offered, 1.0) * share,
            subscription_flow=owner,
            subscription_success=draw.uniform(0.5, 1, count),
            subscription_freshness=draw.uniform(0.5, 1, count),
            subscriptions=subscription_columns(
                weight=draw.lognormal(0, 1, count),
                shape=draw.choice(np.array([UtilityShape.LOG, UtilityShape.LINEAR], dtype=np.int8), count),
            ),
        )


def _check_drops(
    policy: Callable[[DropProblem], DropResult], problem: DropProblem, promised: set[str], where: str
) -> None:
    rates = _rates(policy, problem, where)
    _demand(
        "deterministic",
        np.array_equal(rates, _rates(policy, problem, where)),
        f"{where}: two calls with the same problem give different drop rates",
    )
    if "capacity" in promised:
        _check_capacity(problem, rates, where)

    roomy = replace(problem, port_capacity_bytes_per_second=problem.port_capacity_bytes_per_second * 1.1)
    wider = _rates(policy, roomy, where)
    if problem.flow_ports.shape[1] == 1:
        before, after = problem.port_loads(1 - rates), problem.port_loads(1 - wider)
        _demand(
            "monotone_load",
            (after >= before * (1 - 1e-9)).all(),
            f"{where}: with 10 % more capacity a port carries less",
        )
        _demand(
            "monotone_utility",
            problem.utility(wider) >= problem.utility(rates) * (1 - 1e-9),
            f"{where}: with 10 % more capacity the utility falls from {problem.utility(rates):.9g} to "
            f"{problem.utility(wider):.9g}",
        )

    flow_order, permuted = _permuted(problem)
    _same(
        "order",
        rates[flow_order],
        _rates(policy, permuted, where),
        f"{where}: flows, subscriptions or ports listed in another order change the answer",
    )
    scaled = replace(
        problem,
        flow_load_bytes_per_second=problem.flow_load_bytes_per_second * 1000,
        port_capacity_bytes_per_second=problem.port_capacity_bytes_per_second * 1000,
    )
    _same(
        "units",
        rates,
        _rates(policy, scaled, where),
        f"{where}: loads and capacities a thousand times larger change the answer",
    )
    wanted = problem.subscriptions
    dearer = replace(problem, subscriptions=replace(wanted, utility_weight=wanted.utility_weight * 7))
    _same(
        "weights",
        rates,
        _rates(policy, dearer, where),
        f"{where}: all weights seven times larger change the answer",
    )


def _rates(policy: Callable[[DropProblem], DropResult], problem: DropProblem, where: str) -> Floats:
    result = policy(problem)
    _demand("result", isinstance(result, DropResult), f"{where}: a {type(result).__name__}, not a DropResult")
    rates = np.asarray(result.drop_rate)
    flows = len(problem.flow_class)
    _demand("result", rates.shape == (flows,), f"{where}: {rates.shape} drop rates for {flows} flows")
    _demand("range", ((rates >= 0) & (rates <= 1)).all(), f"{where}: a drop rate lies outside [0, 1]")
    return rates


def _check_capacity(problem: DropProblem, rates: Floats, where: str) -> None:
    capacity, offered = problem.port_capacity_bytes_per_second, problem.port_loads()
    planned = problem.port_loads(1 - rates)
    # A drop rate has 16 digits; on a port offered far more than it carries they are digits of the offer.
    tolerance = 1e-12 * capacity + 1e-15 * offered
    for port in np.flatnonzero(planned > capacity + tolerance):
        _demand(
            "capacity",
            False,
            f"{where}: {problem.port_names[port]} is given {planned[port]:.9g} bytes/s, "
            f"it may carry {capacity[port]:.9g}",
        )
    full = np.append(planned >= capacity - tolerance, False)
    needed = (full[problem.flow_ports] & (problem.flow_ports >= 0)).any(axis=1)
    _demand(
        "exact",
        not ((rates > 0) & ~needed).any(),
        f"{where}: a flow is dropped although no port on its path is filled to its capacity",
    )


def _permuted(problem: DropProblem) -> tuple[NDArray[np.int64], DropProblem]:
    """The same problem with flows, subscriptions and ports in another order, and the new order of flows."""
    draw = np.random.default_rng(1)
    flows = draw.permutation(len(problem.flow_class))
    subscriptions = draw.permutation(len(problem.subscription_flow))
    ports = draw.permutation(len(problem.port_names))
    new_flow = np.argsort(flows).astype(np.int32)
    new_port = np.append(np.argsort(ports), -1).astype(np.int32)
    return flows, DropProblem(
        flow_load_bytes_per_second=problem.flow_load_bytes_per_second[flows],
        flow_class=problem.flow_class[flows],
        flow_ports=new_port[problem.flow_ports[flows]],
        port_names=tuple(problem.port_names[port] for port in ports),
        port_capacity_bytes_per_second=problem.port_capacity_bytes_per_second[ports],
        subscription_flow=new_flow[problem.subscription_flow[subscriptions]],
        subscription_success=problem.subscription_success[subscriptions],
        subscription_freshness=problem.subscription_freshness[subscriptions],
        subscriptions=take(problem.subscriptions, subscriptions),
    )


def _same(check: str, expected: Floats, found: Floats, explanation: str) -> None:
    _demand(check, bool(np.allclose(expected, found, rtol=0, atol=1e-8)), explanation)


# Flows and priorities: rows of groups put into lists


def _list_battery(kind: str) -> Iterator[FlowProblem | PriorityProblem]:
    for seed in range(PROBLEMS):
        draw = np.random.default_rng(seed)
        count = int(draw.integers(1, 60))
        group = draw.integers(0, 4, count).astype(np.int32)
        worth, lists = draw.lognormal(0, 2, count), int(draw.integers(1, 10))
        if kind == "flows":
            yield FlowProblem(np.sort(group), worth, lists, seed)
        else:
            yield PriorityProblem(worth, group, lists, seed)


def _columns(problem: FlowProblem | PriorityProblem) -> tuple[Integers, Floats, int]:
    if isinstance(problem, FlowProblem):
        return problem.subscriber, problem.rank, problem.flows_per_subscriber
    return problem.group, problem.value, problem.priority_classes


def _with(
    problem: FlowProblem | PriorityProblem, group: Integers, worth: Floats
) -> FlowProblem | PriorityProblem:
    if isinstance(problem, FlowProblem):
        return replace(problem, subscriber=group, rank=worth)
    return replace(problem, group=group, value=worth)


def _check_lists(
    algorithm: Callable[[Any], Integers],
    problem: FlowProblem | PriorityProblem,
    promised: set[str],
    where: str,
) -> None:
    group, worth, lists = _columns(problem)

    def labels_of(given: FlowProblem | PriorityProblem) -> Integers:
        labels = np.asarray(algorithm(given))
        right = labels.shape == worth.shape and np.issubdtype(labels.dtype, np.integer)
        _demand(
            "result", right, f"{where}: {labels.dtype} of shape {labels.shape}; one integer per row is needed"
        )
        inside = ((labels >= 0) & (labels < lists)).all()
        _demand("range", inside, f"{where}: a label lies outside 0..{lists - 1}")
        return labels

    labels = labels_of(problem)
    again = "two calls with the same problem and seed give different lists"
    _demand("deterministic", np.array_equal(labels, labels_of(problem)), f"{where}: {again}")
    for which in np.unique(group):
        rows = np.flatnonzero(group == which)
        if "equal_lists" in promised:
            sizes = np.bincount(labels[rows], minlength=lists)
            used = min(len(rows), lists)
            right = (
                sizes[:used].min() >= len(rows) // lists
                and (np.diff(sizes) <= 0).all()
                and np.ptp(sizes) <= 1
            )
            _demand("equal_lists", right, f"{where}: {len(rows)} rows are cut into lists of {sizes.tolist()}")
        if "ordered" in promised:
            descending = labels[rows[np.argsort(-worth[rows])]]
            _demand("ordered", (np.diff(descending) >= 0).all(), f"{where}: a better row is in a worse list")

    seeded = not np.array_equal(labels, labels_of(replace(problem, seed=problem.seed + 1)))
    _same_lists(
        "units",
        labels,
        labels_of(_with(problem, group, worth * 1000)),
        f"{where}: another unit changes the lists",
    )
    if not seeded:
        # What a seed draws belongs to the canonical order of rows; what ranks decide must not.
        order = np.random.default_rng(1).permutation(len(worth))
        moved = labels_of(_with(problem, group[order], worth[order]))
        _same_lists("order", labels[order], moved, f"{where}: rows listed in another order change the lists")


def _same_lists(check: str, expected: Integers, found: Integers, explanation: str) -> None:
    _demand(check, np.array_equal(expected, found), explanation)
