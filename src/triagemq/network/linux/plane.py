"""The linux data plane: the kernel's queues on the output ports of this machine, and an eBPF classifier before them.

It keeps the contract of plan/dataplane.py with the differences that kernel queues bring:

* Seven priority classes. HTB has eight priorities, and the first is for control packets.
* The buffer is per class, not shared: each class may have as many packets waiting as the whole port is given. A class
  has thus never less room than the contract gives it, and needs to push out nothing; but what a starved class has
  waiting stays there, and is sent when the overload ends. An infinite buffer has 16,384 packets per class.
* A packet leaves at the start of its transmission, not at its end: latencies lack the packet's own.
* `port` of a flow says where it is managed (dropped and counted); the path is the network's. Other managed ports on
  that path serve the flow by its class.
* Packets to keys without a flow are not sent at once, past the queues: they would take the bandwidth of promised flows.
  They go last, beside the lowest class. What the exchange itself needs (`trust`) goes with control packets, and so do
  ARP and the like; both up to a bound (flow_table.py), beyond which they go last, too.
* Where an event is larger than a packet, its fragments are packets: all are counted, all are dropped or none.
* Where several flows share a class, what left and what found the buffer full is known for the class, and shared out
  (see accounting.py).
* What a process of this machine sends by itself, not over a bridge or as a router, counts against its socket's send
  buffer while it waits, and a full one stops its urgent packets, too: it needs room for all that the queues may hold,
  as the gateway has it (exchange/listening.py).
* A packet is what the kernel takes for one: TCP that network cards or hosts have merged (GRO, TSO) holds a slow port
  for up to 64 kilobytes. Turn that off where such traffic enters: ethtool -K INTERFACE gro off tso off gso off.
* Flows and drop rates of a plan change in one instant, for all ports; bandwidths, buffers and the terms of limiters
  that are there already a moment before.
* Limiters act where a flow leaves by a port. Their windows are exact to a nanosecond (never too long); the first packet
  after a change may be judged by some of the old terms and some of the new. Fragments are limited one by one, and all
  that follow a limited first one are.
* A multicast key has a policy, a limiter and counters at each port; copies are the network's (a bridge makes them).
  What others than its source send there is unmanaged, and counted as foreign at each port that it leaves by; so is
  what claims the source's address at another interface from another device, while the source is heard of.
  Prefixes of topics' codes change one by one, each in an instant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from triagemq.errors import NetworkError, PlanError
from triagemq.network.linux.accounting import AccountKey, FlowAccount, FlowAccounts
from triagemq.network.linux.flow_table import (
    FlowPolicy,
    FlowTable,
    LimiterWindows,
    PolicyChange,
    TrustedAddress,
    packed_source,
)
from triagemq.network.linux.netlink import CLONE_NEWNET, Netlink, find_link, in_thread_after, unshare
from triagemq.network.linux.port import Interface, LinuxPort, add_unmanaged
from triagemq.network.linux.queue_times import QueueTimes, with_transmission_time
from triagemq.network.linux.queues import QueueStatistics, build_queues
from triagemq.network.linux.records import UNMANAGED
from triagemq.network.state import CopyKey, PlanState, StateChange
from triagemq.plan import (
    Counters,
    FlowCounters,
    FlowKey,
    Instruction,
    SetFlow,
    SetPort,
    UnmanagedCounters,
)

MOST_PORTS = 4096


class _Move(NamedTuple):
    """What is to be entered in the ledger when a change has been made."""

    account: FlowAccount
    flow: SetFlow[FlowKey] | None
    policy: FlowPolicy | None


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
        self._table = FlowTable(most_flows, 2 * most_flows, MOST_PORTS, most_limiters, timed=timed)
        self._times = QueueTimes() if timed else None
        self._windows = LimiterWindows(self._table, most_limiters)
        self._limits = limits
        self._ledger = FlowAccounts(self._table, 2 * most_flows)
        self._sockets: dict[str | None, Netlink] = {}
        self._ports: dict[str, LinuxPort] = {}
        # Removed, but with packets that are still to be sent.
        self._draining: dict[str, LinuxPort] = {}
        self._numbers = 0
        self._free_numbers: list[int] = []
        self._unmanaged_before = [0, 0, 0]
        self._closed = False

    def apply(self, instructions: Sequence[Instruction]) -> None:
        self._require_open()
        change = self._state.change(instructions)
        for name in change.ports:
            if change.ports[name] is not None and name not in self._interfaces:
                known = ", ".join(map(repr, self._interfaces)) or "none"
                raise PlanError(f"port {name!r} is no interface of this machine; those given are {known}")
        leaving = self._ledger.leaving
        returning = not (leaving.isdisjoint(change.flows) and leaving.isdisjoint(change.copies))
        if returning or self._ledger.needs_reading():
            # A flow that comes back starts from 0 unless it is still leaving.
            self._read()
        undo: list[Callable[[], None]] = []
        try:
            made = self._set_ports(change, undo)
            moves = self._change_flows(change, made, undo)
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
        for account, flow, policy in moves:
            before = 0 if account.policy is None else account.policy.limiter
            if before and (policy is None or policy.limiter != before):
                self._windows.give_back(before)
            if flow is None or policy is None:
                self._ledger.remove(account)
            else:
                if account.policy is not None and account.policy.source != policy.source:
                    self._table.forget_source(policy.counter)
                self._ledger.move(account, flow.flow_id, policy)
        self._state.commit(change)
        for name, settings in change.ports.items():
            if settings is None and name in self._ports:
                self._draining[name] = self._ports.pop(name)
        self._put_back_drained()

    def trust(self, listeners: Sequence[TrustedAddress]) -> None:
        """Where the gateway and the coordinator listen: from now on only their control packets are believed."""
        self._require_open()
        self._table.trust(listeners)

    def counters(self) -> Counters:
        self._require_open()
        read = self._read()
        ports = {}
        unmanaged = list(self._unmanaged_before)
        for name, port in (*self._ports.items(), *self._draining.items()):
            statistics, put_in = read[port.number]
            add_unmanaged(unmanaged, put_in)
            ports[name] = port.counters(statistics, put_in)
        found = Counters(
            ports=ports,
            flows=self._flow_counters(),
            unmanaged=UnmanagedCounters(*unmanaged),
            gone=tuple(self._ledger.gone),
        )
        self._ledger.gone.clear()
        self._put_back_drained()
        return found

    def queue_times(self) -> dict[str, NDArray[np.void]]:
        """By port, the packets that have left its classes since the last call: rows of QUEUE_TIME, `dequeued_ns` being
        the end of their transmission.

        To be called several times a second: what the kernel has no room for in between is counted (`times_missed`).
        """
        self._require_open()
        found = {} if self._times is None else self._times.take()
        return {
            name: with_transmission_time(rows, self._widths_bps(name)) if name in self._state.ports else rows
            for name, rows in found.items()
        }

    def _widths_bps(self, name: str) -> NDArray[np.float64]:
        port = self._state.ports[name]
        return np.array(port.widths_bps or (port.bandwidth_bps,) * port.classes)

    @property
    def times_missed(self) -> int:
        """Packets of which it is unknown how long they waited, though they were to be timed."""
        return 0 if self._times is None else self._times.missed

    def copies(self) -> dict[CopyKey, FlowCounters]:
        """What multicast keys have counted at each of their ports, as of the last counters."""
        accounts = self._ledger.accounts.items()
        return {key: account.counters() for key, account in accounts if not isinstance(key, FlowKey)}

    def _flow_counters(self) -> dict[FlowKey, FlowCounters]:
        found: dict[FlowKey, FlowCounters] = {}
        for key, account in self._ledger.accounts.items():
            counted = account.counters()
            if not isinstance(key, FlowKey):
                key = key[0]
                if key in found:
                    counted = found[key].plus(counted)
            found[key] = counted
        return found

    def close(self) -> None:
        """Put every interface back as it was; what waits is sent first, without pacing."""
        if self._closed:
            return
        self._closed = True
        errors = []
        for port in (*self._ports.values(), *self._draining.values()):
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
            if port is None and name in self._draining:
                port = self._ports[name] = self._draining.pop(name)
                undo.append(partial(self._drain_again, name, port))
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
        if self._free_numbers:
            number = self._free_numbers.pop()
        elif self._numbers < MOST_PORTS:
            number = self._numbers = self._numbers + 1
        else:
            raise PlanError(f"this data plane has room for {MOST_PORTS} ports")
        try:
            classifier = self._table.open_port(number)
            port = LinuxPort(settings, number, interface, netlink, classifier)
            if self._times is not None:
                self._times.watch(number, settings.port, interface.name, interface.namespace)
            return port
        except BaseException:
            self._free_numbers.append(number)
            raise

    def _change_flows(
        self, change: StateChange, made: Mapping[str, LinuxPort], undo: list[Callable[[], None]]
    ) -> list[_Move]:
        """Switch to the new policies of all flows; the accounts still have to follow."""
        ledger, moves, taken = self._ledger, [], list[int]()
        numbers = {name: port.number for ports in (self._ports, made) for name, port in ports.items()}
        undo.append(partial(ledger.give_back, taken))
        for key, flow in self._changed_flows(change).items():
            account = ledger.accounts.get(key)
            if flow is None:
                if account is not None and account.policy is not None:
                    moves.append(_Move(account, None, None))
                continue
            number, queue = numbers[flow.port], flow.priority_class + 1
            if account is None:
                account = FlowAccount(key, number)
            before = account.policy
            if before is not None and before.port == number and before.queue == queue:
                counter = before.counter
            else:
                counter = ledger.take_counter()
                taken.append(counter)
            limiter = self._state.limiter(flow.key, flow.port, change) if self._limits else None
            window = self._windows.number(limiter, 0 if before is None else before.limiter, undo)
            policy = FlowPolicy(number, queue, counter, window, packed_source(flow.source))
            moves.append(_Move(account, flow, policy))
        if moves:
            switched = False
            undo.append(lambda: self._table.take_back(switched=switched))
            self._table.stage(
                [PolicyChange(account.packed_key, account.policy, policy) for account, _, policy in moves]
            )
            self._table.switch()
            switched = True
        return moves

    def _changed_flows(self, change: StateChange) -> Mapping[AccountKey, SetFlow[FlowKey] | None]:
        """Flows and copies that a change names, and those whose limiter it does."""
        if not change.copies and not change.limiters:
            return cast("Mapping[AccountKey, SetFlow[FlowKey] | None]", change.flows)
        found: dict[AccountKey, SetFlow[FlowKey] | None] = dict(change.flows.items())
        found |= change.copies.items()
        for key in change.limiters:
            for port in self._state.ports_of(key, change):
                if key.is_multicast:
                    found.setdefault((key, port), self._state.copies.get((key, port)))
                else:
                    found.setdefault(key, self._state.flows.get(key))
        return found

    def _read(self) -> dict[int, tuple[Sequence[QueueStatistics], NDArray[np.uint64]]]:
        """Bring the ledger up to date; by port number, what its queues have counted, and what was put into them.

        Queues are read before flows, so that no flow has sent what did not come.
        """
        found = {}
        for port in (*self._ports.values(), *self._draining.values()):
            put_in = self._table.queue_counters(port.number)
            found[port.number] = (port.statistics(put_in), put_in)
        self._ledger.read({number: statistics for number, (statistics, _) in found.items()})
        return found

    def _put_back_drained(self) -> None:
        """Ports that were removed give their interface back when the last packet of a flow has left."""
        for name, port in list(self._draining.items()):
            if port.is_empty():
                self._read()
                del self._draining[name]
                self._forget(port)

    def _drain_again(self, name: str, port: LinuxPort) -> None:
        self._ports.pop(name, None)
        self._draining[name] = port

    def _forget(self, port: LinuxPort, *, at_once: bool = False) -> None:
        add_unmanaged(self._unmanaged_before, self._table.queue_counters(port.number))
        with suppress(NetworkError):
            port.put_back(at_once=at_once)
        if self._times is not None:
            self._times.forget(port.number)
        self._ledger.forget_port(port.number)
        self._free_numbers.append(port.number)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Each is None if it works, else what prevents it."""

    namespaces: str | None
    """Making network namespaces."""
    queues: str | None
    """HTB with FIFO queues."""
    classifier: str | None
    """eBPF maps and programs, attached to the queues."""


def capabilities() -> Capabilities:
    """Try everything; nothing is left behind."""
    namespaces = _problem_in_namespace(lambda: None)
    return Capabilities(
        namespaces=namespaces,
        queues=namespaces or _problem_in_namespace(_try_queues),
        classifier=namespaces or _problem_in_namespace(_try_classifier),
    )


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
        build_queues(netlink, find_link(netlink, "lo").index, 1e6, 10)
    finally:
        netlink.close()


def _try_classifier() -> None:
    table = FlowTable(1, 1, 1)
    netlink = Netlink()
    try:
        classifier = table.open_port(1)
        link = find_link(netlink, "lo")
        build_queues(netlink, link.index, 1e6, 10)
        classifier.attach(netlink, link)
    finally:
        netlink.close()
        table.close()
