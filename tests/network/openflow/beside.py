"""Switches and the queues behind their ports, which follow the same instructions side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from triagemq.network.openflow import OpenFlowSwitches
from triagemq.plan.dataplane import Counters, DataPlane, FlowCounters, Instruction


class SwitchesAndQueues:
    """A DataPlane of both. What switches refuse the queues are not told; what switches limit the queues do not see."""

    def __init__(self, switches: OpenFlowSwitches, queues: DataPlane) -> None:
        self.switches, self.queues = switches, queues

    def apply(self, instructions: Sequence[Instruction]) -> None:
        self.switches.apply(instructions)
        self.queues.apply(instructions)

    def counters(self) -> Counters:
        counters = self.queues.counters()
        flows = dict(counters.flows)
        for switch in self.switches.counters().values():
            for key, flow in switch.flows.items():
                if key in flows and flow.limited:
                    cut = FlowCounters(0, packets_in=flow.limited, limited=flow.limited)
                    flows[key] = flows[key].plus(cut)
        return replace(counters, flows=flows)

    def close(self) -> None:
        self.switches.close()
        self.queues.close()
