"""The state of a gateway, its time, and the actions that come out of it; `handlers` reacts to what comes in."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from triagemq import mqttsn
from triagemq.gateway.core.messages import Delivery, KnownPublications, Publication
from triagemq.gateway.core.sessions import (
    Copy,
    Endpoint,
    Group,
    Grouped,
    Identify,
    RouteTable,
    Session,
    Timer,
    Timers,
    own_name,
)
from triagemq.gateway.core.settings import GatewaySettings
from triagemq.gateway.core.topics import KnownTopic, SharedTopics
from triagemq.gateway.store import RowChanges
from triagemq.mqtt.session import MqttSession
from triagemq.mqttsn import encapsulation_header, encode

if TYPE_CHECKING:
    from triagemq.plan.dataplane import Treatment
    from triagemq.trace.schema import Outcome

_NS = 1_000_000_000
# Answers that wait for the disk; a client whose answer goes asks again.
_MOST_UNCOMMITTED = 10_000


@dataclass(slots=True)
class GatewayCounters:
    """What a gateway has counted since it started: plain numbers, and counters by reason.

    `undelivered` has every message that did not reach a subscriber.
    """

    datagrams_in: int = 0
    datagram_bytes: int = 0
    unknown_senders: int = 0
    connects: int = 0
    handshakes: int = 0
    """DTLS associations that began."""
    resumptions: int = 0
    """Of these, by the short handshake of those who have been here before."""
    clients_lost: int = 0
    clients_moved: int = 0
    retries: int = 0
    broker_messages: int = 0
    broker_bytes: int = 0
    """Payloads of these."""
    broker_losses: int = 0
    client_messages: int = 0
    duplicates: int = 0
    """Requests and messages of clients that had come before."""
    storage_failures: int = 0
    """How often the state could not be stored from some moment on."""
    sent: int = 0
    """PUBLISH datagrams handed to the network."""
    delivered: int = 0
    """Of these, at QoS 0 all that were sent, at QoS 1 and 2 all that were acknowledged."""
    rejected: Counter[str] = field(default_factory=Counter)
    """Datagrams, by the reason of their DecodeError, or `unexpected_...`; `dtls_...` before they were opened."""
    undelivered: Counter[str] = field(default_factory=Counter)
    """Messages to subscribers, by outcome and reason."""
    planned_drops: Counter[int] = field(default_factory=Counter)
    """Of these the ones that the plan drops, by priority class."""
    refused: Counter[str] = field(default_factory=Counter)
    """Requests and messages of clients, by what was refused and why."""

    def as_json(self) -> dict[str, Any]:
        """For `--json` and the log."""
        numbers = {name: getattr(self, name) for name in self.__slots__}
        return {name: dict(value) if isinstance(value, Counter) else value for name, value in numbers.items()}


class Observer(Protocol):
    """Hears of publications and of each copy that is settled; the live Trace is one."""

    def published(self, publication: Publication, qos: int) -> None:
        """A message has come from the broker."""

    def fanned_out(self, group: Group, publication: Publication, now_ns: int) -> None:
        """A QoS 0 message has been sent to all of a group, with no managed port in between."""

    def settled(
        self, copy: Copy, outcome: Outcome, flow: tuple[int, int], delivery: Delivery | None, now_ns: int
    ) -> None:
        """A copy has been delivered, or never will be; `flow` is its flow id and class."""


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


class LogLine(NamedTuple):
    """A line for the log."""

    text: str


Action: TypeAlias = (
    SendControl | SendPublish | SendMany | Broadcast | OpenBroker | CloseBroker | Present | Gone | LogLine
)


@dataclass(slots=True)
class PendingConnect:
    """A CONNECT whose will is requested. Its client repeats what is lost."""

    message: mqttsn.Connect
    topic: mqttsn.WillTopic | None = None


class GatewayState(ABC):
    """All state of a gateway, but for its links to brokers."""

    def __init__(
        self,
        settings: GatewaySettings,
        *,
        now_ns: int,
        stores: bool = False,
        observer: Observer | None = None,
        identify: Identify = own_name,
    ) -> None:
        self.settings = settings
        self.now_ns = now_ns
        self.sessions: dict[str, Session] = {}
        self.by_endpoint: dict[Endpoint, Session] = {}
        self.timers = Timers()
        # By endpoint, the oldest first.
        self.handshakes: Grouped[Endpoint, PendingConnect] = Grouped()
        # Until when clients that were sent to another gateway, and their addresses, find none here.
        self.elsewhere_until_ns: dict[str | Endpoint, int] = {}
        # Where each session is or was: by IP address, and by the forwarder (host and port) that brings wireless nodes.
        self.at_host: Grouped[tuple[str, str], Session] = Grouped()
        self.behind: Grouped[tuple[tuple[str, int], str], Session] = Grouped()
        self._identify = identify
        # The sessions over which subscribers subscribe, by name.
        self.subscribers: dict[str, Session] = {}
        self.publications = KnownPublications()
        self.counters = GatewayCounters()
        self.changes = RowChanges(enabled=stores)
        self.topics = SharedTopics(settings, self.changes)
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
        self.routes = RouteTable()
        # Are round-trip times to clients measured?
        self.is_probing = False
        self.create_link()

    @abstractmethod
    def create_link(self) -> None:
        """Create the link to the broker."""

    @abstractmethod
    def end_silence(self, session: Session) -> None:
        """A client has left everything unanswered for as long as all retries take."""

    @abstractmethod
    def end_wake_up(self, session: Session) -> None:
        """A client that sleeps has been sent what it may get now."""

    def stop(self) -> None:
        """Tell the clients that we go; what is stored stays."""
        for session in list(self.by_endpoint.values()):
            if session.connected:
                self.send(session.endpoint, mqttsn.Disconnect())

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
            waiting = [one for one in actions if isinstance(one, SendControl) and one.after_commit]
            self._uncommitted = [*self._uncommitted, *waiting][-_MOST_UNCOMMITTED:]
            return [one for one in actions if not (isinstance(one, SendControl) and one.after_commit)]
        if self._uncommitted:
            actions, self._uncommitted = [*self._uncommitted, *actions], []
        return actions

    def present(self, session: Session) -> None:
        """Report the endpoint of a client, and whether it subscribes."""
        self._actions.append(Present(session.client_id, session.endpoint, bool(session.subscriptions)))

    def send(self, endpoint: Endpoint, message: mqttsn.PlainMessage) -> None:
        """Send anything but a PUBLISH."""
        self._actions.append(SendControl(endpoint, self.framed(endpoint, encode(message))))

    def send_after_commit(self, endpoint: Endpoint, message: mqttsn.PlainMessage) -> None:
        """Send it as soon as all that has changed until now is stored."""
        self._actions.append(SendControl(endpoint, self.framed(endpoint, encode(message)), after_commit=True))

    def answer(self, session: Session, message: mqttsn.PlainMessage) -> None:
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
        self, copy: Copy, outcome: Outcome, reason: str = "", delivery: Delivery | None = None
    ) -> None:
        """A copy is delivered or given up: count it, and report it to the Trace."""
        if reason:
            self.counters.undelivered[f"{outcome.name}: {reason}"] += 1
        else:
            self.counters.delivered += 1
        if self.observer is not None:
            self.observer.settled(copy, outcome, self.flow_of(copy, delivery), delivery, self.now_ns)

    def flow_of(self, copy: Copy, delivery: Delivery | None) -> tuple[int, int]:
        """Flow id and class by which a copy was sent, or would be sent now."""
        if delivery is not None and delivery.flow is not None:
            return delivery.flow
        session, _, publication = copy
        treatment = self.settings.policy.treatment(session.client_id, publication.topic)
        return treatment.flow_id, treatment.priority_class

    def treatments(self, group: Group, topic: str) -> list[Treatment]:
        """How each member of a group is treated by the plan of now, looked up once for each plan."""
        if group.planned_at != self.plans:
            treatment_of = self.settings.policy.treatment
            group.treatments = [treatment_of(session.client_id, topic) for session, _ in group.members]
            group.is_dropped = any(treatment.drop_rate > 0.0 for treatment in group.treatments)
            group.planned_at = self.plans
        return group.treatments

    def place(self, session: Session, endpoint: Endpoint) -> None:
        """A session is at this endpoint from now on."""
        self.displace(session)
        session.endpoint = endpoint
        self.at_host[endpoint[0], session.client_id] = session
        if len(endpoint) == 3:
            self.behind[endpoint[:2], session.client_id] = session
        self.routes.forget(session)

    def displace(self, session: Session) -> None:
        """A session is not where it was."""
        endpoint, client_id = session.endpoint, session.client_id
        if self.by_endpoint.get(endpoint) is session:
            del self.by_endpoint[endpoint]
        self.at_host.discard((endpoint[0], client_id))
        self.behind.discard((endpoint[:2], client_id))

    def name(self, session: Session) -> None:
        """Say whose connection a session is, which begins."""
        session.subscriber, session.slot = self._identify(session.client_id)
        if not session.slot:
            self.subscribers[session.subscriber] = session

    def unname(self, session: Session) -> None:
        """A session has ended."""
        if self.subscribers.get(session.subscriber) is session:
            del self.subscribers[session.subscriber]

    def confirm_topic(self, session: Session, known: KnownTopic, confirmed: bool = True) -> None:
        """A client knows a topic id, or has shown that it does not."""
        if known.confirmed is not confirmed:
            session.topics.confirm(known, confirmed)
            self.routes.forget_topics_of(known.topic.name)

    def identify_again(self) -> None:
        """Client ids have come to mean other names."""
        self.subscribers.clear()
        for session in self.sessions.values():
            self.name(session)
            self.routes.forget(session)

    def planned_anew(self, names: Iterable[str] | None) -> None:
        """A new plan: messages go to these subscribers, or to all, in another order."""
        self.plans += 1
        for name in self.subscribers if names is None else names:
            session = self.subscribers.get(name)
            if session is not None:
                self.routes.forget(session)

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

    def advertise(self) -> None:
        """Tell the neighbourhood that we are here, again and again."""
        seconds = self.settings.advertise_seconds
        if seconds > 0:
            self.act(Broadcast(encode(mqttsn.Advertise(self.settings.gateway_id, seconds))))
            self.after(seconds, self.advertise)

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
        self.send(endpoint, mqttsn.Disconnect())
