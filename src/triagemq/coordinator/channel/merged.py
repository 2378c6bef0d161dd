"""What several gateways have counted, as if it were one."""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Iterable, Mapping
from dataclasses import astuple, replace
from typing import Any

from triagemq.coordinator.channel.messages import Measured
from triagemq.plan import FlowCounters, PortCounters, QueueCounters

_SILENT_NS = 2_000_000_000
"""A topic of which its counter has not counted anything for so long may be counted by another gateway."""


class TopicIncrements:
    """Events of topics since the last look, from counters of several gateways.

    Every gateway whose clients want a topic counts all its events: one of them is believed. A gateway counts from its
    start on, which has an epoch. The first answer of a gateway is where counting begins; after a restart of it
    everything is new. What a gateway tells while its broker lags behind is held back until it has caught up.

    >>> topics = TopicIncrements()
    >>> topics.add("north", "a", 0, {"smoke": (3, 30)}); topics.add("south", "b", 0, {"smoke": (2, 20)})
    >>> topics.add("north", "a", 1, {"smoke": (4, 40)}); topics.take()
    {'smoke': (1, 10)}
    >>> topics.add("south", "b", 9_000_000_000, {"smoke": (5, 50)}); topics.take()
    {'smoke': (3, 30)}
    >>> topics.add("south", "c", 9_000_000_001, {"smoke": (1, 10)}); topics.take()
    {'smoke': (1, 10)}
    """

    def __init__(self) -> None:
        # By topic, who counts it and when that last counted something.
        self._counter: dict[str, tuple[str, int]] = {}
        self._epochs: dict[str, str] = {}
        self._last: dict[str, dict[str, tuple[int, int]]] = {}
        self._held: dict[str, tuple[dict[str, tuple[int, int]], set[str]]] = {}
        self._new: dict[str, tuple[int, int]] = {}
        self._total: Counter[str] = Counter()

    def add(
        self,
        gateway: str,
        epoch: str,
        now_ns: int,
        topics: Mapping[str, tuple[int, int]],
        begun: Iterable[str] = (),
        *,
        caught_up: bool = True,
    ) -> None:
        """What a gateway has counted of topics that have changed, since its epoch; those `begun` from 0 again."""
        before, self._epochs[gateway] = self._epochs.get(gateway), epoch
        if before is None:
            self._last[gateway] = dict(topics)
            return
        if before != epoch:
            self._last[gateway] = {}
            self._held.pop(gateway, None)
        counts, anew = self._held.pop(gateway, ({}, set()))
        counts |= topics
        anew.update(begun)
        if not caught_up:
            self._held[gateway] = counts, anew
            return
        last = self._last[gateway]
        for topic, (events, octets) in counts.items():
            before_events, before_octets = (0, 0) if topic in anew else last.get(topic, (0, 0))
            last[topic] = events, octets
            if events <= before_events:
                continue
            counter, counted_ns = self._counter.get(topic, (gateway, now_ns))
            if counter != gateway and now_ns - counted_ns < _SILENT_NS:
                continue
            self._counter[topic] = gateway, now_ns
            new_events, new_octets = self._new.get(topic, (0, 0))
            more = events - before_events
            self._new[topic] = new_events + more, new_octets + max(octets - before_octets, 0)
            self._total[topic] += more

    def forget(self, gateway: str) -> None:
        """It is gone."""
        for table in (self._epochs, self._last, self._held):
            table.pop(gateway, None)
        self._counter = {topic: value for topic, value in self._counter.items() if value[0] != gateway}

    def totals(self) -> dict[str, int]:
        """All events that were counted."""
        return dict(self._total)

    def take(self) -> dict[str, tuple[int, int]]:
        """Events and bytes since this was called last."""
        new, self._new = self._new, {}
        return new


def merged(
    several: Mapping[str, Measured],
    latest: Mapping[str, Measured],
    topics: Mapping[str, tuple[int, int]],
    at_ns: int,
    *,
    complete: bool = True,
) -> Measured:
    """One measurement of all that answer, at a time of the coordinator's clock.

    `latest` has the last answers of the others, too, whose ports and flows have counted that much. `complete`: all have
    answered that can, and their brokers have told everything.
    """
    first = next(iter(several.values()))
    counters: Counter[str] = Counter()
    for each in several.values():
        counters.update({name: value for name, value in each.counters.items() if isinstance(value, int)})
    carried = [each.carried for each in several.values() if each.carried is not None]
    since = [each.broker_since_ns for each in several.values() if each.broker_since_ns is not None]
    return Measured(
        epoch=" ".join(each.epoch for each in latest.values()),
        at_ns=at_ns,
        topics=topics,
        counters={**first.counters, **counters},
        ports=_summed((each.ports for each in latest.values()), _ports),
        flows=_summed((each.flows for each in latest.values()), _flows),
        generation=min(each.generation for each in several.values()),
        sessions=sum(each.sessions for each in several.values()),
        broker_connected=all(each.broker_connected for each in several.values()),
        broker_problem=next((each.broker_problem for each in several.values() if each.broker_problem), ""),
        storage_problem=next((each.storage_problem for each in several.values() if each.storage_problem), ""),
        author=first.author,
        version=first.version,
        broker_since_ns=max(since) if complete and since else None,
        mark=first.mark,
        carried=min(carried, default=None),
        planned_drops=_summed((each.planned_drops for each in latest.values()), int.__add__),
        managed=dict(ChainMap(*(dict(each.managed) for each in several.values()))),
    )


def _summed(several: Iterable[Mapping[Any, Any]], add: Any) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for each in several:
        for name, counted in each.items():
            found[name] = add(found[name], counted) if name in found else counted
    return found


def _queues(one: QueueCounters, other: QueueCounters) -> QueueCounters:
    *counted, width = astuple(one)
    *more, _ = astuple(other)
    return replace(QueueCounters(*(sum(both) for both in zip(counted, more, strict=True))), width_bps=width)


def _ports(one: PortCounters, other: PortCounters) -> PortCounters:
    return PortCounters(
        tuple(map(_queues, one.queues, other.queues)),
        _queues(one.control, other.control),
        one.beyond_bound + other.beyond_bound,
        one.strange_marks + other.strange_marks,
    )


def _flows(one: FlowCounters, other: FlowCounters) -> FlowCounters:
    """A client that is at two gateways is moving between them."""
    _, *counted = astuple(one)
    _, *more = astuple(other)
    return FlowCounters(one.flow_id, *map(sum, zip(counted, more, strict=True)))
