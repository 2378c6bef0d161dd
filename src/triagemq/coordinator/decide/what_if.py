"""What there is to say of a plan: its forecast, its promises by name, and what another situation would change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Annotated, Any, ClassVar, TypeVar

import numpy as np
from pydantic import ConfigDict, Field

from triagemq.client.coordinator import Promise, PromiseHop
from triagemq.coordinator.decide.decide import Decided, PlannerSettings, Question, decide
from triagemq.coordinator.decide.network import Network
from triagemq.coordinator.decide.promised import names_of, publication_name
from triagemq.coordinator.refusals import UnavailableError
from triagemq.errors import ParameterError
from triagemq.forecast import Forecast, forecast, subscription_rows, summary
from triagemq.intents import TopicFilter
from triagemq.mqttsn import matches
from triagemq.plan.admission.planning import missed_flow
from triagemq.scenario import Scenario, Subscriptions
from triagemq.scenario.model import with_columns

_MOST_SUPPOSED = 1_000_000


Factor = Annotated[float, Field(ge=1e-6, le=1e6, allow_inf_nan=False, strict=True)]
Bandwidth = Annotated[float, Field(ge=1e3, le=1e13, allow_inf_nan=False, strict=True)]


@dataclass(frozen=True, slots=True)
class Changes:
    """What to suppose: rates times a factor (by topic or pattern), bandwidths, and `subscribers_factor` times as many
    subscribers, which have the subscriptions of the present ones."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    rate_factors: Annotated[dict[TopicFilter, Factor], Field(max_length=10_000)] = field(default_factory=dict)
    bandwidths_bps: Annotated[dict[str, Bandwidth], Field(max_length=10_000)] = field(default_factory=dict)
    subscribers_factor: Annotated[float, Field(gt=0, le=1_000, allow_inf_nan=False, strict=True)] | None = (
        None
    )


def changed(scenario: Scenario, changes: Changes) -> Scenario:
    """The scenario as it would be; ParameterError names what is not there.

    >>> from triagemq.scenario.building import building
    >>> now = building()
    >>> doubled = changed(now, Changes(rate_factors={"#": 2.0}))
    >>> bool((doubled.publications.rate_per_second == 2 * now.publications.rate_per_second).all())
    True
    """
    scenario = _with_rates(scenario, changes.rate_factors)
    for name in changes.bandwidths_bps:
        if name not in scenario.ports.name:
            raise ParameterError("bandwidths_bps", f"there is no port {name!r}")
    scenario = Network(scenario).with_bandwidths(changes.bandwidths_bps).scenario
    if (factor := changes.subscribers_factor) is not None and factor != 1.0:
        scenario = _with_subscribers(scenario, factor)
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


_MOST_WAITING = 16
_Result = TypeVar("_Result")


class Forecasts:
    """One at a time, because each may take a core for seconds; too many that wait are refused."""

    def __init__(self, settings: PlannerSettings) -> None:
        self.settings = settings
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._known: tuple[Decided, Forecast, dict[str, Any]] | None = None

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
        plain = replace(PlannerSettings.no_triage(), no_promises=self.settings.no_promises)
        return await self._planned(lambda: decided.scenario, plain)

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
        return await self._planned(make, settings)

    async def _planned(self, make: Callable[[], Scenario], settings: PlannerSettings) -> dict[str, Any]:
        return await self.computed(lambda: _predicted(decide(Question(make(), settings=settings)))[1])

    def latest(self) -> dict[str, Any] | None:
        """The last figures computed, whatever plan they are of."""
        return None if self._known is None else self._known[2]

    async def computed(self, work: Callable[[], _Result]) -> _Result:
        if self._waiting >= _MOST_WAITING:
            raise UnavailableError("too many forecasts are requested; try again in a moment")
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
        publication, rows = int(promises.publication[row]), plan.hops_of(row)
        publisher, topic, subscriber = names_of(scenario, publication, int(promises.subscription[row]))
        latency = float(promises.max_latency_seconds[row])
        promise = Promise(subscriber, topic, publisher, row not in why, latency)
        if row in why:
            offer = float(promises.offer_seconds[row]) or None
            missed = missed_flow(scenario, promises, row)
            found.append(replace(promise, reason=why[row], offer_seconds=offer, **missed))
            continue
        bound = float(promises.bound_seconds[row])
        path = ["" if port < 0 else ports[port] for port in hops.port[rows].tolist()]
        figures = (hops.level, hops.bound_seconds, hops.deadline_seconds)
        found.append(
            replace(
                promise,
                bound_seconds=bound,
                slack_seconds=latency - bound,
                address=str(decided.orders.promised.addresses[publication_name(publisher, topic)]),
                hops=tuple(map(PromiseHop, path, *(column[rows].tolist() for column in figures))),
                since_generation=decided.orders.direct.get(subscriber, {}).get(topic, {}).get(publisher),
                max_size_bytes=int(scenario.publications.max_size_bytes[publication]),
            )
        )
    return tuple(found)
