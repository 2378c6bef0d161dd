"""The gateway without I/O: datagrams, octets of the broker and the time go in, actions come out.

core.datagram(address, octets)      from the UDP socket
session.receive(octets)             from a broker connection; sessions report to their link's owner, that to the gateway
core.advance(now_ns)                when the moment of `next_deadline_ns` has come
core.take_actions(), core.changes   what to do, and what to store before doing it

This is the state, the time, and what comes out. What is done about what comes in is up to `Handlers`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from triagemq.errors import DecodeError
from triagemq.exchange.gateway.messages import Delivery, KnownPublications, Publication, Subscription
from triagemq.exchange.gateway.observer import GatewayCounters, Numbers, Observer
from triagemq.exchange.gateway.sessions import (
    BrokerLink,
    Endpoint,
    Group,
    Identify,
    Session,
    Timer,
    Timers,
    own_name,
)
from triagemq.exchange.gateway.settings import GatewaySettings
from triagemq.exchange.gateway.topics import SharedTopics
from triagemq.exchange.mqtt.packets import ConnectAnswer
from triagemq.exchange.mqtt.session import Login, MqttSession, Receiving
from triagemq.exchange.store import RowChanges
from triagemq.mqttsn import (
    Advertise,
    Connect,
    Disconnect,
    Encapsulated,
    PlainMessage,
    WillTopic,
    decode,
    encapsulation_header,
    encode,
)

if TYPE_CHECKING:
    from triagemq.plan.dataplane import Treatment
    from triagemq.trace.schema import Outcome

_NS = 1_000_000_000
# Answers that wait for the disk; a client whose answer goes asks again.
_MOST_UNCOMMITTED = 10_000
# Sessions of absent clients of one address that hold nothing.
_MOST_EMPTY = 1_000


class SendControl(NamedTuple):
    """Everything but PUBLISH: passes first and is never dropped. `after_commit`: not before all changes are stored."""

    endpoint: Endpoint
    datagram: bytes
    after_commit: bool = False


class SendPublish(NamedTuple):
    """A PUBLISH to one client."""

    session: Session
    delivery: Delivery
    datagram: bytes


class SendMany(NamedTuple):
    """One QoS 0 PUBLISH to the clients of a group: to those at `places`, or (None) to all."""

    group: Group
    publication: Publication
    datagram: bytes
    places: Sequence[int] | None = None


class Broadcast(NamedTuple):
    """To everyone in the neighbourhood, if the gateway has an address for that."""

    datagram: bytes


class OpenBroker(NamedTuple):
    """Connect this session, and keep it connected: to our own broker, or to that of a peer by its name."""

    session: MqttSession
    peer: str = ""


class CloseBroker(NamedTuple):
    """Disconnect this session for good."""

    session: MqttSession


class Present(NamedTuple):
    """A client is at an endpoint now. It comes before everything that is sent there."""

    client_id: str
    endpoint: Endpoint
    subscribes: bool


class Gone(NamedTuple):
    """A client is not connected any more."""

    client_id: str


class Say(NamedTuple):
    """A line for the log."""

    text: str


Action: TypeAlias = (
    SendControl | SendPublish | SendMany | Broadcast | OpenBroker | CloseBroker | Present | Gone | Say
)

SessionsById: TypeAlias = dict[str, Session]
"""By client id."""

_Place = TypeVar("_Place", str, tuple[str, int])


class SessionsByHost:
    """The sessions by address (a host) and by forwarder (a host and port that brings several wireless nodes)."""

    def __init__(self) -> None:
        self._at: dict[str, SessionsById] = {}
        self._behind: dict[tuple[str, int], SessionsById] = {}
        self._empty: dict[str, SessionsById] = {}

    def enter(self, session: Session) -> None:
        """A session is at its endpoint now."""
        endpoint, client_id = session.endpoint, session.client_id
        self._at.setdefault(endpoint[0], {})[client_id] = session
        if len(endpoint) == 3:
            self._behind.setdefault(endpoint[:2], {})[client_id] = session
        _take(self._empty, endpoint[0], client_id)

    def at(self, host: str) -> SessionsById:
        """The sessions at an address."""
        return self._at.get(host, {})

    def behind(self, forwarder: tuple[str, int]) -> SessionsById:
        """The sessions whose messages a forwarder brings."""
        return self._behind.get(forwarder, {})

    def leave(self, session: Session) -> None:
        """A session is there no longer."""
        endpoint, client_id = session.endpoint, session.client_id
        _take(self._at, endpoint[0], client_id)
        _take(self._behind, endpoint[:2], client_id)
        _take(self._empty, endpoint[0], client_id)

    def left_behind(self, session: Session) -> Session | None:
        """A client is away, and its session stays. Of those that hold nothing only so many do: the one to end."""
        if not session.is_empty:
            return None
        sessions = self._empty.setdefault(session.endpoint[0], {})
        sessions[session.client_id] = session
        return next(iter(sessions.values())) if len(sessions) > _MOST_EMPTY else None


def _take(places: dict[_Place, SessionsById], place: _Place, client_id: str) -> None:
    sessions = places.get(place)
    if sessions is not None and sessions.pop(client_id, None) is not None and not sessions:
        del places[place]


@dataclass(slots=True)
class PendingConnect:
    """A CONNECT whose will is requested, for the first time or again."""

    message: Connect
    due_ns: int = 0
    topic: WillTopic | None = None
    attempts: int = 1


class PendingConnects:
    """By endpoint, in the order in which the next request is due; one timer serves them all."""

    def __init__(self) -> None:
        self._waiting: dict[Endpoint, PendingConnect] = {}
        self._at: dict[str, dict[Endpoint, None]] = {}
        self.timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def get(self, endpoint: Endpoint) -> PendingConnect | None:
        """The one of a client that is there."""
        return self._waiting.get(endpoint)

    def make_room(self, host: str, *, most_there: int, most: int) -> None:
        """The oldest goes when there are too many, at first of the same address."""
        neighbours = self._at.get(host, {})
        if len(neighbours) >= most_there:
            self.end(next(iter(neighbours)))
        elif len(self._waiting) >= most:
            self.end(next(iter(self._waiting)))

    def put(self, endpoint: Endpoint, pending: PendingConnect, due_ns: int) -> None:
        """The request has been sent, and will be again by then."""
        pending.due_ns = due_ns
        self._waiting[endpoint] = pending
        self._at.setdefault(endpoint[0], {})[endpoint] = None

    def end(self, endpoint: Endpoint) -> PendingConnect | None:
        """It is over, or forgotten."""
        pending = self._waiting.pop(endpoint, None)
        if pending is not None:
            neighbours = self._at[endpoint[0]]
            del neighbours[endpoint]
            if not neighbours:
                del self._at[endpoint[0]]
        return pending

    @property
    def next_due_ns(self) -> int | None:
        """When the next request is due."""
        return next((pending.due_ns for pending in self._waiting.values()), None)

    def due(self, now_ns: int) -> list[tuple[Endpoint, PendingConnect]]:
        """Those to which a request is due now."""
        found = []
        for endpoint, pending in self._waiting.items():
            if pending.due_ns > now_ns:
                break
            found.append((endpoint, pending))
        return found


class Handlers(NamedTuple):
    """Functions by event: a handler knows the core, never the reverse."""

    from_client: Mapping[type[PlainMessage], Callable[[GatewayCore, Session, Any], None]]
    """By the kind of message, from a client that is connected."""
    from_stranger: Mapping[type[PlainMessage], Callable[[GatewayCore, Endpoint, Any], None]]
    from_anyone: Mapping[type[PlainMessage], Callable[[GatewayCore, Endpoint, Any], None]]
    """What the other two do not have."""
    malformed: Callable[[GatewayCore, tuple[str, int], bytes, DecodeError], None]
    new_link: Callable[[GatewayCore, str, Login], BrokerLink]
    """A link to the broker, for a client by its id or for all."""
    broker_reached: Callable[[GatewayCore, BrokerLink], None]
    broker_refused: Callable[[GatewayCore, BrokerLink, ConnectAnswer], None]
    broker_lost: Callable[[GatewayCore, BrokerLink], None]
    filter_refused: Callable[[GatewayCore, Session, str], None]
    """It does not take a filter any more that a client has."""
    broker_answered: Callable[[GatewayCore, object, int], None]
    """It has (code below 0x80) or has refused what was published with a token."""
    broker_holds: Callable[[GatewayCore, object, bool], None]
    """QoS 2: it has answered PUBREC to that, or may have forgotten that it did."""
    client_silent: Callable[[GatewayCore, Session], None]
    """A client has left everything unanswered for as long as all retries take."""
    awake_served: Callable[[GatewayCore, Session], None]
    """A client that sleeps has been sent what it may get now."""


class GatewayCore:
    """All state of a gateway."""

    def __init__(
        self,
        settings: GatewaySettings,
        handlers: Handlers,
        *,
        now_ns: int,
        stores: bool = False,
        numbers: Numbers | None = None,
        observer: Observer | None = None,
        identify: Identify = own_name,
    ) -> None:
        self.settings = settings
        self.handlers = handlers
        self.now_ns = now_ns
        self.sessions: dict[str, Session] = {}
        self.by_endpoint: dict[Endpoint, Session] = {}
        self.handshakes = PendingConnects()
        # Until when clients that were sent to another gateway, and their addresses, find none here.
        self.elsewhere_until_ns: dict[str | Endpoint, int] = {}
        self.by_host = SessionsByHost()
        self._identify = identify
        # The sessions over which subscribers subscribe, by name.
        self.subscribers: dict[str, Session] = {}
        self.publications = KnownPublications()
        self.counters = GatewayCounters()
        self.changes = RowChanges(enabled=stores)
        self.topics = SharedTopics(
            settings.predefined_topics,
            changes=self.changes,
            last_id=settings.last_topic_id,
            most_per_client=settings.topic_ids,
            most_ids=settings.topic_ids_in_all,
        )
        self.numbers = numbers or Numbers()
        self.observer = observer
        # Called when the broker has taken or dropped a subscription: a broker that we run saves it then.
        self.on_subscriptions: Callable[[], None] = lambda: None
        # False while the store cannot be written: then nothing is promised that a kill would lose.
        self.can_store = True
        self._uncommitted: list[SendControl] = []
        # Of QoS 2 messages from clients that the broker does not have.
        self.inbound_bytes = 0
        # Broker sessions with octets to write after the changes have been stored.
        self.writers: list[MqttSession] = []
        # Counts plans: what was looked up by one holds until the next.
        self.plans = 0
        # A number from 0 to 1, to decide what is dropped on purpose.
        self.draw = random.Random(settings.seed).random
        self._actions: list[Action] = []
        self.timers = Timers()
        # The link of all clients, or in transparent mode of those without a connection; and those of the others.
        self.links: dict[str, BrokerLink] = {}
        # The links to the brokers of other gateways, by name.
        self.peers: dict[str, BrokerLink] = {}
        self.peers_made = 0
        # QoS 2 messages of their brokers that were taken over before a restart.
        self.restored_receiving: dict[str, dict[int, tuple[int, Receiving]]] = {}
        # Are round-trip times to clients measured?
        self.is_probing = False
        self.link = handlers.new_link(
            self,
            "",
            Login(
                settings.broker_client_id,
                clean=False,
                fresh=not stores,
                keep_alive_seconds=settings.broker_keep_alive_seconds,
                ping_seconds=settings.broker_ping_seconds,
                user=settings.user,
                password=settings.password,
            ),
        )

    def start(self) -> None:
        """Connect to the broker and say that we are here."""
        self.open(self.link)
        self._advertise()

    def stop(self) -> None:
        """Tell the clients that we go; what is stored stays."""
        for session in list(self.by_endpoint.values()):
            if session.connected:
                self.send(session.endpoint, Disconnect())

    # What comes out.

    def act(self, action: Action) -> None:
        """Have something done."""
        self._actions.append(action)

    def take_actions(self) -> list[Action]:
        """Everything to be done since the last call, in order."""
        actions = self._actions
        if actions:
            self._actions = []
        if not self.can_store:
            held = [one for one in actions if isinstance(one, SendControl) and one.after_commit]
            self._uncommitted = [*self._uncommitted, *held][-_MOST_UNCOMMITTED:]
            return [one for one in actions if not (isinstance(one, SendControl) and one.after_commit)]
        if self._uncommitted:
            actions, self._uncommitted = [*self._uncommitted, *actions], []
        return actions

    def open(self, link: BrokerLink) -> None:
        """Connect to the broker, and stay connected."""
        link.reopen()
        for lane in link.lanes:
            self.act(OpenBroker(lane, link.key if link.is_peer else ""))

    def close(self, link: BrokerLink) -> None:
        """Leave the broker."""
        link.is_closed = True
        for lane in link.lanes:
            self.act(CloseBroker(lane))

    def present(self, session: Session) -> None:
        """Say where a client is, and whether messages will go there."""
        self._actions.append(Present(session.client_id, session.endpoint, bool(session.subscriptions)))

    def send(self, endpoint: Endpoint, message: PlainMessage) -> None:
        """Send anything but a PUBLISH."""
        self._actions.append(SendControl(endpoint, self.framed(endpoint, encode(message))))

    def send_after_commit(self, endpoint: Endpoint, message: PlainMessage) -> None:
        """Send it as soon as all that has changed until now is stored."""
        self._actions.append(SendControl(endpoint, self.framed(endpoint, encode(message)), after_commit=True))

    def answer(self, session: Session, message: PlainMessage) -> None:
        """Answer a request that changes a session: the client relies on the change, also after kill -9.

        A clean session of which the store knows nothing is gone after that, and its client connects anew: it need not
        wait for a disk that is full.
        """
        if session.clean and not self.changes.is_stored("sessions", session.client_id):
            self.send(session.endpoint, message)
        else:
            self.send_after_commit(session.endpoint, message)

    def framed(self, endpoint: Endpoint, datagram: bytes) -> bytes:
        """A datagram as it goes to an endpoint: encapsulated if a forwarder carries it."""
        return encapsulation_header(endpoint[2], 0) + datagram if len(endpoint) == 3 else datagram

    def settle(
        self,
        session: Session,
        subscription: Subscription,
        publication: Publication,
        outcome: Outcome,
        reason: str = "",
        delivery: Delivery | None = None,
    ) -> None:
        """A copy is delivered or given up: count it, and tell the Trace."""
        if reason:
            self.counters.undelivered[f"{outcome.name}: {reason}"] += 1
        else:
            self.counters.delivered += 1
        if self.observer is not None:
            self.observer.settled(session, subscription, publication, outcome, delivery, self.now_ns)

    def treatments(self, group: Group, topic: str) -> list[Treatment]:
        """How each member of a group is treated by the plan of now, looked up once for each plan."""
        if group.planned_at != self.plans:
            treatment_of = self.settings.policy.treatment
            group.treatments = [treatment_of(session.client_id, topic) for session, _ in group.members]
            group.is_dropped = any(treatment.drop_rate > 0.0 for treatment in group.treatments)
            group.planned_at = self.plans
        return group.treatments

    def name(self, session: Session) -> None:
        """Say whose connection a session is, which begins."""
        session.subscriber, session.slot = self._identify(session.client_id)
        if not session.slot:
            self.subscribers[session.subscriber] = session

    def unname(self, session: Session) -> None:
        """A session has ended."""
        if self.subscribers.get(session.subscriber) is session:
            del self.subscribers[session.subscriber]

    def identify_again(self) -> None:
        """Client ids have come to mean other names."""
        self.subscribers.clear()
        for session in self.sessions.values():
            self.name(session)
            session.link.routes.forget(session)

    def planned_anew(self, names: Iterable[str] | None) -> None:
        """A new plan: messages go to these subscribers, or to all, in another order."""
        self.plans += 1
        for name in self.subscribers if names is None else names:
            session = self.subscribers.get(name)
            if session is not None:
                session.link.routes.forget(session)

    # Time.

    def schedule(self, due_ns: int, what: Callable[[], None]) -> Timer:
        """Have something called by `advance` when its time has come, unless it is called off before."""
        return self.timers.add(due_ns, what)

    def after(self, seconds: float, what: Callable[[], None]) -> Timer:
        """The same, from now on."""
        return self.schedule(self.now_ns + int(seconds * _NS), what)

    @property
    def next_deadline_ns(self) -> int | None:
        """When `advance` has to be called next."""
        return self.timers.next_due_ns

    def advance(self, now_ns: int) -> None:
        """Time has passed."""
        self.now_ns = max(self.now_ns, now_ns)
        while (what := self.timers.take_due(self.now_ns)) is not None:
            what()

    def _advertise(self) -> None:
        seconds = self.settings.advertise_seconds
        if seconds > 0:
            self.act(Broadcast(encode(Advertise(self.settings.gateway_id, seconds))))
            self.after(seconds, self._advertise)

    # What comes in.

    def datagram(self, address: tuple[str, int], datagram: bytes) -> None:
        """A datagram from somewhere; any octets at all."""
        self.counters.datagrams_in += 1
        self.counters.datagram_bytes += len(datagram)
        try:
            message = decode(datagram)
        except DecodeError as error:
            self.counters.rejected[str(error.reason)] += 1
            self.handlers.malformed(self, address, datagram, error)
            return
        if isinstance(message, Encapsulated):
            self._message((*address, message.wireless_node_id), message.message)
        else:
            self._message(address, message)

    def _message(self, endpoint: Endpoint, message: PlainMessage) -> None:
        kind, handlers = type(message), self.handlers
        session = self.by_endpoint.get(endpoint)
        if session is not None and session.connected:
            session.heard_ns = self.now_ns
            if (of_client := handlers.from_client.get(kind)) is not None:
                of_client(self, session, message)
            elif (of_anyone := handlers.from_anyone.get(kind)) is not None:
                of_anyone(self, endpoint, message)
            else:
                self.counters.rejected[f"unexpected_{message.message_type.name.lower()}"] += 1
        else:
            handler = handlers.from_stranger.get(kind) or handlers.from_anyone.get(kind)
            if handler is not None:
                handler(self, endpoint, message)
            else:
                self.send_away(endpoint)

    def is_elsewhere(self, client: str | Endpoint) -> bool:
        """Is a client, or who is at an address, to look for another gateway?"""
        until_ns = self.elsewhere_until_ns.get(client)
        if until_ns is not None and until_ns <= self.now_ns:
            del self.elsewhere_until_ns[client]
            return False
        return until_ns is not None

    def send_away(self, endpoint: Endpoint) -> None:
        """Disconnect an unknown sender."""
        self.counters.unknown_senders += 1
        self.send(endpoint, Disconnect())
