"""Where flows compete for bandwidth: at a port, or in the queue of their class where the port is partitioned."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from triagemq.errors import PlanError
from triagemq.plan.model import Flows
from triagemq.scenario import Discipline, Floats, Integers, Scenario, port_paths


@dataclass(frozen=True, slots=True, eq=False)
class ContendedPlaces:
    """`flow_places` has a row per flow, as `port_paths` has ports. The others are columns over places: first the ports,
    then the queues of partitioned ones, each with the name, the number of its `port`, and its bandwidth."""

    flow_places: Integers
    names: tuple[str, ...]
    port: Integers
    bandwidth_bps: Floats

    def by_port(self, values: Floats) -> Floats:
        """Values of places added up, per port."""
        return np.bincount(self.port, values).astype(np.float64)


def places(scenario: Scenario, flows: Flows) -> ContendedPlaces:
    """The places that flows cross. Queues that borrow compete for the whole port, and are none."""
    ports = scenario.ports
    crossed = port_paths(scenario)[flows.port]
    partitioned = (ports.discipline == Discipline.WIDTHS) & (ports.borrowing == 0)
    rows = np.flatnonzero(partitioned)
    widths = [ports.widths_bps[row] for row in rows.tolist()]
    counts = np.array([len(each) for each in widths], dtype=np.int32)
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
                for queue in range(len(ports.widths_bps[row]))
            ),
        ),
        port=np.concatenate([np.arange(len(ports)), np.repeat(rows, counts)]).astype(np.int32),
        bandwidth_bps=np.concatenate([ports.bandwidth_bps, *widths]),
    )


def check_widths(scenario: Scenario, classes: int, *, with_drops: bool) -> None:
    """Refuse more classes than queues with widths, and drop rates where places are no trees."""
    ports = scenario.ports
    for row in np.flatnonzero(ports.discipline == Discipline.WIDTHS).tolist():
        name, count = ports.name[row], len(ports.widths_bps[row])
        if classes > count:
            raise PlanError(
                f"{classes} priority classes do not fit port {name!r}, which has {count} widths; "
                f"ask for at most {count} classes"
            )
        if with_drops and not ports.borrowing[row]:
            _check_tree(scenario, row)


def _check_tree(scenario: Scenario, row: int) -> None:
    """Drop rates are set along trees: what shares a place further down shares all places before it."""
    ports = scenario.ports
    fed = np.flatnonzero(scenario.switches.fed_by_port == row)
    together = (ports.discipline != Discipline.WIDTHS) | (ports.borrowing > 0)
    behind = np.flatnonzero(np.isin(ports.switch, fed) & together & (ports.to_switch < 0))
    if behind.size:
        raise PlanError(
            f"port {ports.name[row]!r} is partitioned, and port {ports.name[behind[0]]!r} behind it is not: no drop "
            "rates can be set for both; give that one widths without borrowing, or plan with drops: none"
        )
