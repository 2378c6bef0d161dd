"""A subscriber: announces topics with their worth, and gets events.

    async with Subscriber("http://127.0.0.1:8080", name="ff-7") as subscriber:
        await subscriber.subscribe("building/3/+/smoke", utility="log:10")
        async for event in subscriber:
            print(event.topic, event.payload)

With `gateway="127.0.0.1:10000"` instead of a coordinator it is a plain MQTT-SN client over one connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, Unpack

from triagemq.addresses import GatewayAddress
from triagemq.client.blocking import BlockingSource, blocking
from triagemq.client.connection import Connection, connection_id, notify
from triagemq.client.coordinator import (
    Assignment,
    Coordinator,
    HeartbeatReply,
    LimitedClaim,
    Promise,
    RequiredDelay,
)
from triagemq.client.directions import PromisedTopics
from triagemq.client.events import Event, EventQueue, EventSource, ExactlyOnce, ReceivedCounts
from triagemq.client.moving import Handover, drained, level
from triagemq.client.participant import POLL_SECONDS, Participant, ParticipantOptions
from triagemq.client.types import TypedTopic
from triagemq.errors import (
    ClientError,
    CoordinatorError,
    GatewayUnreachableError,
    ParameterError,
)
from triagemq.intents import SubscriberTerms, SubscriptionIntent, Utility
from triagemq.mqttsn.filters import matches
from triagemq.waiting import end

_SUBSCRIBE_AT_ONCE = 32
_PROMISE_PAUSE_SECONDS = 0.1
_DECIDED_SECONDS = 10.0


class Subscriber(EventSource[Event], Participant[SubscriptionIntent]):
    """See the module's text. `on_event` gets events instead of the queue behind `async for`.

    What is promised comes without a broker, as `network` says, and is handed on like all else; unless `direct` is off.

    `on_connected` gets the address of the gateway at each connection, `on_disconnected` the reason of a loss, and
    `on_problem` what goes wrong in the background. Without `on_problem` the refusal of a filter that was requested
    while the coordinator was away is raised where events are taken.
    """

    def __init__(
        self,
        coordinator: str | Coordinator | None = None,
        *,
        port: str | None = None,
        queue_events: int = 10_000,
        on_event: Callable[[Event], None] | None = None,
        **options: Unpack[ParticipantOptions],
    ) -> None:
        super().__init__("subscriber", coordinator, options)
        self.assignment: Assignment | None = None
        """What the plan in force means for this subscriber, once it is known."""
        self.refused_delays: tuple[RequiredDelay, ...] = ()
        """Delays requested by `max_latency_seconds` alone that no port is quick enough for."""
        self.limited_claims: tuple[LimitedClaim, ...] = ()
        """What the operator's policy refuses of its claims, or lowers to its budget."""
        self._port = port
        self._on_event = on_event
        self._raises_refusals = options.get("on_problem") is None
        self._queue: EventQueue[Event] = EventQueue(queue_events)
        self._received = ReceivedCounts()
        self._subscribing = asyncio.Lock()
        self._once = ExactlyOnce()
        self._closing = asyncio.Event()
        self._types: dict[str, TypedTopic[Any]] = {}
        self._listening = PromisedTopics(self._network, self._came)
        self.undecodable = 0
        """Events that are none of their topic's type."""

    # Life.

    async def close(self) -> None:
        """Withdraw the subscriptions and leave; events that are here can still be taken."""
        await end(self._watching)
        leaving = list(self._leaving.values())
        if self._keep_session and (there := [task for task, left in leaving if left.is_active]):
            # A second session would store what this one stores.
            await asyncio.wait(there, timeout=self.settings.close_timeout_seconds)
        self._closing.set()
        await asyncio.gather(*(task for task, _ in leaving), return_exceptions=True)
        await self._listening.fit([])
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._queue.end)
            stack.push_async_callback(self._leave)

    def _connection_id(self) -> str:
        return self._client_id if self._coordinator is None else connection_id(self._client_id)

    # Subscriptions.

    async def subscribe(
        self,
        topic: str | int | TypedTopic[Any],
        *,
        utility: Utility | str | Mapping[str, Any] | None = None,
        max_latency_seconds: float | None = None,
        max_latency_share: float | None = None,
        max_separation_seconds: float | None = None,
        min_share: float | None = None,
        max_rate_per_second: float | None = None,
        newest_only: bool = False,
        expires_seconds: float | None = None,
        properties: bool = False,
        guaranteed: bool = False,
        or_brokered: bool = True,
        qos: int = 0,
    ) -> None:
        """Subscribe to a topic or a filter; the same again changes what it is worth.

        `utility` is text (log:10, linear:2, step:3@0.8), or a mapping with shape, weight, threshold, freshness_seconds.
        At least `min_share` of the events shall come, but no more than `max_rate_per_second` of each topic, in even
        intervals; with `newest_only` none that has a successor while it waits; none older than `expires_seconds`.
        With `properties` events have what their MQTT 5 publishers say of them.
        `guaranteed` requests the promise that nothing comes later than `max_latency_seconds`. What is refused comes by
        the broker and is worth what it is worth; without `or_brokered` it is withdrawn then, and PromiseRefusedError
        has what would be admitted. A number is a topic id that the gateway has predefined. With a TypedTopic events
        have a `value`.
        """
        terms: dict[str, Any] = {
            "utility": utility,
            "max_latency_seconds": max_latency_seconds,
            "max_latency_share": max_latency_share,
            "max_separation_seconds": max_separation_seconds,
            "min_share": min_share,
            "max_rate_per_second": max_rate_per_second,
            "newest_only": newest_only or None,
            "expires_seconds": expires_seconds,
            "properties": properties or None,
            "guaranteed": guaranteed or None,
        }
        requested = {name: value for name, value in terms.items() if value is not None}
        typed = topic if isinstance(topic, TypedTopic) else None
        topic = topic.topic if isinstance(topic, TypedTopic) else topic
        if isinstance(topic, str):
            one = SubscriptionIntent(topic, qos=qos, **requested)
            self._check_is_heeded(bool(requested))
            before = self._types.get(topic)
            # Before the first event can come.
            self._set_type(topic, typed or before)
            try:
                await self.subscribe_all([one])
            except BaseException:
                self._set_type(topic, before)
                raise
            if guaranteed and not or_brokered:
                promise = await self.promise(topic, _DECIDED_SECONDS)
                if promise is not None and not promise.admitted:
                    await self.unsubscribe(topic)
                    raise promise.refusal()
            return
        first = self._ready()
        self._check_is_heeded(bool(requested))
        if self._coordinator is not None:
            raise ParameterError("topic", "a coordinator knows topics by name; do not give a predefined id")
        await first.subscribe(topic, qos=qos)

    def _set_type(self, topic: str, typed: TypedTopic[Any] | None) -> None:
        if typed is None:
            self._types.pop(topic, None)
        else:
            self._types[topic] = typed

    async def subscribe_all(self, subscriptions: Iterable[SubscriptionIntent]) -> None:
        """Subscribe to several at once: one request to the coordinator; all of them, or none if one is refused.

        Calls that overlap take effect one after the other.
        """
        self._ready()
        new = {one.topic: one for one in subscriptions}
        self._check_is_heeded(any(one != SubscriptionIntent(one.topic, qos=one.qos) for one in new.values()))
        async with self._subscribing:
            await self._subscribe_in_turn(self._require_connection(), new)

    def _check_is_heeded(self, has_terms: bool) -> None:
        if self._coordinator is None and has_terms:
            raise ParameterError(
                "subscribe", "utilities, deadlines and other terms need a coordinator, not a gateway alone"
            )

    async def _subscribe_in_turn(self, first: Connection, new: dict[str, SubscriptionIntent]) -> None:
        before = {topic: one for topic, one in self._requested.items() if topic in new}
        await self._request(new)
        changed = [one for topic, one in new.items() if topic not in before or before[topic].qos != one.qos]
        results = await self._subscribe_at(first, changed)
        failure = next((result for result in results if isinstance(result, BaseException)), None)
        if failure is not None:
            # All or none, as far as the gateway can still be reached.
            with contextlib.suppress(ClientError):
                await self._request(before, [topic for topic in new if topic not in before])
                for one, result in zip(changed, results, strict=True):
                    if result is None and one.topic not in before:
                        await first.unsubscribe(one.topic)
                    elif result is None:
                        await first.subscribe(one.topic, qos=before[one.topic].qos)
            raise failure

    async def unsubscribe(self, *topics: str | int) -> None:
        """Withdraw these subscriptions."""
        self._ready()
        async with self._subscribing:
            # It may have moved to another gateway while this call waited.
            connection = self._require_connection()
            await asyncio.gather(*map(connection.unsubscribe, topics))
            left = [topic for topic in self._requested if topic not in topics]
            await self._listening.leave(lambda name: any(matches(topic, name) for topic in left))
            for topic in topics:
                self._types.pop(str(topic), None)
            await self._request({}, topics)

    @property
    def subscriptions(self) -> list[SubscriptionIntent]:
        """What is subscribed to now."""
        return list(self._requested.values())

    async def _request(
        self, new: Mapping[str, SubscriptionIntent], no_more: Collection[str | int] = ()
    ) -> None:
        """Change the subscriptions to some topics."""
        await self._change(
            lambda before: {topic: one for topic, one in before.items() if topic not in no_more} | dict(new)
        )

    def _terms(self, requested: tuple[SubscriptionIntent, ...]) -> SubscriberTerms:
        return SubscriberTerms(
            requested,
            self._port,
            lease_seconds=self._lease_seconds,
            listening=self._listening.addresses,
        )

    async def _refused(self, topic: str, error: CoordinatorError) -> None:
        if topic not in self._requested:
            self._types.pop(topic, None)
            self._background.start(
                f"unsubscribing from {topic!r}", partial(self._unsubscribe_at_gateway, topic)
            )
        if self._raises_refusals:
            self._queue.fail(error)

    async def _unsubscribe_at_gateway(self, topic: str) -> None:
        while True:
            # As long as the gateway does not answer; it is no failure of ours.
            with contextlib.suppress(GatewayUnreachableError):
                async with self._subscribing:
                    if topic not in self._requested:
                        await self._require_connection().unsubscribe(topic)
                    return

    def _failed(self, error: ClientError) -> None:
        self._queue.fail(error, for_good=True)

    # The plan.

    async def promise(self, topic: str, timeout_seconds: float = 10.0) -> Promise | None:
        """What was decided about a topic with `guaranteed`, as soon as that is in force; None if it is not in time.

        Of several publishers it is the one that is refused, or that has the largest bound. There is nothing to decide
        while the topic has no publisher. `topic` is a name, also where a filter was subscribed to.
        """
        if self._coordinator is None:
            raise ParameterError("promise", "promises need a coordinator, not a gateway alone")
        loop = asyncio.get_running_loop()
        end_at = loop.time() + timeout_seconds
        while True:
            left = max(end_at - loop.time(), 0.0)
            found = await self._coordinator.promises(self.name, wait_seconds=min(left, POLL_SECONDS))
            mine = [each for each in found if each.topic == topic]
            if mine:
                return max(mine, key=lambda each: (not each.admitted, each.bound_seconds or 0.0))
            if not left:
                return None
            await asyncio.sleep(min(left, _PROMISE_PAUSE_SECONDS))

    async def report(self) -> None:
        """Report now what was received since the last report; reports are sent three times a lease, too."""
        if self._lease is not None:
            await self._lease.beat()

    def _report_now(self) -> Mapping[str, Any]:
        return self._received.report()

    def _replied(self, reply: HeartbeatReply) -> None:
        known = {(each.topic, each.max_latency_seconds) for each in self.refused_delays}
        self.refused_delays = reply.refused_delays
        for each in self.refused_delays:
            if (each.topic, each.max_latency_seconds) not in known:
                self._background.report(each.refusal())
        before, self.limited_claims = self.limited_claims, reply.limited_claims
        for limited in self.limited_claims:
            if limited not in before:
                self._background.report(limited.refusal())

    async def _ask(self, after: int) -> Assignment:
        assert self._coordinator is not None
        found = await self._coordinator.assignment(self.name, after=after, wait_seconds=POLL_SECONDS)
        if found.generation:
            self.assignment = found
        return found

    async def _follow(self) -> None:
        """Listen to promised topics directly, and announce that: from then on they come there."""
        is_promised = any(each.guaranteed for each in self._requested.values())
        if self._coordinator is None or not self._direct or not (is_promised or self._listening.addresses):
            return
        promises = await self._coordinator.promises_of("subscribers", self.name)
        if await self._listening.fit(promises):
            await self._change(lambda before: before)

    # Moving.

    async def _move(self, address: GatewayAddress) -> None:
        """Be at both gateways until the old one has nothing more."""
        await self._until_left(address)
        left = self._require_connection()
        # Through what is still being compared with an earlier gateway.
        before = left.on_event or self._arrived
        handover = Handover(before)
        # A session that is there already is for this client.
        new = self._make_connection(address, handover.new, client_id_is_new=True)
        left.on_event = handover.old
        try:
            async with self._subscribing:
                await new.open()
                for failure in await self._subscribe_at(new, self._requested.values()):
                    if failure is not None:
                        raise failure
                handover.joined(time.monotonic())
                self._connection = new
        except BaseException:
            left.on_event = before
            # Where it still is brings everything; otherwise something may be stored for it there.
            with contextlib.suppress(ClientError):
                await new.close(end_session=left.is_active)
            raise
        self._leave_behind(left, lambda: self._leave_gateway(handover, new, left))

    async def _leave_gateway(self, handover: Handover, new: Connection, left: Connection) -> None:
        await drained(handover, left, self._closing)
        # What it still brings the new one brings, too.
        left.on_event = None
        # Two sessions would both store what comes; one of which nothing is known here may hold something.
        await left.close(end_session=not self._closing.is_set())
        await level(handover, self._closing)
        handover.is_over = True
        if new.on_event == handover.new:
            new.on_event = handover.hand_on

    async def _subscribe_at(
        self, first: Connection, subscriptions: Iterable[SubscriptionIntent]
    ) -> list[BaseException | None]:
        """Subscribe at a gateway, some topics at a time; the error of each."""
        turn = asyncio.Semaphore(_SUBSCRIBE_AT_ONCE)

        async def subscribe(one: SubscriptionIntent) -> None:
            async with turn:
                await first.subscribe(one.topic, qos=one.qos)

        return await asyncio.gather(*map(subscribe, subscriptions), return_exceptions=True)

    # Events.

    def _arrived(self, event: Event) -> None:
        """From the gateway; the reports count it."""
        if self._lease is not None:
            self._received.count(event)
        if not self._once.is_repeated(event):
            self._came(event)

    def _came(self, event: Event) -> None:
        if self._types and (typed := self._type_of(event.topic)) is not None:
            try:
                event = event._replace(value=typed.decode(event.payload))
            except ParameterError:
                self.undecodable += 1
                return
        if self._on_event is None:
            self._queue.put(event)
        else:
            notify(self._on_event, event)

    def _type_of(self, topic: str) -> TypedTopic[Any] | None:
        """That of the name itself, else of the first filter that takes it."""
        exact = self._types.get(topic)
        return exact or next((typed for each, typed in self._types.items() if matches(each, topic)), None)

    @property
    def connection(self) -> Connection:
        """That to its gateway."""
        return self._require_connection()

    @property
    def _direct_problem(self) -> str:
        return self._listening.problem


class BlockingSubscriber(BlockingSource[Subscriber, Event]):
    """Takes what Subscriber takes; iterate over it, or call `next`, in one thread."""

    def __init__(self, coordinator: str | None = None, **options: Any) -> None:
        inner = Subscriber(coordinator, **options)
        super().__init__(inner, inner)

    subscribe = blocking(Subscriber.subscribe)
    subscribe_all = blocking(Subscriber.subscribe_all)
    unsubscribe = blocking(Subscriber.unsubscribe)
    promise = blocking(Subscriber.promise)
    report = blocking(Subscriber.report)
