"""An output port on a network interface: its queues, its classifier, and what was there before.

Queues of ours are known by their handle. While a process manages an interface it holds an abstract Unix socket named
after it, which goes with the process: queues without one were left behind by a process that was killed. A file below
/run has what was there before.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triagemq.errors import NetworkError
from triagemq.network.linux.flow_table import PortClassifier, control_bounds
from triagemq.network.linux.netlink import KernelLink, Netlink, find_link, in_namespace
from triagemq.network.linux.queues import (
    QueueStatistics,
    RootQueue,
    build_queues,
    queue_statistics,
    remove_queues,
    restore_root,
    root_queue,
    serve_by_priority,
    serve_by_widths,
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
from triagemq.plan import PortCounters, QueueCounters, SetPort

# Queueing disciplines that the kernel takes back as it describes them. Others may have classes and filters.
_RESTORABLE = frozenset(
    {"pfifo", "bfifo", "pfifo_head_drop", "pfifo_fast", "fq", "fq_codel", "codel", "sfq", "noqueue"}
)

_FLUSH_SECONDS = 0.5
_DIRECTORY = Path("/run/triagemq")


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
        classifier: PortClassifier,
    ) -> None:
        self.settings, self.number, self.interface = settings, number, interface
        self.reported_classes = settings.classes
        self._netlink = netlink
        self._link = find_link(netlink, interface.name)
        self._classifier = classifier
        # Another namespace goes with what it was made for.
        self._file = _former_file(self._link) if interface.namespace is None else _DIRECTORY / "none"
        self._before = [QueueStatistics()] * QUEUES
        self._missing, self._lost = [0] * QUEUES, [0] * QUEUES
        self._take(settings)
        classifier.set_bandwidth(settings.bandwidth_bps)
        classifier.set_classes(settings.classes)

    def configure(self, settings: SetPort) -> None:
        """Change the port in place: what is queued stays queued."""
        before = self.settings
        if settings.bandwidth_bps != before.bandwidth_bps:
            set_bandwidth(self._netlink, self._link.index, settings.bandwidth_bps)
            self._classifier.set_bandwidth(settings.bandwidth_bps)
        if (settings.widths_bps, settings.borrowing) != (before.widths_bps, before.borrowing):
            self._serve(settings)
        if settings.buffer_packets != before.buffer_packets:
            set_limits(self._netlink, self._link.index, waiting_room(settings.buffer_packets))
        if settings.classes != before.classes:
            self._classifier.set_classes(settings.classes)
        self.settings = settings
        # Classes that a new plan no longer has may still hold packets, and have counted.
        self.reported_classes = max(self.reported_classes, settings.classes)

    def attach(self) -> None:
        """Let the classifier choose queues; until then packets are unmanaged, or go as a killed run had them go."""
        self._classifier.attach(self._netlink, self._link)

    def statistics(self, put_in: NDArray[np.uint64]) -> Sequence[QueueStatistics]:
        """What each queue has counted since the port was made; `put_in` is what its classifier counted just before.

        An interface that goes down empties its queues, which is not counted: packets that are missing twice in
        succession (one may be between classifier and queue) are drops, too.
        """
        now = queue_statistics(self._netlink, self._link.index)
        packets = put_in[:, 0].tolist()
        packets[CONTROL] += packets[UNMANAGED_CONTROL]
        packets[UNMANAGED] += packets[BEYOND_BOUND] + packets[UNTRUSTED_CS6]
        found = []
        for queue, (each, before) in enumerate(zip(now, self._before, strict=True)):
            packets_out, drops = each.packets_out - before.packets_out, each.drops - before.drops
            missing = packets[queue] - packets_out - drops - each.backlog_packets
            self._lost[queue] = max(self._lost[queue], min(missing, self._missing[queue]))
            self._missing[queue] = missing
            found.append(
                QueueStatistics(
                    each.bytes_out - before.bytes_out,
                    packets_out,
                    drops + self._lost[queue],
                    each.backlog_bytes,
                    each.backlog_packets,
                )
            )
        return found

    def counters(self, statistics: Sequence[QueueStatistics], put_in: NDArray[np.uint64]) -> PortCounters:
        """The contract's counters, from what the queues and the classifier have counted."""
        bandwidth_bps = self.settings.bandwidth_bps
        widths_bps = dict(enumerate(self.settings.widths_bps, start=1))
        queues = []
        for queue, counted in enumerate(statistics[: self.reported_classes + 1]):
            width_bps = widths_bps.get(queue, bandwidth_bps)
            known = None if width_bps == float("inf") else round(width_bps)
            queues.append(_queue_counters(counted, put_in[queue] if queue != CONTROL else None, known))
        return PortCounters(
            tuple(queues[1:]),
            queues[CONTROL],
            beyond_bound=int(put_in[BEYOND_BOUND, 0]),
            strange_marks=int(put_in[UNTRUSTED_CS6, 0]),
            discarded=int(put_in[MISMATCHED, 0]),
        )

    def is_empty(self) -> bool:
        """Whether nothing of a flow is waiting."""
        waiting = queue_statistics(self._netlink, self._link.index)
        return not any(each.backlog_packets for each in waiting[CONTROL:UNMANAGED])

    def put_back(self, *, at_once: bool = False) -> None:
        """Send what waits, without pacing, and leave the interface as it was."""
        try:
            if not at_once:
                self._flush()
            put_back(self._netlink, self._link, self._former)
        except OSError as error:
            # An interface that has gone took its queues with it.
            if _is_there(self._netlink, self._link):
                raise NetworkError(f"{self.interface} cannot be put back: {error.strerror}") from None
        finally:
            self._hold.close()
        self._file.unlink(missing_ok=True)

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
        root = root_queue(self._netlink, self._link.index)
        self._former = _read_former(self._file) if root.is_ours else root
        if not (root.is_ours or root.is_default or root.kind in _RESTORABLE):
            raise NetworkError(
                f"{self.interface} has a queueing discipline of its own ({root.kind}); "
                f"take it away first: tc qdisc del dev {self.interface.name} root"
            )
        if not root.is_ours and self.interface.namespace is None:
            _write_former(self._file, root)
        try:
            if root.is_ours:
                # What a killed run left goes on until the new classifier takes over: no packet is lost.
                set_bandwidth(self._netlink, self._link.index, settings.bandwidth_bps)
                set_limits(self._netlink, self._link.index, waiting_room(settings.buffer_packets))
                self._serve(settings)
                self._before = queue_statistics(self._netlink, self._link.index)
            else:
                build_queues(
                    self._netlink,
                    self._link.index,
                    settings.bandwidth_bps,
                    waiting_room(settings.buffer_packets),
                )
                if settings.widths_bps:
                    self._serve(settings)
        except OSError as error:
            put_back(self._netlink, self._link, self._former)
            self._file.unlink(missing_ok=True)
            raise NetworkError(
                f"{self.interface} takes no priority queues ({error.strerror}); "
                "`triage doctor` says what this machine lacks"
            ) from None

    def _serve(self, settings: SetPort) -> None:
        """Let queues be served as the settings say; what is queued stays queued."""
        if settings.widths_bps:
            serve_by_widths(
                self._netlink,
                self._link.index,
                settings.bandwidth_bps,
                settings.widths_bps,
                borrowing=settings.borrowing,
                control_bps=8 * sum(each.bytes_per_second for each in control_bounds(settings.bandwidth_bps)),
            )
        else:
            serve_by_priority(self._netlink, self._link.index)

    def _flush(self) -> None:
        set_bandwidth(self._netlink, self._link.index, float("inf"))
        if self.settings.widths_bps:
            serve_by_priority(self._netlink, self._link.index)
        deadline = time.monotonic() + _FLUSH_SECONDS
        while time.monotonic() < deadline:
            if self.is_empty():
                return
            time.sleep(0.005)


def add_unmanaged(sums: list[int], put_in: NDArray[np.uint64]) -> None:
    """Add a port's packets of no flow to the sums of packets, control packets and bytes."""
    plain, control = (put_in[UNMANAGED] + put_in[UNTRUSTED_CS6]).tolist(), put_in[UNMANAGED_CONTROL].tolist()
    sums[0] += plain[0] + control[0]
    sums[1] += control[0]
    sums[2] += plain[1] + control[1]


def _queue_counters(
    counted: QueueStatistics, put_in: NDArray[np.uint64] | None, width_bps: int | None
) -> QueueCounters:
    """The kernel does not say how large packets were that found no room: the classifier knows what was put in."""
    packets_in = counted.packets_out + counted.drops + counted.backlog_packets
    bytes_in = counted.bytes_out + counted.backlog_bytes
    if counted.drops and put_in is not None:
        packets, octets = put_in.tolist()
        # It was read at another moment, and may know of some packets more or fewer.
        bytes_in = max(bytes_in, octets + (packets_in - packets) * octets // max(packets, 1))
    return QueueCounters(
        bytes_in=bytes_in,
        packets_in=packets_in,
        bytes_out=counted.bytes_out,
        packets_out=counted.packets_out,
        drops=counted.drops,
        backlog_bytes=counted.backlog_bytes,
        backlog_packets=counted.backlog_packets,
        width_bps=width_bps,
    )


def put_back(netlink: Netlink, link: KernelLink, former: RootQueue) -> bool:
    """If the queues of an interface are ours, put what was there before in their place; whether they were."""
    if not root_queue(netlink, link.index).is_ours:
        return False
    remove_queues(netlink, link.index)
    if not former.is_default:
        restore_root(netlink, link.index, former)
    return True


class RestoredQueues(NamedTuple):
    """Interfaces whose queues were removed, those whose queues a process still uses, and what could not be removed."""

    removed: list[str]
    in_use: list[str]
    failed: list[str]


def restore_queues() -> RestoredQueues:
    """Take queues that killed processes left from the interfaces of this namespace, and put back what was there."""
    found = RestoredQueues([], [], [])
    with closing(Netlink()) as netlink:
        for _, name in socket.if_nameindex():
            try:
                link = find_link(netlink, name)
                is_ours, held = root_queue(netlink, link.index).is_ours, _hold(link)
                if held is None:
                    if is_ours:
                        found.in_use.append(name)
                    continue
                with held:
                    file = _former_file(link)
                    if is_ours:
                        put_back(netlink, link, _read_former(file))
                        found.removed.append(name)
                    file.unlink(missing_ok=True)
            except (NetworkError, OSError) as error:
                found.failed.append(f"{name}: {error}")
    return found


def _hold(link: KernelLink) -> socket.socket | None:
    """What says in this namespace that a process manages an interface; None if one does already."""
    held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        held.bind(f"\0triagemq/queues/{link.index}")
    except OSError:
        held.close()
        return None
    return held


def _former_file(link: KernelLink) -> Path:
    """Where it is written down what was at an interface of the present namespace."""
    return _DIRECTORY / f"{os.stat('/proc/thread-self/ns/net').st_ino}-{link.index}.qdisc"


def _write_former(path: Path, former: RootQueue) -> None:
    # Without a place for it the kernel's default comes back after a crash.
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.write_text(json.dumps([former.kind, former.handle, former.options.hex()]))


def _read_former(path: Path) -> RootQueue:
    try:
        kind, handle, options = json.loads(path.read_text())
        return RootQueue(kind, handle, bytes.fromhex(options))
    except (OSError, ValueError, TypeError):
        return RootQueue("noqueue", 0, b"")


def _is_there(netlink: Netlink, link: KernelLink) -> bool:
    try:
        return find_link(netlink, link.name).index == link.index
    except NetworkError:
        return False
