"""What there is to say of a plan: its forecast, its promises by name, and what another situation would change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from triagemq.client.coordinator import Promise, PromiseHop
from triagemq.coordinator.decide.decide import Decided, PlannerSettings, Question, decide
from triagemq.coordinator.decide.promised import names_of, publication_name
from triagemq.coordinator.intents.columns import named_terms, terms_of
from triagemq.coordinator.refusals import UnavailableError
from triagemq.errors import ParameterError
from triagemq.forecast import Forecast, forecast, subscription_rows, summary
from triagemq.intents import Name, Wanted
from triagemq.mqttsn import matches
from triagemq.mqttsn.filters import TopicTree
from triagemq.plan.admission import missed_flow
from triagemq.scenario import Scenario, Subscriptions
from triagemq.scenario.model import with_columns

_MOST_SUPPOSED = 1_000_000


@dataclass(frozen=True, slots=True)
class SupposedSubscription(Wanted):
    """A subscription that might be there; the topic may be a pattern."""

    subscriber: Name = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class Changes:
    """What to suppose: rates times a factor (by topic or pattern), bandwidths, and subscriptions that go or come.

    Subscriptions that go are (subscriber, topic or pattern); one that comes replaces the one that is there. Who is not
    there yet is behind the first port. With `subscribers_factor` there are so many times as many subscribers, who want
    what those want who are there, one after the other.
    """

    rate_factors: Mapping[str, float] = field(default_factory=dict)
    bandwidths_bps: Mapping[str, float] = field(default_factory=dict)
    remove_subscriptions: Sequence[tuple[str, str]] = ()
    add_subscriptions: Sequence[SupposedSubscription] = ()
    subscribers_factor: float = 1.0


def changed(scenario: Scenario, changes: Changes) -> Scenario:
    """The scenario as it would be; ParameterError names what is not there.

    >>> from triagemq.scenario.building import building
    >>> now = building()
    >>> doubled = changed(now, Changes(rate_factors={"#": 2.0}))
    >>> bool((doubled.publications.rate_per_second == 2 * now.publications.rate_per_second).all())
    True
    """
    scenario = _with_rates(scenario, changes.rate_factors)
    scenario = _with_bandwidths(scenario, changes.bandwidths_bps)
    if changes.remove_subscriptions or changes.add_subscriptions:
        scenario = _with_subscriptions(scenario, changes)
    if changes.subscribers_factor != 1.0:
        scenario = _with_subscribers(scenario, changes.subscribers_factor)
    return scenario.with_tables()


def _with_rates(scenario: Scenario, factors: Mapping[str, float]) -> Scenario:
    by_topic = np.ones(len(scenario.topics))
    for pattern, factor in factors.items():
        met = [matches(pattern, topic) for topic in scenario.topics.name]
        if not any(met):
            raise ParameterError("rate_factors", f"no topic is matched by {pattern!r}")
        by_topic[met] *= factor
    published = scenario.publications
    return replace(scenario, publications=published.times(by_topic[published.topic]))


def _with_bandwidths(scenario: Scenario, widths: Mapping[str, float]) -> Scenario:
    bandwidth_bps = np.array(scenario.ports.bandwidth_bps)
    for name, width in widths.items():
        if name not in scenario.ports.name:
            raise ParameterError("bandwidths_bps", f"there is no port {name!r}")
        bandwidth_bps[scenario.ports.name.index(name)] = width
    return replace(scenario, ports=scenario.ports.with_bandwidths(bandwidth_bps))


def _with_subscriptions(scenario: Scenario, changes: Changes) -> Scenario:
    tree = TopicTree(scenario.topics.name)
    topic_number = {name: row for row, name in enumerate(scenario.topics.name)}
    people = list(scenario.subscribers.name)
    number = {name: row for row, name in enumerate(people)}
    wanted = scenario.subscriptions
    pairs = zip(wanted.subscriber.tolist(), wanted.topic.tolist(), strict=True)
    row_of = {pair: row for row, pair in enumerate(pairs)}

    def found(field_name: str, pattern: str) -> list[int]:
        topics = [topic_number[topic] for topic in tree.names_matching(pattern)]
        if not topics:
            raise ParameterError(field_name, f"no topic is matched by {pattern!r}")
        return topics

    gone: set[int] = set()
    for name, pattern in changes.remove_subscriptions:
        if name not in number:
            raise ParameterError("remove_subscriptions", f"there is no subscriber {name!r}")
        leaving = {(number[name], topic) for topic in found("remove_subscriptions", pattern)} & row_of.keys()
        if not leaving:
            raise ParameterError(
                "remove_subscriptions", f"{name!r} has no subscription matched by {pattern!r}"
            )
        gone |= {row_of[pair] for pair in leaving}
    coming: dict[tuple[int, int], Wanted] = {}
    for supposed in changes.add_subscriptions:
        if supposed.subscriber not in number:
            number[supposed.subscriber] = len(people)
            people.append(supposed.subscriber)
        for topic in found("add_subscriptions", supposed.topic):
            coming[number[supposed.subscriber], topic] = supposed
    gone |= {row_of[pair] for pair in coming if pair in row_of}
    kept = np.array([row for row in range(len(wanted)) if row not in gone], dtype=np.int64)
    there = scenario.subscribers
    rows = np.append(np.arange(len(there)), np.full(len(people) - len(there), -1))
    return replace(
        scenario,
        subscribers=with_columns(there, rows, name=tuple(people)),
        subscriptions=_subscriptions(wanted, kept, coming),
    )


def _with_subscribers(scenario: Scenario, factor: float) -> Scenario:
    """The first ones, or all and then the first ones again under other names."""
    people, wanted = scenario.subscribers, scenario.subscriptions
    count = max(1, round(factor * len(people)))
    if not len(people) or count * len(wanted) > _MOST_SUPPOSED * len(people):
        raise ParameterError(
            "subscribers_factor", f"leads to more than {_MOST_SUPPOSED} subscriptions, or to none"
        )
    original = np.arange(count) % len(people)
    names = [
        people.name[row] if copy == 0 else f"{people.name[row]}~{copy + 1}"
        for row, copy in zip(original.tolist(), (np.arange(count) // len(people)).tolist(), strict=True)
    ]
    order = np.argsort(wanted.subscriber, kind="stable")
    begins = np.searchsorted(wanted.subscriber[order], np.arange(len(people) + 1))
    rows = [order[begins[row] : begins[row + 1]] for row in original.tolist()]
    owner = np.repeat(np.arange(count, dtype=np.int32), [len(each) for each in rows])
    chosen = np.concatenate(rows)
    columns = {each.name: getattr(wanted, each.name)[chosen] for each in fields(wanted)}
    return replace(
        scenario,
        subscribers=with_columns(people, original, name=tuple(names)),
        subscriptions=Subscriptions(**columns | {"subscriber": owner}),
    )


def _subscriptions(
    wanted: Subscriptions, kept: np.ndarray, coming: Mapping[tuple[int, int], Wanted]
) -> Subscriptions:
    new = named_terms(terms_of(list(coming.values())))
    new["subscriber"] = np.array([subscriber for subscriber, _ in coming], dtype=np.int32)
    new["topic"] = np.array([topic for _, topic in coming], dtype=np.int32)
    return Subscriptions(
        **{name: np.append(getattr(wanted, name)[kept], column) for name, column in new.items()}
    )


_MOST_WAITING = 16
_Result = TypeVar("_Result")


class Forecasts:
    """One at a time, because each may take a core for seconds; too many that wait are refused."""

    def __init__(self, settings: PlannerSettings) -> None:
        self.settings = settings
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._known: tuple[Decided, Forecast, dict[str, Any]] | None = None
        self._untriaged: tuple[Decided, dict[str, Any]] | None = None

    async def of(self, decided: Decided) -> dict[str, Any]:
        """The figures of a plan, as `triage forecast --json` gives them."""
        if self._known is None or self._known[0] is not decided:
            predicted, figures = await self.computed(lambda: _predicted(decided))
            self._known = (decided, predicted, figures)
        return self._known[2]

    def predicted(self, decided: Decided) -> Forecast | None:
        """The forecast of a plan row by row, if its figures were worked out already."""
        return None if self._known is None or self._known[0] is not decided else self._known[1]

    async def without_triage(self, decided: Decided) -> dict[str, Any]:
        """The figures of the same scenario in a plain exchange: one class, and only full buffers drop."""
        if self._untriaged is None or self._untriaged[0] is not decided:
            plain = replace(PlannerSettings.no_triage(), no_promises=self.settings.no_promises)
            figures = await self.computed(
                lambda: _predicted(decide(Question(decided.scenario, settings=plain)))[1]
            )
            self._untriaged = (decided, figures)
        return self._untriaged[1]

    async def in_full(self, decided: Decided) -> dict[str, Any]:
        """A row for every subscription, as `triage forecast --json --full` gives them."""
        scenario, plan = decided.scenario, decided.plan
        return await self.computed(
            lambda: {
                "subscriptions": subscription_rows(scenario, plan, forecast(scenario, plan, formulas=True))
            }
        )

    async def of_scenario(self, make: Callable[[], Scenario], drops: str | None = None) -> dict[str, Any]:
        """The figures of a scenario planned from nothing, with the algorithms there are or other drops."""
        settings = self.settings if drops is None else replace(self.settings, drops=drops)
        return await self.computed(lambda: _predicted(decide(Question(make(), settings=settings)))[1])

    def latest(self) -> dict[str, Any] | None:
        """The last figures computed, whatever plan they are of."""
        return None if self._known is None else self._known[2]

    async def computed(self, work: Callable[[], _Result]) -> _Result:
        if self._waiting >= _MOST_WAITING:
            raise UnavailableError("too many forecasts are being asked for; try again in a moment")
        self._waiting += 1
        try:
            async with self._turn:
                return await asyncio.to_thread(work)
        finally:
            self._waiting -= 1


def _predicted(decided: Decided) -> tuple[Forecast, dict[str, Any]]:
    predicted = forecast(decided.scenario, decided.plan, formulas=True)
    return predicted, summary(decided.scenario, decided.plan, predicted)


@lru_cache(2)
def promise_facts(decided: Decided) -> tuple[Promise, ...]:
    """Those admitted in the order of their admission, then those refused."""
    plan, scenario = decided.plan, decided.scenario
    promises, hops, ports = plan.promises, plan.hops, scenario.ports.name
    refused = np.flatnonzero(promises.admitted == 0)
    in_order = refused[np.lexsort((promises.publication[refused], promises.subscription[refused]))]
    reasons = [each.reason for each in plan.decisions if each.kind == "refused"]
    why = dict(zip(in_order.tolist(), reasons, strict=True))
    found = []
    for row in range(len(promises)):
        publisher, topic, subscriber = names_of(
            scenario, int(promises.publication[row]), int(promises.subscription[row])
        )
        latency = float(promises.max_latency_seconds[row])
        if row in why:
            offer = float(promises.offer_seconds[row]) or None
            missed = missed_flow(scenario, promises, row)
            found.append(
                Promise(
                    subscriber,
                    topic,
                    publisher,
                    False,
                    latency,
                    reason=why[row],
                    offer_seconds=offer,
                    **missed,
                )
            )
            continue
        bound = float(promises.bound_seconds[row])
        rows = plan.hops_of(row)
        way = zip(
            hops.port[rows].tolist(),
            hops.level[rows].tolist(),
            hops.bound_seconds[rows].tolist(),
            hops.deadline_seconds[rows].tolist(),
            strict=True,
        )
        found.append(
            Promise(
                subscriber,
                topic,
                publisher,
                True,
                latency,
                bound,
                latency - bound,
                str(decided.orders.promised.addresses[publication_name(publisher, topic)]),
                tuple(PromiseHop("" if port < 0 else ports[port], *figures) for port, *figures in way),
                since_generation=decided.orders.direct.get(subscriber, {}).get(topic, {}).get(publisher),
                max_size_bytes=int(scenario.publications.max_size_bytes[promises.publication[row]]),
            )
        )
    return tuple(found)
