"""Promised topics without a broker: what a subscriber listens to, and what a publisher sends besides the gateway.

A subscriber opens the address of every promise, and announces that. Then the gateway gets orders to leave these events
out, and after that the publisher gets orders to send them directly. A publisher sends such an event directly first, and
then to the gateway for all others, over a connection of its own. Every event carries the generation of the orders that
it follows: gateway and subscriber know by it over which transport it comes. So each subscriber gets an event once, also
while others join.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from triagemq.addresses import GatewayAddress
from triagemq.client.connection import Background, Connection, connection_id
from triagemq.client.coordinator import Promise
from triagemq.client.direct import DirectEvent, DirectPublisher, DirectSubscriber, NetworkSettings
from triagemq.client.direct.udp import source_address
from triagemq.client.direct.wire import generation_of
from triagemq.client.events import Event
from triagemq.client.settings import ConnectionSettings
from triagemq.errors import ClientError, ClosedError
from triagemq.intents import PublicationIntent
from triagemq.mqttsn.timestamps import DIRECT_SLOT

_MOST_EARLY = 1_000


class PromisedTopics:
    """The promised topics that one subscriber takes directly."""

    def __init__(self, network: NetworkSettings, on_event: Callable[[Event], None]) -> None:
        self._network = network
        self._on_event = on_event
        self._open: dict[str, DirectSubscriber] = {}
        # By address, since which generation events are for us; and those that came before that was known.
        self._since: dict[str, int] = {}
        self._early: dict[str, list[DirectEvent]] = {}
        self.problem = ""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where it is listening."""
        return tuple(sorted(self._open))

    async def fit(self, promises: list[Promise]) -> bool:
        """Listen to these and no others; whether that is different from before."""
        before = self.addresses
        admitted = {each.address: each for each in promises if each.admitted and each.address is not None}
        self.problem = ""
        for address, subscriber in list(self._open.items()):
            if address not in admitted or admitted[address].topic != subscriber.topic:
                await self._close(address)
        for address in admitted.keys() - self._open.keys():
            promise = admitted[address]
            subscriber = DirectSubscriber(
                promise.topic,
                address,
                max_size_bytes=promise.max_size_bytes,
                network=self._network,
                on_event=partial(self._arrived, address),
            )
            try:
                await subscriber.open()
            except ClientError as error:
                # It goes on coming from the gateway.
                self.problem = str(error)
            else:
                self._open[address] = subscriber
        for address in self._open:
            since = admitted[address].since_generation
            if since is not None:
                self._since[address] = since
                for event in self._early.pop(address, ()):
                    self._arrived(address, event)
        return self.addresses != before

    async def leave(self, wants: Callable[[str], bool]) -> None:
        """Listen no more to topics that are not requested."""
        for address, subscriber in list(self._open.items()):
            if not wants(subscriber.topic):
                await self._close(address)

    async def _close(self, address: str) -> None:
        self._since.pop(address, None)
        self._early.pop(address, None)
        await self._open.pop(address).close()

    def _arrived(self, address: str, event: DirectEvent) -> None:
        since = self._since.get(address)
        if since is None:
            early = self._early.setdefault(address, [])
            del early[:-_MOST_EARLY]
            early.append(event)
        elif generation_of(event.session) >= since:
            self._on_event(
                Event(event.topic, event.value, event.published_ns, event.received_ns, transport="multicast")
            )


class Directing:
    """What one publisher sends directly, by orders of its coordinator; nothing if it is not on."""

    def __init__(
        self, network: NetworkSettings, settings: ConnectionSettings, background: Background, *, is_on: bool
    ) -> None:
        self._is_on = is_on
        self._source: str | None = None
        self._network = network
        self._settings = settings
        self._background = background
        self._gateway: GatewayAddress | None = None
        self._client_id = ""
        self.declared: Mapping[str, PublicationIntent] = {}
        """What can be promised."""
        self._open: dict[str, tuple[str, DirectPublisher]] = {}
        self.connection: Connection | None = None
        """By which events go to the gateway that have been sent directly."""
        self.published = 0
        """Events that were sent directly."""
        self.problem = ""

    def source_of(self, declared: Iterable[PublicationIntent]) -> str | None:
        """Where this host sends from what can be promised of these; None if nothing can."""
        can_be = self._is_on and any(_can_be_promised(each) for each in declared)
        self._source = source_address(self._network) if can_be else None
        return self._source

    def has_moved(self) -> bool:
        """Whether this host sends from another address by now."""
        return bool(self.declared) and source_address(self._network) != self._source

    async def begin(
        self, gateway: GatewayAddress, client_id: str, declared: Mapping[str, PublicationIntent]
    ) -> bool:
        """Other topics are declared; True if some are sent directly no more, until the coordinator orders it again."""
        self._gateway, self._client_id = gateway, client_id
        before = self.declared
        can_be = declared.items() if self._is_on else ()
        self.declared = {topic: each for topic, each in can_be if _can_be_promised(each)}
        changed = [topic for topic in self._open if self.declared.get(topic) != before.get(topic)]
        for topic in changed:
            _, publisher = self._open.pop(topic)
            await publisher.close()
        return bool(changed)

    async def redirect(self, gateway: GatewayAddress, client_id: str) -> None:
        """Go on as another client, perhaps at another gateway."""
        self._gateway, self._client_id = gateway, client_id
        if self.connection is not None:
            await self.connection.redirect(gateway, connection_id(client_id, DIRECT_SLOT))

    async def publish(self, topic: str | int, payload: bytes) -> int | None:
        """Send it directly, if it is to be; by orders of which generation it was."""
        found = self._open.get(topic) if isinstance(topic, str) else None
        if found is None or self.connection is None:
            return None
        _, publisher = found
        try:
            await publisher.publish(payload)
        except ClosedError:
            # While it waited for its turn the last subscriber has left.
            return None
        self.published += 1
        return publisher.generation

    async def close(self) -> None:
        """Send nothing directly any more."""
        await self.fit({}, 0)
        if self.connection is not None:
            await self.connection.close()

    async def fit(self, topics: Mapping[str, str], generation: int) -> None:
        """Send these directly, each to its address, and no others."""
        for topic, (address, publisher) in list(self._open.items()):
            if topics.get(topic) != address:
                del self._open[topic]
                await publisher.close()
            else:
                await publisher.renew(generation)
        for topic, address in topics.items():
            declared = self.declared.get(topic)
            if topic in self._open or declared is None or declared.max_size_bytes is None:
                continue
            await self._connect()
            publisher = DirectPublisher(
                topic,
                address,
                max_size_bytes=int(declared.max_size_bytes),
                min_separation_seconds=declared.min_separation_seconds or 0.0,
                generation=generation,
                network=self._network,
            )
            await publisher.open()
            self._open[topic] = address, publisher
        self.problem = ""

    async def _connect(self) -> None:
        if self.connection is not None or self._gateway is None:
            return
        connection = Connection(
            self._gateway.host,
            self._gateway.port,
            connection_id(self._client_id, DIRECT_SLOT),
            secure=self._gateway.secure,
            settings=self._settings,
            background=self._background,
        )
        await connection.open()
        self.connection = connection


def _can_be_promised(declared: PublicationIntent) -> bool:
    return declared.min_separation_seconds is not None and declared.max_size_bytes is not None
