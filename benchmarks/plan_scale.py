"""Plan and forecast a million subscriptions, beside a general convex solver on what it can do in a minute."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from measuring import finish, machine, options, peak_memory_bytes
from triagemq.forecast import Forecast, forecast, starved
from triagemq.lab.generators import table2
from triagemq.plan import PRIORITY_ALGORITHMS, Plan, PriorityProblem, make_plan
from triagemq.plan.drops import DROP_POLICIES, DropProblem, DropResult
from triagemq.scenario import OutputPorts, Scenario, Switches, load, save
from triagemq.scenario.model import filled

Result = TypeVar("Result")


def large_scenario(subscribers: int, ports: int, subscriptions: tuple[int, int]) -> Scenario:
    """Table 2 with many subscribers, ten to a shared port, every port offered about 1.7 times its bandwidth."""
    base = table2(seed=1, subscribers=subscribers, subscriptions=subscriptions)
    sharing = subscribers // ports
    names = tuple(f"port-{number:04d}" for number in range(ports))
    return Scenario.of(
        name=f"{len(base.subscriptions)} subscriptions",
        topics=base.topics,
        brokers=replace(
            base.brokers,
            inbound_rate_per_second=np.full(1, 1e9),
            outbound_rate_per_second=np.full(1, 1e9),
        ),
        switches=filled(Switches, 1, name=("switch",), inbound_rate_per_second=1e9),
        ports=filled(
            OutputPorts,
            ports,
            name=names,
            switch=0,
            bandwidth_bps=8e6 * sharing * sum(subscriptions) / 112,
        ),
        publishers=base.publishers,
        publications=base.publications,
        subscribers=replace(base.subscribers, port=(np.arange(subscribers) // sharing).astype(np.int32)),
        subscriptions=base.subscriptions,
    )


def with_terms(scenario: Scenario) -> Scenario:
    """Minima, which not all ports can carry, for half of the subscriptions; limits and expiry for a tenth each."""
    draw, wanted = np.random.default_rng(2), scenario.subscriptions
    count = len(wanted)

    def some(share: float, stated: NDArray[np.float64], otherwise: float) -> NDArray[np.float64]:
        return np.where(draw.random(count) < share, stated, otherwise)

    return scenario.with_tables(
        subscriptions=replace(
            wanted,
            min_share=some(0.5, draw.uniform(0.05, 0.9, count), 0.0),
            role_rank=draw.integers(0, 4, count).astype(np.float64),
            max_rate_per_second=some(0.1, draw.lognormal(0, 1, count), np.inf),
            newest_only=some(0.1, np.ones(count), 0.0).astype(np.int8),
            expires_seconds=some(0.1, draw.uniform(0.1, 5.0, count), np.inf),
        )
    )


def timed(work: Callable[[], Result]) -> tuple[float, Result]:
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def planned(scenario: Scenario, chosen: dict[str, Any]) -> tuple[dict[str, Any], Plan, Forecast]:
    """How long it takes to plan and forecast, tails included."""
    plan_seconds, plan = timed(lambda: make_plan(scenario, **chosen))
    forecast_seconds, predicted = timed(lambda: forecast(scenario, plan))
    tails_seconds, _ = timed(lambda: [predicted.percentile_seconds(share) for share in (0.95, 0.99)])
    times = {
        "plan_seconds": plan_seconds,
        "forecast_seconds": forecast_seconds,
        "tails_seconds": tails_seconds,
        "total_seconds": plan_seconds + forecast_seconds + tails_seconds,
    }
    return times, plan, predicted


def captured_problem(scenario: Scenario, plan_options: dict[str, Any]) -> DropProblem:
    """The problem that the drop policy is handed while the scenario is planned."""
    captured: list[DropProblem] = []
    optimal = DROP_POLICIES["optimal"]

    def capture(problem: DropProblem) -> DropResult:
        captured.append(problem)
        return optimal(problem)

    DROP_POLICIES["captured"] = capture
    make_plan(scenario, **{**plan_options, "drops": "captured"})
    del DROP_POLICIES["captured"]
    return captured[0]


def convex_solver_seconds(problem: DropProblem, ports: int) -> tuple[int, float] | None:
    """Flows and seconds of cvxpy with Clarabel on the first ports of the same problem; None if it gives up."""
    import cvxpy
    from scipy.sparse import csr_matrix

    port = problem.flow_ports[:, -1]
    flows = np.flatnonzero(port < ports)
    rows = np.flatnonzero(port[problem.subscription_flow] < ports)
    number = np.full(len(port), -1)
    number[flows] = np.arange(len(flows))
    share_of_capacity = (
        problem.flow_load_bytes_per_second[flows] / problem.port_capacity_bytes_per_second[port[flows]]
    )
    load = csr_matrix((share_of_capacity, (port[flows], np.arange(len(flows)))), shape=(ports, len(flows)))
    keep = cvxpy.Variable(len(flows))
    delivered = cvxpy.multiply(
        problem.subscription_success[rows], keep[number[problem.subscription_flow[rows]]]
    )
    utility = problem.subscriptions.utility_weight[rows] @ cvxpy.log1p(delivered)
    general = cvxpy.Problem(cvxpy.Maximize(utility), [keep >= 0, keep <= 1, load @ keep <= 1])
    try:
        seconds, _ = timed(lambda: general.solve(solver=cvxpy.CLARABEL))
    except cvxpy.error.SolverError:
        return None
    return len(flows), seconds


def largest_convex_problem(problem: DropProblem, budget_seconds: float) -> tuple[int, float]:
    """The largest doubling of ports that the general solver finishes within the budget: its flows and time."""
    ports = 1
    largest = convex_solver_seconds(problem, ports)
    assert largest is not None
    # Interior-point time grows a little faster than linearly: do not start what cannot end in time.
    while largest[1] * 2.2 < budget_seconds and 2 * ports <= len(problem.port_names):
        ports *= 2
        larger = convex_solver_seconds(problem, ports)
        if larger is None or larger[1] > budget_seconds:
            break
        largest = larger
    return largest


def main() -> None:
    arguments = options(__doc__).parse_args()
    shrink = 10 if arguments.quick else 1
    chosen: dict[str, Any] = {"priorities": "cluster", "drops": "optimal"}
    compile_seconds, _ = timed(lambda: make_plan(large_scenario(20, 2, (62, 38)), **chosen))
    make_plan(with_terms(large_scenario(20, 2, (62, 38))), **chosen)
    scenario = large_scenario(10_000 // shrink, 1_000 // shrink, (62, 38))
    with tempfile.TemporaryDirectory() as folder:
        save(scenario, Path(folder) / "large")
        load_seconds, scenario = timed(lambda: load(Path(folder) / "large"))
    figures, plan, predicted = planned(scenario, chosen)
    peak = peak_memory_bytes()
    termed = with_terms(scenario)
    terms, reduced, _ = planned(termed, chosen)
    terms |= {
        "peak_memory_bytes": peak_memory_bytes(),
        "ports_too_small": sum(each.kind == "minima_reduced" for each in reduced.decisions),
        "starved": len(starved(termed, reduced)),
    }
    problem = captured_problem(scenario, chosen)
    ours_flows = len(problem.flow_class)
    ours_drops, _ = timed(lambda: DROP_POLICIES["optimal"](problem))
    values = np.random.default_rng(1).lognormal(0, 2, 10_000)
    one_port = PriorityProblem(values, np.zeros(len(values), dtype=np.int32), 9)
    cluster_seconds = min(timed(lambda: PRIORITY_ALGORITHMS["cluster"](one_port))[0] for _ in range(3))
    solver_flows, solver_seconds = largest_convex_problem(problem, 10.0 if arguments.quick else 60.0)
    ratio = (solver_seconds / solver_flows) / (ours_drops / ours_flows)
    result = {
        "subscriptions": len(scenario.subscriptions),
        "subscribers": len(scenario.subscribers),
        "ports": len(scenario.ports),
        "flows": len(plan.flows),
        "load_seconds": load_seconds,
        "first_use_seconds": compile_seconds,
        **figures,
        "peak_memory_bytes": peak,
        "with_terms": terms,
        "rho_planned_largest": float(plan.ports.rho_planned.max()),
        "utility_rate": float(predicted.utility.sum() / predicted.maximum_utility.sum()),
        "optimal_drops_seconds": ours_drops,
        "cluster_10000_flows_seconds": cluster_seconds,
        "convex_solver": {"flows": solver_flows, "seconds": solver_seconds},
        "time_per_flow_ratio": ratio,
        "machine": machine("triagemq", "numpy", "numba", "cvxpy", "clarabel"),
    }
    lines = [
        f"{result['subscriptions']:,} subscriptions, {result['subscribers']:,} subscribers, "
        f"{result['ports']:,} ports, {result['flows']:,} flows",
        f"loaded from a directory of Parquet tables in {load_seconds:.2f} s",
        f"flows, cluster priorities, optimal drops {figures['plan_seconds']:6.2f} s   (first use on this machine, "
        f"compilation included: {compile_seconds:.2f} s)",
        f"forecast                                {figures['forecast_seconds']:6.2f} s",
        f"p95 and p99 of every subscription       {figures['tails_seconds']:6.2f} s",
        f"together                                {figures['total_seconds']:6.2f} s, peak memory "
        f"{peak / 2**30:.2f} GiB",
        f"with minima, limits and expiry          {terms['total_seconds']:6.2f} s (plan "
        f"{terms['plan_seconds']:.2f}, forecast {terms['forecast_seconds']:.2f}), peak memory "
        f"{terms['peak_memory_bytes'] / 2**30:.2f} GiB; {terms['ports_too_small']} times the minima of a rank do not "
        f"fit a port, {terms['starved']:,} subscriptions get nothing or less than their minimum",
        f"optimal drops alone: {ours_flows:,} flows in {ours_drops:.3f} s",
        f"cluster: 10,000 flows into 9 classes in {1000 * cluster_seconds:.1f} ms",
        f"cvxpy + Clarabel:    {solver_flows:,} flows in {solver_seconds:.1f} s, "
        f"the largest it does within its budget",
        f"time per flow: {ratio:,.0f} times ours",
    ]
    finish(result, lines, as_json=arguments.json)


if __name__ == "__main__":
    main()
