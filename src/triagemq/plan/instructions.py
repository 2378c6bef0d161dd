"""What a data plane is told: output ports, and what happens to each flow on them. Plain data, no I/O.

A list of instructions describes a state (every port, every flow) or a change of it; `instructions_for` gives the state
that a plan asks for, `difference` the change from one state to another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from triagemq.errors import PlanError
from triagemq.plan.model import Plan
from triagemq.scenario import Scenario

__all__ = [
    "FlowKey",
    "Instruction",
    "RemoveFlow",
    "RemovePort",
    "SetFlow",
    "SetPort",
    "difference",
    "instructions_for",
]


@dataclass(frozen=True, slots=True)
class FlowKey:
    """How the network tells flows apart: a subscriber's IP address (in digits, never a name) and UDP port."""

    address: str
    udp_port: int

    def __str__(self) -> str:
        return (
            f"[{self.address}]:{self.udp_port}" if ":" in self.address else f"{self.address}:{self.udp_port}"
        )


@dataclass(frozen=True, slots=True)
class SetPort:
    """Make an output port, or change it. The buffer counts packets, the one in transmission included."""

    port: str
    bandwidth_bps: float
    buffer_packets: float
    classes: int


@dataclass(frozen=True, slots=True)
class RemovePort:
    """Take an output port away; no flow may use it any more. What it holds is still sent."""

    port: str


@dataclass(frozen=True, slots=True)
class SetFlow:
    """Make a flow, or change where it goes, its class and the share of its packets that is dropped."""

    key: FlowKey
    port: str
    flow_id: int
    priority_class: int
    drop_rate: float


@dataclass(frozen=True, slots=True)
class RemoveFlow:
    """Forget a flow: packets to its key are no longer managed. What is queued is still sent."""

    key: FlowKey


Instruction = SetPort | RemovePort | SetFlow | RemoveFlow


def instructions_for(scenario: Scenario, plan: Plan, flow_keys: Sequence[FlowKey]) -> tuple[Instruction, ...]:
    """The state that carries out a plan: all ports of the scenario, then all flows, `flow_keys[i]` for flow i.

    >>> from triagemq.plan.planner import make_plan
    >>> from triagemq.scenario.generators import table2
    >>> scenario = table2(seed=1)
    >>> plan = make_plan(scenario)
    >>> keys = [FlowKey("10.0.0.1", 20000 + flow) for flow in range(len(plan.flows))]
    >>> state = instructions_for(scenario, plan, keys)
    >>> len(state) == len(scenario.ports) + len(plan.flows)
    True
    >>> difference(state, state)
    ()
    """
    plan.require(scenario)
    flows, ports = plan.flows, scenario.ports
    if len(flow_keys) != len(flows):
        raise PlanError(f"the plan has {len(flows)} flows, but {len(flow_keys)} flow keys were given")
    seen: set[FlowKey] = set()
    for key in flow_keys:
        if key in seen:
            raise PlanError(f"two flows have the key {key}; give every flow a UDP port of its own")
        seen.add(key)
    # As in the simulator: the classes that the plan uses, which may be fewer than it was allowed.
    classes = 1 + int(flows.priority_class.max(initial=0))
    set_ports = [
        SetPort(name, bandwidth_bps, buffer_packets, classes)
        for name, bandwidth_bps, buffer_packets in zip(
            ports.name, ports.bandwidth_bps.tolist(), ports.buffer_packets.tolist(), strict=True
        )
    ]
    set_flows = [
        SetFlow(key, ports.name[port], flow_id, priority_class, drop_rate)
        for flow_id, (key, port, priority_class, drop_rate) in enumerate(
            zip(
                flow_keys,
                flows.port.tolist(),
                flows.priority_class.tolist(),
                flows.drop_rate.tolist(),
                strict=True,
            )
        )
    ]
    return (*set_ports, *set_flows)


def difference(before: Sequence[Instruction], after: Sequence[Instruction]) -> tuple[Instruction, ...]:
    """The shortest change from one state to another, in an order in which each step is allowed.

    Ports are set first, then flows are removed and set, and last the ports go that no flow uses any more.

    >>> key = FlowKey("10.0.0.1", 20000)
    >>> old = [SetPort("radio", 1e6, 100, 8), SetFlow(key, "radio", 0, 3, 0.0)]
    >>> difference(old, [SetPort("cable", 1e6, 100, 8), SetFlow(key, "cable", 0, 3, 0.0)])
    (SetPort(port='cable', ...), SetFlow(key=..., port='cable', ...), RemovePort(port='radio'))
    """
    old_ports, old_flows = _state(before)
    new_ports, new_flows = _state(after)
    return (
        *(port for name, port in new_ports.items() if old_ports.get(name) != port),
        *(RemoveFlow(key) for key in old_flows if key not in new_flows),
        *(flow for key, flow in new_flows.items() if old_flows.get(key) != flow),
        *(RemovePort(name) for name in old_ports if name not in new_ports),
    )


def _state(instructions: Sequence[Instruction]) -> tuple[dict[str, SetPort], dict[FlowKey, SetFlow]]:
    """The ports and flows there are when all instructions have been followed, starting from nothing."""
    ports: dict[str, SetPort] = {}
    flows: dict[FlowKey, SetFlow] = {}
    for instruction in instructions:
        match instruction:
            case SetPort():
                ports[instruction.port] = instruction
            case SetFlow():
                flows[instruction.key] = instruction
            case RemovePort():
                ports.pop(instruction.port, None)
            case RemoveFlow():
                flows.pop(instruction.key, None)
    return ports, flows
