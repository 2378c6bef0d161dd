"""What a scenario knows of the switch behind each port, as features of its queues (Shi et al., Table 1)."""

from __future__ import annotations

import math

from triagemq.delay.learning.features import SwitchConstants
from triagemq.scenario import Scenario


def switch_constants(scenario: Scenario, port: int) -> SwitchConstants:
    """Of the switch that a port (a row of the scenario) belongs to, from its model.

    A scenario counts buffers in packets: in bytes they are what as many of the longest packets have. Where nothing is
    said, it is not known; no model says how many addresses a switch learns.

    >>> from triagemq.scenario.generators import prototype
    >>> found = switch_constants(prototype(subscribers=2), 0)
    >>> found.smallest_delay_seconds, found.largest_mac_table
    (0.0, nan)
    """
    switches, switch = scenario.switches, int(scenario.ports.switch[port])
    packet_bytes = _known(switches.packet_bytes[switch])
    return SwitchConstants(
        buffer_bytes=_known(scenario.ports.buffer_packets[port] * packet_bytes),
        largest_packet_bytes=packet_bytes,
        smallest_delay_seconds=_known(switches.multiplexing_seconds[switch]),
        largest_routing_table=_known(switches.rules[switch]),
    )


def _known(value: float) -> float:
    return float(value) if math.isfinite(value) else math.nan
