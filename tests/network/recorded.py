"""The data plane that only remembers."""

from __future__ import annotations

from collections.abc import Sequence

from triagemq.network.state import PlanState
from triagemq.plan.dataplane import Counters, FlowCounters, Instruction, PortCounters, QueueCounters


class RecordedDataPlane:
    """Keeps every list of instructions that was applied, and the state they lead to; refuses what others refuse.

    >>> from triagemq.plan.dataplane import SetPort
    >>> plane = RecordedDataPlane()
    >>> plane.apply([SetPort("radio", 2e6, 100, 8)])
    >>> plane.applied
    [(SetPort(port='radio', bandwidth_bps=2000000.0, buffer_packets=100, classes=8, ...),)]
    """

    def __init__(self, priority_classes: int = 8) -> None:
        self.state = PlanState(priority_classes, replicated=True)
        self.applied: list[tuple[Instruction, ...]] = []
        self.closed = False

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """The present state as instructions: ports, then flows, then limiters."""
        state = self.state
        limiters = (each for some in state.limiters.values() for each in some.values())
        return (*state.ports.values(), *state.flows.values(), *limiters)

    def apply(self, instructions: Sequence[Instruction]) -> None:
        self.state.commit(self.state.change(instructions))
        self.applied.append(tuple(instructions))

    def counters(self) -> Counters:
        """All zero: nothing is sent here."""
        return Counters(
            ports={
                name: PortCounters(tuple(QueueCounters() for _ in range(port.classes)), QueueCounters())
                for name, port in self.state.ports.items()
            },
            flows={flow.key: FlowCounters(flow.flow_id) for flow in self.state.flows.values()},
        )

    def close(self) -> None:
        self.closed = True
