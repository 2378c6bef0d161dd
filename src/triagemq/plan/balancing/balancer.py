"""The state machine of balancing: what is measured in, migrations out; and the policies by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import numpy as np

from triagemq.plan.balancing.detection import (
    NO_ROWS,
    BalancingSettings,
    Completed,
    LoadReport,
    LoadState,
    LoadWatch,
    Migration,
    Outlook,
)
from triagemq.plan.balancing.selection import Leaving, OffloadBasis, from_edge, from_head
from triagemq.plan.clusters import BrokerClusters, Flags, Metric
from triagemq.plan.planner import resolve


@dataclass(frozen=True, slots=True)
class _UnderWay:
    brokers: frozenset[int]
    sources: tuple[int, ...]
    ends_seconds: float


class Balancer:
    """Balances broker clusters by deadlines (PEER-WD).

    Each LoadReport may bring migrations; each is to be answered by Completed when its clients have moved, and is over
    after a time-out without. Between the two no other balancing touches its brokers.
    """

    def __init__(self, clusters: BrokerClusters, settings: BalancingSettings | None = None) -> None:
        self._clusters = clusters
        self._settings = settings or BalancingSettings()
        scenario = clusters.scenario
        self._watch = LoadWatch(clusters, self._settings)
        self._stays_until = np.zeros(len(scenario.subscriptions))
        self._publication_stays_until = np.zeros(len(scenario.publications))
        self._rests_until = np.zeros(len(clusters.cluster))
        self._under_way: dict[int, _UnderWay] = {}
        self._begun = 0

    def handle(self, event: LoadReport | Completed) -> tuple[Migration, ...]:
        """What is to be done after this has happened."""
        if isinstance(event, Completed):
            self._complete(event)
            return ()
        self._expire(event.at_seconds)
        outlook = self._watch.on_report(event)
        overloaded = np.flatnonzero(outlook.state == LoadState.OVERLOAD).tolist()
        if not overloaded:
            return ()
        found: list[Migration] = []
        now = event.at_seconds
        required = self._clusters.use(event.placement, outlook.expected_rate, event.present)
        for broker in overloaded:
            free = self._free()
            if not free[broker] or self._rests(event, broker):
                continue
            basis = OffloadBasis(
                clusters=self._clusters,
                settings=self._settings,
                measured=event,
                outlook=outlook,
                required=required,
                free=free,
                movable=self._stays_until <= now,
                movable_publications=self._publication_stays_until <= now,
            )
            moves = (from_edge if self._clusters.edge[broker] else from_head)(basis, broker)
            if moves:
                found += self._begin(event, broker, moves, outlook)
        return tuple(found)

    def _begin(
        self, event: LoadReport, overloaded: int, moves: list[Leaving], outlook: Outlook
    ) -> list[Migration]:
        self._begun += 1
        now, settings = event.at_seconds, self._settings
        edge = bool(self._clusters.edge[overloaded])
        stays = self._stays_until if edge else self._publication_stays_until
        reason = self._reason(event, overloaded, outlook)
        found = []
        for source, target in dict.fromkeys((move.source, move.target) for move in moves):
            rows = np.concatenate([move.rows for move in moves if move[:2] == (source, target)]).astype(
                np.int32
            )
            stays[rows] = now + settings.stay_seconds
            if edge:
                self._watch.forget(rows)
            found.append(
                Migration(
                    balancing=self._begun,
                    at_seconds=now,
                    source=source,
                    target=target,
                    metric=Metric(int(outlook.metric[overloaded])),
                    reason=reason
                    if source == overloaded
                    else f"room is needed, for {self._name(overloaded)}: {reason}",
                    subscriptions=rows if edge else NO_ROWS,
                    publications=NO_ROWS if edge else rows,
                )
            )
        sources, targets = ({each.source for each in found}, {each.target for each in found})
        self._under_way[self._begun] = _UnderWay(
            frozenset(sources | targets), tuple(sources), now + settings.timeout_seconds
        )
        return found

    def _name(self, broker: int) -> str:
        return self._clusters.scenario.brokers.name[broker]

    def _reason(self, event: LoadReport, source: int, outlook: Outlook) -> str:
        metric = Metric(int(outlook.metric[source]))
        if metric is not Metric.QUEUE_DEPTH:
            return f"{metric.words} use is {event.use[metric, source]:.1%}"
        scenario = self._clusters.scenario
        deep = outlook.deep & (event.placement.subscriptions == source)
        topics = [scenario.topics.name[each] for each in np.unique(scenario.subscriptions.topic[deep])]
        return f"queues are too deep for the deadlines of {', '.join(topics)}"

    def _rests(self, event: LoadReport, broker: int) -> bool:
        """Whether its last balancing is to show its effect first: queues may be deep as long as they shrink."""
        if event.at_seconds >= self._rests_until[broker]:
            return False
        use = self._clusters.use(event.placement, event.rate_per_second, event.present)
        return bool(use[Metric.UPLINK, broker] <= 1)

    def _free(self) -> Flags:
        free = np.ones(len(self._clusters.cluster), dtype=bool)
        for each in self._under_way.values():
            free[list(each.brokers)] = False
        return free

    def _complete(self, event: Completed) -> None:
        ended = self._under_way.pop(event.balancing, None)
        if ended is not None:
            self._rests_until[list(ended.sources)] = event.at_seconds + self._settings.rest_seconds
        self._watch.completed(event)

    def _expire(self, now: float) -> None:
        for number, each in list(self._under_way.items()):
            if now >= each.ends_seconds:
                del self._under_way[number]
                self._rests_until[list(each.sources)] = now + self._settings.rest_seconds


class BalancingPolicy(Protocol):
    """Who decides about migrations."""

    def handle(self, event: LoadReport | Completed) -> tuple[Migration, ...]:
        """What is to be done after this has happened."""


class Unbalanced:
    """Everybody stays."""

    def handle(self, event: LoadReport | Completed) -> tuple[Migration, ...]:
        return ()


BALANCINGS: Mapping[str, Callable[[BrokerClusters], BalancingPolicy]] = MappingProxyType(
    {"ours": Balancer, "none": lambda clusters: Unbalanced()}
)


def balancing_policy(name: str) -> Callable[[BrokerClusters], BalancingPolicy]:
    """The policy of that name, or of your own as `module:function`. ParameterError if there is none.

    >>> balancing_policy("fair")
    Traceback (most recent call last):
    triagemq.errors.ParameterError: balancing: 'fair' is unknown; known: ours, none, or your own as module:function
    """
    return resolve("balancing", name, BALANCINGS)
