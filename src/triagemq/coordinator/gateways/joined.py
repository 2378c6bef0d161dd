"""All gateways that one coordinator leads, by name and equal: those that it is configured with, and those that join.

Each has a broker and clients, gets its own part of the desired state under versions of its own,
and takes from the brokers of the others what its clients want. With one gateway there is nothing to share out. Nothing
that one of them sends, or leaves unanswered, holds up the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from triagemq.addresses import GatewayAddress, is_loopback, reached_by
from triagemq.broker.address import BrokerAddress
from triagemq.channel.grants import Grants
from triagemq.channel.link import GatewayLink
from triagemq.channel.messages import (
    ControlError,
    GatewayIdentity,
    GatewayRefusalError,
    Measured,
    PortConstraints,
)
from triagemq.channel.orders import Orders, subscriber_of
from triagemq.client.connection import CONNECTION_MARK
from triagemq.clock import unix_clock
from triagemq.coordinator.decide.placement import GatewayLoad, Placements, Site
from triagemq.coordinator.gateways.handle import (
    ANSWER_SECONDS,
    LEASE_SECONDS,
    GatewayHandle,
    TopicIncrements,
    merged,
)
from triagemq.coordinator.gateways.observed import ObservedSubscribers
from triagemq.coordinator.gateways.reconciler import GatewayReconciler
from triagemq.coordinator.intents.registry import Key
from triagemq.coordinator.refusals import ConflictError, RequestError
from triagemq.errors import TriageError
from triagemq.intents import PUBLISHER, SUBSCRIBER
from triagemq.scenario import Brokers
from triagemq.waiting import Tasks

_ROUND_SECONDS = 1.0
"""So long one round of questions or syncs waits for all gateways; later answers count in the next round."""

_RETURNING_SECONDS = 10.0
"""So long after its start the coordinator waits for gateways that were there before it."""

_STAYING_SECONDS = 5.0
"""So long after its start a client of which no gateway has said anything stays where it is."""

_LOOK_SECONDS = 0.05

_MOST_ROWS_WAITING = 10_000
"""Decisions for the trace that wait for a gateway; the oldest go."""

_ELSEWHERE_SECONDS = 15.0
"""So long a plain client that is to look for another gateway is not served."""

_LEAVING_SECONDS = 60.0
"""So long after a client was sent elsewhere a gateway has the orders about it: what is queued still goes out."""


class Gateways:
    """All is called in one event loop. `expected` are the names of those that were there before a restart."""

    def __init__(
        self,
        placements: Placements,
        grants: Callable[[], Grants],
        brokers: Brokers | None = None,
        expected: Collection[str] = (),
    ) -> None:
        self.placements = placements
        self._grants = grants
        # The cluster of each broker of the scenario, and whether it is the head.
        self._clusters: dict[str, tuple[str, bool]] = {}
        self._uplinks: dict[str, float] = {}
        if brokers is not None:
            self._uplinks = dict(zip(brokers.name, brokers.uplink_bps.tolist(), strict=True))
            clusters = zip(brokers.cluster, (brokers.head > 0).tolist(), strict=True)
            self._clusters = dict(zip(brokers.name, clusters, strict=True))
        self._led: dict[str, GatewayHandle] = {}
        self._expected = set(expected)
        self._joining: set[str] = set()
        self._topics = TopicIncrements()
        self.observed = ObservedSubscribers()
        """Unannounced clients."""
        self._orders: Orders | None = None
        self._refit_due = False
        self._constraints: PortConstraints = {}
        self._started = time.monotonic()
        self._clock = unix_clock()
        self._rows: list[Mapping[str, Any]] = []
        self._syncing = Tasks()
        # Who left which gateway, and until when that has orders about it.
        self._leaving: dict[Key, tuple[str, float]] = {}

    def add(self, name: str, link: GatewayLink, address: str, orders: Orders | None = None) -> GatewayHandle:
        """One that is there from the start, and the orders of before."""
        # Those that it has name its peers, which may only be on their way back to this coordinator.
        lead = GatewayReconciler(link, self._grants, None if self._awaits_gateways else orders)
        self._led[name] = GatewayHandle(name, lead, address)
        self._orders, self._refit_due = orders, self._awaits_gateways
        return self._led[name]

    @property
    def _awaits_gateways(self) -> bool:
        """Has this coordinator only just started, and gateways of before are not back?"""
        return bool(self._expected) and time.monotonic() - self._started < _RETURNING_SECONDS

    def __iter__(self) -> Iterator[GatewayHandle]:
        return iter(tuple(self._led.values()))

    def __len__(self) -> int:
        return len(self._led)

    def __getitem__(self, name: str) -> GatewayHandle:
        return self._led[name]

    @property
    def are_several(self) -> bool:
        return len(self._led) > 1

    def called(self, each: GatewayHandle) -> str:
        """What people call it; with one there is no doubt which."""
        return f"gateway {each.name}" if self.are_several else "the gateway"

    @property
    def _only(self) -> GatewayHandle:
        """Where there is one."""
        return next(iter(self._led.values()))

    async def close(self) -> None:
        """End all open questions."""
        await asyncio.gather(*(each.close() for each in self))
        await self._syncing.close()

    # Who is where.

    def sites(self, now: float | None = None) -> list[Site]:
        """Where clients may be at home."""
        now = time.monotonic() if now is None else now
        return [
            Site(
                each.name,
                each.problem if each.is_dead(now) else "",
                *self._clusters.get(each.name, ("", False)),
            )
            for each in self._led.values()
        ]

    def home_of(self, key: Key) -> GatewayHandle:
        """The gateway of a client; one that has none gets one."""
        if not self.are_several:
            return self._only
        home = self.placements.of(key, self.sites())
        if home not in self._led:
            # It was forgotten.
            self.placements.forget(key)
            home = self.placements.of(key, self.sites())
        return self._led[home]

    def address_of(self, key: Key, reached: str) -> str:
        """Where a client finds its gateway, as one can use it who has come by this host."""
        return reached_by(self.home_of(key).address, reached)

    def news_for(self, key: Key, reached: str) -> str:
        """The same for one that has a gateway; empty while that may not have come back to a coordinator that has only
        just started: it stays where it is."""
        if not self.placements.has(key) and time.monotonic() - self._started < _STAYING_SECONDS:
            return ""
        return self.address_of(key, reached)

    def move(self, key: Key, target: str) -> None:
        """A client is at home elsewhere from now on; the gateway that it leaves still sends what it has."""
        self._leaving[key] = self.placements.of(key, self.sites()), time.monotonic() + _LEAVING_SECONDS
        self.placements.move(key, target)

    def forget(self, key: Key) -> None:
        """A client is gone."""
        self.placements.forget(key)
        self._leaving.pop(key, None)

    # Joining.

    async def join(self, name: str, link: GatewayLink, host: str, *, is_here: bool) -> GatewayHandle:
        """A gateway has come, from a host, over a link that is connected; RequestError says why it cannot stay.

        Is it of this machine (`is_here`), it was perhaps started with the others, and their brokers are here, too.
        Of two with one name the later is refused, unless the earlier does not answer any more.
        """
        if name in self._joining:
            raise ConflictError(f"another gateway {name!r} is just joining; give this one another --name")
        self._joining.add(name)
        try:
            identity = await link.identity()
            await self._refuse_second(name, link)
            _check_identity(name, identity, is_here=is_here)
            unknown = [each for each in self if not each.broker and each.reconciler.link.connected]
            await self._meet(*((each.name, each.reconciler.link) for each in unknown), (name, link))
            known = self._led.pop(name, None)
            if known is not None:
                await known.close()
            led = GatewayHandle(
                name,
                GatewayReconciler(link, self._grants),
                reached_by(identity.listen, host),
                identity.broker,
                has_joined=True,
            )
            if known is not None:
                # How often it was started is known of the earlier one.
                led.starts, led.answer = known.starts, known.answer
            led.reconciler.want_constraints(self._constraints)
            self._led[name] = led
            self._expected.discard(name)
            self.refit()
            return led
        finally:
            self._joining.discard(name)

    async def _refuse_second(self, name: str, link: GatewayLink) -> None:
        known = self._led.get(name)
        if known is None or (known.has_joined and not known.reconciler.link.connected):
            return
        taken = ConflictError(f"there is a gateway {name!r} already; give this one another --name")
        if not known.has_joined:
            raise taken
        try:
            async with asyncio.timeout(_ROUND_SECONDS):
                await known.reconciler.link.identity()
        except (ControlError, TimeoutError):
            await known.reconciler.link.close()
            return
        raise taken

    async def _meet(self, *links: tuple[str, GatewayLink]) -> None:
        """Learn which brokers gateways have, and which clients are there. One that does not answer is no obstacle."""
        for name, link in links:
            with contextlib.suppress(ControlError, TimeoutError):
                async with asyncio.timeout(_ROUND_SECONDS):
                    if name in self._led:
                        self._led[name].broker = (await link.identity()).broker
                    await self._find_clients(name, link)

    async def _find_clients(self, name: str, link: GatewayLink) -> None:
        """Clients stay where they are connected, and come back to where their session is stored."""
        there = await link.sessions()
        flows = [(client.client_id, client.flow) for client in there.sessions]
        flows += [(flow, flow) for flow in there.stored]
        for client_id, flow in flows:
            key = SUBSCRIBER if CONNECTION_MARK in client_id else PUBLISHER, subscriber_of(flow)[0]
            if key not in self.placements.clients:
                self.placements.remember(key, name)
            elif not self.placements.has(key):
                self.placements.move(key, name)

    async def connected(self, name: str) -> None:
        """A gateway that the coordinator is configured with is there, again."""
        led = self._led[name]
        led.reconciler.lost()
        if self.are_several:
            await self._meet((name, led.reconciler.link))
            self.refit()

    async def until_returned(self) -> None:
        """Wait a moment after the start for gateways that were there before it: they may hold a client's session."""
        while self._awaits_gateways:
            await asyncio.sleep(_LOOK_SECONDS)

    @property
    def joined(self) -> list[str]:
        """The names of those that have joined, or may come back."""
        return [*self._expected, *(each.name for each in self if each.has_joined)]

    def forget_gone(self) -> list[str]:
        """Drop gateways that have been away for longer than their lease; their names."""
        now = time.monotonic()
        gone = [each.name for each in self if each.is_gone(now)]
        if self._expected and now - self._started >= LEASE_SECONDS:
            gone += self._expected
            self._expected.clear()
        for name in gone:
            if name not in self._led:
                continue
            del self._led[name]
            self._topics.forget(name)
            self.observed.forget(name)
        if gone:
            self.refit()
        return gone

    def is_away(self, name: str) -> bool:
        """Is a gateway away, or hangs, so that its clients get nothing from it?"""
        known = self._led.get(name)
        return known is None or known.is_silent or not known.reconciler.link.connected

    async def expect(self, name: str, sessions: Mapping[str, Mapping[str, int]]) -> None:
        """Have a gateway store what comes for clients that are on their way to it."""
        with contextlib.suppress(ControlError, TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._led[name].reconciler.link.expect(sessions)

    async def send_plain_elsewhere(self, name: str, client_ids: Collection[str] | None = None) -> int:
        """Have plain MQTT-SN clients of a gateway, all or these, look for another one; how many there are.

        They know no coordinator: these are the ones that are not announced.
        """
        link, found = self._led[name].reconciler.link, []
        for client in (await link.sessions()).sessions:
            kind = SUBSCRIBER if CONNECTION_MARK in client.client_id else PUBLISHER
            is_plain = (kind, subscriber_of(client.flow)[0]) not in self.placements.clients
            if is_plain and (client_ids is None or client.client_id in client_ids):
                found.append(client.client_id)
        return await link.send_elsewhere(found, _ELSEWHERE_SECONDS) if found else 0

    # What is wanted.

    def want_orders(self, orders: Orders) -> None:
        """Have all follow these, each its part."""
        if self.are_several and orders is self._orders:
            return
        self._orders = orders
        self.refit()

    def refit(self) -> None:
        """Share the orders out anew: a client has moved, or a gateway has come."""
        orders = self._orders
        if self._awaits_gateways:
            # Without its peers a gateway would lose what their brokers have for it.
            self._refit_due = True
            return
        self._refit_due = False
        if not self.are_several:
            if orders is not None:
                self._only.reconciler.want_orders(orders)
            return
        now = time.monotonic()
        self._leaving = {key: left for key, left in self._leaving.items() if left[1] > now}
        brokers = {each.name: each.broker for each in self._led.values() if each.broker}
        served: dict[str, set[str]] = {name: set() for name in self._led}
        leaving = ((key, at) for key, (at, _) in self._leaving.items())
        for (kind, name), at in (*self.placements, *leaving):
            if kind == SUBSCRIBER and at in served:
                served[at].add(name)
        for name, each in self._led.items():
            served[name].update(self.observed.names_at(name))
            peers = _other_brokers(name, brokers)
            uplink_bps = self._uplinks.get(name, math.inf)
            each.reconciler.want_orders((orders or Orders()).part_for(served[name], peers, uplink_bps))

    def want_grants(self) -> None:
        for each in self._led.values():
            each.reconciler.want_grants()

    def want_constraints(self, constraints: PortConstraints) -> bool:
        """How long packets may wait at ports whose queue rates are controlled; whether that is news to anyone."""
        self._constraints = constraints
        news = [each.reconciler.want_constraints(constraints) for each in self]
        return any(news)

    async def sync(self) -> None:
        """Bring everyone who is there to what is wanted. For one that takes its time the others do not wait."""
        self.refit_if_new()
        syncing = {self._syncing.start(each.reconciler.sync()) for each in self if not each.is_silent}
        if syncing:
            done, _ = await asyncio.wait(syncing, timeout=_ROUND_SECONDS if self.are_several else None)
            for task in done:
                task.result()

    async def trace_decisions(self, rows: Sequence[Mapping[str, Any]] = ()) -> None:
        """Have decisions written into a trace, that of the first gateway that takes them; until then they wait."""
        self._rows = [*self._rows, *rows][-_MOST_ROWS_WAITING:]
        for each in self:
            if not self._rows or not each.reconciler.link.connected or each.is_silent:
                continue
            sent, self._rows = self._rows, []
            try:
                await each.reconciler.link.decisions(sent)
            except ControlError as error:
                self._rows = [*sent, *self._rows][-_MOST_ROWS_WAITING:]
                each.reconciler.failed(error)

    def refit_if_new(self) -> None:
        """A client has come whose gateway has no orders about it yet."""
        if self.are_several and self.placements.take_changed():
            self._refit_due = True
        if self._refit_due:
            self.refit()

    def follows(self, orders: Orders) -> bool:
        """Does everyone who can follow these orders, each its part?"""
        if not self.are_several:
            return self._only.reconciler.follows(orders)
        return orders is self._orders and all(
            each.reconciler.orders_in_force for each in self._led.values() if not each.problem
        )

    @property
    def grants_in_force(self) -> bool:
        """Does everyone follow the latest grants? One that is away may still serve a client that has lost a right."""
        return all(each.reconciler.grants_in_force for each in self._led.values())

    @property
    def refusal(self) -> str | None:
        """What a gateway refuses, if one does."""
        for each in self:
            if isinstance(each.reconciler.problem, GatewayRefusalError):
                return str(each.reconciler.problem)
        return None

    @property
    def pause_seconds(self) -> float:
        """How long to wait before the next attempt."""
        return min(each.reconciler.pause_seconds for each in self)

    # What is measured.

    def loads(self) -> dict[str, GatewayLoad]:
        """What each that was measured twice had to do between."""
        found = {each.name: each.load for each in self._led.values() if not each.problem}
        return {name: load for name, load in found.items() if load is not None}

    async def measure(self, *, flows: bool = True, topics: bool = True) -> Measured:
        """As GatewayLink.measure, of all that answer; ControlError if none does."""
        kind, several = (flows, topics), dict[str, Measured]()
        for each in self:
            if not each.reconciler.link.connected:
                each.reconciler.lost()
        requests = [(each, each.ask(kind)) for each in self if each.reconciler.link.connected]
        # The others do not wait for one that is silent; if none else is there, the round takes its time.
        awaited = [asking for each, asking in requests if not each.is_silent] or [
            asking for _, asking in requests
        ]
        if awaited:
            await asyncio.wait(awaited, timeout=_ROUND_SECONDS)
        for each, asking in requests:
            if (measured := each.take_answer(kind, asking)) is not None and self._led.get(each.name) is each:
                several[each.name] = measured
        if not several:
            raise ControlError("no gateway answers" if self.are_several else "the gateway does not answer")
        for name, measured in several.items():
            led = self._led[name]
            if flows:
                led.before, led.latest = led.latest, measured
            if topics:
                led.mark = measured.mark
                self.observed.follow(name, measured.observed)
                self._count(name, measured)
        counted = self._topics.take() if topics else {}
        if not self.are_several:
            return replace(several[self._only.name], topics=counted)
        # Who does not answer now has what it had: sums never go down because an answer is missing.
        counted_by = {each.name: each.latest if flows else each.answer for each in self}
        latest = {name: each for name, each in counted_by.items() if each is not None}
        # For one that cannot serve anybody, or has lost its broker, the others do not wait for longer than a moment.
        now = time.monotonic()
        caught_up = {name for name, each in several.items() if each.broker_since_ns is not None}
        complete = all(each.name in caught_up or each.is_dead(now) for each in self)
        return merged(several, latest, counted, self._clock(), complete=complete)

    def _count(self, name: str, measured: Measured) -> None:
        self._topics.add(
            name,
            measured.epoch,
            self._clock(),
            measured.topics,
            measured.begun,
            caught_up=measured.broker_since_ns is not None,
        )


def _other_brokers(name: str, brokers: Mapping[str, str]) -> dict[str, str]:
    """The brokers that a gateway takes events besides its own, each once: several gateways may share one.

    >>> _other_brokers("b", {"a": "mqtt://hub:1883", "b": "mqtt://u:p@hub", "c": "mqtt://lab", "d": "mqtt://lab"})
    {'c': 'mqtt://lab'}
    """

    def place(url: str) -> tuple[str, int]:
        address = BrokerAddress.parse(url)
        return address.host, address.port

    known = {place(brokers[name])} if name in brokers else set()
    found = {}
    for other, url in brokers.items():
        if other != name and place(url) not in known:
            known.add(place(url))
            found[other] = url
    return found


def _check_identity(name: str, identity: GatewayIdentity, *, is_here: bool) -> None:
    """Clients must be able to use its address, and the others the broker of a gateway that is elsewhere."""
    try:
        GatewayAddress.parse(identity.listen)
        broker = BrokerAddress.parse(identity.broker)
    except TriageError as error:
        raise RequestError(f"gateway {name!r} cannot be led: {error}") from None
    if not is_here and is_loopback(broker.host):
        raise RequestError(
            f"the broker of gateway {name!r} is at {broker.host}, where the other gateways cannot reach it; "
            "give --broker mqtt://HOST:PORT with an address of its machine"
        )
