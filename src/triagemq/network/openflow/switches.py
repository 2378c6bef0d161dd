"""Instructions followed on OpenFlow switches: rules that mark packets and lead them to the queues behind the ports.

Queues and drops are the business of a data plane there, which follows the same instructions but for limiters: those
are meters here, where hosts send to a multicast address, and must not act a second time behind. A meter is a token
bucket, not a window: see the limiter of switch models. It counts whole kilobits: its rate is the promised one or less
than 1 kbit/s more, its burst less than 125 bytes more. A limiter that is changed begins full. (Open vSwitch answers a
barrier some milliseconds before it has decided anew on packets that it knows.)

Prefixes of topics' codes are rules with masks, of which the longest holds: it has the ports of all that fit. Events
that match no prefix on a switch are discarded there, and counted.

A multicast key has a rule on each switch that has one of its ports: copies leave by those, each with the mark of its
class there. If it has a source, that rule takes what the source sends, where it is; what others send to the key is
dropped. All else goes where it would go without us, with the mark it came with: queues behind believe the marks of the
gateway's packets. There are rules for hosts and for topics, and none for a flow to one subscriber.

Rules follow hosts as they are found: packets to one that was not seen yet are flooded. When this process dies, switches
go on with the rules they have; a new one reads them and changes only what differs from its plan.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

from triagemq.errors import NetworkError, ParameterError, PlanError, SwitchError
from triagemq.network.openflow.controller import Controller, Timing
from triagemq.network.openflow.rule_sets import FlowRules, LimitedFlow
from triagemq.network.openflow.rules import MARKS, Kind, RateLimit, RuleKey
from triagemq.network.openflow.session import Place, SwitchTls, parse_place
from triagemq.network.openflow.topology import Topology
from triagemq.network.state import PlanState, StateChange
from triagemq.plan.dataplane import FlowKey, Instruction, SetFlow

_Result = TypeVar("_Result")


class FlowAtSwitch(NamedTuple):
    """What the rules of a flow counted on a switch. `limited` packets exceeded the flow's rate limit. `foreign` ones
    were sent to its address by others than its source, and dropped; they are not among `packets`."""

    packets: int
    bytes: int
    limited: int
    foreign: int = 0


@dataclass(frozen=True, slots=True)
class SwitchCounters:
    """Flows whose path leads over the switch; events count for the longest prefix that they match. `discarded` are
    events with codes that match none."""

    flows: Mapping[FlowKey, FlowAtSwitch]
    discarded: int = 0


class OpenFlowSwitches:
    """Follows instructions. Its event loop has a thread of its own; calls come from one other thread.

    `switches` are the datapath ids of the network's switches: rules are made when all have connected, once. They find
    this process at one of the places in `listen` ("tcp:127.0.0.1:6653", "unix:/path").
    `ports` says where the plan's ports are, as datapath id and the name that the switch has for it: multicast keys need
    it. `reserved` ports carry copies of multicast keys and nothing else. Other switches than these are not let in, nor
    any from an address that is not `allowed` (all are if none is named); with `tls` both sides show a certificate.
    """

    priority_classes: ClassVar[int] = len(MARKS)

    def __init__(
        self,
        switches: Collection[int],
        *,
        listen: Sequence[str],
        ports: Mapping[str, tuple[int, str]] | None = None,
        reserved: Collection[tuple[int, str]] = (),
        keep_rules: bool = False,
        ready_seconds: float = 30.0,
        timing: Timing = Timing(),  # noqa: B008 (frozen)
        tls: SwitchTls | None = None,
        allowed: Sequence[str] = (),
    ) -> None:
        if not switches or not listen:
            raise ParameterError("switches", "say which there are, and where to listen for them")
        self._keep_rules = keep_rules
        self._ports = {} if ports is None else dict(ports)
        self._state = PlanState(self.priority_classes, replicated=True)
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="openflow", daemon=True)
        self._thread.start()

        async def opened() -> Controller:
            controller = Controller(
                switches,
                ports=self._ports,
                reserved=reserved,
                timing=timing,
                tls=tls,
                allowed=allowed,
            )
            await controller.open([parse_place(each) for each in listen])
            return controller

        try:
            self._controller = self._call(opened())
        except BaseException:
            self._stop()
            raise
        self._ready: Future[None] = asyncio.run_coroutine_threadsafe(
            self._controller.wait_until_ready(ready_seconds), self._loop
        )

    @property
    def network(self) -> Topology:
        """The network as found out, for which the present rules were made."""
        return self._controller.network

    @property
    def listening(self) -> list[Place]:
        return self._controller.server.listening

    @property
    def connected(self) -> set[int]:
        """The switches that are connected now."""
        return self._controller.connected

    @property
    def changes(self) -> Mapping[str, int]:
        """How many rules were put and deleted, and in how many updates."""
        return dict(self._controller.counters)

    @property
    def error_counts(self) -> Mapping[str, int]:
        """Connections that went wrong, frames that were not believed, and so on, by what it was."""
        controller = self._controller
        counted = controller.server.refused, controller.session_errors, controller.discovery.counters
        return {what: number for some in counted for what, number in list(some.items())}

    @property
    def problem(self) -> NetworkError | None:
        """Why the network as it is now has no rules of its own (it keeps the last ones); None if it has."""
        return self._controller.problem

    def wait_until_ready(self) -> None:
        """Until all switches are connected, their links are known and they have rules; NetworkError if they do not."""
        self._ready.result()

    def apply(self, instructions: Sequence[Instruction]) -> None:
        """All at once, or (PlanError) none. Waits until the network is ready; NetworkError if it does not become so."""
        if self._closed:
            raise RuntimeError("these switches have been left")
        change = self._state.change(instructions)
        for key, port in change.flows:
            if not port:
                raise PlanError(f"flow {key} is to one host, and switches go by the marks of its packets")
            if port not in self._ports:
                raise PlanError(
                    f"port {port!r} is at no switch that is known here, and copies are to leave by it; say where it is"
                )
        self._ready.result()
        try:
            self._call(self._controller.set_flows(self._wanted(change)))
        except SwitchError as error:
            raise PlanError(f"the plan was not put into the network: {error}") from error
        self._state.commit(change)

    def counters(self) -> dict[int, SwitchCounters]:
        """What every switch that is connected has counted, by datapath id."""
        if self._closed:
            return {}
        found = {}
        for switch, rules in self._call(self._controller.statistics()).items():
            flows: dict[FlowKey, FlowAtSwitch] = {}
            for rule, counts in rules.items():
                if (key := _flow_of(rule)) is not None:
                    is_foreign = rule.priority == Kind.FOREIGN.priority
                    now = (0, 0, 0, counts[0]) if is_foreign else (*counts, 0)
                    before = flows.get(key, FlowAtSwitch(0, 0, 0))
                    flows[key] = FlowAtSwitch(*map(sum, zip(before, now, strict=True)))
            unmatched = (counts[0] for rule, counts in rules.items() if rule[:2] == Kind.UNMATCHED.value)
            found[switch] = SwitchCounters(flows, sum(unmatched))
        return found

    def close(self) -> None:
        """Take the rules off the switches, unless they are to stay; idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            self._ready.cancel()
            self._call(self._controller.close(keep_rules=self._keep_rules))
        finally:
            self._stop()

    def _wanted(self, change: StateChange) -> dict[FlowKey, FlowRules]:
        """The flows that a change names, and those whose limiter it does."""
        state = self._state

        def limited(flow: SetFlow[FlowKey]) -> LimitedFlow:
            limiter = state.limiter(flow.key, flow.port, change)
            if limiter is None:
                return LimitedFlow(flow)
            return LimitedFlow(flow, RateLimit.of(limiter.rate_bytes_per_second * 8, limiter.bucket_bytes))

        return {key: tuple(map(limited, state.flows_of(key, change).values())) for key in change.keys}

    def _call(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


_COUNTED = (Kind.FLOW.priority, Kind.FLOW_FROM_LINK.priority, Kind.FOREIGN.priority)


def _flow_of(rule: RuleKey) -> FlowKey | None:
    """The flow that a rule is for; None for a rule of control packets, and of no flow."""
    fields = dict(rule.match)
    address = fields.get("ipv4_dst") or fields.get("ipv6_dst")
    port, length = fields.get("udp_dst"), rule.priority - Kind.PREFIX.priority
    if not isinstance(address, str) or not isinstance(port, int):
        return None
    if 0 < length <= 128:
        return FlowKey(f"{address.partition('/')[0]}/{length}", port)
    return FlowKey(address, port) if rule.priority in _COUNTED else None
