"""What publishers and subscribers have in common: a name, a connection to a gateway, and perhaps a coordinator.

A coordinator has their intent on lease: announced, renewed by heartbeats, announced again when the coordinator forgot
it. While it is away everything goes on as it was; reports wait. A report keeps its number until it is answered, so that
none counts twice because an answer was lost. A request from the time in which the coordinator was away may be refused
later: it alone is withdrawn, and the program is notified.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Generic, Literal, TypedDict, TypeVar

from triagemq.addresses import GatewayAddress
from triagemq.client.connection import Background, Connection
from triagemq.client.coordinator import Assignment, Coordinator, Direction, HeartbeatReply, Registration
from triagemq.client.direct import NetworkSettings
from triagemq.client.events import Event
from triagemq.client.settings import ConnectionSettings, Will
from triagemq.errors import (
    ClientError,
    ClosedError,
    CoordinatorError,
    CoordinatorUnreachableError,
    GatewayUnreachableError,
    ParameterError,
)
from triagemq.intents import (
    DEFAULT_LEASE_SECONDS,
    PublicationIntent,
    PublisherTerms,
    SubscriberTerms,
    SubscriptionIntent,
)
from triagemq.waiting import Opened, end

POLL_SECONDS = 20.0
"""How long the coordinator may keep a request for news."""

_POLL_PAUSE_SECONDS = 0.05
_AWAY_PAUSE_SECONDS = 1.0
"""Before a coordinator or gateway that cannot be reached is tried again."""

_PROMPT_SECONDS = 2.0
"""Most have moved by then, and hundreds that move at once would poll for nothing."""

_BEATS_PER_LEASE = 3
_FIRST_DELAY_SECONDS = 0.2
_LONGEST_DELAY_SECONDS = 2.0
_SLOWER = 1.7
_WITHDRAW_SECONDS = 2.0
_MISSING = 404
_NOT_NOW = (502, 503, 504)
_NEVER = (400, 413, 422)
"""A report that is not understood now is not understood later."""

_REFUSALS = (400, 403, 409, 413, 422)
"""Of an intent: the same would be refused again."""

_Requested = TypeVar("_Requested", PublicationIntent, SubscriptionIntent)


class Lease(Generic[_Requested]):
    """The intent of a participant at its coordinator."""

    def __init__(self, coordinator: Coordinator, owner: Participant[_Requested]) -> None:
        self._coordinator: Coordinator = coordinator
        self._owner: Participant[_Requested] = owner
        self._kind, self._name = f"{owner._kind}s", owner.name
        self._background = owner._background
        self._lease_seconds = 10.0
        # Whether the coordinator knows the present intent, as far as we know.
        self._is_announced = False
        # What it has accepted last, by topic.
        self._accepted: Mapping[str, _Requested] = {}
        # The report that was not answered yet. Numbers begin anywhere: another client may have had the name before.
        self._unanswered: Mapping[str, Any] = {}
        self._number = secrets.randbits(48)
        self._turn = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self.problem = ""
        """Why the coordinator was not reached at the last attempt."""
        self._noted_status: int | None = None

    async def begin(self, timeout_seconds: float) -> Registration:
        """Announce for the first time; patient with a coordinator that is about to start, not with one that refuses."""
        loop = asyncio.get_running_loop()
        deadline, delay = loop.time() + timeout_seconds, _FIRST_DELAY_SECONDS
        while True:
            try:
                announced = await self._announce()
                break
            except CoordinatorError as error:
                if not _is_away(error) or loop.time() + delay > deadline:
                    raise
            await asyncio.sleep(delay)
            delay = min(delay * _SLOWER, _LONGEST_DELAY_SECONDS)
        self._task = self._background.start("keeping the lease", self._beat)
        return announced

    async def changed(self) -> None:
        """Announce a changed intent; while the coordinator is away that is left to the next heartbeat."""
        try:
            await self._announce()
            self._recovered()
        except CoordinatorError as error:
            if not _is_away(error):
                raise
            self._note(error)
            self._is_announced = False
        except BaseException:
            # The caller has gone: which intent the coordinator has is not known.
            self._is_announced = False
            raise

    async def beat(self) -> None:
        """A heartbeat with its report now, besides the periodic ones."""
        if self._is_announced:
            await self._heartbeat()

    async def end(self) -> None:
        """Withdraw, if the coordinator is there; otherwise the lease ends by itself."""
        await end(self._task)
        with contextlib.suppress(ClientError, TimeoutError):
            async with asyncio.timeout(_WITHDRAW_SECONDS):
                # One that was sent before may be unanswered, and there may be more since.
                for _ in range(2):
                    if report := self._next_report():
                        await self._send_report(report)
                await self._coordinator.withdraw(self._kind, self._name)

    async def announce_allowed(
        self, requested: Mapping[str, _Requested]
    ) -> tuple[dict[str, _Requested], dict[str, CoordinatorError]]:
        """Announce as much of it as the coordinator accepts; that, and why each other topic is refused.

        What it has accepted before stays announced meanwhile; a topic whose new terms are refused keeps its old ones.
        """
        accepted = await self._announce_basis(requested)
        refused: dict[str, CoordinatorError] = {}
        new = [topic for topic in requested if accepted.get(topic) != requested[topic]]
        parts = [new] if new else []
        while parts:
            part = parts.pop()
            more = accepted | {topic: requested[topic] for topic in part}
            try:
                await self._announce(more)
                accepted = more
            except CoordinatorError as error:
                if error.status not in _REFUSALS:
                    raise
                if len(part) == 1:
                    refused[part[0]] = error
                else:
                    half = len(part) // 2
                    parts += [part[half:], part[:half]]
        return {topic: accepted[topic] for topic in requested if topic in accepted}, refused

    async def _announce_basis(self, requested: Mapping[str, _Requested]) -> dict[str, _Requested]:
        """What was accepted before and is still requested; nothing, if even that is refused by now."""
        basis = {topic: self._accepted[topic] for topic in requested if topic in self._accepted}
        if basis:
            try:
                await self._announce(basis)
                return basis
            except CoordinatorError as error:
                if error.status not in _REFUSALS:
                    raise
        # An error now is not about topics.
        await self._announce({})
        return {}

    def _note(self, error: CoordinatorError) -> None:
        """The coordinator cannot be reached or refuses; each kind of trouble is reported once."""
        if error.status != self._noted_status:
            self._background.report(error)
        self.problem, self._noted_status = str(error), error.status

    def _recovered(self) -> None:
        """The coordinator has the whole intent, less what it refused; a part of it is no recovery."""
        self.problem, self._noted_status = "", None

    async def _announce(self, requested: Mapping[str, _Requested] | None = None) -> Registration:
        async with self._turn:
            if requested is None:
                requested = dict(self._owner._requested)
            announced = await self._coordinator.announce(
                self._kind, self._name, self._owner._intent(requested)
            )
            self._accepted = requested
        self._lease_seconds = announced.lease_seconds
        self._is_announced = True
        await self._owner._announced(announced)
        return announced

    async def _beat(self) -> None:
        delay = _FIRST_DELAY_SECONDS
        while True:
            pause = delay if self.problem else self._lease_seconds / _BEATS_PER_LEASE
            await asyncio.sleep(pause * random.uniform(0.8, 1.0))
            try:
                if self._is_announced:
                    await self._heartbeat()
                else:
                    await self._announce_again()
            except CoordinatorError as error:
                if error.status == _MISSING and self._is_announced:
                    # It has forgotten us: it was away, or we were, for longer than the lease.
                    self._is_announced = False
                    self.problem = str(error)
                    delay = 0.0
                else:
                    self._note(error)
                    delay = min(max(_FIRST_DELAY_SECONDS, delay * _SLOWER), _LONGEST_DELAY_SECONDS)
            else:
                self._recovered()
                delay = _FIRST_DELAY_SECONDS

    async def _announce_again(self) -> None:
        try:
            await self._announce()
        except CoordinatorError as error:
            if error.status not in _REFUSALS:
                raise
            try:
                await self._owner._withdraw_refused()
            except BaseException:
                # Perhaps it knows a part of it.
                self._is_announced = False
                raise

    async def _heartbeat(self) -> None:
        async with self._turn:
            reply = await self._send_report(self._next_report())
        self._owner._replied(reply)

    def _next_report(self) -> Mapping[str, Any]:
        if not self._unanswered and (report := self._owner._report_now()):
            self._number += 1
            self._unanswered = {**report, "number": self._number}
        return self._unanswered

    async def _send_report(self, report: Mapping[str, Any]) -> HeartbeatReply:
        try:
            reply = await self._coordinator.heartbeat(self._kind, self._name, report)
        except CoordinatorError as error:
            if error.status in _NEVER:
                self._unanswered = {}
            raise
        self._unanswered = {}
        return reply


def _is_away(error: CoordinatorError) -> bool:
    return isinstance(error, CoordinatorUnreachableError) or error.status in _NOT_NOW


class ParticipantOptions(TypedDict, total=False):
    """The options that publishers and subscribers share."""

    gateway: str | None
    name: str | None
    token: str | None
    lease_seconds: float
    keep_session: bool
    direct: bool
    network: NetworkSettings | None
    will: Will | None
    settings: ConnectionSettings | None
    ssl_context: ssl.SSLContext | None
    on_connected: Callable[[str], None] | None
    on_disconnected: Callable[[str], None] | None
    on_problem: Callable[[ClientError], None] | None


class Participant(Opened, ABC, Generic[_Requested]):
    """Found by its coordinator under its `name`, or alone with a gateway. A name of its own choice is new to both."""

    def __init__(
        self,
        kind: Literal["publisher", "subscriber"],
        coordinator: str | Coordinator | None,
        options: ParticipantOptions,
    ) -> None:
        if unknown := options.keys() - ParticipantOptions.__annotations__.keys():
            raise TypeError(f"a {kind} has no option {', '.join(sorted(unknown))}")
        gateway, token = options.get("gateway"), options.get("token")
        if (coordinator is None) == (gateway is None):
            raise ParameterError("coordinator", "give the address of a coordinator or of a gateway, not both")
        self.name = options.get("name") or f"{kind}-{secrets.token_hex(6)}"
        self.settings = options.get("settings") or ConnectionSettings()
        self._kind = kind
        self._name_is_new = options.get("name") is None
        # A gateway without a coordinator knows a client by its token, where it knows tokens.
        self._client_id = self.name if token is None else f"{self.name}.{token}"
        self._gateway = None if gateway is None else GatewayAddress.parse(gateway)
        self._owns_coordinator = isinstance(coordinator, str)
        self._coordinator = (
            Coordinator(coordinator, token=token, ssl_context=options.get("ssl_context"))
            if isinstance(coordinator, str)
            else coordinator
        )
        self._lease_seconds = options.get("lease_seconds", DEFAULT_LEASE_SECONDS)
        self._keep_session = options.get("keep_session", False)
        self._direct = options.get("direct", True)
        # Promised topics go through the given network, or through that of the connection to the gateway.
        self._network = options.get("network") or NetworkSettings(make_socket=self.settings.make_socket)
        self._will = options.get("will")
        self._connection: Connection | None = None
        # By address, gateways that are being left.
        self._leaving: dict[GatewayAddress, tuple[asyncio.Task[None], Connection]] = {}
        self._watching: asyncio.Task[None] | None = None
        self._may_move = False
        # Of the plan that it follows; 0 to follow the next answer, whatever it is.
        self._generation = 0
        self._on_connected, self._on_disconnected = (
            options.get("on_connected"),
            options.get("on_disconnected"),
        )
        self._background = Background(f"{kind} {self.name}", options.get("on_problem"), self._failed)
        self._lease: Lease[_Requested] | None = None
        # What is requested of the coordinator, by topic.
        self._requested: dict[str, _Requested] = {}
        self._changing = asyncio.Lock()
        self.moves = 0
        """How often it has gone on at another gateway."""

    async def open(self) -> None:
        """Announce to the coordinator, connect to the gateway."""
        try:
            address = self._gateway
            if self._coordinator is not None:
                self._lease = Lease(self._coordinator, self)
                address = (await self._lease.begin(self.settings.connect_timeout_seconds)).gateway
            assert address is not None
            self._connection = self._make_connection(address, self._arrived)
            await self._connection.open()
            if self._coordinator is not None:
                self._begin_watching()
        except BaseException:
            await self.close()
            raise

    # Requests.

    @abstractmethod
    def _terms(self, requested: tuple[_Requested, ...]) -> PublisherTerms | SubscriberTerms:
        """What is announced for that."""

    def _intent(self, requested: Mapping[str, _Requested]) -> dict[str, Any]:
        """What REST takes."""
        terms = self._terms(tuple(requested.values()))
        return terms.as_json() | {"lease_seconds": terms.lease_seconds}

    async def _announced(self, announced: Registration) -> None:
        """A coordinator that lost its memory, or has another gateway now, may give another client id."""
        stays = announced.may_move and announced.client_id == self._client_id
        self._client_id, self._may_move = announced.client_id, announced.may_move
        if self._connection is None:
            return
        if stays:
            # If it is to move, `_watch` learns of that.
            self._begin_watching()
        else:
            with contextlib.suppress(GatewayUnreachableError):
                await self._redirect(announced.gateway)

    def _report_now(self) -> Mapping[str, Any]:
        """What the next heartbeat reports."""
        return {}

    def _replied(self, reply: HeartbeatReply) -> None:
        """A heartbeat was answered."""

    async def _withdraw_refused(self) -> None:
        """A request from the time in which the coordinator was away is refused now: it alone is withdrawn."""
        async with self._changing:
            if self._lease is None:
                return
            self._requested, refused = await self._lease.announce_allowed(self._requested)
        for topic, error in refused.items():
            refusal = CoordinatorError(f"{topic!r} is withdrawn: {error}", error.status)
            self._background.report(refusal)
            await self._refused(topic, refusal)

    @abstractmethod
    async def _refused(self, topic: str, error: CoordinatorError) -> None:
        """A topic was withdrawn, or has its old terms again, because the coordinator refuses it."""

    def _failed(self, error: ClientError) -> None:
        """A background task was given up."""

    async def _change(self, change: Callable[[dict[str, _Requested]], dict[str, _Requested]]) -> None:
        """Change the request; what the coordinator refuses leaves the one before.

        Calls that overlap take effect one after the other: what one adds must not be why another is refused.
        """
        async with self._changing:
            before, self._requested = self._requested, change(self._requested)
            if self._lease is not None:
                try:
                    await self._lease.changed()
                except BaseException:
                    self._requested = before
                    raise

    # The connection.

    def _arrived(self, event: Event) -> None:
        """Something has come."""

    def _connection_id(self) -> str:
        """The client id of its connection."""
        return self._client_id

    def _make_connection(
        self, address: GatewayAddress, on_event: Callable[[Event], None], *, client_id_is_new: bool = False
    ) -> Connection:
        return Connection(
            address.host,
            address.port,
            self._connection_id(),
            secure=address.secure,
            on_event=on_event,
            settings=self.settings,
            keep_session=self._keep_session,
            client_id_is_new=client_id_is_new or self._name_is_new,
            will=self._will,
            on_connected=self._on_connected,
            on_disconnected=self._on_disconnected,
            background=self._background,
        )

    async def _redirect(self, address: GatewayAddress) -> None:
        """Go on as the client that the coordinator knows, perhaps at another gateway."""
        await self._require_connection().redirect(address, self._connection_id())

    # Following the plan.

    @abstractmethod
    async def _ask(self, after: int) -> Assignment | Direction:
        """The plan, as soon as it is newer than a generation, or some seconds later."""

    @abstractmethod
    async def _follow(self) -> None:
        """Carry out the plan, at the gateway that it names."""

    @abstractmethod
    async def _move(self, address: GatewayAddress) -> None:
        """Go on at another gateway."""

    def _begin_watching(self) -> None:
        if self._watching is None:
            self._watching = self._background.start("following the plan", self._watch)

    async def _watch(self) -> None:
        while True:
            try:
                found = await self._ask(self._generation)
                # Before the first plan is in force nothing is known: what was so stays.
                is_new = found.generation not in (0, self._generation)
                self._generation = found.generation
                if not await self._go(found):
                    self._generation = 0
                elif is_new:
                    await self._follow()
            except ClientError:
                # Away, or it has forgotten us: the lease sees to that, and everything goes on meanwhile.
                self._generation = 0
                await asyncio.sleep(_AWAY_PAUSE_SECONDS)
            await asyncio.sleep(_POLL_PAUSE_SECONDS)

    async def _go(self, found: Assignment | Direction) -> bool:
        """Move if another gateway is named; False if that cannot be reached now, or yet another is named meanwhile.

        Without the latter, a gateway that dies, or whose broker hangs, would keep its newcomers for ever.
        """
        address = GatewayAddress.parse(found.gateway) if found.gateway else None
        if address is None or address == self._require_connection().address:
            return True
        loop = asyncio.get_running_loop()
        moving = loop.create_task(self._move(address))
        elsewhere = loop.create_task(self._until_elsewhere(found))
        try:
            await asyncio.wait({moving, elsewhere}, return_when=asyncio.FIRST_COMPLETED)
            (moving if moving.done() else elsewhere).result()
            return moving.done()
        except ClientError:
            await asyncio.sleep(_AWAY_PAUSE_SECONDS)
            return False
        finally:
            await end(moving, elsewhere)

    async def _until_elsewhere(self, found: Assignment | Direction) -> None:
        gateway = found.gateway
        while found.gateway in ("", gateway):
            await asyncio.sleep(_PROMPT_SECONDS)
            with contextlib.suppress(CoordinatorError):
                found = await self._ask(found.generation)

    def _leave_behind(self, left: Connection, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """It has moved; `work` ends what is left at the old gateway."""
        self.moves += 1
        leaving = self._background.start("leaving a gateway", work)
        self._leaving[left.address] = leaving, left
        leaving.add_done_callback(lambda _: self._leaving.pop(left.address, None))

    async def _until_left(self, address: GatewayAddress) -> None:
        """A gateway that is being left can be come to when that is done, whatever went wrong with it."""
        if address in self._leaving:
            await asyncio.wait({self._leaving[address][0]})

    async def _leave(self) -> None:
        """Close the connection, withdraw from the coordinator.

        Only once: another client may have the name when `close` is called again.
        """
        lease, self._lease = self._lease, None
        try:
            if self._connection is not None:
                await self._connection.close()
            if lease is not None:
                await lease.end()
        finally:
            await self._background.close()
            if self._coordinator is not None and self._owns_coordinator:
                await self._coordinator.close()

    def _ready(self) -> Connection:
        """The connection, for a call of the program; the error of a task that was given up is raised first."""
        self._background.raise_failure()
        return self._require_connection()

    def _require_connection(self) -> Connection:
        if self._connection is None:
            kind = type(self).__name__
            raise ClosedError(f"the {self._kind} is not open; use `async with {kind}(...)`")
        return self._connection

    def _connections(self) -> Iterable[Connection]:
        return () if self._connection is None else (self._connection,)

    @property
    @abstractmethod
    def _direct_problem(self) -> str:
        """What is wrong with topics that go without a broker."""

    @property
    def problem(self) -> str:
        """What is wrong at the moment; empty if nothing is."""
        problems = ["" if self._lease is None else self._lease.problem, self._direct_problem]
        problems += [connection.problem for connection in self._connections()]
        return "; ".join(dict.fromkeys(filter(None, problems)))
