"""Switches and the queues behind their ports, which follow the same instructions side by side."""

from __future__ import annotations

from collections.abc import Sequence

from triagemq.network.openflow import OpenFlowSwitches
from triagemq.plan import Counters, DataPlane, Instruction


class SwitchesAndQueues:
    """A DataPlane of both. What switches refuse the queues are not told."""

    def __init__(self, switches: OpenFlowSwitches, queues: DataPlane) -> None:
        self.switches, self.queues = switches, queues

    def apply(self, instructions: Sequence[Instruction]) -> None:
        self.switches.apply(instructions)
        self.queues.apply(instructions)

    def counters(self) -> Counters:
        return self.queues.counters()

    def close(self) -> None:
        self.switches.close()
        self.queues.close()
