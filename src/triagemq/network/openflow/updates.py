"""From the rules that switches have to the rules they should have, without a moment in which a flow has none.

Steps are done one after the other, each ended by barriers on all switches it touches:

1. Flooding shrinks to the ports that old and new tree share: no packet to all can circle meanwhile.
2. Packets to a host that has become known go along the tree by which they were flooded. While some switches still
   flood, a copy that strays from the way finds its way back only by the port it came from, which no switch takes: the
   host gets one. Were the shortest way taken at once, a stray copy would go on by a link outside the tree.
3. New and changed rules, first at the switches next to the subscriber, then back towards the broker, one switch
   farther at each step: whoever is sent the new way finds it complete. A rule with the key of an old one replaces it
   in one go. Within a step lower classes come first (MIDAS, section V-A): nobody is passed by who was lower before.
4. Flooding grows to the new tree.
5. What is no longer wanted is deleted, first the rules that drop what is not a source's or matches no prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from triagemq.network.openflow.rules import Kind, Rule, RuleKey, RuleSets

COOKIE_MARK = 0x7154 << 48
"""Every rule of ours has this in its cookie; rules without it are never touched."""
COOKIE_MASK = 0xFFFF << 48
_FLOW_BIT = 1 << 47
FLOW_COOKIE_MARK = COOKIE_MARK | _FLOW_BIT
FLOW_COOKIE_MASK = COOKIE_MASK | _FLOW_BIT
_GENERATION_SHIFT = 24
_GENERATIONS = 1 << 23


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


class Cookies:
    """Numbers for rules: our mark, a bit for rules of flows, the generation of the update, and a number within it.

    >>> cookies = Cookies()
    >>> cookies.begin()
    >>> hex(cookies.next(flow=True)), hex(cookies.next(flow=False))
    ('0x7154800001000000', '0x7154000001000001')
    """

    def __init__(self) -> None:
        self._generation = 0
        self._number = 0

    def seen(self, cookie: int) -> None:
        """Go on behind the cookies of an earlier process."""
        self._generation = max(self._generation, cookie >> _GENERATION_SHIFT & (_GENERATIONS - 1))

    def begin(self) -> None:
        """Start another generation."""
        self._generation = (self._generation + 1) % _GENERATIONS
        self._number = 0

    def next(self, *, flow: bool) -> int:
        number = self._number
        self._number = (number + 1) % (1 << _GENERATION_SHIFT)
        mark = FLOW_COOKIE_MARK if flow else COOKIE_MARK
        return mark | self._generation << _GENERATION_SHIFT | number


def steps(before: RuleSets, after: RuleSets) -> list[Step]:
    """What to do, in order, on switches that have `before`; nothing where both are the same.

    >>> from triagemq.network.openflow.rules import Rule
    >>> old, new = Rule(1, 300, (), outputs=(1,)), Rule(1, 300, (), outputs=(2,))
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
                    introducing.append(Put(switch, replace(rule, outputs=(rule.first_output,))))
                    if introducing[-1].rule == rule:
                        continue
                by_hops.setdefault(rule.hops, []).append(Put(switch, rule))
                continue
            growing.append(Put(switch, rule))
            if old is not None:
                shared = tuple(port for port in old.outputs if port in rule.outputs)
                if shared not in (old.outputs, rule.outputs):
                    shrinking.append(Put(switch, replace(rule, outputs=shared)))
                elif shared == rule.outputs:
                    shrinking.append(growing.pop())
        deleting += [Delete(switch, rule) for key, rule in old_rules.items() if key not in new_rules]
    deleting.sort(key=lambda change: change.rule.kind not in (Kind.FOREIGN, Kind.UNMATCHED))
    putting = [sorted(by_hops[hops], key=lambda change: -change.rule.rank) for hops in sorted(by_hops)]
    return [tuple(step) for step in (shrinking, introducing, *putting, growing, deleting) if step]


def _changed(old: Mapping[RuleKey, Rule], new: Mapping[RuleKey, Rule]) -> Iterable[Rule]:
    return (rule for key, rule in new.items() if old.get(key) != rule)
