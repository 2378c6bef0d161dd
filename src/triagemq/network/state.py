"""The ports, flows and limiters of a data plane, and whether a change of them is possible.

A data plane checks a whole list of instructions here before it follows the first: that makes `apply` atomic.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from triagemq.errors import ParameterError, PlanError
from triagemq.plan.dataplane import (
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

FlowAt = tuple[FlowKey, str]
"""A flow: its key, and of a multicast key the port by which copies leave; "" of any other."""

Limiters = Mapping[str, SetLimiter]
"""The limiters of one key by port; "" has the one of all ports that have none of their own."""


@dataclass(slots=True)
class StateChange:
    """The effect of a list of instructions: the last one on each port and flow, None for one that goes.

    Of a key whose limiters change there are all that it has then.
    """

    ports: dict[str, SetPort | None] = field(default_factory=dict)
    flows: dict[FlowAt, SetFlow[FlowKey] | None] = field(default_factory=dict)
    limiters: dict[FlowKey, Limiters] = field(default_factory=dict)
    multicast_ports: dict[FlowKey, set[str]] = field(default_factory=dict)
    """The ports of the multicast flows that are among `flows`."""

    @property
    def keys(self) -> dict[FlowKey, None]:
        """The keys whose flows or limiters change."""
        return dict.fromkeys([*(key for key, _ in self.flows), *self.limiters])


class PlanState:
    """Ports and flows by name and key, with at most `priority_classes` classes at a port.

    Where packets are not `replicated`, multicast flows are refused: nothing makes the copies. So are limiters, which
    are for promised topics.
    """

    def __init__(self, priority_classes: int, *, replicated: bool = False) -> None:
        self.priority_classes = priority_classes
        self.ports: dict[str, SetPort] = {}
        self.flows: dict[FlowAt, SetFlow[FlowKey]] = {}
        self.limiters: dict[FlowKey, Limiters] = {}
        self._replicated = replicated
        self._multicast_ports: dict[FlowKey, set[str]] = {}

    def change(self, instructions: Sequence[Instruction]) -> StateChange:
        """What the instructions would change, or PlanError. The state stays as it is.

        The cost grows with the number of instructions, and with that of the flows there are only where a port goes or
        has fewer classes: clients come and go.
        """
        change = StateChange()
        for instruction in instructions:
            match instruction:
                case SetPort():
                    self._check_port(instruction)
                    change.ports[instruction.port] = instruction
                case SetFlow(key, port):
                    _check_flow(instruction)
                    at = key, port if key.is_multicast else ""
                    if at not in self.flows:
                        self._check_key(key)
                    if self._port(change, port) is None:
                        raise PlanError(f"flow {key} goes to the port {port!r}, which is not there")
                    _set(change, at, instruction)
                case RemoveFlow(key, port):
                    for at in [(key, port)] if port and key.is_multicast else self._places(change, key):
                        _set(change, at, None)
                case SetLimiter(key, port=port):
                    self._check_limiter(instruction)
                    change.limiters[key] = {**self._limiters(change, key), port: instruction}
                case RemoveLimiter(key, port):
                    there = self._limiters(change, key)
                    if port in there:
                        change.limiters[key] = {name: there[name] for name in there if name != port}
                case RemovePort(port):
                    flows = {**self.flows, **change.flows}.values()
                    if left := sum(flow is not None and flow.port == port for flow in flows):
                        raise PlanError(
                            f"port {port!r} cannot be removed: {left} flows use it; move them first"
                        )
                    change.ports[port] = None
        self._check_classes(change)
        self._settle_limiters(change)
        return change

    def commit(self, change: StateChange) -> None:
        """Make a change that `change` gave, with nothing in between."""
        for name, port in change.ports.items():
            if port is None:
                self.ports.pop(name, None)
            else:
                self.ports[name] = port
        for at, flow in change.flows.items():
            self.flows.pop(at, None)
            if flow is not None:
                self.flows[at] = flow
        for key, ports in change.multicast_ports.items():
            ports = {
                port for port in ports | self._multicast_ports.pop(key, set()) if (key, port) in self.flows
            }
            if ports:
                self._multicast_ports[key] = ports
        for key, limiters in change.limiters.items():
            self.limiters.pop(key, None)
            if limiters:
                self.limiters[key] = limiters

    def limiter(self, key: FlowKey, port: str, change: StateChange) -> SetLimiter | None:
        """What limits a flow at a port after a change."""
        limiters = self._limiters(change, key)
        return limiters.get(port, limiters.get(""))

    def flows_of(self, key: FlowKey, change: StateChange) -> dict[FlowAt, SetFlow[FlowKey]]:
        """The flows of a key after a change: of a multicast key one for each port."""
        places = self._places(change, key)
        return {at: flow for at in places if (flow := self._flow(change, at)) is not None}

    def _port(self, change: StateChange, name: str) -> SetPort | None:
        return change.ports[name] if name in change.ports else self.ports.get(name)

    def _flow(self, change: StateChange, at: FlowAt) -> SetFlow[FlowKey] | None:
        return change.flows[at] if at in change.flows else self.flows.get(at)

    def _limiters(self, change: StateChange, key: FlowKey) -> Limiters:
        return change.limiters.get(key, self.limiters.get(key, {}))

    def _places(self, change: StateChange, key: FlowKey) -> list[FlowAt]:
        """Where a key has flows before or after a change."""
        if not key.is_multicast:
            return [(key, "")]
        ports = self._multicast_ports.get(key, set()) | change.multicast_ports.get(key, set())
        return [(key, port) for port in sorted(ports)]

    def _settle_limiters(self, change: StateChange) -> None:
        """Limiters that are set need their flow; those set before go with it."""
        for key in change.keys if self.limiters or change.limiters else ():
            before, limiters = self.limiters.get(key, {}), self._limiters(change, key)
            ports = {flow.port for flow in self.flows_of(key, change).values()}
            valid = {port: each for port, each in limiters.items() if ports and (not port or port in ports)}
            for port in limiters.keys() - valid.keys():
                if before.get(port) is not limiters[port]:
                    raise PlanError(
                        f"flow {key} is to be limited{f' at port {port!r}' if port else ''}, and there is no such flow"
                    )
            if valid != before or key in change.limiters:
                change.limiters[key] = valid

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
        if port.queue_rates_bps or port.borrowing:
            _check_queue_rates(port)
        before = self.ports.get(port.port)
        if before is not None and _discipline(before) != _discipline(port):
            # Queues of the kernel that hold packets go on as before, and others cannot be moved.
            raise PlanError(
                f"port {port.port!r} cannot change the discipline of its queues while it is there; remove it first"
            )

    def _check_key(self, key: FlowKey) -> None:
        if not 1 <= key.udp_port <= 65535:
            raise PlanError(f"flow {key} has an impossible UDP port")
        if key.is_multicast and not self._replicated:
            raise PlanError(
                f"flow {key} goes to many at once, and this data plane sends each packet once; "
                "use --dataplane linux or openflow"
            )
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

    def _check_limiter(self, limiter: SetLimiter) -> None:
        if not self._replicated:
            raise PlanError(f"flow {limiter.key} is to be limited; use --dataplane linux or openflow")
        if limiter.key.is_prefix:
            raise PlanError(f"flow {limiter.key} is of many topics, and has no limiter")
        for what, value in (("burst", limiter.burst_bytes), ("rate", limiter.rate_bytes_per_second)):
            if not 0 < value < math.inf:
                unit = "bytes" if what == "burst" else "bytes per second"
                raise PlanError(
                    f"flow {limiter.key} is to be limited to a {what} of {value} {unit}; it must be positive and finite"
                )
        if not 0 <= limiter.jitter_seconds < math.inf:
            raise PlanError(
                f"flow {limiter.key} is to be limited with a jitter of {limiter.jitter_seconds} s; "
                "it must be finite, and not below 0"
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
                flow for at, flow in self.flows.items() if flow.port in narrowed and at not in change.flows
            ]
        for flow in flows:
            port = self._port(change, flow.port)
            if port is not None and flow.priority_class >= port.classes:
                raise PlanError(
                    f"flow {flow.key} is of class {flow.priority_class}, "
                    f"and port {flow.port!r} has the classes 0 to {port.classes - 1}"
                )


def _set(change: StateChange, at: FlowAt, flow: SetFlow[FlowKey] | None) -> None:
    """Note a flow in the change."""
    change.flows[at] = flow
    if at[1]:
        change.multicast_ports.setdefault(at[0], set()).add(at[1])


def _discipline(port: SetPort) -> tuple[bool, bool]:
    return bool(port.queue_rates_bps), port.borrowing


def _check_queue_rates(port: SetPort) -> None:
    queue_rates, total = port.queue_rates_bps, math.fsum(port.queue_rates_bps)
    if len(queue_rates) != port.classes:
        raise PlanError(
            f"port {port.port!r} has {len(queue_rates)} queue rates for {port.classes} priority classes"
        )
    if not all(0 < width < math.inf for width in queue_rates):
        raise PlanError(f"port {port.port!r} has a width that is not positive and finite")
    if not abs(total - port.bandwidth_bps) <= WIDTH_ROUNDING * port.bandwidth_bps:
        raise PlanError(
            f"port {port.port!r} has queue rates that add up to {total:g} of its {port.bandwidth_bps:g} bit/s"
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
