"""An output port on a network interface: its queues and its classifier.

They take the place of the kernel's default queueing discipline, which comes back when they go. Queues of ours are known
by their handle. While a process manages an interface it holds an abstract Unix socket named after it, which goes with
the process: queues without one were left behind by a process that was killed.
"""

from __future__ import annotations

import socket
import time
from contextlib import closing
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triagemq.errors import NetworkError
from triagemq.network.linux.flow_table import FlowTable, control_bounds
from triagemq.network.linux.netlink import Netlink, in_namespace, interface_index
from triagemq.network.linux.queues import (
    attach_classifier,
    build_queues,
    queue_counters,
    remove_queues,
    root_queue,
    serve_by_priority,
    serve_by_queue_rates,
    set_bandwidth,
    set_limits,
    waiting_room,
)
from triagemq.network.linux.records import (
    BEYOND_BOUND,
    CONTROL,
    MISMATCHED,
    QUEUES,
    UNMANAGED,
    UNMANAGED_CONTROL,
    UNTRUSTED_CS6,
)
from triagemq.plan.dataplane import PortCounters, QueueCounters, SetPort

_FLUSH_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface, in a namespace by name (as in `ip netns`) or path; None is the present one."""

    name: str
    namespace: str | None = None

    def __str__(self) -> str:
        return self.name if self.namespace is None else f"{self.name} in {self.namespace}"


class LinuxPort:
    """A port that has been made, and still lacks its classifier; `number` is what classifiers know it by."""

    def __init__(
        self,
        settings: SetPort,
        number: int,
        interface: Interface,
        netlink: Netlink,
        table: FlowTable,
    ) -> None:
        self.settings, self.number, self.interface = settings, number, interface
        self.reported_classes = settings.classes
        self._netlink = netlink
        self._link = interface_index(netlink, interface.name)
        self._table = table
        self._before = [QueueCounters()] * QUEUES
        self._missing, self._lost = [0] * QUEUES, [0] * QUEUES
        self._take(settings)
        table.open_port(number, settings.bandwidth_bps, settings.classes)

    def configure(self, settings: SetPort) -> None:
        """Change the port in place: what is queued stays queued."""
        before = self.settings
        if settings.bandwidth_bps != before.bandwidth_bps:
            set_bandwidth(self._netlink, self._link, settings.bandwidth_bps)
        if (settings.queue_rates_bps, settings.borrowing) != (before.queue_rates_bps, before.borrowing):
            self._serve(settings)
        if settings.buffer_packets != before.buffer_packets:
            set_limits(self._netlink, self._link, waiting_room(settings.buffer_packets))
        self._table.set_port(self.number, settings.bandwidth_bps, settings.classes)
        self.settings = settings
        # Classes that a new plan no longer has may still hold packets, and have counted.
        self.reported_classes = max(self.reported_classes, settings.classes)

    def attach(self) -> None:
        """Let the classifier choose queues; until then packets are unmanaged, or go as a killed run had them go."""
        attach_classifier(self._netlink, self._link, self._table.program, self.number)

    def counters(self) -> tuple[PortCounters, NDArray[np.uint64]]:
        """What each queue has counted since the port was made, and what the classifier has counted just before.

        An interface that goes down empties its queues, which is not counted: packets that are missing twice in
        succession (one may be between classifier and queue) are drops, too.
        """
        put_in = self._table.queue_counters(self.number)
        packets = put_in[:, 0].tolist()
        packets[CONTROL] += packets[UNMANAGED_CONTROL]
        packets[UNMANAGED] += packets[BEYOND_BOUND] + packets[UNTRUSTED_CS6]
        queue_rates_bps = dict(enumerate(self.settings.queue_rates_bps, start=1))
        found = []
        for queue, (now, before) in enumerate(
            zip(queue_counters(self._netlink, self._link), self._before, strict=True)
        ):
            packets_out, drops = now.packets_out - before.packets_out, now.drops - before.drops
            missing = packets[queue] - packets_out - drops - now.backlog_packets
            self._lost[queue] = max(self._lost[queue], min(missing, self._missing[queue]))
            self._missing[queue] = missing
            width_bps = queue_rates_bps.get(queue, self.settings.bandwidth_bps)
            counted = replace(
                now,
                bytes_out=now.bytes_out - before.bytes_out,
                packets_out=packets_out,
                drops=drops + self._lost[queue],
                width_bps=None if width_bps == float("inf") else round(width_bps),
            )
            found.append(_with_arrivals(counted, None if queue == CONTROL else put_in[queue]))
        control, *queues = found[: self.reported_classes + 1]
        counters = PortCounters(
            tuple(queues),
            control,
            beyond_bound=int(put_in[BEYOND_BOUND, 0]),
            strange_marks=int(put_in[UNTRUSTED_CS6, 0]),
            discarded=int(put_in[MISMATCHED, 0]),
        )
        return counters, put_in

    def is_empty(self) -> bool:
        """Whether nothing of a flow is waiting."""
        waiting = queue_counters(self._netlink, self._link)
        return not any(each.backlog_packets for each in waiting[CONTROL:UNMANAGED])

    def put_back(self, *, at_once: bool = False) -> None:
        """Send what waits, without pacing, and leave the interface as it was."""
        try:
            if not at_once:
                self._flush()
            remove_queues(self._netlink, self._link)
        except OSError as error:
            # An interface that has gone took its queues with it.
            if _is_there(self._netlink, self.interface.name, self._link):
                raise NetworkError(f"{self.interface} cannot be put back: {error.strerror}") from None
        finally:
            self._hold.close()

    def _take(self, settings: SetPort) -> None:
        held = in_namespace(self.interface.namespace, lambda: _hold(self._link))
        if held is None:
            raise NetworkError(
                f"{self.interface} is managed by another process; stop that, or use another interface"
            )
        self._hold = held
        try:
            self._make_queues(settings)
        except BaseException:
            held.close()
            raise

    def _make_queues(self, settings: SetPort) -> None:
        root = root_queue(self._netlink, self._link)
        if not (root.is_ours or root.is_default):
            raise NetworkError(
                f"{self.interface} has a queueing discipline of its own ({root.kind}); "
                f"take it away first: tc qdisc del dev {self.interface.name} root"
            )
        try:
            room = waiting_room(settings.buffer_packets)
            if root.is_ours:
                # What a killed run left goes on until the new classifier takes over: no packet is lost.
                set_bandwidth(self._netlink, self._link, settings.bandwidth_bps)
                set_limits(self._netlink, self._link, room)
            else:
                build_queues(self._netlink, self._link, settings.bandwidth_bps, room)
            if root.is_ours or settings.queue_rates_bps:
                self._serve(settings)
            if root.is_ours:
                self._before = queue_counters(self._netlink, self._link)
        except OSError as error:
            remove_queues(self._netlink, self._link)
            raise NetworkError(
                f"{self.interface} takes no priority queues ({error.strerror}); "
                "`triage doctor` says what this machine lacks"
            ) from None

    def _serve(self, settings: SetPort) -> None:
        """Let queues be served as the settings say; what is queued stays queued."""
        if settings.queue_rates_bps:
            serve_by_queue_rates(
                self._netlink,
                self._link,
                settings.bandwidth_bps,
                settings.queue_rates_bps,
                borrowing=settings.borrowing,
                control_bps=8 * sum(each.bytes_per_second for each in control_bounds(settings.bandwidth_bps)),
            )
        else:
            serve_by_priority(self._netlink, self._link)

    def _flush(self) -> None:
        set_bandwidth(self._netlink, self._link, float("inf"))
        if self.settings.queue_rates_bps:
            serve_by_priority(self._netlink, self._link)
        deadline = time.monotonic() + _FLUSH_SECONDS
        while time.monotonic() < deadline:
            if self.is_empty():
                return
            time.sleep(0.005)


def _with_arrivals(counted: QueueCounters, put_in: NDArray[np.uint64] | None) -> QueueCounters:
    """The kernel does not say how large packets were that found no room: the classifier knows what was put in."""
    packets_in = counted.packets_out + counted.drops + counted.backlog_packets
    bytes_in = counted.bytes_out + counted.backlog_bytes
    if counted.drops and put_in is not None:
        packets, octets = put_in.tolist()
        # It was read at another moment, and may know of some packets more or fewer.
        bytes_in = max(bytes_in, octets + (packets_in - packets) * octets // max(packets, 1))
    return replace(counted, bytes_in=bytes_in, packets_in=packets_in)


class RestoredQueues(NamedTuple):
    """Interfaces whose queues were removed, those whose queues a process still uses, and what could not be removed."""

    removed: list[str]
    in_use: list[str]
    failed: list[str]


def restore_queues() -> RestoredQueues:
    """Take queues that killed processes left from the interfaces of this namespace."""
    found = RestoredQueues([], [], [])
    with closing(Netlink()) as netlink:
        for _, name in socket.if_nameindex():
            try:
                link = interface_index(netlink, name)
                is_ours, held = root_queue(netlink, link).is_ours, _hold(link)
                if held is None:
                    if is_ours:
                        found.in_use.append(name)
                    continue
                with held:
                    if is_ours:
                        remove_queues(netlink, link)
                        found.removed.append(name)
            except (NetworkError, OSError) as error:
                found.failed.append(f"{name}: {error}")
    return found


def _hold(link: int) -> socket.socket | None:
    """What says in this namespace that a process manages an interface; None if one does already."""
    held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        held.bind(f"\0triagemq/queues/{link}")
    except OSError:
        held.close()
        return None
    return held


def _is_there(netlink: Netlink, name: str, link: int) -> bool:
    try:
        return interface_index(netlink, name) == link
    except NetworkError:
        return False
