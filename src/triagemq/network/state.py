"""The ports, flows and limiters that a data plane has, and whether a change of them is possible.

A data plane checks a whole list of instructions here before it follows the first: that makes `apply` atomic.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from triagemq.errors import ParameterError, PlanError
from triagemq.plan import (
    FlowKey,
    Instruction,
    RemoveFlow,
    RemoveLimiter,
    RemovePort,
    SetFlow,
    SetLimiter,
    SetPort,
)
from triagemq.scenario.model import WIDTH_ROUNDING
from triagemq.topic_codes.address import Prefix

CopyKey = tuple[FlowKey, str]
"""A multicast key, and a port by which copies leave."""

Limiters = Mapping[str, SetLimiter]
"""The limiters of one key by port; "" has the one of all ports that have none of their own."""


@dataclass(slots=True)
class StateChange:
    """What a list of instructions comes to: the last word on each port, flow and copy, None for one that goes.

    Of a key whose limiters change there are all that it has then.
    """

    ports: dict[str, SetPort | None] = field(default_factory=dict)
    flows: dict[FlowKey, SetFlow[FlowKey] | None] = field(default_factory=dict)
    copies: dict[CopyKey, SetFlow[FlowKey] | None] = field(default_factory=dict)
    copied: dict[FlowKey, set[str]] = field(default_factory=dict)
    """The ports of those copies by key."""
    limiters: dict[FlowKey, Limiters] = field(default_factory=dict)


class PlanState:
    """Ports and flows by name and key, with at most `priority_classes` classes at a port.

    Where packets are not `replicated`, flows of multicast keys are refused: nothing makes the copies.
    """

    def __init__(self, priority_classes: int, *, replicated: bool = False) -> None:
        self.priority_classes = priority_classes
        self.ports: dict[str, SetPort] = {}
        self.flows: dict[FlowKey, SetFlow[FlowKey]] = {}
        self.copies: dict[CopyKey, SetFlow[FlowKey]] = {}
        self.limiters: dict[FlowKey, Limiters] = {}
        self._replicated = replicated
        self._ports_of: dict[FlowKey, set[str]] = {}
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
                    if instruction.key.is_multicast:
                        self._require_replicated(instruction.key)
                        self._move_copy(change, moved, (instruction.key, instruction.port), instruction)
                    else:
                        self._move_flow(change, moved, instruction.key, instruction)
                case RemoveFlow(key, port):
                    if key.is_multicast:
                        for copy in [(key, port)] if port else self._copies_of(change, key):
                            self._move_copy(change, moved, copy, None)
                    else:
                        self._move_flow(change, moved, key, None)
                case SetLimiter(key, port=port):
                    _check_limiter(instruction)
                    if key.is_prefix:
                        raise PlanError(f"flow {key} is of many topics, and has no limiter")
                    change.limiters[key] = {
                        **change.limiters.get(key, self.limiters.get(key, {})),
                        port: instruction,
                    }
                case RemoveLimiter(key, port):
                    there = change.limiters.get(key, self.limiters.get(key, {}))
                    if port in there:
                        change.limiters[key] = {name: there[name] for name in there if name != port}
                case RemovePort():
                    left = self._flows_at.get(instruction.port, 0) + moved.get(instruction.port, 0)
                    if left:
                        raise PlanError(
                            f"port {instruction.port!r} cannot be removed: {left} flows use it; move them first"
                        )
                    change.ports[instruction.port] = None
        self._check_classes(change)
        self._settle_limiters(change)
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
        for copy, flow in change.copies.items():
            key, name = copy
            if self.copies.pop(copy, None) is not None and name in self._flows_at:
                self._flows_at[name] -= 1
            if flow is not None:
                self.copies[copy] = flow
                self._ports_of.setdefault(key, set()).add(name)
                self._flows_at[name] = self._flows_at.get(name, 0) + 1
            elif key in self._ports_of:
                self._ports_of[key].discard(name)
                if not self._ports_of[key]:
                    del self._ports_of[key]
        for key, limiters in change.limiters.items():
            if limiters:
                self.limiters[key] = limiters
            else:
                self.limiters.pop(key, None)

    def limiter(self, key: FlowKey, port: str, change: StateChange | None = None) -> SetLimiter | None:
        """What limits a flow at a port, now or after a change."""
        if not self.limiters and (change is None or not change.limiters):
            return None
        limiters = self.limiters.get(key)
        if change is not None:
            limiters = change.limiters.get(key, limiters)
        return None if limiters is None else limiters.get(port, limiters.get(""))

    def ports_of(self, key: FlowKey, change: StateChange | None = None) -> list[str]:
        """The ports by which a key's packets leave, now or after a change."""
        change = StateChange() if change is None else change
        if key.is_multicast:
            return [
                port
                for _, port in self._copies_of(change, key)
                if change.copies.get((key, port), self.copies.get((key, port))) is not None
            ]
        flow = change.flows[key] if key in change.flows else self.flows.get(key)
        return [] if flow is None else [flow.port]

    def _port(self, change: StateChange, name: str) -> SetPort | None:
        return change.ports[name] if name in change.ports else self.ports.get(name)

    def _move_flow(
        self, change: StateChange, moved: dict[str, int], key: FlowKey, flow: SetFlow[FlowKey] | None
    ) -> None:
        _move(moved, change.flows[key] if key in change.flows else self.flows.get(key), flow)
        change.flows[key] = flow

    def _move_copy(
        self, change: StateChange, moved: dict[str, int], copy: CopyKey, flow: SetFlow[FlowKey] | None
    ) -> None:
        _move(moved, change.copies[copy] if copy in change.copies else self.copies.get(copy), flow)
        change.copies[copy] = flow
        change.copied.setdefault(copy[0], set()).add(copy[1])

    def _copies_of(self, change: StateChange, key: FlowKey) -> list[CopyKey]:
        """All there are before or after a change."""
        ports = self._ports_of.get(key, set()) | change.copied.get(key, set())
        return [(key, port) for port in sorted(ports)]

    def _require_replicated(self, key: FlowKey) -> None:
        if not self._replicated:
            raise PlanError(
                f"flow {key} goes to many at once, and this data plane sends each packet once; "
                "use --dataplane linux or openflow"
            )

    def _settle_limiters(self, change: StateChange) -> None:
        """Limiters that are set need their flow; those set before go with it."""
        if not self.limiters and not change.limiters:
            return
        touched = {*change.flows, *change.copied, *change.limiters}
        for key in touched:
            before = self.limiters.get(key, {})
            limiters = change.limiters.get(key, before)
            if not limiters:
                continue
            ports = self.ports_of(key, change)
            kept = {}
            for port, limiter in limiters.items():
                if ports and (not port or port in ports):
                    kept[port] = limiter
                elif before.get(port) is not limiter:
                    raise PlanError(
                        f"flow {key} is to be limited{f' at port {port!r}' if port else ''}, and there is no such flow"
                    )
            if kept != before or key in change.limiters:
                change.limiters[key] = kept

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
        if port.widths_bps or port.borrowing:
            _check_widths(port)
        before = self.ports.get(port.port)
        if before is not None and _discipline(before) != _discipline(port):
            # Queues of the kernel that hold packets go on as before, and others cannot be moved.
            raise PlanError(
                f"port {port.port!r} cannot change the discipline of its queues while it is there; remove it first"
            )

    def _check_classes(self, change: StateChange) -> None:
        """Every flow's class is one of its port's; at the end only, because ports change before their flows."""
        flows = [flow for flow in (*change.flows.values(), *change.copies.values()) if flow is not None]
        narrowed = {
            name
            for name, port in change.ports.items()
            if port is not None and name in self.ports and port.classes < self.ports[name].classes
        }
        if narrowed:
            flows += [
                flow for key, flow in self.flows.items() if flow.port in narrowed and key not in change.flows
            ]
            flows += [
                flow
                for copy, flow in self.copies.items()
                if flow.port in narrowed and copy not in change.copies
            ]
        for flow in flows:
            port = self._port(change, flow.port)
            if port is not None and flow.priority_class >= port.classes:
                raise PlanError(
                    f"flow {flow.key} is of class {flow.priority_class}, "
                    f"and port {flow.port!r} has the classes 0 to {port.classes - 1}"
                )


def _move(moved: dict[str, int], before: SetFlow[FlowKey] | None, after: SetFlow[FlowKey] | None) -> None:
    """Count how many flows more, or fewer, use a port."""
    if before is not None:
        moved[before.port] = moved.get(before.port, 0) - 1
    if after is not None:
        moved[after.port] = moved.get(after.port, 0) + 1


def _discipline(port: SetPort) -> tuple[bool, bool]:
    return bool(port.widths_bps), port.borrowing


def _check_widths(port: SetPort) -> None:
    widths, total = port.widths_bps, math.fsum(port.widths_bps)
    if len(widths) != port.classes:
        raise PlanError(f"port {port.port!r} has {len(widths)} widths for {port.classes} priority classes")
    if not all(0 < width < math.inf for width in widths):
        raise PlanError(f"port {port.port!r} has a width that is not positive and finite")
    if not abs(total - port.bandwidth_bps) <= WIDTH_ROUNDING * port.bandwidth_bps:
        raise PlanError(
            f"port {port.port!r} has widths that add up to {total:g} of its {port.bandwidth_bps:g} bit/s"
        )


def _check_limiter(limiter: SetLimiter) -> None:
    for what, value in (("burst", limiter.burst_bytes), ("rate", limiter.rate_bytes_per_second)):
        if not 0 < value < math.inf:
            unit = "bytes" if what == "burst" else "bytes per second"
            raise PlanError(
                f"flow {limiter.key} is to be limited to a {what} of {value} {unit}; it must be positive and finite"
            )
    if not 0 <= limiter.jitter_seconds < math.inf:
        raise PlanError(
            f"flow {limiter.key} is to be limited with a jitter of {limiter.jitter_seconds} s; it must be finite, and "
            "not below 0"
        )


def _check_flow(flow: SetFlow[FlowKey]) -> None:
    if not 0 <= flow.drop_rate <= 1 or math.isnan(flow.drop_rate):
        raise PlanError(f"flow {flow.key} has a drop rate of {flow.drop_rate}; it must be from 0 to 1")
    if flow.source:
        if flow.key.is_prefix:
            raise PlanError(f"flow {flow.key} is of many topics, and has no source")
        try:
            ipaddress.ip_address(flow.source)
        except ValueError:
            raise PlanError(
                f"flow {flow.key} needs an IP address in digits for its source, not {flow.source!r}"
            ) from None
    if flow.priority_class < 0:
        raise PlanError(f"flow {flow.key} is of class {flow.priority_class}; classes count from 0")


def _check_key(key: FlowKey) -> None:
    if not 1 <= key.udp_port <= 65535:
        raise PlanError(f"flow {key} has an impossible UDP port")
    if key.is_prefix:
        try:
            prefix = Prefix.parse(key.address)
        except ParameterError as error:
            raise PlanError(str(error)) from None
        if str(prefix) != key.address:
            raise PlanError(f"flow {key} is to be written with the prefix {prefix}")
        return
    try:
        ipaddress.ip_address(key.address)
    except ValueError:
        raise PlanError(f"flow {key} needs an IP address in digits, not a name") from None
