"""The coordinator: service, control loop, figures and gateways, started and stopped together."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from triagemq import __version__
from triagemq.channel.grants import Grants
from triagemq.channel.link import GatewayLink
from triagemq.channel.messages import Measured
from triagemq.client.coordinator import Assignment, LimitedClaim, Promise
from triagemq.coordinator import store as tables
from triagemq.coordinator.access.rights import TokenWatch, announced_grants
from triagemq.coordinator.decide.decide import Decided
from triagemq.coordinator.decide.network import Network
from triagemq.coordinator.decide.placement import Placements
from triagemq.coordinator.decide.what_if import Forecasts, promise_facts
from triagemq.coordinator.gateways.handle import GatewayHandle
from triagemq.coordinator.gateways.joined import Gateways
from triagemq.coordinator.intents.registry import Record, Registry
from triagemq.coordinator.loop.delay_requirements import DelayRequirements
from triagemq.coordinator.loop.figures import Live, PromiseBreaches, Received, SubscriptionWatch, port_figures
from triagemq.coordinator.loop.health import Check, health_of
from triagemq.coordinator.loop.runtime import Runtime
from triagemq.coordinator.policy.in_force import PolicyInForce
from triagemq.coordinator.rates import TopicFacts
from triagemq.coordinator.service import Service
from triagemq.coordinator.settings import Settings
from triagemq.coordinator.store import Store
from triagemq.errors import ParameterError
from triagemq.forecast import starved
from triagemq.intents import PUBLISHER, SUBSCRIBER, PublisherIntent, SubscriberIntent
from triagemq.plan import Decision
from triagemq.plan.drops import DROP_POLICIES
from triagemq.waiting import end

_BEHIND_SECONDS = 3.0
"""A desired state that is not in force for longer than this fails a check of health."""

_FORECAST_BY_ITSELF = 100_000
"""Up to this many subscriptions every plan is forecast for live figures; above, on request."""

MOST_REPORTED_TOPICS = 50_000
"""Clients report no more at a time: a report of so many may not be all."""

_LONGEST_PLAN_SECONDS = 60.0
"""A plan that takes longer fails a check of health: all clients wait for it."""

_FULL_LOAD, _UNPLANNED_SECONDS = 0.9, 5.0
"""A port that is so full for so long while nothing is planned fails a check of health."""

MOST_NAMED = 100
"""So many subscriptions that get too little are named in health and metrics; a forecast names all."""


class ControlPlane:
    """Everything behind REST. `start` and `stop` are called in the event loop that serves it."""

    def __init__(self, settings: Settings, store: Store, link: GatewayLink, network: Network) -> None:
        self.settings = settings
        self.live = Live()
        self._watched_plan: Decided | None = None
        stored = store.drops(settings.planner.drops)
        planner = replace(
            settings.planner, drops=stored if stored in DROP_POLICIES else settings.planner.drops
        )
        self.forecasts = Forecasts(planner)
        self._access = access = settings.access
        self._breaches = PromiseBreaches()
        self.delays = DelayRequirements(controlled=settings.queue_control)
        """How late events may be, and what that requires of ports whose queue rates are controlled."""
        self._started = self._last_planned = time.monotonic()
        self._planned = Check()
        self._forecasting: asyncio.Task[Any] | None = None
        self._leases: asyncio.Task[None] | None = None
        registry = Registry(store.records())
        tokens = TokenWatch(store)
        gateways = Gateways(
            Placements.of_scenario(network.scenario, registry),
            partial(announced_grants, registry, tokens) if access else Grants,
            network.scenario.brokers,
            [name for name in store.gateways() if name != settings.gateway_name],
        )
        self.runtime = Runtime(settings, store, gateways, network, planner, self._every_second)
        self.policy = PolicyInForce(store, self.runtime, network)
        """Who may claim what, and the phase of now."""
        self.configured_gateway = gateways.add(
            settings.gateway_name, link, settings.gateway_address, self.runtime.stored_orders
        )
        self.watch = SubscriptionWatch(
            self.runtime.rates.publications,
            lambda subscriber, topic: self.runtime.assignments.orders.treatment(subscriber, topic),
        )
        self.service = Service(store, registry, tokens, self.runtime, access=access)

    async def gateway_connected(self) -> None:
        """The configured gateway has connected, or connected again."""
        await self.runtime.gateway_connected(self.configured_gateway.name)

    async def start(self) -> None:
        """Begin with the stored intents; their clients have one lease to send a heartbeat."""
        self.service.begin()
        if self._access:
            await self.service.withdraw_unguarded()
        self.runtime.start(tuple(self.service.registry))
        self._leases = asyncio.get_running_loop().create_task(self.service.watch_leases())

    async def stop(self) -> None:
        await end(self._leases, self._forecasting)
        await self.runtime.stop()
        await self.service.store.close()

    def received(self, record: Record, assigned: Assignment, reports: Mapping[str, Received]) -> None:
        """A subscriber reports what it received since its last report; topics without an event are absent.

        Where it asks for acknowledgements (QoS 1 and 2), copies are sent again, and what was lost shows otherwise.
        """
        self.live.received(assigned, reports)
        self.watch.report(record.intent.name, assigned, reports)
        if isinstance(record.intent, SubscriberIntent) and not any(
            each.qos for each in record.intent.subscriptions
        ):
            whole = len(reports) < MOST_REPORTED_TOPICS
            count = sum(each.count for each in reports.values()) if whole else None
            self.runtime.port_watch.report(record.intent.name, count, time.monotonic())

    async def set_drops(self, name: str, why: str) -> None:
        """Plan with another built-in drop policy; it is stored until another one is configured."""
        if name not in DROP_POLICIES:
            raise ParameterError("drops", f"{name!r} is none of {', '.join(DROP_POLICIES)}")
        before = self.forecasts.settings
        await self.service.store.write(tables.set_drops, name, self.settings.planner.drops)
        self.forecasts.settings = replace(before, drops=name)
        self.runtime.note([Decision("drop_policy", "all output ports", before.drops, name, why)])
        self.runtime.change_settings(self.forecasts.settings, f"drop policy {name}")

    # What there is to read.

    def known_topics(self) -> dict[str, TopicFacts]:
        """All topics that are declared or were measured."""
        found: dict[str, TopicFacts] = {}
        for record in self.service.registry:
            for each in record.intent.publications if isinstance(record.intent, PublisherIntent) else ():
                before, rate = found.get(each.topic), each.rate_per_second
                if before is not None and rate is not None:
                    rate = None if before.rate_per_second is None else before.rate_per_second + rate
                found[each.topic] = TopicFacts(rate, (before or each).size_bytes, False)
        return found | self.runtime.rates.counted()

    def promises(self) -> list[Promise]:
        """What was decided about guaranteed subscriptions."""
        return [] if self.runtime.decided is None else list(promise_facts(self.runtime.decided))

    def limited_claims(self, subscriber: str) -> list[LimitedClaim]:
        """What the policy limits of a subscriber's claims, by the latest plan."""
        return [] if self.runtime.decided is None else [*self.runtime.decided.limited.get(subscriber, ())]

    def health(self, *, in_detail: bool = True) -> dict[str, Any]:
        """The checks and counts; without details for callers that may not read them."""
        runtime, gateways = self.runtime, tuple(self.runtime.gateways)
        planning, begun = runtime.planning, runtime.planning_since
        if begun is not None and (seconds := time.monotonic() - begun) > _LONGEST_PLAN_SECONDS:
            planning = Check(f"a plan has been in the making for {seconds:.0f} s", begun, planning.words)
        checks = {
            **runtime.measuring.checks(),
            "writes": self.service.store.writing,
            "planning": planning,
            "planned": self._planned,
            **self._in_force(),
        }
        starved = self.starved()
        # Each gateway has versions of its own: those of the one that is furthest behind.
        last = max(
            (each.reconciler for each in gateways),
            key=lambda each: (each.behind_seconds or 0.0, each.confirmed_version is None),
        )
        error = planning.as_json(in_detail=in_detail)["reason"]
        return {
            **health_of(checks, in_detail=in_detail),
            "version": __version__,
            "wanted_version": last.wanted_version,
            "in_force_version": last.confirmed_version,
            "not_in_force_seconds": last.behind_seconds,
            "gateway_connected": all(each.reconciler.link.connected for each in gateways),
            "broker_connected": _all_true([each.broker_connected for each in gateways]),
            "generation": self.runtime.planned_generation,
            "in_force_generation": self.runtime.generation,
            "publishers": self.service.registry.count(PUBLISHER),
            "subscribers": self.service.registry.count(SUBSCRIBER),
            "plans": self.runtime.metrics.plans,
            "last_plan_error": error,
            "starved": len(starved),
            "starved_subscriptions": starved[:MOST_NAMED] if in_detail else [],
            "access": self._access,
            "uptime_seconds": time.monotonic() - self._started,
        }

    def starved(self) -> list[dict[str, Any]]:
        """The subscriptions that get nothing, or less than their minimum, by the latest plan, worth most first."""
        return [] if self.runtime.decided is None else _starved(self.runtime.decided)

    def _in_force(self) -> dict[str, Check]:
        """Whether the gateways follow the desired rights and orders, or have only just got them."""
        states = {each: each.reconciler for each in self.runtime.gateways}
        rights = {
            each: (self._access and state.rights_behind_seconds) or 0.0 for each, state in states.items()
        }
        orders = {
            each: 0.0 if state.orders_in_force else state.behind_seconds or 0.0
            for each, state in states.items()
        }
        return {"rights": self._confirmed("rights", rights), "orders": self._confirmed("orders", orders)}

    def _confirmed(self, what: str, behind: Mapping[GatewayHandle, float]) -> Check:
        gateways, now = self.runtime.gateways, time.monotonic()
        late = [each for each in gateways if behind[each] >= _BEHIND_SECONDS]
        if not late:
            return Check("", max(each.reconciler.in_force_since for each in gateways))
        # A gateway that does not work cannot follow new orders: its own check says so.
        news = [each for each in late if what == "rights" or each.ailment(now) is None]
        words = [
            f"the latest {what} are not in force at {gateways.called(each)} for {behind[each]:.0f} s: "
            f"{each.why_not_in_force}"
            for each in news
        ]
        reasons = (str(each.reconciler.problem or each.why_not_in_force) for each in late)
        since = now - max(behind[each] for each in late)
        return Check("; ".join(reasons), since, "; ".join(words), is_implied=not words)

    def where_not_in_force(self) -> str:
        """Which gateways do not follow the latest rights, and why, in words that name no client."""
        gateways = self.runtime.gateways
        behind = [each for each in gateways if not each.reconciler.grants_in_force]
        return "; ".join(
            f"{gateways.called(each)} ({each.address}): {each.why_not_in_force}" for each in behind
        )

    async def _every_second(self, before: Measured, now: Measured) -> None:
        runtime, decided = self.runtime, self.runtime.decided
        orders = runtime.assignments.orders
        if cut := self._breaches.news(before, now, orders.promised):
            runtime.note(cut)
        if decided is not None:
            self._follow(decided, now)
        self._watch_planned(port_figures(before, now, orders))
        self.live.publish_second(
            before,
            now,
            orders,
            runtime.rates.take_arrived(),
            self.forecasts.latest() or {},
            generation=runtime.planned_generation,
            in_force_generation=runtime.generation,
            publishers=self.service.registry.count(PUBLISHER),
            subscribers=self.service.registry.count(SUBSCRIBER),
        )

    def _watch_planned(self, ports: Iterable[Mapping[str, Any]]) -> None:
        """Whether ports that are full have a plan."""
        decided, stated = self.runtime.decided, self.runtime.bandwidths
        full = any(row["sent_bps"] > _FULL_LOAD * stated.get(row["port"], math.inf) for row in ports)
        if not full or (decided is not None and len(decided.scenario.subscriptions) > 0):
            self._last_planned = time.monotonic()
            self._planned.worked()
        elif time.monotonic() - self._last_planned >= _UNPLANNED_SECONDS:
            self._planned.failed(
                "output ports are full, but nothing is planned: no subscription has a known rate"
            )

    def _follow(self, decided: Decided, now: Measured) -> None:
        """Forecast the plan, control delays by it, and forget figures of subscribers that it no longer has."""
        is_small = len(decided.scenario.subscriptions) <= _FORECAST_BY_ITSELF
        if (self._forecasting is None or self._forecasting.done()) and (is_small or self.live.listeners):
            self._forecasting = asyncio.get_running_loop().create_task(self._forecast(decided))
        if news := self.delays.planned(decided) + self.delays.on_delays(now.managed, time.monotonic()):
            self.runtime.note(news)
        self.runtime.constrain(self.delays.constraints)
        if decided is not self._watched_plan:
            self._watched_plan = decided
            self.watch.retain(frozenset(decided.scenario.subscribers.name))

    async def _forecast(self, decided: Decided) -> None:
        """For live figures; a request for the forecast gets its errors with the answer."""
        with contextlib.suppress(Exception):
            await self.forecasts.of(decided)


@lru_cache(1)
def _starved(decided: Decided) -> list[dict[str, Any]]:
    return starved(decided.scenario, decided.plan)


def _all_true(values: Sequence[bool | None]) -> bool | None:
    """None if one is not known, and none is false."""
    return False if False in values else None if None in values else True
