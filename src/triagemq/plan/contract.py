"""What every drop policy must satisfy, as a check that anyone can run over their own.

    check_policy(my_policy)

runs a battery of random problems with a fixed seed and raises ContractError at the first broken promise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from triagemq.plan.drops.problem import DropProblem, DropResult, subscription_columns
from triagemq.scenario import Floats, UtilityShape
from triagemq.scenario.model import take

PROBLEMS = 24


class ContractError(AssertionError):
    """A promise is broken: `check` is its name, the text says on which problem and how."""

    def __init__(self, check: str, explanation: str) -> None:
        self.check = check
        super().__init__(f"{check}: {explanation}")


def check_policy(policy: Callable[[DropProblem], DropResult], *, capacity: bool = True) -> None:
    """Raise ContractError unless `policy` keeps the contract of drop policies.

    Without `capacity` a port may be given more than it carries, and less, as the baseline without drops does.

    >>> from triagemq.plan.drops import DROP_POLICIES
    >>> check_policy(DROP_POLICIES["linear"])
    >>> check_policy(DROP_POLICIES["none"])
    Traceback (most recent call last):
    ...
    triagemq.plan.contract.ContractError: capacity: problem 0: port 0 is given ... bytes/s, it may carry ...
    """
    for number, problem in enumerate(_drop_battery()):
        _check_drops(policy, problem, f"problem {number}", capacity=capacity)


def _demand(check: str, holds: bool | np.bool_, explanation: str) -> None:
    if not holds:
        raise ContractError(check, explanation)


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
    policy: Callable[[DropProblem], DropResult], problem: DropProblem, where: str, *, capacity: bool
) -> None:
    def rates_of(changed: DropProblem) -> Floats:
        return _rates(policy, changed, where)

    def same(check: str, found: Floats, expected: Floats, what: str) -> None:
        _demand(check, np.allclose(expected, found, rtol=0, atol=1e-8), f"{where}: {what} change the answer")

    rates = rates_of(problem)
    again = f"{where}: two calls with the same problem give different drop rates"
    _demand("deterministic", np.array_equal(rates, rates_of(problem)), again)
    if capacity:
        _check_capacity(problem, rates, where)
    load, room = problem.flow_load_bytes_per_second, problem.port_capacity_bytes_per_second
    if problem.flow_ports.shape[1] == 1:
        wider = rates_of(replace(problem, port_capacity_bytes_per_second=room * 1.1))
        before, after = problem.port_loads(1 - rates), problem.port_loads(1 - wider)
        more = f"{where}: with 10 % more capacity"
        _demand("monotone_load", (after >= before * (1 - 1e-9)).all(), f"{more} a port carries less")
        least, found = problem.utility(rates), problem.utility(wider)
        falls = f"{more} the utility falls from {least:.9g} to {found:.9g}"
        _demand("monotone_utility", found >= least * (1 - 1e-9), falls)
    order, permuted = _permuted(problem)
    same("order", rates_of(permuted), rates[order], "flows, subscriptions or ports listed in another order")
    scaled = replace(
        problem, flow_load_bytes_per_second=load * 1000, port_capacity_bytes_per_second=room * 1000
    )
    same("units", rates_of(scaled), rates, "loads and capacities a thousand times larger")
    wanted = problem.subscriptions
    dearer = replace(problem, subscriptions=replace(wanted, utility_weight=wanted.utility_weight * 7))
    same("weights", rates_of(dearer), rates, "all weights seven times larger")


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
        name, given = problem.port_names[port], f"{planned[port]:.9g} bytes/s"
        _demand("capacity", False, f"{where}: {name} is given {given}, it may carry {capacity[port]:.9g}")
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
