"""When publishers of promised messages send them: as often as they may, or, where they babble, as fast as they can."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triagemq.errors import ParameterError
from triagemq.scenario import ArrivalProcess, Floats, Scenario, SizeDistribution


@dataclass(frozen=True, slots=True, eq=False)
class Releases:
    """The scenario as the source shall draw events from it, the largest size of each publication (empty where none has
    one), and which publications begin at time 0 instead of in a random phase."""

    scenario: Scenario
    largest_bytes: Floats
    at_once: NDArray[np.bool_]


def released(
    scenario: Scenario,
    rates: Floats,
    direct: NDArray[Any],
    *,
    babbling: Sequence[str] = (),
    synchronised: bool = False,
) -> tuple[Floats, Releases]:
    """The rates of all publications, epoch by epoch, and how their events come about.

    `direct` says in which epoch which publication takes a direct way. Such a one is released periodically, at its
    least separation; a condition that changes its rate changes that by the same factor, so that a higher one breaks
    its terms. No message is larger than was declared. A publisher that is `babbling` sends its largest
    messages one after the other, as fast as its access link takes them.
    """
    publications = scenario.publications
    rates = rates.copy()
    ever = np.asarray(direct.any(axis=0))
    periodic = ever & (publications.min_separation_seconds > 0)
    if not (periodic.any() or babbling):
        nobody = np.zeros(len(publications), dtype=bool)
        return rates, Releases(scenario, np.zeros(0), nobody)
    declared = publications.rate_per_second
    factor = np.divide(rates, declared, out=np.ones_like(rates), where=declared > 0)
    often = factor / np.where(periodic, publications.min_separation_seconds, 1.0)
    rates = np.where(direct & periodic, often, rates)
    process, size = publications.arrival_process.copy(), publications.size_bytes.copy()
    law = publications.size_distribution.copy()
    process[periodic] = ArrivalProcess.PERIODIC
    for name in babbling:
        rows = _babbling_rows(scenario, name, ever)
        publisher = int(publications.publisher[rows[0]])
        size[rows] = publications.max_size_bytes[rows]
        law[rows], process[rows] = SizeDistribution.CONSTANT, ArrivalProcess.PERIODIC
        seconds = _wire_bytes(scenario, rows).sum() * 8 / scenario.publishers.access_bps[publisher]
        rates[:, rows] = 1 / seconds
    changed = replace(publications, arrival_process=process, size_bytes=size, size_distribution=law)
    largest = np.where(ever, publications.max_size_bytes, np.inf)
    return rates, Releases(replace(scenario, publications=changed), largest, periodic & synchronised)


def _babbling_rows(scenario: Scenario, name: str, direct: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The publications of a publisher that take a direct way."""
    if name not in scenario.publishers.name:
        raise ParameterError("babbling", f"no publisher is called {name!r}")
    publisher = scenario.publishers.name.index(name)
    rows = np.flatnonzero((scenario.publications.publisher == publisher) & direct)
    if not rows.size:
        raise ParameterError(
            "babbling", f"nothing that {name!r} publishes is promised; it has no limiter to meet"
        )
    if not np.isfinite(scenario.publishers.access_bps[publisher]):
        raise ParameterError("babbling", f"the access link of {name!r} has no rate; give it access_bps")
    return rows


def _wire_bytes(scenario: Scenario, rows: NDArray[np.int64]) -> Floats:
    """Of the largest message of each publication, with the overhead of its packets."""
    publications = scenario.publications
    switch = scenario.publishers.access_switch[publications.publisher[rows]]
    payload = scenario.switches.packet_bytes[switch] - scenario.overhead_bytes
    size = publications.max_size_bytes[rows]
    return np.asarray(size + np.maximum(np.ceil(size / payload), 1) * scenario.overhead_bytes)
