"""Which number (slot) each flow of a subscriber has: a plan's flows matched to the slots that are in use.

Flows are numbered anew by every plan. A subscriber's slots are matched to them so that as few topics as possible move,
and then so that as few slots as possible change class. Columns throughout: of a million rows only those of subscribers
that a change concerns are looked at one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triagemq.coordinator.decide.orders import Orders, client_id_of, subscriber_of
from triagemq.plan import Flows, Plan
from triagemq.scenario import Floats, Integers, Scenario

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class SlotTable:
    """Orders as columns: rows of subscriptions and rows of flows, both sorted by subscriber.

    `topic_slot` is the slot of each subscription, -1 where a promise carries it. `flow_number` stays with a slot for as
    long as it is in use.
    """

    subscribers: tuple[str, ...]
    topics: tuple[str, ...]
    ports: tuple[str, ...]
    subscriber: Integers
    topic: Integers
    topic_slot: Integers
    flow_subscriber: Integers
    flow_slot: Integers
    flow_port: Integers
    flow_class: Integers
    flow_drop: Floats
    flow_number: Integers
    next_number: int


@dataclass(frozen=True, slots=True, eq=False)
class Earlier:
    """An earlier table seen from a new scenario. -1 and NaN are "was not there".

    `topic_slot` has one entry per subscription of the new scenario; the matrices one row per subscriber of it and one
    column per slot. `is_new` marks the subscribers that were not there, `gone_topics_of` are those of which a
    subscription is gone, `gone` the names of subscribers that are, and `gone_flows` the client ids of their flows.
    """

    topic_slot: Integers
    flow_class: Integers
    flow_port: Integers
    flow_number: Integers
    flow_drop: Floats
    is_new: NDArray[np.bool_]
    gone_topics_of: Integers
    gone: tuple[str, ...]
    gone_flows: tuple[str, ...]
    next_number: int


def recall(orders: Orders) -> SlotTable:
    """The table of orders that were kept as they were sent: what a coordinator finds when it restarts."""
    subscribers = tuple(sorted(orders.slots))
    topics = tuple(sorted({topic for slots in orders.slots.values() for topic in slots}))
    ports = tuple(sorted(orders.ports))
    subscriber_number, topic_number, port_number = _numbers(subscribers), _numbers(topics), _numbers(ports)
    rows = [
        (subscriber_number[name], topic_number[topic], slot)
        for name in subscribers
        for topic, slot in sorted(orders.slots[name].items())
    ]
    flows = sorted(
        (
            subscriber_number[name],
            slot,
            port_number[flow.port],
            flow.priority_class,
            flow.flow_id,
            flow.drop_rate,
        )
        for client_id, flow in orders.flows.items()
        for name, slot in [subscriber_of(client_id)]
        if name in subscriber_number and flow.port in port_number
    )
    numbers = [flow.flow_id for flow in orders.flows.values()] + [
        copy.flow_id for copy in orders.copies.values()
    ]
    wanted = np.array(rows, dtype=np.int32).reshape(-1, 3)
    columns = np.array([flow[:5] for flow in flows], dtype=np.int32).reshape(-1, 5)
    return SlotTable(
        subscribers=subscribers,
        topics=topics,
        ports=ports,
        subscriber=wanted[:, 0],
        topic=wanted[:, 1],
        topic_slot=wanted[:, 2],
        flow_subscriber=columns[:, 0],
        flow_slot=columns[:, 1],
        flow_port=columns[:, 2],
        flow_class=columns[:, 3],
        flow_drop=np.array([flow[5] for flow in flows], dtype=np.float64),
        flow_number=columns[:, 4],
        next_number=1 + max(numbers, default=-1),
    )


def earlier(before: SlotTable | None, scenario: Scenario, slots: int) -> Earlier:
    """An earlier table as the new scenario's subscribers and topics see it; `slots` is how many there may be."""
    wanted, count = scenario.subscriptions, len(scenario.subscribers)
    if before is not None:
        slots = max(
            slots, 1 + int(before.flow_slot.max(initial=0)), 1 + int(before.topic_slot.max(initial=0))
        )
    numbers = np.full((3, count, slots), -1, dtype=np.int32)
    drop = np.full((count, slots), np.nan)
    topic_slot = np.full(len(wanted), -1, dtype=np.int32)
    is_new = np.ones(count, dtype=bool)
    if before is None:
        nobody = np.empty(0, np.int32)
        return Earlier(topic_slot, numbers[0], numbers[1], numbers[2], drop, is_new, nobody, (), (), 0)
    subscriber = _renumbered(before.subscribers, scenario.subscribers.name)
    port = _renumbered(before.ports, scenario.ports.name)
    is_new[subscriber[subscriber >= 0]] = False
    owner = subscriber[before.flow_subscriber]
    there = owner >= 0
    cell = (owner[there], before.flow_slot[there])
    numbers[0][cell] = before.flow_class[there]
    numbers[1][cell] = port[before.flow_port][there]
    numbers[2][cell] = before.flow_number[there]
    drop[cell] = before.flow_drop[there]
    gone_flows = zip(before.flow_subscriber[~there].tolist(), before.flow_slot[~there].tolist(), strict=True)
    return Earlier(
        topic_slot=topic_slot,
        flow_class=numbers[0],
        flow_port=numbers[1],
        flow_number=numbers[2],
        flow_drop=drop,
        is_new=is_new,
        gone_topics_of=_slots_before(before, scenario, subscriber, topic_slot),
        gone=tuple(before.subscribers[row] for row in np.flatnonzero(subscriber < 0).tolist()),
        gone_flows=tuple(client_id_of(before.subscribers[row], slot) for row, slot in gone_flows),
        next_number=before.next_number,
    )


def _slots_before(before: SlotTable, scenario: Scenario, subscriber: Rows, topic_slot: Integers) -> Integers:
    """Fill in the slots of subscriptions that were there before; the subscribers of which one is gone."""
    wanted = scenario.subscriptions
    if (
        before.subscribers == scenario.subscribers.name
        and before.topics == scenario.topics.name
        and np.array_equal(before.subscriber, wanted.subscriber)
        and np.array_equal(before.topic, wanted.topic)
    ):
        topic_slot[:] = before.topic_slot
        return np.empty(0, dtype=np.int32)
    owner = subscriber[before.subscriber]
    topic = _renumbered(before.topics, scenario.topics.name)[before.topic]
    known = np.flatnonzero((owner >= 0) & (topic >= 0))
    keys = wanted.subscriber.astype(np.int64) << 32 | wanted.topic
    sought = owner[known] << 32 | topic[known]
    place = np.searchsorted(keys, sought)
    found = np.append(keys, -1)[place] == sought
    topic_slot[place[found]] = before.topic_slot[known[found]]
    left = owner >= 0
    left[known[found]] = False
    return np.unique(owner[left]).astype(np.int32)


def match_slots(scenario: Scenario, plan: Plan, most: int, was: Earlier, lowest_class: int = 0) -> SlotTable:
    """Give every flow of the plan a slot, of `most` that a subscriber has; slot 0 is always in use.

    Slot 0 is the connection's, and what no plan knows yet goes by it: without a flow on it, that would pass the port
    unmanaged. A subscriber of which nothing is planned has slot 0 in the lowest class.
    """
    flows, wanted = _with_everyone(plan.flows, scenario, lowest_class), scenario.subscriptions
    if len(flows) != len(plan.flows):
        # The flows that were added shift those behind them.
        place = np.append(np.flatnonzero(flows.load_bytes_per_second >= 0), -1).astype(np.int32)
        plan = replace(plan, flows=flows, flow=place[plan.flow])
    first = np.searchsorted(flows.subscriber, flows.subscriber, side="left")
    place = (np.arange(len(flows)) - first).astype(np.int64)
    slots = was.flow_class.shape[1]
    kept = np.flatnonzero((was.topic_slot >= 0) & (plan.flow >= 0))
    overlap = np.bincount(
        plan.flow[kept].astype(np.int64) * slots + was.topic_slot[kept], minlength=len(flows) * slots
    ).reshape(len(flows), slots)
    overlap[:, most:] = 0
    slot = np.where(overlap.any(axis=1), overlap.argmax(axis=1), place)
    for subscriber in _contested(flows.subscriber, overlap, slot, len(scenario.subscribers)):
        low, high = np.searchsorted(flows.subscriber, [subscriber, subscriber + 1])
        same_class = was.flow_class[subscriber] == flows.priority_class[low:high, None]
        slot[low:high] = _assigned(overlap[low:high, :most], same_class[:, :most])
    cell = (flows.subscriber, slot)
    number = was.flow_number[cell].copy()
    new = np.flatnonzero(number < 0)
    number[new] = was.next_number + np.arange(len(new))
    return SlotTable(
        subscribers=scenario.subscribers.name,
        topics=scenario.topics.name,
        ports=scenario.ports.name,
        subscriber=wanted.subscriber,
        topic=wanted.topic,
        topic_slot=np.append(slot, -1)[plan.flow].astype(np.int32),
        flow_subscriber=flows.subscriber,
        flow_slot=slot.astype(np.int32),
        flow_port=flows.port,
        flow_class=flows.priority_class,
        flow_drop=flows.drop_rate,
        flow_number=number,
        next_number=was.next_number + len(new),
    )


def _with_everyone(flows: Flows, scenario: Scenario, lowest_class: int) -> Flows:
    """The flows, and one without a load (-1) for each subscriber who has none."""
    bare = np.setdiff1d(np.arange(len(scenario.subscribers), dtype=np.int32), flows.subscriber)
    if not len(bare):
        return flows
    some: dict[str, NDArray[Any]] = {
        "subscriber": bare,
        "port": scenario.subscribers.port[bare],
        "priority_class": np.full(len(bare), lowest_class, dtype=np.int32),
        "drop_rate": np.zeros(len(bare)),
        "value": np.zeros(len(bare)),
        "load_bytes_per_second": np.full(len(bare), -1.0),
    }
    order = np.argsort(np.append(flows.subscriber, bare), kind="stable")
    return Flows(**{name: np.append(getattr(flows, name), column)[order] for name, column in some.items()})


def _contested(owner: Integers, overlap: Rows, slot: Rows, subscribers: int) -> list[int]:
    """Subscribers whose flows do not each take the topics of one slot of their own, slot 0 among them."""
    slots = overlap.shape[1]
    taken = np.bincount(owner.astype(np.int64) * slots + slot, minlength=subscribers * slots)
    taken = taken.reshape(subscribers, slots)
    contested: NDArray[np.bool_] = np.any(taken > 1, axis=1)
    contested[owner] |= taken[owner, 0] == 0
    contested[owner[(overlap > 0).sum(axis=1) > 1]] = True
    return np.flatnonzero(contested).tolist()


def _assigned(overlap: Rows, same_class: NDArray[np.bool_]) -> Rows:
    """The slots of one subscriber's flows: most topics stay, then most classes, then the lowest slots."""
    # 0.15 s to import, which no coordinator needs in order to start.
    from scipy.optimize import linear_sum_assignment

    flows, slots = overlap.shape
    worth = (overlap * (flows + 1) + same_class) * (flows * slots + 1) + np.arange(slots, 0, -1)[None, :]
    worth[:, 0] += worth.max() * flows + 1
    return np.asarray(linear_sum_assignment(worth, maximize=True)[1], dtype=np.int64)


def _numbers(names: Sequence[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(names)}


def _renumbered(before: tuple[str, ...], after: tuple[str, ...]) -> Rows:
    """Per name of the first list its place in the second, -1 where it is not there."""
    if before is after or before == after:
        return np.arange(len(before), dtype=np.int64)
    number = _numbers(after)
    return np.array([number.get(name, -1) for name in before], dtype=np.int64)
