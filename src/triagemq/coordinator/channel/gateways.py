"""All gateways that one coordinator leads: the first, which it is started with, and those that join.

Each has a broker beside it and clients at home there, is told its own part of what is wanted under versions of its own,
and takes from the brokers of the others what its clients want. With one gateway there is nothing to share out.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from triagemq.addresses import is_loopback
from triagemq.clock import unix_clock
from triagemq.coordinator.access.grants import Grants
from triagemq.coordinator.channel.clocks import ClockOffset
from triagemq.coordinator.channel.lead import GatewayLead
from triagemq.coordinator.channel.link import GatewayLink
from triagemq.coordinator.channel.merged import MergedTopics, merged
from triagemq.coordinator.channel.messages import ControlError, GatewayIdentity, Measured, PortConstraints
from triagemq.coordinator.decide.campus_balance import GatewayLoad
from triagemq.coordinator.decide.homes import Homes, Site
from triagemq.coordinator.decide.orders import FLOW_MARK, Orders, subscriber_of
from triagemq.coordinator.intents.registry import Key
from triagemq.coordinator.refusals import ConflictError, RequestError
from triagemq.exchange.broker.address import BrokerAddress
from triagemq.exchange.exposure import reached_by
from triagemq.intents import PUBLISHER, SUBSCRIBER
from triagemq.scenario import Brokers

_DEAD_SECONDS = 1.5
"""A gateway or broker that is away for so long has no clients any more; one that is restarted is back by then."""

_ANSWER_SECONDS = 5.0
"""Who does not answer for so long does not work, and nobody waits for it; one that is only busy answers by then."""

_RETURNING_SECONDS = 5.0
"""So long after its start the coordinator waits for gateways that were there before it."""

_ELSEWHERE_SECONDS = 15.0
"""So long a plain client that is to look for another gateway is not served."""

_LEAVING_SECONDS = 60.0
"""So long after a client was sent elsewhere a gateway has the orders about it: what is queued still goes out."""


@dataclass(slots=True, eq=False)
class LedGateway:
    """A gateway, where clients find it, and the URL of the broker beside it (empty while it is not known)."""

    name: str
    lead: GatewayLead
    address: str
    broker: str = field(default="", repr=False)
    latest: Measured | None = None
    before: Measured | None = None
    """What it had counted a second earlier."""
    answer: Measured | None = None
    """The last that it has said, five times a second."""
    is_silent: bool = False
    clock: ClockOffset = field(default_factory=ClockOffset)
    """How far its clock is from ours."""
    _ailing_since: float | None = None

    @property
    def problem(self) -> str:
        """Why it cannot serve anybody now, if that is so."""
        if not self.lead.link.connected:
            return "the gateway is away"
        if self.is_silent:
            return "the gateway does not answer"
        if self.answer is not None and not self.answer.broker_connected:
            return self.answer.broker_problem or "it has no broker"
        return ""

    def is_dead(self, now: float) -> bool:
        """Is that more than a moment's trouble?"""
        if not self.problem:
            self._ailing_since = None
            return False
        self._ailing_since = now if self._ailing_since is None else self._ailing_since
        return now - self._ailing_since >= _DEAD_SECONDS

    @property
    def load(self) -> GatewayLoad | None:
        """What it had to do in the last second, if that is known."""
        before, now = self.before, self.latest
        if before is None or now is None or before.epoch != now.epoch or now.at_ns <= before.at_ns:
            return None
        seconds = (now.at_ns - before.at_ns) / 1e9

        def since(*names: str) -> float:
            return (
                float(sum(now.counters.get(name, 0) - before.counters.get(name, 0) for name in names))
                / seconds
            )

        def sent(measured: Measured) -> int:
            return sum(queue.bytes_out for port in measured.ports.values() for queue in port.queues)

        return GatewayLoad(
            downlink_bps=8 * since("datagram_bytes", "broker_bytes"),
            matched_per_second=since("client_messages", "broker_messages"),
            uplink_bps=8 * (sent(now) - sent(before)) / seconds,
            flows=now.flows,
            flows_before=before.flows,
            seconds=seconds,
            broker_seconds={name: each / 2 for name, each in now.round_trips.items()},
            client_seconds={name: each / 2 for name, each in now.client_round_trips.items()},
        )

    @property
    def broker_shown(self) -> str:
        """Its address without a password."""
        return str(BrokerAddress.parse(self.broker)) if self.broker else ""


class Gateways:
    """`first` leads the one that was there from the start. All is called in one event loop."""

    def __init__(
        self,
        first: GatewayLead,
        name: str,
        address: str,
        homes: Homes,
        grants: Callable[[], Grants],
        brokers: Brokers | None = None,
    ) -> None:
        self.first = LedGateway(name, first, address)
        self.homes = homes
        self._grants = grants
        # The cluster of each broker of the scenario, and whether it is the head.
        self._clusters: dict[str, tuple[str, bool]] = {}
        self._uplinks: dict[str, float] = {}
        if brokers is not None:
            self._uplinks = dict(zip(brokers.name, brokers.uplink_bps.tolist(), strict=True))
            clusters = zip(brokers.cluster, (brokers.head > 0).tolist(), strict=True)
            self._clusters = dict(zip(brokers.name, clusters, strict=True))
        self._led = {name: self.first}
        self._topics = MergedTopics()
        self._marks: dict[str, str] = {}
        self._orders = first.wanted_orders
        self._constraints: PortConstraints = {}
        self._started = time.monotonic()
        self._clock = unix_clock()
        # Everyone who is announced.
        self._clients: set[Key] = set()
        # Who left which gateway, and until when that has orders about it.
        self._leaving: dict[Key, tuple[str, float]] = {}

    def __iter__(self) -> Iterator[LedGateway]:
        return iter(tuple(self._led.values()))

    def __len__(self) -> int:
        return len(self._led)

    @property
    def are_several(self) -> bool:
        return len(self._led) > 1

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

    def home_of(self, key: Key) -> LedGateway:
        """The gateway of a client; one that has none gets one."""
        if not self.are_several:
            return self.first
        return self._led[self.homes.of(key, self.sites())]

    def address_of(self, key: Key, reached: str) -> str:
        """Where a client finds its gateway, as one can use it who has come by this host."""
        return reached_by(self.home_of(key).address, reached)

    def news_for(self, key: Key, reached: str) -> str:
        """The same for one that has a gateway; empty while that may not have come back to a coordinator that has only
        just started: it stays where it is."""
        if not self.homes.has(key) and time.monotonic() - self._started < _RETURNING_SECONDS:
            return ""
        return self.address_of(key, reached)

    def announced(self, key: Key) -> None:
        """A client is there."""
        self._clients.add(key)

    def move(self, key: Key, target: str) -> None:
        """A client is at home elsewhere from now on; the gateway that it leaves still sends what it has."""
        self._leaving[key] = self.homes.of(key, self.sites()), time.monotonic() + _LEAVING_SECONDS
        self.homes.move(key, target)

    def forget(self, key: Key) -> None:
        """A client is gone."""
        self._clients.discard(key)
        self.homes.forget(key)
        self._leaving.pop(key, None)

    # Joining.

    async def join(self, name: str, link: GatewayLink, host: str, *, is_here: bool) -> LedGateway:
        """A gateway has come, from a host, over a link that is connected; RequestError says why it cannot stay.

        Is it of this machine (`is_here`), it was perhaps started with the others, and their brokers are here, too.
        """
        identity = await link.identity()
        known = self._led.get(name)
        if known is self.first or (known is not None and known.lead.link.connected):
            raise ConflictError(f"there is a gateway {name!r} already; give this one another --name")
        if not is_here:
            _check_broker(name, identity)
        self.first.broker = (await self.first.lead.link.identity()).broker
        address = reached_by(identity.listen, host)
        led = LedGateway(name, GatewayLead(link, self._grants), address, identity.broker)
        for at, there in ((self.first.name, self.first.lead.link), (name, link)):
            await self._find_clients(at, there)
        led.lead.want_constraints(self._constraints)
        self._led[name] = led
        self._topics.forget(name)
        self._marks.pop(name, None)
        self.refit()
        return led

    async def _find_clients(self, name: str, link: GatewayLink) -> None:
        """Whoever is at a gateway stays there: before the coordinator was started anew, it was sent there."""
        for event in await link.present():
            kind = SUBSCRIBER if FLOW_MARK in event.client_id else PUBLISHER
            key = kind, subscriber_of(event.flow)[0]
            if key in self._clients and not self.homes.has(key):
                self.homes.move(key, name)

    async def send_plain_elsewhere(self, name: str, client_ids: Collection[str] | None = None) -> int:
        """Have plain MQTT-SN clients of a gateway, all or these, look for another one; how many were told.

        They know no coordinator: these are the ones that are not announced.
        """
        link, found = self._led[name].lead.link, []
        for event in await link.present():
            kind = SUBSCRIBER if FLOW_MARK in event.client_id else PUBLISHER
            is_plain = (kind, subscriber_of(event.flow)[0]) not in self._clients
            if is_plain and (client_ids is None or event.client_id in client_ids):
                found.append(event.client_id)
        return await link.send_elsewhere(found, _ELSEWHERE_SECONDS) if found else 0

    # What is wanted.

    def want_orders(self, orders: Orders) -> None:
        """Have all follow these, each its part."""
        if self.are_several and orders is self._orders:
            return
        self._orders = orders
        self.refit()

    def refit(self) -> None:
        """Share the orders out anew: somebody has moved, or a gateway has come."""
        orders = self._orders
        if not self.are_several:
            if orders is not None:
                self.first.lead.want_orders(orders)
            return
        now = time.monotonic()
        self._leaving = {key: left for key, left in self._leaving.items() if left[1] > now}
        brokers = {each.name: each.broker for each in self._led.values() if each.broker}
        served: dict[str, set[str]] = {name: set() for name in self._led}
        for (kind, name), at in self.homes:
            if kind == SUBSCRIBER and at in served:
                served[at].add(name)
        for (kind, name), (at, _) in self._leaving.items():
            if kind == SUBSCRIBER and at in served:
                served[at].add(name)
        for name, each in self._led.items():
            peers = {other: url for other, url in brokers.items() if other != name}
            uplink_bps = self._uplinks.get(name, math.inf)
            each.lead.want_orders((orders or Orders()).part_for(served[name], peers, uplink_bps))

    def want_grants(self) -> None:
        for each in self._led.values():
            each.lead.want_grants()

    def want_constraints(self, constraints: PortConstraints) -> bool:
        """How long packets may wait at ports whose widths are controlled; whether that is news to anyone."""
        self._constraints = constraints
        news = [each.lead.want_constraints(constraints) for each in self]
        return any(news)

    async def tell(self) -> None:
        """Bring everyone who is there to what is wanted."""
        if not self.are_several:
            await self.first.lead.tell()
            return
        self.refit_if_new()
        await asyncio.gather(
            *(
                each.lead.tell()
                for each in self._led.values()
                if each is self.first or (each.lead.link.connected and not each.is_silent)
            )
        )

    def refit_if_new(self) -> None:
        """Somebody has come whose gateway has no orders about it yet."""
        if self.homes.take_changed():
            self.refit()

    def follows(self, orders: Orders) -> bool:
        """Does everyone who can follow these orders, each its part?"""
        if not self.are_several:
            return self.first.lead.follows(orders)
        return orders is self._orders and all(
            each.lead.orders_in_force for each in self._led.values() if not each.problem
        )

    @property
    def grants_in_force(self) -> bool:
        """Does everyone follow the latest grants? Who is away may still serve somebody who has lost a right."""
        return all(each.lead.grants_in_force for each in self._led.values())

    # What is measured.

    def loads(self) -> dict[str, GatewayLoad]:
        """What each that was measured twice had to do between."""
        found = {each.name: each.load for each in self._led.values() if not each.problem}
        return {name: load for name, load in found.items() if load is not None}

    def topic_totals(self) -> dict[str, int]:
        """Events of every topic, in all."""
        return {topic: events for topic, (events, _) in self._topics.totals().items()}

    async def measure(self, *, flows: bool = True, topics: bool = True, after: str = "") -> Measured:
        """As GatewayLink.measure, of all that answer."""
        if not self.are_several:
            measured = await self.first.lead.link.measure(flows=flows, topics=topics, after=after)
            if flows:
                self.first.before, self.first.latest = self.first.latest, measured
            return measured
        several: dict[str, Measured] = {}
        others = [each for each in self._led.values() if each.lead.link.connected]
        answers = await asyncio.gather(
            *(
                asyncio.wait_for(self._measure(each, flows=flows, topics=topics), _ANSWER_SECONDS)
                for each in others
            ),
            return_exceptions=True,
        )
        for each, answer in zip(others, answers, strict=True):
            each.is_silent = isinstance(answer, TimeoutError)
            if isinstance(answer, ControlError | TimeoutError):
                each.lead.lost()
            elif isinstance(answer, BaseException):
                raise answer
            else:
                several[each.name] = each.answer = answer
                if each is not self.first:
                    each.lead.measured(answer)
        if not several:
            raise ControlError("no gateway answers")
        for name, measured in several.items():
            led = self._led[name]
            if flows:
                led.before, led.latest = led.latest, measured
            if topics:
                self._topics.add(name, measured.at_ns, measured.topics, measured.begun)
                self._marks[name] = measured.mark
        return merged(several, self._topics.take() if topics else {})

    async def _measure(self, each: LedGateway, *, flows: bool, topics: bool) -> Measured:
        asked_ns = self._clock()
        after = self._marks.get(each.name, "")
        measured = await each.lead.link.measure(flows=flows, topics=topics, after=after)
        each.clock.answered(asked_ns, measured.at_ns, self._clock())
        return measured


def _check_broker(name: str, identity: GatewayIdentity) -> None:
    """Others must be able to reach the broker of a gateway that is elsewhere."""
    broker = BrokerAddress.parse(identity.broker)
    if is_loopback(broker.host):
        raise RequestError(
            f"the broker of gateway {name!r} is at {broker.host}, where the other gateways cannot reach it; "
            "give --broker mqtt://HOST:PORT with an address of its machine"
        )
