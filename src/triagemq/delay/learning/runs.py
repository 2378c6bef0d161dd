"""What the scenario of a run says that samples do not: the kind of its traffic, and the constants of its switches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from triagemq.delay.learning.features import SwitchConstants
from triagemq.delay.learning.rows import held_out
from triagemq.scenario import ArrivalProcess

if TYPE_CHECKING:
    from triagemq.scenario import Scenario

UNKNOWN_TRAFFIC = "unknown"
"""Of a run whose scenario nobody kept."""


@dataclass(frozen=True, slots=True)
class KnownRun:
    """What is known of a run beside its samples; `number` is its place among those that are learned from."""

    number: int
    traffic: str
    held_out: bool
    ports: Mapping[int, SwitchConstants]


def known_runs(scenarios: Mapping[str, Scenario | None]) -> dict[str, KnownRun]:
    """The runs that are learned from, by id, in their order."""
    kinds = {run_id: traffic_kind(scenario) for run_id, scenario in scenarios.items()}
    aside = held_out(kinds)
    runs = {}
    for number, (run_id, scenario) in enumerate(scenarios.items()):
        rows = range(0 if scenario is None else len(scenario.ports))
        ports = {row: switch_constants(scenario, row) for row in rows if scenario is not None}
        runs[run_id] = KnownRun(number, kinds[run_id], run_id in aside, ports)
    return runs


def traffic_kind(scenario: Scenario | None) -> str:
    """How publications arrive, all kinds in order of their names.

    >>> traffic_kind(None)
    'unknown'
    """
    if scenario is None or not len(scenario.publications):
        return UNKNOWN_TRAFFIC
    kinds = np.unique(scenario.publications.arrival_process).tolist()
    return "+".join(sorted(ArrivalProcess(kind).name.lower() for kind in kinds))


def switch_constants(scenario: Scenario, port: int) -> SwitchConstants:
    """Of a port (a row of the scenario) and of its switch, from the model that this names (Shi et al., Table 1).

    A scenario counts buffers in packets: in bytes they are what as many mean packets have. Where nothing is said, it is
    not known; no model says how many addresses a switch learns.

    >>> from triagemq.scenario.building import building
    >>> found = switch_constants(building(), 0)
    >>> found.largest_packet_bytes, found.smallest_delay_seconds, found.largest_mac_table
    (1500.0, 0.0, nan)
    """
    publications, switches = scenario.publications, scenario.switches
    switch = int(scenario.ports.switch[port])
    sizes = np.minimum(publications.size_bytes + scenario.overhead_bytes, scenario.mtu_bytes)
    rates = publications.rate_per_second
    mean = np.average(sizes, weights=rates) if rates.sum() > 0 else math.nan
    largest = _known(switches.packet_bytes[switch])
    return SwitchConstants(
        buffer_bytes=_known(scenario.ports.buffer_packets[port] * mean),
        largest_packet_bytes=float(sizes.max(initial=0.0)) if math.isnan(largest) else largest,
        smallest_delay_seconds=_known(switches.multiplexing_seconds[switch]),
        largest_routing_table=_known(switches.rules[switch]),
    )


def _known(value: float) -> float:
    return float(value) if math.isfinite(value) else math.nan
