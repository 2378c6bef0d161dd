"""The ports and flows that a data plane has been told of, and whether a change of them is possible.

A data plane checks a whole list of instructions here before it follows the first: that makes `apply` atomic.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from triagemq.errors import PlanError
from triagemq.plan import FlowKey, Instruction, RemoveFlow, RemovePort, SetFlow, SetPort


@dataclass(slots=True)
class StateChange:
    """What a list of instructions comes to: the last word on each port and flow, None for one that goes."""

    ports: dict[str, SetPort | None] = field(default_factory=dict)
    flows: dict[FlowKey, SetFlow[FlowKey] | None] = field(default_factory=dict)


class PlanState:
    """Ports and flows by name and key, with at most `priority_classes` classes at a port."""

    def __init__(self, priority_classes: int) -> None:
        self.priority_classes = priority_classes
        self.ports: dict[str, SetPort] = {}
        self.flows: dict[FlowKey, SetFlow[FlowKey]] = {}
        self._flows_at: dict[str, int] = {}

    def change(self, instructions: Sequence[Instruction]) -> StateChange:
        """What the instructions would change, or PlanError. The state stays as it is.

        The cost grows with the number of instructions, not with that of the flows there are: clients come and go.
        """
        change = StateChange()
        moved: dict[str, int] = {}
        for instruction in instructions:
            match instruction:
                case SetPort():
                    self._check_port(instruction)
                    change.ports[instruction.port] = instruction
                case SetFlow():
                    _check_flow(instruction)
                    if instruction.key not in self.flows:
                        _check_key(instruction.key)
                    if self._port(change, instruction.port) is None:
                        raise PlanError(
                            f"flow {instruction.key} goes to the port {instruction.port!r}, which is not there"
                        )
                    self._leave_port(change, moved, instruction.key)
                    moved[instruction.port] = moved.get(instruction.port, 0) + 1
                    change.flows[instruction.key] = instruction
                case RemoveFlow():
                    self._leave_port(change, moved, instruction.key)
                    change.flows[instruction.key] = None
                case RemovePort():
                    left = self._flows_at.get(instruction.port, 0) + moved.get(instruction.port, 0)
                    if left:
                        raise PlanError(
                            f"port {instruction.port!r} cannot be removed: {left} flows use it; move them first"
                        )
                    change.ports[instruction.port] = None
        self._check_classes(change)
        return change

    def commit(self, change: StateChange) -> None:
        """Make a change that `change` gave, with nothing in between."""
        for name, port in change.ports.items():
            if port is None:
                self.ports.pop(name, None)
                self._flows_at.pop(name, None)
            else:
                self.ports[name] = port
        for key, flow in change.flows.items():
            before = self.flows.pop(key, None)
            if before is not None and before.port in self._flows_at:
                self._flows_at[before.port] -= 1
            if flow is not None:
                self.flows[key] = flow
                self._flows_at[flow.port] = self._flows_at.get(flow.port, 0) + 1

    def _port(self, change: StateChange, name: str) -> SetPort | None:
        return change.ports[name] if name in change.ports else self.ports.get(name)

    def _leave_port(self, change: StateChange, moved: dict[str, int], key: FlowKey) -> None:
        before = change.flows[key] if key in change.flows else self.flows.get(key)
        if before is not None:
            moved[before.port] = moved.get(before.port, 0) - 1

    def _check_port(self, port: SetPort) -> None:
        if not port.bandwidth_bps > 0:
            raise PlanError(
                f"port {port.port!r} has a bandwidth of {port.bandwidth_bps} bit/s; it must be positive"
            )
        if not port.buffer_packets >= 1:
            raise PlanError(
                f"port {port.port!r} has a buffer of {port.buffer_packets} packets; it needs 1 for the packet it sends"
            )
        if not 1 <= port.classes <= self.priority_classes:
            raise PlanError(
                f"port {port.port!r} is to have {port.classes} priority classes, and this data plane has "
                f"{self.priority_classes}; write planning: {{priority_classes: {self.priority_classes}}}"
            )

    def _check_classes(self, change: StateChange) -> None:
        """Every flow's class is one of its port's; at the end only, because ports change before their flows."""
        flows = [flow for flow in change.flows.values() if flow is not None]
        narrowed = {
            name
            for name, port in change.ports.items()
            if port is not None and name in self.ports and port.classes < self.ports[name].classes
        }
        if narrowed:
            flows += [
                flow for key, flow in self.flows.items() if flow.port in narrowed and key not in change.flows
            ]
        for flow in flows:
            port = self._port(change, flow.port)
            if port is not None and flow.priority_class >= port.classes:
                raise PlanError(
                    f"flow {flow.key} is of class {flow.priority_class}, "
                    f"and port {flow.port!r} has the classes 0 to {port.classes - 1}"
                )


def _check_flow(flow: SetFlow[FlowKey]) -> None:
    if not 0 <= flow.drop_rate <= 1 or math.isnan(flow.drop_rate):
        raise PlanError(f"flow {flow.key} has a drop rate of {flow.drop_rate}; it must be from 0 to 1")
    if flow.priority_class < 0:
        raise PlanError(f"flow {flow.key} is of class {flow.priority_class}; classes count from 0")


def _check_key(key: FlowKey) -> None:
    if not 1 <= key.udp_port <= 65535:
        raise PlanError(f"flow {key} has an impossible UDP port")
    try:
        ipaddress.ip_address(key.address)
    except ValueError:
        raise PlanError(f"flow {key} needs an IP address in digits, not a name") from None
