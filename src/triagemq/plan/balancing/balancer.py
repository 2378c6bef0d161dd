"""The state machine of balancing: what is measured in, migrations out; it does nothing by itself and has no clock."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from triagemq.plan.balancing.detection import Detected, LoadState, LoadWatch
from triagemq.plan.balancing.events import NOBODY, Completed, LoadReport, Migration
from triagemq.plan.balancing.selection import Moves, OffloadBasis, from_edge, from_head
from triagemq.plan.balancing.settings import BalancingSettings
from triagemq.plan.campus import Campus, Flags, Metric


@dataclass(frozen=True, slots=True)
class _UnderWay:
    brokers: frozenset[int]
    source: int
    ends_seconds: float


class Balancer:
    """Balances a campus by deadlines (PEER-WD).

    Each LoadReport may bring migrations; each is to be answered by Completed when its clients have moved, and is over
    after a time-out without. Between the two no other balancing touches its brokers.
    """

    def __init__(self, campus: Campus, settings: BalancingSettings | None = None) -> None:
        self._campus = campus
        self._settings = settings or BalancingSettings()
        scenario = campus.scenario
        self._watch = LoadWatch(campus, self._settings)
        self._stays_until = np.zeros(len(scenario.subscriptions))
        self._publication_stays_until = np.zeros(len(scenario.publications))
        self._rests_until = np.zeros(len(campus.cluster))
        self._under_way: dict[int, _UnderWay] = {}
        self._begun = 0

    def handle(self, event: LoadReport | Completed) -> tuple[Migration, ...]:
        """What is to be done after this has happened."""
        if isinstance(event, Completed):
            self._complete(event)
            return ()
        self._expire(event.at_seconds)
        outlook = self._watch.measured(event)
        detected = outlook.detected
        found: list[Migration] = []
        for broker in np.flatnonzero(detected.state == LoadState.OVERLOAD).tolist():
            free = self._free()
            if not free[broker] or event.at_seconds < self._rests_until[broker]:
                continue
            now = event.at_seconds
            basis = OffloadBasis(
                campus=self._campus,
                settings=self._settings,
                measured=event,
                outlook=outlook,
                free=free,
                movable=self._stays_until <= now,
                movable_publications=self._publication_stays_until <= now,
            )
            edge = bool(self._campus.edge[broker])
            moves = (from_edge if edge else from_head)(basis, broker)
            if moves:
                found += self._begin(event, broker, moves, detected)
        return tuple(found)

    def _begin(self, event: LoadReport, source: int, moves: Moves, detected: Detected) -> list[Migration]:
        self._begun += 1
        now, settings = event.at_seconds, self._settings
        metric = Metric(int(detected.metric[source]))
        edge = bool(self._campus.edge[source])
        stays = self._stays_until if edge else self._publication_stays_until
        found = []
        for target in dict.fromkeys(target for target, _ in moves):
            rows = np.concatenate([rows for each, rows in moves if each == target]).astype(np.int32)
            stays[rows] = now + settings.stay_seconds
            if edge:
                self._watch.forget(rows)
            found.append(
                Migration(
                    balancing=self._begun,
                    at_seconds=now,
                    source=source,
                    target=target,
                    metric=metric,
                    reason=self._reason(event, source, metric, detected),
                    subscriptions=rows if edge else NOBODY,
                    publications=NOBODY if edge else rows,
                )
            )
        brokers = frozenset([source, *(each.target for each in found)])
        self._under_way[self._begun] = _UnderWay(brokers, source, now + settings.timeout_seconds)
        return found

    def _reason(self, event: LoadReport, source: int, metric: Metric, detected: Detected) -> str:
        if metric is not Metric.QUEUE_DEPTH:
            return f"{metric.words} use is {event.use[metric, source]:.1%}"
        scenario = self._campus.scenario
        deep = detected.deep & (event.placement.subscriptions == source)
        topics = [scenario.topics.name[each] for each in np.unique(scenario.subscriptions.topic[deep])]
        return f"queues are too deep for the deadlines of {', '.join(topics)}"

    def _free(self) -> Flags:
        free = np.ones(len(self._campus.cluster), dtype=bool)
        for each in self._under_way.values():
            free[list(each.brokers)] = False
        return free

    def _complete(self, event: Completed) -> None:
        ended = self._under_way.pop(event.balancing, None)
        if ended is not None:
            self._rests_until[ended.source] = event.at_seconds + self._settings.rest_seconds
        self._watch.completed(event)

    def _expire(self, now: float) -> None:
        for number, each in list(self._under_way.items()):
            if now >= each.ends_seconds:
                del self._under_way[number]
                self._rests_until[each.source] = now + self._settings.rest_seconds
