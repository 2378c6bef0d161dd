"""Promised topics without a broker: what a subscriber listens to, and what a publisher sends besides the gateway.

A subscriber opens the address of every promise, and says so. Then the gateway gets orders to leave these events to the
direct way, and after that the publisher is told to take it. A publisher sends such an event directly first, and then to
the gateway for all others, over a connection of its own. With every event it says by which orders that was: gateway and
subscriber tell by that which way it is to come. So everybody gets an event once, also when somebody joins.
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
from triagemq.intents import Declared
from triagemq.mqttsn.timestamps import DIRECT_SLOT

_MOST_EARLY = 1_000


def joining(network: NetworkSettings | None, settings: ConnectionSettings) -> NetworkSettings:
    """The network of promised topics: the given one, or that of the connection to the gateway."""
    return network or NetworkSettings(make_socket=settings.make_socket, loop=True)


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
        wanted = {each.address: each for each in promises if each.admitted and each.address is not None}
        self.problem = ""
        for address, subscriber in list(self._open.items()):
            if address not in wanted or wanted[address].topic != subscriber.topic:
                await self._close(address)
        for address in wanted.keys() - self._open.keys():
            promise = wanted[address]
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
            since = wanted[address].since_generation
            if since is not None:
                self._since[address] = since
                for event in self._early.pop(address, ()):
                    self._arrived(address, event)
        return self.addresses != before

    async def leave(self, wants: Callable[[str], bool]) -> None:
        """Listen no more to topics that are not wanted."""
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
                Event(event.topic, event.value, event.published_ns, event.received_ns, way=str(event.way))
            )


class Directing:
    """What one publisher sends directly, as its coordinator says."""

    def __init__(
        self, network: NetworkSettings, settings: ConnectionSettings, background: Background
    ) -> None:
        self._source: str | None = None
        self._network = network
        self._settings = settings
        self._background = background
        self._gateway: GatewayAddress | None = None
        self._client_id = ""
        self.declared: Mapping[str, Declared] = {}
        """What can be promised."""
        self._open: dict[str, tuple[str, DirectPublisher]] = {}
        self.connection: Connection | None = None
        """By which events go to the gateway that have been sent directly."""
        self.published = 0
        """Events that were sent directly."""
        self.problem = ""

    def source_of(self, declared: Iterable[Declared]) -> str | None:
        """Where this host sends from what can be promised of these; None if nothing can."""
        can_be = any(_can_be_promised(each) for each in declared)
        self._source = source_address(self._network) if can_be else None
        return self._source

    def has_moved(self) -> bool:
        """Whether this host sends from another address by now."""
        return bool(self.declared) and source_address(self._network) != self._source

    async def begin(self, gateway: GatewayAddress, client_id: str, declared: Mapping[str, Declared]) -> bool:
        """Other topics are declared; True if some are sent directly no more, until the coordinator says so again."""
        self._gateway, self._client_id = gateway, client_id
        before = self.declared
        self.declared = {topic: each for topic, each in declared.items() if _can_be_promised(each)}
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


def _can_be_promised(declared: Declared) -> bool:
    return declared.min_separation_seconds is not None and declared.max_size_bytes is not None
