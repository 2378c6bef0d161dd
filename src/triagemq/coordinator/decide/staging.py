"""The way from orders to orders, in stages that each keep every promise; the next is told when one is confirmed.

What is gone goes first, and utility traffic makes room. Then levels change, port by port in an order that admission has
checked. What is new is laid from its end, and opened last, with its limiter, at the switch where it enters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from triagemq.coordinator.decide.orders import DirectTopics, Orders
from triagemq.coordinator.decide.promised import copy_name, publication_name
from triagemq.plan import Plan
from triagemq.plan.admission import LevelStep, reconfiguration
from triagemq.scenario import Scenario


def moves_in_order(
    scenario: Scenario,
    plan: Plan,
    plan_before: Plan | None,
    scenario_before: Scenario | None,
    before: Orders,
    after: Orders,
) -> list[list[str]] | None:
    """The copies that change their level, as rounds of one for each port; None if no safe order is known."""
    moved = {
        name
        for name, copy in after.copies.items()
        if name in before.copies and before.copies[name].priority_class != copy.priority_class
    }
    if not moved or plan_before is None:
        return []
    steps = reconfiguration(scenario, plan_before, plan, scenario_before)
    if steps is None:
        return None
    rounds: list[list[str]] = []
    of_port: dict[int, int] = {}
    for step in steps:
        if step.before < 0 or step.after < 0:
            continue
        number = of_port.get(step.port, 0)
        of_port[step.port] = number + 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(_copy(scenario, step, after))
    return rounds


def _copy(scenario: Scenario, step: LevelStep, orders: Orders) -> str:
    published = scenario.publications
    publisher = scenario.publishers.name[published.publisher[step.publication]]
    topic = scenario.topics.name[published.topic[step.publication]]
    key = orders.promised.addresses[publication_name(publisher, topic)]
    return copy_name(key, scenario.ports.name[step.port])


def staged(before: Orders, after: Orders, rounds: Sequence[Sequence[str]] = ()) -> tuple[Orders, ...]:
    """All orders from one to the other, the last of which is `after` but for its generation.

    >>> staged(Orders(4), Orders(5))
    (Orders(generation=5, ...),)
    """
    if before.copies == after.copies and before.limiters == after.limiters:
        return (after,)
    makes_room = _levels(after) >= _levels(before)
    around = after if makes_room else replace(before, promised=after.promised)
    copies = {name: copy for name, copy in before.copies.items() if name in after.copies}
    limiters = {name: limiter for name, limiter in before.limiters.items() if name in after.limiters}
    around = replace(around, direct=_in_both(before.direct, after.direct))
    stages = [replace(around, copies=dict(copies), limiters=limiters)]

    def stage(names: Iterable[str], limited: Mapping[str, object] = {}) -> None:
        copies.update((name, after.copies[name]) for name in names)
        kept = after.limiters if limited else limiters
        stages.append(replace(around, copies=dict(copies), limiters=kept))

    for names in rounds:
        stage(names)
    # What was decided on again, and has another level for that.
    stage(name for name, copy in after.copies.items() if name in copies and copies[name] != copy)
    stage(name for name in after.copies if name not in after.limiters)
    stage(after.copies, after.limiters)
    stages.append(after)
    told: list[Orders] = []
    last = replace(before, generation=0)
    for each in stages:
        if replace(each, generation=0) != last:
            told.append(replace(each, generation=before.generation + 1 + len(told)))
            last = replace(each, generation=0)
    return tuple(told) or (after,)


def _in_both(before: DirectTopics, after: DirectTopics) -> DirectTopics:
    """Nobody is left to a way that is gone, or not there yet."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for name, topics in before.items():
        now = after.get(name, {})
        stays = {
            topic: {each: since for each, since in publishers.items() if now[topic].get(each) == since}
            for topic, publishers in topics.items()
            if topic in now
        }
        if stays:
            found[name] = stays
    return found


def _levels(orders: Orders) -> int:
    """How many classes promises use on the wire."""
    return 1 + max((copy.priority_class for copy in orders.copies.values()), default=-1)
