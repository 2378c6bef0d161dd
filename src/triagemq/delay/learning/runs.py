"""What the scenario of a run says that its samples do not: the kind of its traffic, and the constants of its ports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from triagemq.delay.learning.features import SwitchConstants
from triagemq.scenario import ArrivalProcess

if TYPE_CHECKING:
    from triagemq.scenario import Scenario

UNKNOWN_TRAFFIC = "unknown"
"""Of a run whose scenario nobody kept."""


def traffic_kind(scenario: Scenario | None) -> str:
    """How publications arrive, all kinds in order of their names.

    >>> traffic_kind(None)
    'unknown'
    """
    if scenario is None or not len(scenario.publications):
        return UNKNOWN_TRAFFIC
    kinds = np.unique(scenario.publications.arrival_process).tolist()
    return "+".join(sorted(ArrivalProcess(kind).name.lower() for kind in kinds))


def port_constants(scenario: Scenario | None) -> dict[int, SwitchConstants]:
    """What is known of each port: its buffer, by the mean packet of the scenario; none of a port without a limit."""
    if scenario is None or not len(scenario.publications):
        return {}
    rate = scenario.publications.rate_per_second
    sizes = scenario.publications.size_bytes + scenario.overhead_bytes
    packet_bytes = float(np.average(sizes, weights=rate)) if rate.sum() > 0 else float(sizes.mean())
    return {
        port: SwitchConstants(
            buffer_bytes=float(packets) * packet_bytes, largest_packet_bytes=float(sizes.max())
        )
        for port, packets in enumerate(scenario.ports.buffer_packets)
        if np.isfinite(packets)
    }
