"""A publisher: connects to the gateway, declares how much it will publish or lets that be measured, and publishes.

    async with Publisher("http://127.0.0.1:8080", name="smoke-12") as publisher:
        await publisher.publish("building/3/12/smoke", b"0.7", qos=1)

The smallest of sensors `publish_without_connection`: QoS -1, one datagram, no answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, Unpack

from triagemq.addresses import GatewayAddress
from triagemq.client.blocking import Blocking, blocking
from triagemq.client.connection import Connection, notify
from triagemq.client.coordinator import Coordinator, Direction, HeartbeatReply
from triagemq.client.directions import Directing
from triagemq.client.events import ConnectionCounters
from triagemq.client.outbox import without_registration
from triagemq.client.participant import POLL_SECONDS, Participant, ParticipantOptions
from triagemq.client.sockets import unreachable
from triagemq.client.types import TypedTopic
from triagemq.errors import (
    ClientError,
    ClosedError,
    CoordinatorError,
    GatewayUnreachableError,
    ParameterError,
)
from triagemq.intents import PublicationIntent, PublisherTerms
from triagemq.mqttsn import encode_publish
from triagemq.mqttsn.timestamps import stamp_payload, with_generation
from triagemq.waiting import end, is_set_within

_FLUSH_SECONDS = 1.0
_SETTLING_SECONDS = 0.05
"""From the old broker's last acknowledgement to the new gateway's first event: the delay from broker to gateways."""

_LONGEST_BY_GATEWAY = 65_000
"""Octets of an event that fit a UDP datagram with all headers: a longer one goes directly, or not at all."""

SlowDownMode = Literal["wait", "skip", "ignore"]
"""An event that comes too early waits for its turn, is left out, or is published all the same."""

_MODES = ("wait", "skip", "ignore")


class Publisher(Participant[PublicationIntent]):
    """See the module's text. With `stamp` events carry the time of their publication in front of the payload.

    Promised events are sent without a broker as well, as `network` says, unless `direct` is off. Such an
    event waits until the declared `min_separation_seconds` are over, and one that is larger than declared is an error.

    Where a subscriber's events would come too late the coordinator may request some topics less often. `on_slow_down`
    gets their events per second at each change: none are left when it is over. By default (`slow_down`)
    `publish` waits until it is time, one event after the other; with "skip" it leaves out what comes too early, and
    with "ignore" it does nothing about it.

    `on_connected` gets the address of the gateway at each connection, `on_disconnected` the reason of a loss, and
    `on_problem` what goes wrong in the background: a topic that is refused later on, or an error in the background.
    """

    def __init__(
        self,
        coordinator: str | Coordinator | None = None,
        *,
        stamp: bool = False,
        on_slow_down: Callable[[Mapping[str, float]], None] | None = None,
        slow_down: SlowDownMode = "wait",
        **options: Unpack[ParticipantOptions],
    ) -> None:
        super().__init__("publisher", coordinator, options)
        self._stamp = stamp
        self._failure: ClientError | None = None
        # Of topics that were declared while the coordinator was away; each is raised once.
        self._refusals: dict[object, CoordinatorError] = {}
        self._rates = TopicRates(slow_down, on_slow_down)
        self._direction = Direction()
        # While it moves to another gateway: what is published waits for this.
        self._moved: asyncio.Future[None] | None = None
        is_on = self._direct and self._coordinator is not None
        self._directing = Directing(self._network, self.settings, self._background, is_on=is_on)

    # Life.

    async def close(self) -> None:
        """Wait for acknowledgements (not for ever), withdraw what was declared, and leave."""
        self._rates.follow({})
        await end(self._watching)
        leaving = list(self._leaving.values())
        if leaving:
            await asyncio.wait({task for task, _ in leaving}, timeout=self.settings.close_timeout_seconds)
            await end(*(task for task, _ in leaving))
        await asyncio.gather(*(left.close() for _, left in leaving), return_exceptions=True)
        try:
            await self._directing.close()
        finally:
            await self._leave()

    def _replied(self, reply: HeartbeatReply) -> None:
        self._rates.request(reply.slow_down)

    # Following the plan.

    def _begin_watching(self) -> None:
        if self._may_move or self._directing.declared:
            super()._begin_watching()

    async def _ask(self, after: int) -> Direction:
        assert self._coordinator is not None
        if self._directing.has_moved() and self._lease is not None:
            # In another network switches would take its packets for a stranger's.
            await self._lease.changed()
        self._direction = await self._coordinator.direction(self.name, after=after, wait_seconds=POLL_SECONDS)
        return self._direction

    async def _follow(self) -> None:
        try:
            await self._directing.fit(self._direction.topics, self._direction.generation)
        except ClientError as error:
            # It goes to all by the gateway.
            self._directing.problem = str(error)
            raise

    async def _redirect(self, address: GatewayAddress) -> None:
        await super()._redirect(address)
        await self._directing.redirect(address, self._client_id)

    async def _move(self, address: GatewayAddress) -> None:
        """Go on at another gateway when the old one's broker has all that was published, so that nothing overtakes it.

        Where that does not answer, what it has not acknowledged is sent to the new one. Only QoS 2 that it may have
        waits until it is back: it alone knows whether that was published.
        """
        await self._until_left(address)
        left = self._require_connection()
        new = self._make_connection(address, self._arrived)
        await new.open()
        moved = asyncio.get_running_loop().create_future()
        try:
            await asyncio.gather(*(new.register(topic) for topic in self._requested), return_exceptions=True)
            self._moved = moved
            if left.is_active:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_FLUSH_SECONDS):
                        await left.flush()
                        await asyncio.sleep(_SETTLING_SECONDS)
            self._connection = new
            await new.take_over(left)
            self._leave_behind(left, lambda: _leave_gateway(left))
            await self._directing.redirect(address, self._client_id)
        finally:
            moved.set_result(None)
            self._moved = None
            if self._connection is not new:
                await new.close()

    # What is declared.

    async def declare(
        self, rates: Mapping[str, float | tuple[float, float] | None], *, size_bytes: float | None = None
    ) -> None:
        """Say how often each topic is published: events a second, or that and the mean size; None is measured.

        It replaces what was declared before. Without a coordinator it has no effect. Calls that overlap take effect in
        the order in which they were made; what the coordinator refuses leaves what was declared before.
        """
        declared = {
            topic: PublicationIntent(topic, *rate)
            if isinstance(rate, tuple)
            else PublicationIntent(topic, rate, size_bytes)
            for topic, rate in rates.items()
        }
        await self._declare(declared)

    async def declare_all(self, declared: Iterable[PublicationIntent]) -> None:
        """Say of each topic what promises need, too: the times between events, and their largest size.

        It replaces what was declared before, as `declare` does.
        """
        await self._declare({each.topic: each for each in declared})

    async def _declare(self, declared: dict[str, PublicationIntent]) -> None:
        self._background.raise_failure()
        await self._change(lambda before: declared)
        self._refusals.clear()
        if self._connection is not None:
            if await self._directing.begin(self._connection.address, self._client_id, declared):
                self._generation = 0
            self._begin_watching()

    async def addresses(self) -> dict[str, str]:
        """Topics with an admitted promise, and the multicast addresses that they go to."""
        if self._coordinator is None:
            raise ParameterError("addresses", "promises need a coordinator, not a gateway alone")
        found = await self._coordinator.promises_of("publishers", self.name)
        return {each.topic: each.address for each in found if each.address is not None}

    def _terms(self, requested: tuple[PublicationIntent, ...]) -> PublisherTerms:
        return PublisherTerms(requested, self._lease_seconds, self._directing.source_of(requested))

    async def _refused(self, topic: str, error: CoordinatorError) -> None:
        self._refusals[topic] = error

    # Publishing.

    async def register(self, topics: Iterable[str]) -> None:
        """Get the ids of topics from the gateway now, so that their first events do not wait for them."""
        connection = self._ready()
        await asyncio.gather(*map(connection.register, topics))

    async def publish(
        self,
        topic: str | int | TypedTopic[Any],
        payload: Any,
        *,
        qos: int = 0,
        retain: bool = False,
        wait: bool = True,
    ) -> bool:
        """Publish an event, octets or a value of a TypedTopic; QoS 1 and 2 return when it is acknowledged.

        False is for what was left out, since the topic is to be published less often (`slow_down="skip"`).

        With `wait=False` they return as soon as there is room for it among the unacknowledged (see
        ConnectionSettings.in_flight_messages); `flush` then waits for all, and raises what went wrong with one.

        GatewayUnreachableError has the reason why the gateway does not answer within
        ConnectionSettings.answer_timeout_seconds; an event of QoS 1 or 2 is sent all the same until it does.
        CoordinatorError is for a topic that the coordinator has refused since it was declared.
        """
        self._ready()
        if isinstance(topic, TypedTopic):
            topic, payload = topic.topic, topic.encode(payload)
        if (refusal := self._refusals.pop(topic, None)) is not None:
            raise refusal
        if not await self._rates.turn(topic):
            return False
        generation = await self._directing.publish(topic, payload)
        if generation is not None and len(payload) > _LONGEST_BY_GATEWAY:
            return True
        try:
            connection, done = await self._send(topic, payload, generation, qos=qos, retain=retain)
            if done is not None and wait:
                await connection.acknowledged(done, topic)
            elif done is not None:
                done.add_done_callback(self._done)
        except GatewayUnreachableError as error:
            if self._lease is None or not self._lease.problem:
                raise
            raise GatewayUnreachableError(f"{error}; {self._lease.problem}") from None
        return True

    async def _send(
        self, topic: str | int, payload: bytes, generation: int | None, **options: Any
    ) -> tuple[Connection, asyncio.Future[None] | None]:
        """Publish over the connection of this moment: there may be another one after any wait."""
        while True:
            while self._moved is not None:
                await asyncio.shield(self._moved)
            connection, octets = self._require_connection(), payload
            if self._stamp:
                octets = stamp_payload(octets, time.time_ns())
            if generation is not None and self._directing.connection:
                connection, octets = self._directing.connection, with_generation(octets, generation)
            try:
                return connection, await connection.publish(topic, octets, **options, wait=False)
            except ClosedError:
                # It moved while this event waited for a place or for the id of its topic, and was not sent.
                if connection in self._connections():
                    raise

    async def flush(self) -> None:
        """Wait until everything is acknowledged; raises the first refusal since the last flush."""
        self._background.raise_failure()
        for connection in (*self._connections(), *(left for _, left in list(self._leaving.values()))):
            await connection.flush()
        # Callers that wait for the last acknowledgement continue in the order in which they began to.
        await asyncio.sleep(0)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _done(self, done: asyncio.Future[None]) -> None:
        error = None if done.cancelled() else done.exception()
        if isinstance(error, ClientError) and self._failure is None:
            self._failure = error

    @property
    def counters(self) -> ConnectionCounters:
        """What happened so far."""
        return ConnectionCounters.of(connection.counters for connection in self._connections())

    @property
    def sent_directly(self) -> int:
        """Events that went to some subscribers without a broker."""
        return self._directing.published

    @property
    def requested_rates(self) -> Mapping[str, float]:
        """The topics that are to be published less often, and their events per second."""
        return self._rates.requested

    @property
    def skipped(self) -> int:
        """Events that were left out because their topic is to be published less often."""
        return self._rates.skipped

    def _connections(self) -> list[Connection]:
        return [each for each in (self._connection, self._directing.connection) if each is not None]

    @property
    def _direct_problem(self) -> str:
        return self._directing.problem


class BlockingPublisher(Blocking[Publisher]):
    """Takes what Publisher takes. Its methods may be called by several threads."""

    def __init__(self, coordinator: str | None = None, **options: Any) -> None:
        super().__init__(Publisher(coordinator, **options))

    declare = blocking(Publisher.declare)
    declare_all = blocking(Publisher.declare_all)
    addresses = blocking(Publisher.addresses)
    register = blocking(Publisher.register)
    publish = blocking(Publisher.publish)
    flush = blocking(Publisher.flush)


async def _leave_gateway(left: Connection) -> None:
    await left.until_acknowledged()
    await left.close(end_session=True)


def publish_without_connection(
    gateway: str,
    topic: str | int,
    payload: bytes,
    *,
    retain: bool = False,
    predefined_topics: Mapping[int, str] | None = None,
) -> None:
    """Send an event to a topic that needs no registration: a predefined id, or a name of two octets."""
    host, port, secure = GatewayAddress.parse(gateway)
    if secure:
        raise ParameterError("gateway", "one datagram makes no DTLS association; use a Publisher with qos=-1")
    reference = without_registration(topic, predefined_topics or {})
    if reference is None:
        raise ParameterError("topic", f"QoS -1 needs a predefined topic or two octets, not {topic!r}")
    datagram = encode_publish(*reference, payload, -1, retain)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as sender:
            sender.sendto(datagram, address)
    except OSError as error:
        raise unreachable(host, port, error) from error


class TopicRates:
    """Requested rates, and when each topic may be published next. An event may come early by one place.

    A sensor's next reading is worth more than an old one, so that by default publishing waits for its turn: a program
    that reads, publishes and awaits that, reads less often, and loses nothing that it has read.
    """

    def __init__(self, mode: str, on_slow_down: Callable[[Mapping[str, float]], None] | None) -> None:
        if mode not in _MODES:
            raise ParameterError("slow_down", f"is {mode!r}; it is one of {', '.join(_MODES)}")
        self._mode = mode
        self._on_slow_down = on_slow_down
        self._due: dict[str, float] = {}
        self._turns: dict[str, asyncio.Lock] = {}
        self._changed = asyncio.Event()
        self.requested: Mapping[str, float] = {}
        """Events per second, by topic, of those that are to slow down."""
        self.skipped = 0
        """Events that were left out."""

    def request(self, rates: Mapping[str, float]) -> None:
        """These topics are to be published no more often than that, and all others as they come."""
        if rates == self.requested:
            return
        self.follow(rates)
        if self._on_slow_down is not None:
            # Later, so that an error in it has no other effect.
            asyncio.get_running_loop().call_soon(notify, self._on_slow_down, self.requested)

    def follow(self, rates: Mapping[str, float]) -> None:
        """Without any, no event waits for its turn."""
        self.requested = dict(rates)
        self._due = {topic: due for topic, due in self._due.items() if topic in rates}
        self._changed.set()
        self._changed = asyncio.Event()

    async def turn(self, topic: object) -> bool:
        """Wait until an event may be published; False if it is to be left out."""
        if not isinstance(topic, str) or topic not in self.requested or self._mode == "ignore":
            return True
        # In the order in which they came.
        async with self._turns.setdefault(topic, asyncio.Lock()):
            while (wait := self._wait_seconds(topic)) > 0:
                if self._mode == "skip":
                    self.skipped += 1
                    return False
                await is_set_within(self._changed, wait)
            if topic in self.requested:
                now, between = asyncio.get_running_loop().time(), 1.0 / self.requested[topic]
                self._due[topic] = max(self._due.get(topic, now), now - between) + between
        return True

    def _wait_seconds(self, topic: str) -> float:
        now = asyncio.get_running_loop().time()
        return self._due.get(topic, now) - now if topic in self.requested else 0.0
