"""The flows that the classifiers of a data plane know, changed all at once.

Every flow has two policies and a generation from which the second holds. A new plan is first written beside the old
one, for the generation to come; then one number changes, and with it every flow. The cost is that of the flows that
change, whatever the number of those there are.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from triagemq.errors import PlanError
from triagemq.network.linux.bpf import ArrayMap, HashMap, load_program
from triagemq.network.linux.classifier import (
    COUNTER,
    FLOW_KEY,
    FLOW_POLICY,
    IPV4_MAPPED,
    QUEUE_RECORD,
    ClassifierMaps,
    classifier_program,
)
from triagemq.network.linux.classifying import Policy, PolicyChange
from triagemq.network.linux.netlink import Link, Netlink
from triagemq.network.linux.queues import attach_classifier
from triagemq.plan import FlowKey

__all__ = ["FlowTable", "drop_threshold", "packed_key"]

_NUMBER = struct.Struct("=Ixxxx")
_NONE = Policy(0, 0, 0, 0)


def drop_threshold(drop_rate: float) -> int:
    """The number below which a random number of 32 bits means that the packet is dropped.

    >>> drop_threshold(0.5) / 2**32, drop_threshold(1.0) > 2**32 - 1
    (0.5, True)
    """
    return round(drop_rate * 2**32)


def packed_key(key: FlowKey) -> bytes:
    """A flow's key as the classifier builds it from a packet.

    >>> packed_key(FlowKey("10.0.0.1", 10000))[10:18].hex()
    'ffff0a0000012710'
    """
    address = key.address
    if ":" in address:
        octets = socket.inet_pton(socket.AF_INET6, address.partition("%")[0])
    else:
        octets = IPV4_MAPPED + socket.inet_pton(socket.AF_INET, address)
    return FLOW_KEY.pack(octets, socket.htons(key.udp_port), 0)


class _Program:
    """A loaded program for one port."""

    def __init__(self, program: bytes) -> None:
        self._file = load_program(program)

    def attach(self, netlink: Netlink, link: Link) -> None:
        attach_classifier(netlink, link.index, self._file)

    def close(self) -> None:
        os.close(self._file)


class FlowTable:
    """Classifying by eBPF: the maps that the programs of all ports share."""

    def __init__(self, most_flows: int, most_counters: int, most_ports: int) -> None:
        self._generation = ArrayMap(_NUMBER.size, 1)
        self._flows = HashMap(FLOW_KEY.size, FLOW_POLICY.size, most_flows)
        self._counters = ArrayMap(COUNTER.size, most_counters)
        self._queues = ArrayMap(QUEUE_RECORD, most_ports + 1)
        self._most_flows = most_flows
        self._now = 0
        self._staged: Sequence[PolicyChange] = ()

    @property
    def maps(self) -> ClassifierMaps:
        return ClassifierMaps(self._generation.file, self._flows.file, self._counters.file, self._queues.file)

    def open_port(self, number: int, namespace: str | None) -> _Program:
        self._queues.set(number, bytes(QUEUE_RECORD))
        return _Program(classifier_program(self.maps, number))

    def stage(self, changes: Sequence[PolicyChange]) -> None:
        self._staged = changes
        self._write(changes)

    def switch(self) -> None:
        self._now += 1
        self._generation.set(0, _NUMBER.pack(self._now))

    def settle(self) -> None:
        """The change stays: flows that have gone leave the table."""
        self._flows.delete([each.packed_key for each in self._staged if each.after is None])
        self._staged = ()

    def take_back(self, *, switched: bool) -> None:
        if switched:
            self._now -= 1
            self._generation.set(0, _NUMBER.pack(self._now))
        staged, self._staged = self._staged, ()
        self._write([PolicyChange(key, before, before) for key, before, _ in staged if before is not None])
        self._flows.delete([each.packed_key for each in staged if each.before is None])

    def flow_counters(self, count: int) -> NDArray[np.uint64]:
        return np.frombuffer(self._counters.memory, np.uint64, count * 3).reshape(count, 3).copy()

    def queue_counters(self, port: int) -> NDArray[np.uint64]:
        return (
            np.frombuffer(self._queues.memory, np.uint64, QUEUE_RECORD // 8, port * QUEUE_RECORD)
            .reshape(-1, 2)
            .copy()
        )

    def reset_flow_counter(self, number: int) -> None:
        self._counters.set(number, bytes(COUNTER.size))

    def close(self) -> None:
        for each in (self._generation, self._flows, self._counters, self._queues):
            each.close()

    def _write(self, changes: Sequence[PolicyChange]) -> None:
        next_generation, pack = self._now + 1, FLOW_POLICY.pack
        try:
            self._flows.update(
                [
                    (key, pack(next_generation, *(before or _NONE), *(after or _NONE)))
                    for key, before, after in changes
                ]
            )
        except OSError as error:
            if error.errno in (errno.E2BIG, errno.ENOSPC):
                raise PlanError(
                    f"this data plane has room for {self._most_flows} flows; "
                    "give each subscriber fewer (planning: flows_per_subscriber)"
                ) from None
            raise
