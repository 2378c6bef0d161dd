"""Classifying without root: nftables inside a user namespace (`unshare -Urnm`), where eBPF is not allowed.

The queues are the same (queues.py); rules at the egress of an interface give packets the priority by which HTB finds
their class, and drop at random. What differs from eBPF:

* Drop rates come in steps of 0.1 %.
* A plan changes at once as far as the system's limit of a message goes (about 100 flows, see net.core.wmem_max), and in
  several steps beyond it.
* A flow has its class at its own port only; elsewhere it is unmanaged. Unmanaged packets are not counted.
* A PUBLISH in a forwarder's envelope counts as a control packet, and so does every record of DTLS.
* Marks of control packets are believed whoever sets them, control packets have no bound, and fragments other than the
  first are unmanaged.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike

import numpy as np
from numpy.typing import NDArray

from triagemq.errors import NetworkError
from triagemq.network.linux import nftables as nft
from triagemq.network.linux.classifying import Listener, PolicyChange
from triagemq.network.linux.netlink import text_attribute
from triagemq.network.linux.nftables_rules import (
    NftablesPort,
    delete_table,
    element,
    flow_chain,
    new_counter,
    new_map,
    new_table,
)
from triagemq.network.linux.plane import LinuxDataPlane
from triagemq.network.linux.port import Interface
from triagemq.network.linux.records import QUEUE_COUNTER, QUEUE_RECORD

__all__ = ["NftablesTable", "open_linux_data_plane"]

_TABLE = "triagemq"


def open_linux_data_plane(
    interfaces: Mapping[str, Interface], *, journal_directory: str | PathLike[str] | None = None
) -> LinuxDataPlane:
    """The linux data plane with eBPF where that is allowed, else with nftables; NetworkError if neither is."""
    try:
        return LinuxDataPlane(interfaces, journal_directory=journal_directory)
    except NetworkError as error:
        refused = error
    try:
        probe = nft.Nftables(None)
        try:
            probe.transact([new_table(f"{_TABLE}-probe"), delete_table(f"{_TABLE}-probe")])
        finally:
            probe.close()
    except OSError as error:
        raise NetworkError(
            f"{refused}; and nftables, which would do without root inside `unshare -Urnm`, says: {error.strerror}"
        ) from None
    return LinuxDataPlane(
        interfaces, journal_directory=journal_directory, most_flows=10_000, classifying=NftablesTable
    )


class NftablesTable:
    """Classifying by nftables: a table in each network namespace, a map per port, a chain per policy of a flow."""

    def __init__(self, most_flows: int, most_counters: int, most_ports: int) -> None:
        self._name = f"{_TABLE}-{os.getpid()}-{id(self):x}"
        self._sockets: dict[str | None, nft.Nftables] = {}
        self._namespaces: dict[int, str | None] = {}
        self._maps: set[tuple[str | None, int]] = set()
        self._counters: dict[int, set[str | None]] = {}
        self._zero: dict[int, tuple[int, int, int]] = {}
        self._chains: dict[bytes, str] = {}
        self._places: dict[int, tuple[int, int]] = {}
        self._read = np.zeros((0, 3), dtype=np.uint64)
        self._serial = 0
        self._staged: Sequence[PolicyChange] = ()

    def open_port(self, number: int, namespace: str | None) -> NftablesPort:
        try:
            opened = self._sockets.get(namespace)
            if opened is None:
                opened = nft.Nftables(namespace)
                opened.transact([new_table(self._name)])
                self._sockets[namespace] = opened
            self._namespaces[number] = namespace
            if (namespace, number) not in self._maps:
                opened.transact([new_map(self._name, number, version) for version in (4, 6)])
                self._maps.add((namespace, number))
        except OSError as error:
            raise NetworkError(
                f"nftables cannot be used ({error.strerror}); run this as root, or inside `unshare -Urnm` "
                "on a kernel with CONFIG_NETFILTER_EGRESS"
            ) from None
        return NftablesPort(number, opened, self._name)

    def trust(self, listeners: Sequence[Listener]) -> None:
        """Here marks are believed whoever sets them."""

    def stage(self, changes: Sequence[PolicyChange]) -> None:
        self._staged = changes

    def switch(self) -> None:
        self._follow(self._staged)

    def settle(self) -> None:
        self._staged = ()

    def take_back(self, *, switched: bool) -> None:
        if switched:
            self._follow([PolicyChange(key, after, before) for key, before, after in self._staged])
        self._staged = ()

    def flow_counters(self, count: int) -> NDArray[np.uint64]:
        found: dict[str, tuple[int, int]] = {}
        for opened in self._sockets.values():
            for name, (packets, octets) in opened.counters(self._name).items():
                before = found.get(name, (0, 0))
                found[name] = (before[0] + packets, before[1] + octets)
        rows = np.zeros((count, 3), dtype=np.uint64)
        for counter in range(count):
            rows[counter] = np.subtract(self._row(counter, found), self._zero.get(counter, (0, 0, 0)))
        self._read = rows
        return rows

    def queue_counters(self, port: int) -> NDArray[np.uint64]:
        """As far as it was counted by flows, at the last reading of those."""
        sums = np.zeros((QUEUE_RECORD // QUEUE_COUNTER.size, 2), dtype=np.uint64)
        for counter, (packets_in, dropped, octets) in enumerate(self._read.tolist()):
            number, queue = self._places.get(counter, (0, 0))
            if number == port:
                sums[queue] += np.array((packets_in - dropped, octets), dtype=np.uint64)
        return sums

    def reset_flow_counter(self, number: int) -> None:
        self._zero.pop(number, None)
        row = self.flow_counters(number + 1)[number].tolist()
        self._zero[number] = (row[0], row[1], row[2])

    def close(self) -> None:
        for opened in self._sockets.values():
            opened.transact([delete_table(self._name)])
            opened.close()

    @staticmethod
    def _row(counter: int, found: Mapping[str, tuple[int, int]]) -> tuple[int, int, int]:
        came, dropped = found.get(f"c{counter}", (0, 0)), found.get(f"d{counter}", (0, 0))
        return came[0], dropped[0], came[1] - dropped[1]

    def _follow(self, changes: Sequence[PolicyChange]) -> None:
        """Make the changes, namespace by namespace, in as few transactions as messages may be large."""
        steps: dict[str | None, list[list[tuple[int, bytes]]]] = {}
        chains = dict(self._chains)
        for change in changes:
            for namespace, some in self._steps(change).items():
                steps.setdefault(namespace, []).append(some)
        made = False
        try:
            for namespace, groups in steps.items():
                for batch in _batches(groups, self._sockets[namespace].most_bytes - 4096):
                    self._sockets[namespace].transact(batch)
                    made = True
        except OSError:
            if not made:
                self._chains = chains
            raise

    def _steps(self, change: PolicyChange) -> dict[str | None, list[tuple[int, bytes]]]:
        packed, before, after = change
        steps: dict[str | None, list[tuple[int, bytes]]] = {}
        old_chain = self._chains.pop(packed, None)
        if after is not None:
            namespace = self._namespaces[after.port]
            self._places[after.counter] = (after.port, after.queue)
            self._serial += 1
            chain = self._chains[packed] = f"flow{self._serial}"
            some = steps.setdefault(namespace, [])
            if namespace not in self._counters.setdefault(after.counter, set()):
                self._counters[after.counter].add(namespace)
                some += [new_counter(self._name, f"{kind}{after.counter}") for kind in "cd"]
            some += flow_chain(self._name, chain, after.counter, after.queue, after.threshold)
        if before is not None and old_chain is not None:
            some = steps.setdefault(self._namespaces[before.port], [])
            some.append(element(nft.DELETE_ELEMENT, self._name, before.port, packed, None))
        if after is not None:
            some = steps[self._namespaces[after.port]]
            some.append(element(nft.NEW_ELEMENT, self._name, after.port, packed, self._chains[packed]))
        if before is not None and old_chain is not None:
            table = text_attribute(1, self._name)
            steps[self._namespaces[before.port]] += [
                nft.message(nft.DELETE_RULE, table, text_attribute(2, old_chain)),
                nft.message(nft.DELETE_CHAIN, table, text_attribute(3, old_chain)),
            ]
        return steps


def _batches(groups: Sequence[list[tuple[int, bytes]]], most_bytes: int) -> Iterator[list[tuple[int, bytes]]]:
    """As many groups of steps together as fit into a message."""
    batch: list[tuple[int, bytes]] = []
    size = 0
    for group in groups:
        octets = sum(20 + len(content) for _, content in group)
        if batch and size + octets > most_bytes:
            yield batch
            batch, size = [], 0
        batch += group
        size += octets
    yield batch
