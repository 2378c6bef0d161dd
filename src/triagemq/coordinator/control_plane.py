"""The coordinator as a whole: service, control loop, figures and the gateway it leads, started and stopped together."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from triagemq import __version__
from triagemq.client.coordinator import Assignment, Promise
from triagemq.coordinator.access.rights import Rights, TokenWatch
from triagemq.coordinator.channel.gateways import Gateways
from triagemq.coordinator.channel.handle import GatewayHandle
from triagemq.coordinator.channel.link import GatewayLink
from triagemq.coordinator.channel.messages import Measured
from triagemq.coordinator.decide.decide import Decided, PlannerSettings
from triagemq.coordinator.decide.network import Network
from triagemq.coordinator.decide.placement import Placements
from triagemq.coordinator.decide.what_if import Forecasts, promise_facts
from triagemq.coordinator.intents.registry import Record, Registry
from triagemq.coordinator.loop.delay_requirements import DelayRequirements
from triagemq.coordinator.loop.figures import (
    Babbling,
    Live,
    Report,
    SubscriptionWatch,
    class_figures,
    class_traffic,
    port_figures,
    topic_figures,
)
from triagemq.coordinator.loop.health import Check, Metrics, health_of
from triagemq.coordinator.loop.replanning import Replanner
from triagemq.coordinator.loop.runtime import Runtime
from triagemq.coordinator.ports import PortWatch
from triagemq.coordinator.rates import KnownRates, TopicFacts
from triagemq.coordinator.service import Service
from triagemq.coordinator.settings import Settings
from triagemq.coordinator.store.store import Store
from triagemq.errors import ParameterError
from triagemq.forecast import starved
from triagemq.intents import PUBLISHER, SUBSCRIBER, PublisherIntent, SubscriberIntent
from triagemq.plan import Decision
from triagemq.plan.drops import DROP_POLICIES
from triagemq.waiting import end

_BEHIND_SECONDS = 3.0
"""What is wanted and not in force for longer than this is a matter of health."""

_FORECAST_BY_ITSELF = 100_000
"""Up to this many subscriptions every plan is forecast for live figures; above, on request."""

MOST_REPORTED_TOPICS = 50_000
"""Clients report no more at a time: a report of so many may not be all."""

_FULL_LOAD, _UNPLANNED_SECONDS = 0.9, 5.0
"""A port as full as this for so long while nothing is planned is a matter of health: nothing is prioritised there."""

_NAMED_STARVED = 100
"""So many subscriptions that get nothing are named in the health; a forecast names all."""

_LONGEST_PLAN_SECONDS = 60.0
"""A plan that takes longer is shown as what does not work: everyone waits for it."""


class ControlPlane:
    """Everything behind REST. `start` and `stop` are called in the event loop that serves it."""

    def __init__(
        self, settings: Settings, store: Store, link: GatewayLink, network: Network, planner: PlannerSettings
    ) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.live = Live()
        self._watched_plan: Decided | None = None
        self._unplanned_since: float | None = None
        self._starved: tuple[Decided | None, list[dict[str, Any]]] = None, []
        self._configured_drops = planner.drops
        kept = store.drops(planner.drops)
        planner = replace(planner, drops=kept if kept in DROP_POLICIES else planner.drops)
        self.forecasts = Forecasts(planner)
        self._access = access = settings.access
        self._babbling = Babbling()
        self.delays = DelayRequirements(controlled=settings.queue_control)
        """How late events may be, and what that requires of ports whose queue rates are controlled."""
        self._started = time.monotonic()
        self._forecasting: asyncio.Task[Any] | None = None
        self._leases: asyncio.Task[None] | None = None
        registry = Registry(store.records())
        tokens = TokenWatch(store)
        self.rights = Rights(registry, tokens, access)
        orders = store.orders()
        ports = network.scenario.ports
        bandwidths = dict(zip(ports.name, ports.bandwidth_bps.tolist(), strict=True))
        bandwidths |= {name: width for name, width in store.bandwidths().items() if name in bandwidths}
        gateways = Gateways(
            Placements.of_scenario(network.scenario),
            self.rights.grants,
            network.scenario.brokers,
            [name for name in store.gateways() if name != settings.gateway_name],
        )
        # Orders that hold nothing say nothing: the gateway keeps those that it has until there is a plan.
        held = orders if orders.topics or orders.ports else None
        self._configured = gateways.add(settings.gateway_name, link, settings.gateway_address, held)
        self.runtime = Runtime(
            store=store,
            gateways=gateways,
            replanner=Replanner(network, planner, orders, settings.multicast, settings.most_worth),
            rates=KnownRates(store.measured()),
            port_names=network.port_names,
            bandwidths=bandwidths,
            port_watch=PortWatch(bandwidths, network.stated_error_rates, restored=store.measured_ports()),
            last_orders=orders,
            metrics=self.metrics,
            access=access,
            balancing=settings.balancing,
        )
        self.watch = SubscriptionWatch(self.runtime.rates.watch.arrived)
        self.runtime.on_second = self._every_second
        self.service = Service(store, registry, tokens, self.runtime, access=access)

    @property
    def gateway_address(self) -> str:
        """Where clients find the gateway that this coordinator is configured with."""
        return self._configured.address

    @gateway_address.setter
    def gateway_address(self, address: str) -> None:
        self._configured.address = address

    async def gateway_connected(self) -> None:
        """That gateway is there, again."""
        await self.runtime.gateway_connected(self._configured.name)

    async def start(self) -> None:
        """Begin with what the store kept; clients of before have one lease to be heard again."""
        self.service.begin()
        if self._access:
            await self.service.withdraw_unguarded()
        self.runtime.start(tuple(self.service.registry))
        self._leases = asyncio.get_running_loop().create_task(self.service.watch_leases())

    async def stop(self) -> None:
        await end(self._leases, self._forecasting)
        await self.runtime.stop()
        await self.service.store.close()

    def received(self, record: Record, assigned: Assignment, reports: Mapping[str, Report]) -> None:
        """A subscriber says what it received since it last said so; nothing of a topic if nothing came.

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
        """Plan with another of the built-in drop policies, which is kept until another one is configured."""
        if name not in DROP_POLICIES:
            raise ParameterError("drops", f"{name!r} is none of {', '.join(DROP_POLICIES)}")
        before = self.forecasts.settings
        await self.service.set_drops(name, self._configured_drops)
        self.forecasts.settings = replace(before, drops=name)
        self.runtime.note([Decision("drop_policy", "all output ports", before.drops, name, why)])
        self.runtime.change_settings(self.forecasts.settings, f"drop policy {name}")

    # What there is to read.

    def known_topics(self) -> dict[str, TopicFacts]:
        """All topics that were declared or measured."""
        facts: dict[str, TopicFacts] = {}
        for record in self.service.registry:
            for each in record.intent.publications if isinstance(record.intent, PublisherIntent) else ():
                known = facts.get(each.topic)
                if known is None:
                    facts[each.topic] = TopicFacts(each.rate_per_second, each.size_bytes, False)
                elif known.rate_per_second is not None:
                    rate = (
                        None if each.rate_per_second is None else known.rate_per_second + each.rate_per_second
                    )
                    facts[each.topic] = TopicFacts(rate, known.size_bytes, False)
        for topic, estimate in self.runtime.rates.watch.estimates().items():
            if estimate.publications:
                facts[topic] = TopicFacts(estimate.rate_per_second, estimate.size_bytes, True)
        return facts

    def promises(self) -> list[Promise]:
        """What was decided about guaranteed subscriptions."""
        return [] if self.runtime.decided is None else list(promise_facts(self.runtime.decided))

    def health(self, *, in_detail: bool = True) -> dict[str, Any]:
        """What works now; without details for those who may not know them."""
        runtime, gateways = self.runtime, tuple(self.runtime.gateways)
        planning, begun = runtime.planning, runtime.planning_since
        if begun is not None and (seconds := time.monotonic() - begun) > _LONGEST_PLAN_SECONDS:
            planning = Check(f"a plan has been in the making for {seconds:.0f} s", begun, planning.words)
        checks = {
            **runtime.measuring.checks(),
            "writes": self.service.store.writing,
            "planning": planning,
            "planned": self._planned(),
            **self._in_force(),
        }
        starved = self.starved()
        error = planning.as_json(in_detail=in_detail)["reason"]
        return {
            **health_of(checks, in_detail=in_detail),
            "version": __version__,
            **_versions(gateways),
            "gateway_connected": all(each.reconciler.link.connected for each in gateways),
            "broker_connected": _all_true([each.broker_connected for each in gateways]),
            "generation": self.runtime.planned_generation,
            "in_force_generation": self.runtime.generation,
            "publishers": self.count(PUBLISHER),
            "subscribers": self.count(SUBSCRIBER),
            "plans": self.metrics.plan_seconds.count,
            "last_plan_error": error,
            "starved": len(starved),
            "starved_subscriptions": starved[:_NAMED_STARVED] if in_detail else [],
            "access": self._access,
            "uptime_seconds": time.monotonic() - self._started,
        }

    def starved(self) -> list[dict[str, Any]]:
        """The subscriptions that get nothing by the latest plan, worth most first."""
        decided = self.runtime.decided
        if self._starved[0] is not decided:
            self._starved = decided, [] if decided is None else starved(decided.scenario, decided.plan)
        return self._starved[1]

    def _planned(self) -> Check:
        """Whether ports that are full have a plan."""
        since, now = self._unplanned_since, time.monotonic()
        if since is None or now - since < _UNPLANNED_SECONDS:
            return Check("", self._started)
        return Check("output ports are full, but nothing is planned: no subscription has a known rate", since)

    def _watch_planned(self, ports: Iterable[Mapping[str, Any]]) -> None:
        decided = self.runtime.decided
        is_planned = decided is not None and len(decided.scenario.subscriptions) > 0
        widths = self.runtime.bandwidths
        if is_planned or not any(
            row["sent_bps"] > _FULL_LOAD * widths.get(row["port"], math.inf) for row in ports
        ):
            self._unplanned_since = None
        elif self._unplanned_since is None:
            self._unplanned_since = time.monotonic()

    def _in_force(self) -> dict[str, Check]:
        """Whether the gateways follow the rights and the orders that are wanted, or have only just to get them."""
        gateways, now = self.runtime.gateways, time.monotonic()
        # Of a gateway that does not work it is no news that it does not follow new orders.
        ailing = [each for each in gateways if each.ailment(now) is not None]
        behind = {
            "rights": [(each, each.reconciler.rights_behind_seconds) for each in gateways if self._access],
            "orders": [
                (each, each.reconciler.behind_seconds)
                for each in gateways
                if not each.reconciler.orders_in_force
            ],
        }
        checks = {
            name: Check("", max(each.reconciler.in_force_since for each in gateways)) for name in behind
        }
        for name, found in behind.items():
            late = [(each, seconds) for each, seconds in found if seconds and seconds >= _BEHIND_SECONDS]
            if not late:
                continue
            words = [
                f"the latest {name} are not in force at {gateways.called(each)} for {seconds:.0f} s: "
                f"{each.why_not_in_force}"
                for each, seconds in late
                if name == "rights" or each not in ailing
            ]
            checks[name] = Check(
                "; ".join(str(each.reconciler.problem or each.why_not_in_force) for each, _ in late),
                now - max(seconds for _, seconds in late),
                "; ".join(words),
                is_implied=not words,
            )
        return checks

    def where_not_in_force(self) -> str:
        """Which gateways do not follow the latest rights, and why, in words that name no client."""
        gateways = self.runtime.gateways
        behind = [each for each in gateways if not each.reconciler.grants_in_force]
        return "; ".join(
            f"{gateways.called(each)} ({each.address}): {each.why_not_in_force}" for each in behind
        )

    def count(self, kind: str) -> int:
        """How many publishers or subscribers there are."""
        return self.service.registry.count(kind)

    async def _every_second(self, before: Measured, now: Measured) -> None:
        decided = self.runtime.decided
        forecasting = self._forecasting is not None and not self._forecasting.done()
        if decided is not None and not forecasting:
            small = len(decided.scenario.subscriptions) <= _FORECAST_BY_ITSELF
            if small or self.live.listeners:
                self._forecasting = asyncio.get_running_loop().create_task(self._forecast())
        predicted = {row["priority_class"]: row for row in (self.forecasts.latest() or {}).get("classes", [])}
        orders = self.runtime.assignments.orders
        if cut := self._babbling.news(before, now, orders.promised):
            self.runtime.note(cut)
        self._control_delays(now)
        seconds = max((now.at_ns - before.at_ns) / 1e9, 1e-9)
        traffic = class_traffic(before, now)
        self.live.count(traffic)
        arrived = self.runtime.rates.watch.take_arrived()
        published, topics = topic_figures(arrived, seconds)
        self.watch.published(arrived)
        if decided is not self._watched_plan and decided is not None:
            self._watched_plan = decided
            self.watch.keep(frozenset(decided.scenario.subscribers.name))
        ports = port_figures(before, now, orders)
        self._watch_planned(ports)
        self.live.tell(
            {
                "at_ns": now.at_ns,
                "generation": self.runtime.planned_generation,
                "in_force_generation": self.runtime.generation,
                "gateway_connected": True,
                "broker_connected": now.broker_connected,
                "publishers": self.count(PUBLISHER),
                "subscribers": self.count(SUBSCRIBER),
                "sessions": now.sessions,
                "publications_per_second": published,
                "classes": class_figures(traffic, seconds, self.live.take_received(), predicted),
                "ports": ports,
                "topics": topics,
            }
        )

    def _control_delays(self, now: Measured) -> None:
        if self.runtime.decided is None:
            return
        news = self.delays.planned(self.runtime.decided)
        news += self.delays.measured(now.managed, time.monotonic())
        if news:
            self.runtime.note(news)
        self.runtime.constrain(self.delays.constraints)

    async def _forecast(self) -> None:
        """For live figures; a request for the forecast gets its errors with the answer."""
        decided = self.runtime.decided
        if decided is not None:
            with contextlib.suppress(Exception):
                await self.forecasts.of(decided)


def _all_true(values: Sequence[bool | None]) -> bool | None:
    """None if one is not known, and none is false."""
    return False if False in values else None if None in values else True


def _versions(gateways: Sequence[GatewayHandle]) -> dict[str, Any]:
    """Of the gateway that is furthest behind; each has versions of its own."""
    last = max(
        gateways,
        key=lambda each: (each.reconciler.behind_seconds or 0.0, each.reconciler.confirmed_version is None),
    )
    return {
        "wanted_version": last.reconciler.wanted_version,
        "in_force_version": last.reconciler.confirmed_version,
        "not_in_force_seconds": last.reconciler.behind_seconds,
    }
