"""A subscriber: says what it wants and what that is worth, and gets events.

    async with Subscriber("http://127.0.0.1:8080", name="ff-7") as subscriber:
        await subscriber.subscribe("building/3/+/smoke", utility="log:10")
        async for event in subscriber:
            print(event.topic, event.payload)

With `gateway="127.0.0.1:10000"` instead of a coordinator it is a plain MQTT-SN client over one connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Iterable, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

from triagemq.addresses import GatewayAddress
from triagemq.client.connection import Connection, connection_id, notify
from triagemq.client.coordinator import (
    Assignment,
    Coordinator,
    HeartbeatReply,
    Promise,
    Registration,
    RequiredDelay,
)
from triagemq.client.direct import NetworkSettings
from triagemq.client.directions import PromisedTopics, joining
from triagemq.client.events import Event, EventQueue, ExactlyOnce, Overflow, ReceivedCounts
from triagemq.client.moving import (
    AWAY_PAUSE_SECONDS,
    POLL_PAUSE_SECONDS,
    POLL_SECONDS,
    Handover,
    Tap,
    drained,
    level,
    nowhere,
)
from triagemq.client.participant import Lease, Participant
from triagemq.client.settings import ConnectionSettings, Will
from triagemq.client.types import TypedTopic
from triagemq.errors import (
    ClientError,
    CoordinatorError,
    GatewayUnreachableError,
    ParameterError,
)
from triagemq.intents import SubscriberTerms, Utility, Wanted
from triagemq.mqttsn.filters import matches
from triagemq.waiting import end

_SUBSCRIBE_AT_ONCE = 32
_PROMISE_PAUSE_SECONDS = 0.1
_DECIDED_SECONDS = 10.0

_Thing = TypeVar("_Thing", bound=Hashable)


class Subscriber(Participant[Wanted]):
    """See the module's text. `on_event` gets events instead of the queue behind `async for`.

    What is promised comes without a broker, as `network` says, and is handed on like all else; unless `direct` is off.

    `on_connected` hears the address of the gateway each time that it is connected, `on_disconnected` why it is no more,
    and `on_problem` of what goes wrong meanwhile. Without `on_problem` the refusal of a filter that was requested
    while the coordinator was away is raised where events are taken.
    """

    def __init__(
        self,
        coordinator: str | Coordinator | None = None,
        *,
        name: str | None = None,
        token: str | None = None,
        gateway: str | None = None,
        port: str | None = None,
        lease_seconds: float = 10.0,
        keep_session: bool = False,
        queue_events: int = 10_000,
        overflow: Overflow | str = Overflow.DROP_OLDEST,
        on_event: Callable[[Event], None] | None = None,
        direct: bool = True,
        network: NetworkSettings | None = None,
        on_connected: Callable[[str], None] | None = None,
        on_disconnected: Callable[[str], None] | None = None,
        on_problem: Callable[[ClientError], None] | None = None,
        will: Will | None = None,
        settings: ConnectionSettings | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(
            "subscriber",
            coordinator,
            gateway=gateway,
            name=name,
            token=token,
            keep_session=keep_session,
            will=will,
            settings=settings,
            ssl_context=ssl_context,
            on_connected=on_connected,
            on_disconnected=on_disconnected,
            on_problem=on_problem,
        )
        self.assignment: Assignment | None = None
        """What the plan in force means for this subscriber, once it is known."""
        self.refused_delays: tuple[RequiredDelay, ...] = ()
        """Delays requested by `max_latency_seconds` alone that no port is quick enough for."""
        self._port, self._lease_seconds = port, lease_seconds
        self._on_event = on_event
        self._raises_refusals = on_problem is None
        self._queue: EventQueue[Event] = EventQueue(queue_events, Overflow(overflow))
        self._received = ReceivedCounts()
        self._turns: _Turns[str | int] = _Turns()
        # Where the events of the gateway go, and the one that is being left.
        self._once = ExactlyOnce()
        self._tap = Tap(self._arrived)
        self._client_id_base = ""
        # By address, the gateways that are being left.
        self._leaving: dict[GatewayAddress, tuple[asyncio.Task[None], Handover, Connection]] = {}
        self._watching: asyncio.Task[None] | None = None
        self._types: dict[str, TypedTopic[Any]] = {}
        self._takes_direct = direct
        self._listening = PromisedTopics(joining(network, self.settings), self._came)
        self.undecodable = 0
        """Events that are none of their topic's type."""

    # Life.

    async def _open(self, coordinator: Coordinator) -> None:
        self._lease = Lease(coordinator, self)
        announced = await self._lease.begin(self.settings.connect_timeout_seconds)
        self._client_id_base = announced.client_id
        self._connection = self._make_connection(
            announced.gateway, connection_id(announced.client_id), self._tap
        )
        await self._connection.open()
        self._watching = self._background.start(
            "following the plan", lambda: self._watch_assignment(coordinator)
        )

    async def close(self) -> None:
        """Withdraw what was wanted and leave; events that are here can still be taken."""
        await end(self._watching)
        pending = list(self._leaving.values())
        if self._keep_session and (there := [task for task, _, left in pending if left.is_active]):
            # A second session would store what this one stores.
            await asyncio.wait(there, timeout=self.settings.close_timeout_seconds)
        for _, handover, _ in pending:
            handover.is_given_up = True
        await asyncio.gather(*(task for task, _, _ in pending), return_exceptions=True)
        await self._listening.fit([])
        async with contextlib.AsyncExitStack() as leaving:
            leaving.callback(self._queue.end)
            leaving.push_async_callback(self._leave)

    async def _announced(self, announced: Registration) -> None:
        """A coordinator that lost its memory, or leads another gateway now, may give another client id."""
        if announced.may_move and announced.client_id == self._client_id_base:
            # If it is to move, the assignment says so.
            return
        self._client_id_base = announced.client_id
        if self._connection is not None:
            with contextlib.suppress(GatewayUnreachableError):
                await self._connection.redirect(announced.gateway, connection_id(announced.client_id))

    # What is wanted.

    async def subscribe(
        self,
        topic: str | int | TypedTopic[Any],
        *,
        utility: Utility | str | Mapping[str, Any] | None = None,
        max_latency_seconds: float | None = None,
        max_latency_share: float | None = None,
        max_separation_seconds: float | None = None,
        guaranteed: bool = False,
        or_brokered: bool = True,
        qos: int = 0,
    ) -> None:
        """Want a topic or a filter; the same again changes what it is worth.

        `utility` is text (log:10, linear:2, step:3@0.8), or a mapping with shape, weight, threshold, freshness_seconds.
        `guaranteed` asks for the promise that nothing comes later than `max_latency_seconds`. What is refused comes by
        the broker and is worth what it is worth; without `or_brokered` it is not wanted then, and PromiseRefusedError
        says what would be admitted. With a TypedTopic events have a `value`.
        """
        terms: dict[str, Any] = {
            "utility": utility,
            "max_latency_seconds": max_latency_seconds,
            "max_latency_share": max_latency_share,
            "max_separation_seconds": max_separation_seconds,
            "guaranteed": guaranteed or None,
        }
        requested = {name: value for name, value in terms.items() if value is not None}
        typed = topic if isinstance(topic, TypedTopic) else None
        topic = topic.topic if isinstance(topic, TypedTopic) else topic
        if isinstance(topic, str):
            one = Wanted(topic, qos=qos, **requested)
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
        else:
            await self._subscribe_by_id(topic, qos, bool(requested))

    def _set_type(self, topic: str, typed: TypedTopic[Any] | None) -> None:
        if typed is None:
            self._types.pop(topic, None)
        else:
            self._types[topic] = typed

    async def subscribe_all(self, wanted: Iterable[Wanted]) -> None:
        """Want several at once: one request to the coordinator; all of them, or none if one is refused.

        Calls that overlap do not disturb each other; those about the same topic take effect one after the other.
        """
        self._ready()
        new = {one.topic: one for one in wanted}
        self._check_is_heeded(any(one != Wanted(one.topic, qos=one.qos) for one in new.values()))
        async with self._turns.of(new):
            await self._subscribe_in_turn(self._require_connection(), new)

    def _check_is_heeded(self, asked_for_more: bool) -> None:
        if self._coordinator is None and asked_for_more:
            raise ParameterError(
                "subscribe", "utilities and deadlines need a coordinator, not a gateway alone"
            )

    async def _subscribe_by_id(self, topic_id: int, qos: int, asked_for_more: bool) -> None:
        """A topic that the gateway has predefined, of which no coordinator knows."""
        first = self._ready()
        self._check_is_heeded(asked_for_more)
        if self._coordinator is not None:
            raise ParameterError("topic", "a coordinator knows topics by name; do not give a predefined id")
        async with self._turns.of([topic_id]):
            await first.subscribe(topic_id, qos=qos)

    async def _subscribe_in_turn(self, first: Connection, new: dict[str, Wanted]) -> None:
        before = {topic: one for topic, one in self._requested.items() if topic in new}
        await self._want(new)
        changed = [one for topic, one in new.items() if topic not in before or before[topic].qos != one.qos]
        results = await self._subscribe_at(first, changed)
        failure = next((result for result in results if isinstance(result, BaseException)), None)
        if failure is not None:
            # All or none, as far as the gateway can still be reached.
            with contextlib.suppress(ClientError):
                await self._want(before, [topic for topic in new if topic not in before])
                for one, result in zip(changed, results, strict=True):
                    if result is None and one.topic not in before:
                        await first.unsubscribe(one.topic)
                    elif result is None:
                        await first.subscribe(one.topic, qos=before[one.topic].qos)
            raise failure

    async def unsubscribe(self, *topics: str | int) -> None:
        """Want them no more."""
        first = self._ready()
        async with self._turns.of(topics):
            await asyncio.gather(*(first.unsubscribe(topic) for topic in topics))
            left = [topic for topic in self._requested if topic not in topics]
            await self._listening.leave(lambda name: any(matches(topic, name) for topic in left))
            for topic in topics:
                self._types.pop(str(topic), None)
            await self._want({}, topics)

    @property
    def wanted(self) -> list[Wanted]:
        """What is wanted now."""
        return list(self._requested.values())

    async def _want(self, wanted: Mapping[str, Wanted], no_more: Collection[str | int] = ()) -> None:
        """Change what is wanted of some topics."""
        await self._change(
            lambda before: (
                {topic: one for topic, one in before.items() if topic not in no_more} | dict(wanted)
            )
        )

    def _terms(self, requested: tuple[Wanted, ...]) -> SubscriberTerms:
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
        async with self._turns.of([topic]):
            while topic not in self._requested:
                # As long as the gateway does not answer; it is no failure of ours.
                with contextlib.suppress(GatewayUnreachableError):
                    await self._require_connection().unsubscribe(topic)
                    return

    def _failed(self, error: ClientError) -> None:
        self._queue.fail(error)

    # What the plan says.

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

    async def _watch_assignment(self, coordinator: Coordinator) -> None:
        after = 0

        async def ask(after: int) -> Assignment:
            return await coordinator.assignment(self.name, after=after, wait_seconds=POLL_SECONDS)

        while True:
            try:
                assignment = await ask(after)
                if assignment.generation != after:
                    self.assignment = assignment
                    # One that cannot be reached now is tried again.
                    is_there = await self._go(assignment.gateway, ask, assignment.generation)
                    after = assignment.generation if is_there else 0
                    await self._listen(coordinator)
            except CoordinatorError:
                # Away, or it has forgotten us: the lease sees to that, and everything goes on meanwhile.
                after = 0
                await asyncio.sleep(AWAY_PAUSE_SECONDS)
            await asyncio.sleep(POLL_PAUSE_SECONDS)

    # Moving.

    async def _move(self, address: GatewayAddress) -> None:
        """Be at both gateways until the old one has nothing more."""
        if address in self._leaving:
            # It is being left, and can be come to when that is done: whatever went wrong with it.
            await asyncio.wait({self._leaving[address][0]})
        left, left_tap = self._require_connection(), self._tap
        # Through what is still being compared with an earlier gateway.
        before = left_tap.take
        handover = Handover(before)
        tap = Tap(handover.new)
        # A session that is there already is for this client.
        new = self._make_connection(address, connection_id(self._client_id_base), tap, client_id_is_new=True)
        left_tap.take = handover.old
        try:
            async with self._turns.of(self._requested):
                await new.open()
                for failure in await self._subscribe_at(new, self._requested.values()):
                    if failure is not None:
                        raise failure
                handover.joined(time.monotonic())
                self._connection, self._tap = new, tap
        except BaseException:
            left_tap.take = before
            # Where it still is brings everything; otherwise something may be stored for it there.
            with contextlib.suppress(ClientError):
                await new.close(end_session=left.is_active)
            raise
        self.moves += 1
        leaving = self._background.start(
            "leaving a gateway",
            lambda: self._leave_gateway(handover, tap, left, left_tap),
        )
        self._leaving[left.address] = leaving, handover, left
        leaving.add_done_callback(lambda _: self._leaving.pop(left.address, None))

    async def _leave_gateway(
        self,
        handover: Handover,
        tap: Tap,
        left: Connection,
        left_tap: Tap,
    ) -> None:
        await drained(handover, left)
        left_tap.take = nowhere
        # Two sessions would both store what comes; one of which nothing is known here may hold something.
        await left.close(end_session=not handover.is_given_up)
        await level(handover)
        handover.is_over = True
        if tap.take == handover.new:
            tap.take = handover.hand_on

    async def _subscribe_at(self, first: Connection, wanted: Iterable[Wanted]) -> list[BaseException | None]:
        """Ask a gateway for topics, some at a time; what went wrong with each."""
        turn = asyncio.Semaphore(_SUBSCRIBE_AT_ONCE)

        async def subscribe(one: Wanted) -> None:
            async with turn:
                await first.subscribe(one.topic, qos=one.qos)

        return await asyncio.gather(*map(subscribe, wanted), return_exceptions=True)

    async def _listen(self, coordinator: Coordinator) -> None:
        """Listen to promised topics directly, and announce that: from then on they come there."""
        is_promised = any(each.guaranteed for each in self._requested.values())
        if not self._takes_direct or not (is_promised or self._listening.addresses):
            return
        promises = await coordinator.promises_of("subscribers", self.name)
        if await self._listening.fit(promises):
            await self._change(lambda before: before)

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

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        event = await self._take()
        if event is None:
            raise StopAsyncIteration
        return event

    async def next(self, timeout_seconds: float | None = None) -> Event | None:
        """The next event; None when none has come in that time, or the subscriber was closed."""
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._take()
        except TimeoutError:
            return None

    async def _take(self) -> Event | None:
        if not self._queue:
            self._background.raise_failure()
        return await self._queue.take()

    async def take_all(self) -> list[Event]:
        """All events that are here, at least one; none when the subscriber was closed."""
        if not self._queue:
            self._background.raise_failure()
        return await self._queue.take_all()

    @property
    def overflowed(self) -> int:
        """Events that were dropped because the program did not take them in time."""
        return self._queue.overflowed

    @property
    def connection(self) -> Connection:
        """That to its gateway."""
        return self._require_connection()

    @property
    def problem(self) -> str:
        """What is wrong at the moment; empty if nothing is."""
        problems = [] if self._lease is None else [self._lease.problem]
        problems.append(self._listening.problem)
        if self._connection is not None:
            problems.append(self._connection.problem)
        return "; ".join(dict.fromkeys(problem for problem in problems if problem))


class _Turns(Generic[_Thing]):
    """Calls that concern the same things go one after the other, others side by side.

    Turns are taken in the order of the calls, for each thing; no call holds one thing while it waits for another.
    """

    def __init__(self) -> None:
        self._last: dict[_Thing, asyncio.Future[None]] = {}

    @contextlib.asynccontextmanager
    async def of(self, things: Iterable[_Thing]) -> AsyncIterator[None]:
        """Wait until all that were here before for one of the things are done."""
        mine = set(things)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        earlier = {self._last[thing] for thing in mine if thing in self._last}
        self._last |= dict.fromkeys(mine, done)
        try:
            # Whoever gives up while it waits still lets the next one wait for those before it.
            if earlier:
                await asyncio.shield(asyncio.gather(*earlier))
            yield
        finally:
            self._pass_on(mine, done, earlier)

    def _pass_on(
        self, things: set[_Thing], done: asyncio.Future[None], earlier: set[asyncio.Future[None]]
    ) -> None:
        unfinished = [each for each in earlier if not each.done()]
        if unfinished:
            after = asyncio.gather(*unfinished)
            after.add_done_callback(lambda _: self._pass_on(things, done, set()))
            return
        if not done.done():
            done.set_result(None)
        for thing in things:
            if self._last.get(thing) is done:
                del self._last[thing]
