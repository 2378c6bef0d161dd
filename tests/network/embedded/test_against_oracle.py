"""The embedded data plane does what a slow and obvious model does, packet by packet, whatever is sent and changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.network.bench import number_of
from tests.network.embedded.oracle import OraclePort, Waiting
from tests.network.virtual_time import VirtualTime

from triagemq.datagrams import Datagrams
from triagemq.network import EmbeddedDataPlane
from triagemq.plan.dataplane import (
    FlowKey,
    OutgoingPacket,
    RemoveFlow,
    RemovePort,
    SetFlow,
    SetPort,
    TransmitOutcome,
)
from triagemq.trace import Outcome

KEYS = [FlowKey("10.0.0.1", 20000 + number) for number in range(4)]
PORTS = ["cable", "radio"]


@dataclass(frozen=True)
class Send:
    packets: list[tuple[int, bool, int]]


@dataclass(frozen=True)
class ChangePort:
    port: str
    bandwidth_bps: float
    buffer_packets: float


@dataclass(frozen=True)
class ChangeFlow:
    flow: int
    port: str
    priority_class: int


@dataclass(frozen=True)
class ForgetFlow:
    flow: int


@dataclass(frozen=True)
class ForgetPort:
    port: str


flows = st.integers(0, len(KEYS) - 1)
ports = st.sampled_from(PORTS)
sends = st.builds(
    Send, st.lists(st.tuples(flows, st.booleans(), st.integers(4, 200)), min_size=1, max_size=6)
)
changes = st.one_of(
    st.builds(
        ChangePort,
        ports,
        st.sampled_from([3e5, 1e6, 2e6, float("inf")]),
        st.sampled_from([1, 2, 3, 5, float("inf")]),
    ),
    st.builds(ChangeFlow, flows, ports, st.integers(0, 7)),
    st.builds(ForgetFlow, flows),
    st.builds(ForgetPort, ports),
)
steps = st.lists(st.tuples(st.integers(0, 3_000_000), st.one_of(sends, sends, changes)), max_size=60)


@dataclass
class Model:
    """What should be: ports that live and that drain, and the flows' places."""

    ports: dict[str, OraclePort] = field(default_factory=dict)
    all_ports: list[OraclePort] = field(default_factory=list)
    flows: dict[int, ChangeFlow] = field(default_factory=dict)
    unmanaged: list[int] = field(default_factory=list)

    def make_port(self, change: ChangePort, now_ns: int) -> None:
        port = self.ports.get(change.port)
        if port is None:
            port = self.ports[change.port] = OraclePort(change.bandwidth_bps, change.buffer_packets)
            self.all_ports.append(port)
        port.run_until(now_ns)
        port.bandwidth_bps, port.buffer_packets = change.bandwidth_bps, change.buffer_packets


class Comparison:
    def __init__(self, late_ns: int) -> None:
        self.late_ns = late_ns
        self.time = VirtualTime(late_ns)
        self.model = Model()
        self.departed: dict[int, int] = {}
        self.order: list[int] = []
        self.outcomes: dict[int, TransmitOutcome] = {}
        self.control: set[int] = set()
        self.numbers = 0
        self.draining: dict[str, OraclePort] = {}
        self.plane = EmbeddedDataPlane(
            self._receive, self._note, clock=self.time.clock, alarm=self.time.alarm, wake_ups_apart_ns=0
        )
        for port in PORTS:
            self.step(ChangePort(port, 1e6, 3))
        for flow in range(len(KEYS) - 1):
            self.step(ChangeFlow(flow, PORTS[flow % 2], flow))

    def step(self, step: Send | ChangePort | ChangeFlow | ForgetFlow | ForgetPort) -> None:
        now_ns, model = self.time.now_ns, self.model
        match step:
            case Send():
                self._send(step)
            case ChangePort():
                self.plane.apply([SetPort(step.port, step.bandwidth_bps, step.buffer_packets, 8)])
                if step.port in self.draining:
                    self.draining[step.port].run_until(now_ns)
                    if self.draining[step.port].sending is not None:
                        model.ports[step.port] = self.draining.pop(step.port)
                model.make_port(step, now_ns)
            case ChangeFlow():
                if step.port not in model.ports:
                    return
                self.plane.apply([SetFlow(KEYS[step.flow], step.port, step.flow, step.priority_class, 0.0)])
                model.flows[step.flow] = step
            case ForgetFlow():
                self.plane.apply([RemoveFlow(KEYS[step.flow])])
                model.flows.pop(step.flow, None)
            case ForgetPort():
                if any(flow.port == step.port for flow in model.flows.values()):
                    return
                self.plane.apply([RemovePort(step.port)])
                if step.port in model.ports:
                    self.draining[step.port] = model.ports.pop(step.port)

    def _send(self, step: Send) -> None:
        now_ns, model, batch = self.time.now_ns, self.model, []
        coming: list[tuple[OraclePort, Waiting]] = []
        for flow, control, size in step.packets:
            number = self.numbers
            self.numbers += 1
            batch.append(
                OutgoingPacket(KEYS[flow], number.to_bytes(4, "big") + bytes(size - 4), control, number)
            )
            if control:
                self.control.add(number)
            place = model.flows.get(flow)
            if place is None:
                model.unmanaged.append(number)
            else:
                packet = Waiting(number, -1 if control else place.priority_class, size + 42)
                coming.append((model.ports[place.port], packet))
        for port, packet in sorted(coming, key=lambda one: one[1].priority_class):
            port.arrive(packet, now_ns)
        self.plane.send(batch)

    def _receive(self, datagrams: Datagrams, class_of: Callable[[int], int]) -> None:
        for _, datagram in datagrams:
            number = number_of(datagram)
            assert number not in self.departed
            self.departed[number] = self.time.now_ns
            self.order.append(number)

    def _note(self, outcomes: list[TransmitOutcome]) -> None:
        for outcome in outcomes:
            assert isinstance(outcome[0], int)
            assert outcome[0] not in self.outcomes
            self.outcomes[outcome[0]] = outcome

    def check(self) -> None:
        model = self.model
        for port in model.all_ports:
            port.run_until(1 << 62)
        sent = {number: at_ns for port in model.all_ports for number, at_ns in port.sent}
        assert set(self.departed) == set(sent) | set(model.unmanaged)
        for number, at_ns in sent.items():
            assert at_ns <= self.departed[number] <= at_ns + self.late_ns
        place = {number: index for index, number in enumerate(self.order)}
        for port in model.all_ports:
            order = [place[number] for number, _ in port.sent]
            assert order == sorted(order)
        buffer_drops = {number for port in model.all_ports for number, _ in port.dropped}
        outcomes = {
            **dict.fromkeys(sent, Outcome.delivered),
            **dict.fromkeys(model.unmanaged, Outcome.delivered),
            **dict.fromkeys(buffer_drops, Outcome.dropped_by_buffer),
        }
        assert len(outcomes) == self.numbers
        assert {number: outcome[1] for number, outcome in self.outcomes.items()} == {
            number: outcome for number, outcome in outcomes.items() if number not in self.control
        }
        for number, (_, _, enqueued_ns, dequeued_ns) in self.outcomes.items():
            assert dequeued_ns == (self.departed[number] if number in sent else None)
            assert (enqueued_ns is None) == (number in model.unmanaged)
        for port_counters in self.plane.counters().ports.values():
            for queue in (*port_counters.queues, port_counters.control):
                assert queue.backlog_packets == queue.backlog_bytes == 0
                assert queue.packets_in == queue.packets_out + queue.drops
        assert self.plane.counters().unmanaged.packets == len(model.unmanaged)


@settings(max_examples=300, deadline=None)
@given(steps, st.sampled_from([0, 0, 700_000]))
def test_every_packet_leaves_when_the_oracle_says(script: list[tuple[int, object]], late_ns: int) -> None:
    """Alarms that ring late delay packets by no more than that, and change neither their order nor who is dropped."""
    comparison = Comparison(late_ns)
    for wait_ns, step in script:
        comparison.time.run_until(comparison.time.now_ns + wait_ns)
        comparison.step(step)  # type: ignore[arg-type]
    comparison.time.run_until_quiet()
    comparison.check()
