"""Flow rules as plain data: what they match, what they do, and how a switch keeps them apart.

A rule is of one kind, and its kind gives its table and priority. Packets enter at table 0, which finds out who speaks
(discovery, known hosts, links), and go on to table 1, which decides where they go and how they are marked.
"""

from __future__ import annotations

import enum
import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from triagemq.datagrams import CLASS_DSCP

CONTROLLER = 0xFFFFFFFD
"""The port number that stands for the controller."""

MARKS = CLASS_DSCP
"""DSCP by priority class."""

Match = tuple[tuple[str, int | str], ...]
"""Fields (by the names of OpenFlow 1.3) that a packet must have, in alphabetical order: exactly, or (an IPv6 address
with a mask behind a stroke) in the bits of the mask."""


_MOST = 0xFFFFFFFF


class Kind(enum.Enum):
    """What a rule is for: (table, priority)."""

    DISCOVERY = (0, 400)
    """Frames of link discovery: to the controller, and nowhere else."""
    HOST = (0, 300)
    """A known host speaks from the port where it is known to be."""
    LINK = (0, 200)
    """From another switch, where its source has been seen, or from a reserved port, where no host is looked for."""
    LEARN = (0, 0)
    """An unknown host speaks: the controller sees a copy, the packet goes on."""
    FLOW_FROM_LINK = (1, 310)
    """Events of a limited topic that come from another switch, where they have met their limit."""
    FLOW = (1, 300)
    """Events of a topic."""
    FOREIGN = (1, 290)
    """To the address of a promised topic, but not from its source: goes nowhere, and is counted."""
    UNICAST = (1, 200)
    """Unmanaged packets to a known host."""
    PREFIX = (1, 10)
    """Events by a prefix of topics' codes: in this priority and its length more, so that the longest holds."""
    UNMATCHED = (1, 5)
    """Events with codes that match no prefix: go nowhere, and are counted."""
    FLOOD = (1, 0)
    """To all or to an unknown host: along a tree, so that nothing comes twice."""

    @property
    def table(self) -> int:
        return self.value[0]

    @property
    def priority(self) -> int:
        return self.value[1]


FLOW_KINDS = frozenset({Kind.FLOW, Kind.FLOW_FROM_LINK, Kind.FOREIGN, Kind.PREFIX, Kind.UNMATCHED})
"""Rules that a plan asks for; the others are the network's."""


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A token bucket, in the units of OpenFlow's meters: what exceeds it is dropped."""

    kilobits_per_second: int
    burst_kilobits: int

    @classmethod
    def of(cls, bandwidth_bps: float, burst_bytes: float) -> RateLimit:
        """The smallest limit a switch can hold that lets this much through.

        >>> RateLimit.of(64_000, 1500)
        RateLimit(kilobits_per_second=64, burst_kilobits=12)
        """
        kilobits_per_second, burst_kilobits = (
            min(max(1, math.ceil(bits / 1000)), _MOST) for bits in (bandwidth_bps, burst_bytes * 8)
        )
        return cls(kilobits_per_second, burst_kilobits)


class OutputAction(NamedTuple):
    """Where a copy of a packet leaves, and its DSCP there; None: the one it came with."""

    port: int
    mark: int | None = None


class RuleKey(NamedTuple):
    """What identifies a rule on a switch: two rules with one key are one rule."""

    table: int
    priority: int
    match: Match


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of a flow table: send copies out at every port but the one it came from, then go on.

    `hops` is the number of switches between this one and the destination, `rank` the class of a flow, and
    `first_output` where packets to a host that has just become known go before they take their shortest path: they give
    the order of updates, are not stored by switches, and do not count when rules are compared.
    """

    table: int
    priority: int
    match: Match
    copies: tuple[OutputAction, ...] = ()
    limit: RateLimit | None = None
    next_table: int | None = None
    is_foreign: bool = False
    """Read from a switch, and not expressible here: it was changed by others."""
    hops: int = field(default=0, compare=False)
    rank: int = field(default=0, compare=False)
    first_output: int | None = field(default=None, compare=False)

    @property
    def key(self) -> RuleKey:
        return RuleKey(self.table, self.priority, self.match)

    @property
    def kind(self) -> Kind | None:
        """None for a rule that cannot be ours."""
        if self.table == Kind.PREFIX.table and 0 < self.priority - Kind.PREFIX.priority <= 128:
            return Kind.PREFIX
        return _KINDS.get((self.table, self.priority))

    def __str__(self) -> str:
        match = ",".join(f"{name}={value}" for name, value in self.match) or "everything"
        return f"[table {self.table} priority {self.priority} {match}]"


_KINDS = {kind.value: kind for kind in Kind}

RuleSets = Mapping[int, Mapping[RuleKey, Rule]]
"""Rules by switch (datapath id) and key."""


def matching(**fields: int | str) -> Match:
    """
    >>> matching(udp_dst=20000, eth_type=0x0800)
    (('eth_type', 2048), ('udp_dst', 20000))
    """
    return tuple(sorted(fields.items()))


def class_mark(priority_class: int) -> int:
    """The DSCP of a class; classes beyond the last mark share it.

    >>> class_mark(0), class_mark(6), class_mark(9)
    (46, 1, 1)
    """
    return MARKS[min(priority_class, len(MARKS) - 1)]


def switch_name(datapath_id: int) -> str:
    """As Open vSwitch writes it.

    >>> switch_name(1)
    '0000000000000001'
    """
    return f"{datapath_id:016x}"


COOKIE_MARK = 0x7154 << 48
"""Every rule of ours has this in its cookie; rules without it are never touched."""
COOKIE_MASK = 0xFFFF << 48
_FLOW_BIT = 1 << 47
FLOW_COOKIE_MARK = COOKIE_MARK | _FLOW_BIT
FLOW_COOKIE_MASK = COOKIE_MASK | _FLOW_BIT


@dataclass(frozen=True, slots=True)
class Put:
    """Add a rule to a switch, or replace the one with the same key."""

    switch: int
    rule: Rule


@dataclass(frozen=True, slots=True)
class Delete:
    """Take a rule from a switch."""

    switch: int
    rule: Rule


Step = tuple[Put | Delete, ...]


def cookie_of(rule: Rule) -> int:
    """Our mark, a bit for rules of flows, and a number that no two rules share: counters are read by it.

    >>> hex(cookie_of(Rule(*Kind.FLOW.value, ()))), hex(cookie_of(Rule(*Kind.FLOOD.value, ())))
    ('0x7154e26036713c67', '0x715405ced7085ecb')
    """
    digest = hashlib.blake2b(repr(rule.key).encode(), digest_size=6).digest()
    mark = FLOW_COOKIE_MARK if rule.kind in FLOW_KINDS else COOKIE_MARK
    return mark | int.from_bytes(digest, "big") & (_FLOW_BIT - 1)


def steps(before: RuleSets, after: RuleSets) -> list[Step]:
    """What to do, in order, on switches that have `before`; nothing where both are the same.

    >>> from triagemq.network.openflow.rules import OutputAction, Rule
    >>> old, new = Rule(1, 300, (), (OutputAction(1),)), Rule(1, 300, (), (OutputAction(2),))
    >>> steps({1: {old.key: old}}, {1: {new.key: new}}) == [(Put(1, new),)]
    True
    >>> steps({1: {old.key: old}}, {1: {old.key: old}})
    []
    """
    shrinking: list[Put | Delete] = []
    introducing: list[Put | Delete] = []
    growing: list[Put | Delete] = []
    deleting: list[Put | Delete] = []
    by_hops: dict[int, list[Put | Delete]] = {}
    for switch in sorted(before.keys() | after.keys()):
        old_rules, new_rules = before.get(switch, {}), after.get(switch, {})
        for rule in _changed(old_rules, new_rules):
            old = old_rules.get(rule.key)
            if rule.kind is not Kind.FLOOD:
                if old is None and rule.first_output is not None:
                    introducing.append(Put(switch, replace(rule, copies=(OutputAction(rule.first_output),))))
                    if introducing[-1].rule == rule:
                        continue
                by_hops.setdefault(rule.hops, []).append(Put(switch, rule))
                continue
            growing.append(Put(switch, rule))
            if old is not None:
                shared = tuple(copy for copy in old.copies if copy in rule.copies)
                if shared not in (old.copies, rule.copies):
                    shrinking.append(Put(switch, replace(rule, copies=shared)))
                elif shared == rule.copies:
                    shrinking.append(growing.pop())
        deleting += [Delete(switch, rule) for key, rule in old_rules.items() if key not in new_rules]
    deleting.sort(key=lambda change: change.rule.kind not in (Kind.FOREIGN, Kind.UNMATCHED))
    putting = [sorted(by_hops[hops], key=lambda change: -change.rule.rank) for hops in sorted(by_hops)]
    return [tuple(step) for step in (shrinking, introducing, *putting, growing, deleting) if step]


def _changed(old: Mapping[RuleKey, Rule], new: Mapping[RuleKey, Rule]) -> Iterable[Rule]:
    return (rule for key, rule in new.items() if old.get(key) != rule)
