"""Random drop problems of every kind that policies must cope with, and what they are held against."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from triagemq.plan.drops.problem import DropProblem, subscription_columns
from triagemq.plan.drops.waterfilling import concave_flows, fill_ports, step_levels
from triagemq.scenario import UtilityShape


def _random_problem(
    seed: int,
    *,
    flows: int | None = None,
    ports: int | None = None,
    shapes: tuple[UtilityShape, ...] = (UtilityShape.LOG, UtilityShape.LINEAR),
    tree: bool | None = None,
    ties: bool = False,
    subscriptions_per_flow: int = 4,
    priority_classes: int = 5,
) -> DropProblem:
    """Flows of 1 to a few subscriptions over ports, some below trunk ports, with unequal link losses."""
    draw = np.random.default_rng(seed)
    ports = ports or int(draw.integers(1, 21))
    flows = flows or int(draw.integers(1, 301))
    tree = bool(draw.integers(2)) if tree is None else tree
    above = np.full(ports, -1)
    if tree:
        for port in range(1, ports):
            above[port] = draw.integers(-1, port)
    paths = [_path(port, above) for port in range(ports)]
    depth = max(map(len, paths))
    padded = np.array([[-1] * (depth - len(path)) + path for path in paths], dtype=np.int32)
    owner = np.concatenate(
        [np.arange(flows), draw.integers(0, flows, int(draw.integers(0, subscriptions_per_flow * flows)))]
    ).astype(np.int32)
    count = len(owner)
    load = draw.lognormal(0, 1, count) * 1e3
    weight = draw.lognormal(0, 1, count)
    success = draw.uniform(0.3, 1, count)
    shape = draw.choice(np.array(shapes, dtype=np.int8), count)
    if ties:
        weight, load, success = np.round(weight) + 1, np.full(count, 1e3), np.full(count, 0.9)
        shape[draw.random(flows)[owner] < 0.7] = UtilityShape.LINEAR
    flow_load = np.bincount(owner, load, minlength=flows)
    flow_load[draw.random(flows) < 0.03] = 0.0
    flow_ports = padded[draw.integers(0, ports, flows)]
    crossed = np.zeros(ports)
    for column in flow_ports.T:
        np.add.at(crossed, column[column >= 0], flow_load[column >= 0])
    capacity = np.maximum(crossed, 1.0) * draw.uniform(0.05, 1.2, ports)
    return DropProblem(
        flow_load_bytes_per_second=flow_load,
        flow_class=draw.integers(0, priority_classes, flows).astype(np.int32),
        flow_ports=flow_ports,
        port_names=tuple(f"port {port}" for port in range(ports)),
        port_capacity_bytes_per_second=capacity,
        subscription_flow=owner,
        subscription_success=success,
        subscription_freshness=np.where(draw.random(count) < 0.2, draw.random(count), 1.0),
        subscriptions=subscription_columns(
            weight=weight, shape=shape, threshold=np.round(draw.uniform(0.05, 1, count), 2)
        ),
    )


def _path(port: int, above: np.ndarray) -> list[int]:
    path = [port]
    while above[path[0]] >= 0:
        path.insert(0, int(above[path[0]]))
    return path


def _crossing(problem: DropProblem) -> np.ndarray:
    """ports x flows: 1 where a flow crosses a port."""
    matrix = np.zeros((len(problem.port_names), len(problem.flow_class)))
    for column in problem.flow_ports.T:
        on = np.flatnonzero(column >= 0)
        matrix[column[on], on] = 1.0
    return matrix


def _brute_force(problem: DropProblem) -> float:
    """The best utility over every combination of step levels, the rest water-filled above each."""
    flows, levels = concave_flows(problem), step_levels(problem)
    depths, capacity = problem.ports_by_depth(), problem.port_capacity_bytes_per_second
    best = -np.inf
    for reached in itertools.product(*[range(size + 1) for size in np.diff(levels.start)]):
        floors = levels.floors(np.array(reached))
        left = capacity - problem.port_loads(floors)
        if (left < 0).any():
            continue
        rest, _ = fill_ports(flows.above(floors), depths, left)
        best = max(best, problem.utility(1.0 - np.minimum(floors + rest, 1.0)))
    return best


@pytest.fixture(scope="session")
def random_problem() -> Callable[..., DropProblem]:
    return _random_problem


def _with_floors(seed: int, **options: object) -> DropProblem:
    """The same with a minimum for most flows, which all ports can carry: barely, on every third problem."""
    problem = _random_problem(seed, **options)  # type: ignore[arg-type]
    draw = np.random.default_rng(seed + 1_000_000)
    flows = len(problem.flow_class)
    floor = np.where(draw.random(flows) < 0.7, draw.random(flows), 0.0)
    use = (problem.port_loads(floor) / problem.port_capacity_bytes_per_second).max()
    most = 0.99 if seed % 3 == 0 else draw.random()
    return replace(problem, flow_floor=floor * min(1.0, most / max(use, 1e-12)))


@pytest.fixture(scope="session")
def with_floors() -> Callable[..., DropProblem]:
    return _with_floors


@pytest.fixture(scope="session")
def crossing() -> Callable[[DropProblem], np.ndarray]:
    return _crossing


@pytest.fixture(scope="session")
def brute_force() -> Callable[[DropProblem], float]:
    return _brute_force
