"""The linux data plane: the kernel's queues on the output ports of this machine, and an eBPF classifier before them.

It keeps the contract of plan/dataplane.py with the differences that kernel queues bring:

* Seven priority classes. HTB has eight priorities, and the first is for control packets.
* The buffer is per class, not shared: each class may have as many packets waiting as the whole port is given. A class
  has thus never less room than the contract gives it, and needs to push out nothing; but what a starved class has
  waiting stays there, and is sent when the overload ends. An infinite buffer has 16,384 packets per class.
* A packet leaves at the start of its transmission, not at its end: latencies lack the packet's own.
* What a port holds that is removed is sent at once, without pacing.
* `port` of a flow says where it is managed (dropped and counted); the path is the network's. Other managed ports on
  that path serve the flow by its class.
* Packets to keys without a flow are not sent at once, past the queues: they would take the bandwidth of promised flows.
  They go last, with the lowest class. What the exchange itself needs (`trust`) goes with control packets, and so do
  ARP and the like; both up to a bound (flow_table.py), beyond which they go last, too.
* Where an event is larger than a packet, its fragments are packets: all are counted, all are dropped or none.
* What left and what found the buffer full is counted by class, not by flow: a flow's `packets_out` are those that went
  into its queue.
* What a process of this machine sends by itself, not over a bridge or as a router, counts against its socket's send
  buffer while it waits, and a full one stops its urgent packets, too: it needs room for all that the queues may hold,
  as the gateway has it (gateway/sockets.py).
* A packet is what the kernel takes for one: TCP that network cards or hosts have merged (GRO, TSO) holds a slow port
  for up to 64 kilobytes. Turn that off where such traffic enters: ethtool -K INTERFACE gro off tso off gso off.
* Flows and drop rates of a plan change in one instant, for all ports; bandwidths, buffers and the terms of limiters
  that are there already a moment before.
* Limiters act where a flow leaves by a port. Their windows are exact to a nanosecond (never too long); the first packet
  after a change may meet some of the old terms and some of the new. Fragments are limited one by one, and all
  that follow a limited first one are.
* A multicast key has a policy, a limiter and counters at each port; copies are the network's (a bridge makes them).
  What others than its source send there is unmanaged, and counted as foreign at each port that it leaves by; so is
  what claims the source's address at another interface from another device, while the source is heard of.
  Prefixes of topics' codes change one by one, each in an instant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from triagemq.errors import NetworkError, PlanError
from triagemq.network.linux.flow_table import (
    FlowPolicy,
    FlowTable,
    PolicyChange,
    RecordNumbers,
    TrustedAddress,
    packed_key,
    packed_source,
    window_settings,
)
from triagemq.network.linux.netlink import CLONE_NEWNET, Netlink, in_thread_after, interface_index, unshare
from triagemq.network.linux.port import Interface, LinuxPort
from triagemq.network.linux.queue_times import QueueTimes, with_transmission_time
from triagemq.network.linux.queues import attach_classifier, build_queues
from triagemq.network.linux.records import UNMANAGED, UNMANAGED_CONTROL, UNTRUSTED_CS6
from triagemq.network.state import FlowAt, PlanState, StateChange
from triagemq.plan.dataplane import (
    Counters,
    FlowCounters,
    FlowKey,
    Instruction,
    SetLimiter,
    SetPort,
    UnmanagedCounters,
)

MOST_PORTS = 4096


class LinuxDataPlane:
    """A DataPlane. `interfaces` says which network interface each port is; it is looked at when a port is made.

    Needs root. Where switches before these ports have the limiters, it `limits` nothing. If it is `timed`,
    `queue_times` says how long packets waited.
    """

    priority_classes: ClassVar[int] = UNMANAGED - 1

    def __init__(
        self,
        interfaces: Mapping[str, Interface],
        *,
        most_flows: int = 65_536,
        most_limiters: int = 4096,
        limits: bool = True,
        timed: bool = False,
    ) -> None:
        self._interfaces = interfaces
        self._state = PlanState(self.priority_classes, replicated=True)
        self._table = FlowTable(most_flows, MOST_PORTS, most_limiters, timed=timed)
        self._policies: dict[FlowAt, FlowPolicy] = {}
        self._times = QueueTimes() if timed else None
        self._limits = limits
        self._sockets: dict[str | None, Netlink] = {}
        self._ports: dict[str, LinuxPort] = {}
        self._numbers = RecordNumbers("ports", MOST_PORTS, first=1)
        self._closed = False

    def apply(self, instructions: Sequence[Instruction]) -> None:
        self._require_open()
        change = self._state.change(instructions)
        for name in change.ports:
            if change.ports[name] is not None and name not in self._interfaces:
                known = ", ".join(map(repr, self._interfaces)) or "none"
                raise PlanError(f"port {name!r} is no interface of this machine; those given are {known}")
        undo: list[Callable[[], None]] = []
        try:
            made = self._set_ports(change, undo)
            policies = self._change_flows(change, made, undo)
            for port in made.values():
                port.attach()
        except BaseException as error:
            for step in reversed(undo):
                with suppress(OSError, NetworkError):
                    step()
            if isinstance(error, OSError):
                raise NetworkError(f"the kernel refuses a change: {error.strerror}") from None
            raise
        self._table.settle()
        self._ports |= made
        for at, policy in policies.items():
            self._settle(at, policy)
        self._state.commit(change)
        for name, settings in change.ports.items():
            if settings is None and name in self._ports:
                self._forget(self._ports.pop(name))

    def trust(self, listeners: Sequence[TrustedAddress]) -> None:
        """Where the gateway and the coordinator listen: from now on only their control packets are believed."""
        self._require_open()
        self._table.trust(listeners)

    def counters(self) -> Counters:
        self._require_open()
        ports = {}
        unmanaged = np.zeros((2, 2), dtype=np.int64)
        for name, port in self._ports.items():
            ports[name], put_in = port.counters()
            control = put_in[UNMANAGED_CONTROL]
            unmanaged += np.array([put_in[UNMANAGED] + put_in[UNTRUSTED_CS6] + control, control], np.int64)
        (packets, octets), (control_packets, _) = unmanaged.tolist()
        flows: dict[FlowKey, FlowCounters] = {}
        for (key, _), counted in self.flow_counters().items():
            flows[key] = flows[key].plus(counted) if key in flows else counted
        return Counters(ports, flows, UnmanagedCounters(packets, control_packets, octets))

    def flow_counters(self) -> dict[FlowAt, FlowCounters]:
        """What was counted of each flow, of a multicast key at each of its ports."""
        rows, found = self._table.flow_counters().tolist(), {}
        for at, policy in self._policies.items():
            packets_in, _, limited, foreign = rows[policy.counter]
            found[at] = FlowCounters(
                self._state.flows[at].flow_id,
                packets_in,
                packets_out=packets_in - limited,
                limited=limited,
                foreign=foreign,
            )
        return found

    def queue_times(self) -> dict[str, NDArray[np.void]]:
        """By port, the packets that have left its classes since the last call: rows of QUEUE_TIME, `dequeued_ns` being
        the end of their transmission.

        To be called several times a second: what the kernel has no room for in between is counted (`times_missed`).
        """
        self._require_open()
        found = {} if self._times is None else self._times.take()
        return {
            name: with_transmission_time(rows, self._queue_rates_bps(name))
            if name in self._state.ports
            else rows
            for name, rows in found.items()
        }

    def _queue_rates_bps(self, name: str) -> NDArray[np.float64]:
        port = self._state.ports[name]
        return np.array(port.queue_rates_bps or (port.bandwidth_bps,) * port.classes)

    @property
    def times_missed(self) -> int:
        """Packets of which it is unknown how long they waited, though they were to be timed."""
        return 0 if self._times is None else self._times.missed

    def close(self) -> None:
        """Put every interface back as it was; what waits is sent first, without pacing."""
        if self._closed:
            return
        self._closed = True
        errors = []
        for port in self._ports.values():
            try:
                port.put_back()
            except NetworkError as error:
                errors.append(error)
        for netlink in self._sockets.values():
            netlink.close()
        if self._times is not None:
            self._times.close()
        self._table.close()
        if errors:
            raise errors[0]

    def _require_open(self) -> None:
        if self._closed:
            raise RuntimeError("this data plane has been closed")

    def _set_ports(self, change: StateChange, undo: list[Callable[[], None]]) -> dict[str, LinuxPort]:
        """Make and change ports; those that are new still lack their classifier."""
        made = {}
        for name, settings in change.ports.items():
            if settings is None:
                continue
            port = self._ports.get(name)
            if port is None:
                made[name] = port = self._make_port(settings)
                undo.append(partial(self._forget, port, at_once=True))
            elif settings != port.settings:
                undo.append(partial(port.configure, port.settings))
                port.configure(settings)
        return made

    def _make_port(self, settings: SetPort) -> LinuxPort:
        interface = self._interfaces[settings.port]
        netlink = self._sockets.get(interface.namespace)
        if netlink is None:
            netlink = self._sockets[interface.namespace] = Netlink(interface.namespace)
        number = self._numbers.take()
        try:
            port = LinuxPort(settings, number, interface, netlink, self._table)
            if self._times is not None:
                self._times.watch(number, settings.port, interface.name, interface.namespace)
            return port
        except BaseException:
            self._numbers.give_back(number)
            raise

    def _change_flows(
        self, change: StateChange, made: Mapping[str, LinuxPort], undo: list[Callable[[], None]]
    ) -> dict[FlowAt, FlowPolicy | None]:
        """Switch to the new policies of all flows that a change names, or whose limiter it does."""
        numbers = {name: port.number for ports in (self._ports, made) for name, port in ports.items()}
        flows = dict(change.flows)
        for key in change.limiters:
            flows |= self._state.flows_of(key, change)
        policies: dict[FlowAt, FlowPolicy | None] = {}
        for at, flow in flows.items():
            before = self._policies.get(at)
            if flow is None:
                if before is not None:
                    policies[at] = None
                continue
            if before is None:
                counter = self._table.take_counter()
                undo.append(partial(self._table.counters.give_back, counter))
            else:
                counter = before.counter
            limiter = self._limit(
                self._state.limiter(flow.key, flow.port, change) if self._limits else None,
                0 if before is None else before.limiter,
                undo,
            )
            policies[at] = FlowPolicy(
                numbers[flow.port], flow.priority_class + 1, counter, limiter, packed_source(flow.source)
            )
        if policies:
            switched = False
            undo.append(lambda: self._table.take_back(switched=switched))
            self._table.stage(
                [
                    PolicyChange(
                        packed_key(at[0], numbers[at[1]] if at[1] else 0), self._policies.get(at), policy
                    )
                    for at, policy in policies.items()
                ]
            )
            self._table.switch()
            switched = True
        return policies

    def _limit(self, limiter: SetLimiter | None, before: int, undo: list[Callable[[], None]]) -> int:
        """The limiter for a flow that had `before`: that one with new terms, or another one; 0 for none."""
        if limiter is None:
            return 0
        table, settings = self._table, window_settings(limiter)
        if before:
            undo.append(partial(table.set_window, before, table.window(before)))
            table.set_window(before, settings)
            return before
        number = table.limiters.take()
        undo.append(partial(table.limiters.give_back, number))
        table.open_window(number, settings)
        return number

    def _settle(self, at: FlowAt, policy: FlowPolicy | None) -> None:
        """A flow has another policy."""
        before = self._policies.pop(at, None)
        if before is not None:
            if before.limiter and (policy is None or policy.limiter != before.limiter):
                self._table.limiters.give_back(before.limiter)
            if policy is None:
                self._table.counters.give_back(before.counter)
            elif policy.source != before.source:
                self._table.forget_source(policy.counter)
        if policy is not None:
            self._policies[at] = policy

    def _forget(self, port: LinuxPort, *, at_once: bool = False) -> None:
        with suppress(NetworkError):
            port.put_back(at_once=at_once)
        if self._times is not None:
            self._times.forget(port.number)
        self._numbers.give_back(port.number)


def capabilities() -> dict[str, str | None]:
    """What prevents network namespaces, the queues (HTB with FIFO queues) and the classifier (eBPF maps and programs,
    attached to the queues); None for what works. Everything is tried; nothing is left behind."""
    namespaces = _problem_in_namespace(lambda: None)
    return {
        "namespaces": namespaces,
        "queues": namespaces or _problem_in_namespace(_try_queues),
        "classifier": namespaces or _problem_in_namespace(_try_classifier),
    }


def problem_of(attempt: Callable[[], None]) -> str | None:
    """What an attempt failed of, in one line; None if it did not."""
    try:
        attempt()
    except NetworkError as error:
        return str(error)
    except OSError as error:
        return error.strerror or str(error)
    return None


def _problem_in_namespace(attempt: Callable[[], None]) -> str | None:
    return problem_of(lambda: in_thread_after(lambda: unshare(CLONE_NEWNET), attempt))


def _try_queues() -> None:
    netlink = Netlink()
    try:
        build_queues(netlink, interface_index(netlink, "lo"), 1e6, 10)
    finally:
        netlink.close()


def _try_classifier() -> None:
    table = FlowTable(1, 1)
    netlink = Netlink()
    try:
        link = interface_index(netlink, "lo")
        build_queues(netlink, link, 1e6, 10)
        attach_classifier(netlink, link, table.program, 1)
    finally:
        netlink.close()
        table.close()
