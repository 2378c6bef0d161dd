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


class MergedTopics:
    """Counts of topics. Every gateway whose clients want a topic counts all its events: one of them is believed.

    >>> merged = MergedTopics()
    >>> merged.add("north", 0, {"smoke": (3, 30)}); merged.add("south", 0, {"smoke": (2, 20)})
    >>> merged.add("north", 1, {"smoke": (4, 40)}); merged.take()
    {'smoke': (4, 40)}
    >>> merged.add("south", 9_000_000_000, {"smoke": (5, 50)}); merged.take()
    {'smoke': (7, 70)}
    """

    def __init__(self) -> None:
        # By topic: who counts it, when that last counted something, and what there was in all.
        self._counter: dict[str, tuple[str, int]] = {}
        self._total: dict[str, tuple[int, int]] = {}
        self._last: dict[tuple[str, str], tuple[int, int]] = {}
        self._changed: dict[str, None] = {}

    def add(
        self, gateway: str, at_ns: int, topics: Mapping[str, tuple[int, int]], begun: Iterable[str] = ()
    ) -> None:
        """What a gateway has counted in all by now of topics that have changed; those `begun` from 0 again."""
        for topic in begun:
            self._last.pop((gateway, topic), None)
        for topic, (events, size) in topics.items():
            before_events, before_size = self._last.get((gateway, topic), (0, 0))
            self._last[gateway, topic] = events, size
            counter, last_ns = self._counter.get(topic, (gateway, at_ns))
            if counter != gateway and at_ns - last_ns < _SILENT_NS:
                continue
            self._counter[topic] = gateway, at_ns
            total_events, total_size = self._total.get(topic, (0, 0))
            self._total[topic] = total_events + events - before_events, total_size + size - before_size
            self._changed[topic] = None

    def forget(self, gateway: str) -> None:
        """It has started anew, or is gone."""
        self._last = {key: value for key, value in self._last.items() if key[0] != gateway}
        self._counter = {topic: value for topic, value in self._counter.items() if value[0] != gateway}

    def totals(self) -> dict[str, tuple[int, int]]:
        """All that was counted."""
        return dict(self._total)

    def take(self) -> dict[str, tuple[int, int]]:
        """What has changed since this was asked last, in all."""
        changed, self._changed = self._changed, {}
        return {topic: self._total[topic] for topic in changed}


def merged(several: Mapping[str, Measured], topics: Mapping[str, tuple[int, int]]) -> Measured:
    """One measurement of all; the first gateway's is the state that is followed."""
    first = next(iter(several.values()))
    counters: Counter[str] = Counter()
    for each in several.values():
        counters.update({name: value for name, value in each.counters.items() if isinstance(value, int)})
    since = [each.broker_since_ns for each in several.values() if each.broker_since_ns is not None]
    return Measured(
        epoch=" ".join(each.epoch for each in several.values()),
        at_ns=first.at_ns,
        topics=topics,
        counters={**first.counters, **counters},
        ports=_summed((each.ports for each in several.values()), _ports),
        flows=_summed((each.flows for each in several.values()), _flows),
        generation=min(each.generation for each in several.values()),
        sessions=sum(each.sessions for each in several.values()),
        broker_connected=all(each.broker_connected for each in several.values()),
        broker_problem=next((each.broker_problem for each in several.values() if each.broker_problem), ""),
        storage_problem=next((each.storage_problem for each in several.values() if each.storage_problem), ""),
        author=first.author,
        version=first.version,
        broker_since_ns=max(since) if since else None,
        mark=first.mark,
        carried=first.carried,
        managed=dict(ChainMap(*(dict(each.managed) for each in several.values()))),
    )


def _summed(several: Iterable[Mapping[str, Any]], add: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
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
