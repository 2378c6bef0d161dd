"""Links to brokers: subscriptions for all clients, and messages in both directions.

A broker sends one copy of a message per matching filter. MQTT 5 says which filters a copy is for (subscription
identifiers); for 3.1.1 filters that overlap go over different connections (lanes), so that the connection says it.

Retained messages come with the answer to a SUBSCRIBE only, so every client that joins a filter makes the link subscribe
again, with a new identifier: a retained message with that identifier is for those who were joining then, and for no
others.

Where there are several brokers, what is published at one of them stays there, and each gateway takes what its clients
want from all of them: from its own, and over links to its peers'. So nothing goes round in circles or comes twice.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from triagemq.gateway.core.messages import Origin, Subscription
from triagemq.gateway.core.sessions import Session
from triagemq.gateway.core.state import CloseBroker, GatewayState, LogLine, OpenBroker
from triagemq.mqtt.packets import REFUSED, BrokerLimits, ConnectAnswer, Message
from triagemq.mqtt.session import Login, MqttOwner, MqttSession, Packet
from triagemq.mqttsn import matches
from triagemq.mqttsn.filters import overlap

_MOST_LANES = 1_000
"""Of one link; there are as many as filters overlap."""
# Without an answer: what is more waits for answers.
_MOST_REQUESTS = 10_000
_LONG_AGO_NS = -(10**18)
_LAST_IDENTIFIER = 0x0FFF_FFFF
# A filter's identifiers whose retained messages may still come.
_KEPT_IDENTIFIERS = 64


def ignored(code: int) -> None:
    """No client waits for the answer."""


@dataclass(slots=True, eq=False)
class Join:
    """A client that waits for the answer to a SUBSCRIBE."""

    session: Session
    subscription: Subscription
    answer: Callable[[int], None]


@dataclass(slots=True, eq=False)
class BrokerFilter:
    """One filter over one lane of a link. `granted` is the broker's QoS, -1 before its first answer."""

    topic_filter: str
    lane: Lane
    identifier: int = 0
    granted: int = -1
    members: dict[Session, Subscription] = field(default_factory=dict)
    # Clients that wait for the next SUBSCRIBE, and clients whose SUBSCRIBE has no answer yet.
    joining: list[Join] = field(default_factory=list)
    asking: list[Join] = field(default_factory=list)
    packet_id: int = 0
    # The broker has taken it over the present connection.
    is_subscribed: bool = False
    # Identifier of a SUBSCRIBE to those who get the retained messages that it brings.
    fetchers: dict[int, dict[Session, None]] = field(default_factory=dict)
    # Retained messages that came before the answer to the SUBSCRIBE that fetched them.
    early: list[tuple[Origin, Message]] = field(default_factory=list)
    asked_ns: int = _LONG_AGO_NS

    @property
    def qos(self) -> int:
        """The highest that a client requests."""
        requested = [subscription.qos for subscription in self.members.values()]
        requested += [join.subscription.qos for join in (*self.asking, *self.joining)]
        return max(requested, default=0)

    def leave(self, session: Session) -> int:
        """A client does not want it any more; the number of answers for which it does not wait now."""
        self.members.pop(session, None)
        for fetchers in self.fetchers.values():
            fetchers.pop(session, None)
        return self.withdraw(session)

    def withdraw(self, session: Session) -> int:
        """A client does not wait for answers about it any more; the number of these."""
        before = len(self.joining) + len(self.asking)
        if before:
            self.joining = [join for join in self.joining if join.session is not session]
            self.asking = [join for join in self.asking if join.session is not session]
        return before - len(self.joining) - len(self.asking)

    def answer_all(self) -> None:
        """No client waits for a broker that is away: the filter is requested again when it is back."""
        for join in (*self.asking, *self.joining):
            answer, join.answer = join.answer, ignored
            answer(0)

    def ask_again(self) -> None:
        """Unanswered requests will not be answered: they are to be sent again."""
        self.joining = [*self.asking, *self.joining]
        self.asking = []
        self.packet_id = 0
        self.is_subscribed = False


class Identifiers:
    """The subscription identifiers (MQTT 5) of all filters of a link. Every SUBSCRIBE has one of its own."""

    def __init__(self) -> None:
        self._filters: dict[int, BrokerFilter] = {}
        # Those of this gateway are from the first to before the next.
        self._first = self._next = 1
        # Restored ones whose filters were dropped.
        self._dropped: set[int] = set()

    def __len__(self) -> int:
        return len(self._filters)

    def give(self, entry: BrokerFilter) -> None:
        """Another one for a filter that is subscribed to again."""
        entry.identifier = self._next
        self._next = self._next % _LAST_IDENTIFIER + 1
        self._filters[entry.identifier] = entry
        if len(entry.fetchers) >= _KEPT_IDENTIFIERS:
            oldest = next(iter(entry.fetchers))
            del entry.fetchers[oldest]
            self._filters.pop(oldest, None)

    def restore(self, entry: BrokerFilter) -> None:
        """Put back one of before a restart."""
        if entry.identifier:
            self._filters[entry.identifier] = entry
            self._first = self._next = max(self._next, entry.identifier % _LAST_IDENTIFIER + 1)

    def forget(self, entry: BrokerFilter) -> None:
        """A filter is dropped; messages with its identifiers may still be in transit, and are for no client."""
        for identifier in {entry.identifier, *entry.fetchers}:
            if self._filters.pop(identifier, None) is not None and identifier < self._first:
                self._dropped.add(identifier)

    def filters(self, origin: Origin) -> list[BrokerFilter] | None:
        """The filters that a message is for; None if an identifier is of an earlier gateway."""
        known = [entry for entry in map(self._filters.get, origin) if entry is not None]
        if len(known) < len(origin):
            unknown = set(origin) - self._filters.keys() - self._dropped
            if any(not self._first <= each < self._next for each in unknown):
                return None
        return known


class Lane(MqttSession):
    """One of the connections of a link."""

    def __init__(self, owner: MqttOwner, login: Login, version: int, number: int) -> None:
        super().__init__(owner, login, version=version)
        self.number = number
        # By packet id: filters with an unanswered SUBSCRIBE; and filters to subscribe to again.
        self.by_packet: dict[int, BrokerFilter] = {}
        self.to_ask: list[BrokerFilter] = []

    @property
    def takes_requests(self) -> bool:
        """May another SUBSCRIBE or UNSUBSCRIBE go over it? Packets have no more than 65,535 numbers."""
        return self.connected and self.unanswered_requests < _MOST_REQUESTS and self.has_room


class BrokerLink(MqttOwner):
    """Which filters are subscribed at a broker for whom, over which connections (`lanes`).

    That to the broker of another gateway, the `peer`, goes with the one to our own: messages over either go to the same
    clients, and nothing is published to peers.
    """

    def __init__(self, gateway: GatewayCore, login: Login, peer: str = "", number: int = 0) -> None:
        self._gateway = gateway
        self.peer = peer
        self._first_origin = -1 - number * _MOST_LANES
        self.login = login
        self.lanes = [Lane(self, login, gateway.settings.mqtt_version, 0)]
        self.filters: dict[str, BrokerFilter] = {}
        self.up_since_ns: int | None = None
        # Filters that the broker may have for us without need.
        self.to_unsubscribe: dict[str, None] = {}
        # Clients that wait for an answer to a SUBSCRIBE.
        self.waiting = 0
        self.is_closed = False
        self._limits = BrokerLimits()

    def open(self) -> None:
        """Connect to the broker, and stay connected."""
        for lane in self.lanes:
            self._gateway.act(OpenBroker(lane, self.peer))

    def begin_anew(self) -> None:
        """Before it is opened: what the broker has stored for us is for clients that have no session any more."""
        self.login = replace(self.login, purges=True)
        for lane in self.lanes:
            lane.login = self.login

    def close(self) -> None:
        """Leave the broker of a peer."""
        for entry in list(self.filters.values()):
            entry.answer_all()
            self._forget(entry)
        self._gateway.routes.clear()
        self.is_closed = True
        for lane in self.lanes:
            self._gateway.act(CloseBroker(lane))

    @property
    def name(self) -> str:
        """The broker in a message."""
        return f"the broker of {self.peer}" if self.peer else "the broker"

    @property
    def available(self) -> bool:
        """Can the broker be reached now?"""
        return not self.is_closed and self.lanes[0].connected

    @property
    def is_busy(self) -> bool:
        """Do too many wait for the broker's answers to subscribe to anything more?"""
        most = self._gateway.settings.broker_backlog
        return self.waiting >= most or any(
            lane.unanswered_requests >= most or not lane.has_room for lane in self.lanes
        )

    def filters_for(self, origin: Origin, topic: str) -> list[BrokerFilter]:
        """The filters that a copy of a message is for."""
        if origin and origin[0] >= 0:
            named = self._gateway.identifiers.filters(origin)
            if named is not None:
                return named
        number = self._first_origin - origin[0] if origin and origin[0] < 0 else 0
        return [
            entry
            for entry in self.filters.values()
            if entry.lane.number == number and matches(entry.topic_filter, topic)
        ]

    def fetchers_for(self, origin: Origin, topic: str) -> list[tuple[Session, BrokerFilter]]:
        """Who gets a retained message: those whose SUBSCRIBE has brought it."""
        found = []
        for entry in self.filters_for(origin, topic):
            identifiers = [number for number in origin if number in entry.fetchers]
            if not identifiers and (not origin or origin[0] < 0):
                identifiers = [entry.identifier]
            for identifier in identifiers:
                found += [(session, entry) for session in entry.fetchers.get(identifier, ())]
        return found

    # Subscriptions.

    def join(self, session: Session, subscription: Subscription, answer: Callable[[int], None]) -> None:
        """Ask the broker for a client; `answer` gets the granted QoS, or 0x80 and more for a refusal."""
        entry = self._filter(subscription.topic_filter)
        if entry.members and subscription.qos <= entry.granted and not entry.lane.has_identifiers:
            # Only the retained messages have to wait for the next SUBSCRIBE; the answer is known.
            entry.members[session] = subscription
            answer(entry.granted)
            self._gateway.routes.forget_topics_of(entry.topic_filter)
            answer = ignored
        entry.joining.append(Join(session, subscription, answer))
        self.waiting += 1
        self._ask(entry)

    def restore(self, session: Session, subscription: Subscription, identifier: int = 0) -> None:
        """Put back a subscription of before a restart, or of before there was this link."""
        self._filter(subscription.topic_filter, identifier).members[session] = subscription

    def leave(self, session: Session, topic_filter: str) -> None:
        """A client no longer wants a filter."""
        entry = self.filters.get(topic_filter)
        if entry is not None:
            self.waiting -= entry.leave(session)
            self._gateway.routes.forget_topics_of(topic_filter)
            self._drop_if_unused(entry)

    def withdraw(self, session: Session, topic_filter: str) -> None:
        """A client does not wait for an answer any more."""
        entry = self.filters.get(topic_filter)
        if entry is not None:
            self.waiting -= entry.withdraw(session)
            self._drop_if_unused(entry)

    def _filter(self, topic_filter: str, identifier: int = 0) -> BrokerFilter:
        entry = self.filters.get(topic_filter)
        if entry is None:
            entry = BrokerFilter(topic_filter, self._lane_for(topic_filter), identifier)
            self.filters[topic_filter] = entry
            self._gateway.identifiers.restore(entry)
        return entry

    def _drop_if_unused(self, entry: BrokerFilter) -> None:
        in_use = entry.members or entry.joining or entry.asking or entry.packet_id
        if in_use or self.filters.get(entry.topic_filter) is not entry:
            return
        self._forget(entry)
        if entry.lane.takes_requests:
            entry.lane.unsubscribe(entry.topic_filter)
        elif entry.identifier:
            self.to_unsubscribe[entry.topic_filter] = None

    def _forget(self, entry: BrokerFilter) -> None:
        del self.filters[entry.topic_filter]
        if not self.peer:
            self._gateway.changes.remove("filters", ("", entry.topic_filter))
        self._gateway.identifiers.forget(entry)

    def _lane_for(self, topic_filter: str) -> Lane:
        """One that has no overlapping filter; the first always has when messages carry identifiers."""
        first = self.lanes[0]
        if first.has_identifiers or not first.connected:
            return first
        taken = {entry.lane for entry in self.filters.values() if overlap(entry.topic_filter, topic_filter)}
        free = next((lane for lane in self.lanes if lane not in taken), None)
        if free is None:
            login = replace(self.login, client_id=f"{self.login.client_id}~{len(self.lanes)}")
            free = Lane(self, login, first.version, len(self.lanes))
            self.lanes.append(free)
            self._gateway.act(OpenBroker(free, self.peer))
        return free

    def _ask(self, entry: BrokerFilter) -> None:
        gateway, lane = self._gateway, entry.lane
        if not entry.joining or entry.packet_id or not lane.connected:
            return
        if not lane.has_identifiers:
            # Without identifiers only time tells whose retained messages they are.
            quiet_ns = entry.asked_ns + int(gateway.settings.retained_quiet_seconds * 1e9)
            if gateway.now_ns < quiet_ns:
                gateway.schedule(quiet_ns, lambda: self._ask(entry))
                return
        entry.asking, entry.joining = entry.joining, []
        entry.asked_ns = gateway.now_ns
        self._identify(entry)
        entry.fetchers[entry.identifier] = dict.fromkeys(join.session for join in entry.asking)
        self._subscribe(entry, with_retained=True)

    def _identify(self, entry: BrokerFilter) -> None:
        self._gateway.identifiers.give(entry)
        if not self.peer:
            # Of a peer all is subscribed to anew after a restart.
            self._gateway.changes.put("filters", ("", entry.topic_filter, entry.identifier))

    def _subscribe(self, entry: BrokerFilter, *, with_retained: bool) -> None:
        lane = entry.lane
        refusal = lane.refuses_filter(entry.topic_filter)
        if refusal:
            self._answered(entry, refusal)
            return
        identifier = entry.identifier if lane.has_identifiers else None
        entry.packet_id = lane.subscribe(
            entry.topic_filter, entry.qos, identifier=identifier, with_retained=with_retained
        )
        lane.by_packet[entry.packet_id] = entry

    def _answered(self, entry: BrokerFilter, code: int) -> None:
        """The answer to a SUBSCRIBE goes to its waiting clients, and a refusal to those who lose the filter."""
        gateway = self._gateway
        entry.packet_id = 0
        asking, entry.asking = entry.asking, []
        self.waiting -= len(asking)
        if code < REFUSED:
            entry.granted, entry.is_subscribed = code, True
            entry.members |= {join.session: join.subscription for join in asking}
            gateway.on_subscriptions()
        for join in asking:
            join.answer(code)
        if code >= REFUSED and not entry.is_subscribed:
            self._lose(entry, code)
        gateway.routes.forget_topics_of(entry.topic_filter)
        early, entry.early = entry.early, []
        for origin, message in early:
            gateway.fan_out(self, origin, message)
        self._ask(entry)
        self._drop_if_unused(entry)

    def _lose(self, entry: BrokerFilter, code: int) -> None:
        """The broker does not take a filter any more that clients have."""
        gateway, members = self._gateway, list(entry.members)
        if not members:
            return
        refused = f"the filter {entry.topic_filter!r} ({code:#04x}), which {len(members)} clients have"
        gateway.act(LogLine(f"{self.name} refuses {refused}"))
        if self.peer:
            gateway.counters.refused["subscribe: broker of a peer"] += len(members)
            return
        for session in members:
            gateway.refuse_filter(session, entry.topic_filter)

    def _ask_more(self, lane: Lane) -> None:
        """Go on with requests that had to wait."""
        while lane.takes_requests:
            if not lane.number and self.to_unsubscribe:
                topic_filter, _ = self.to_unsubscribe.popitem()
                if topic_filter not in self.filters:
                    lane.unsubscribe(topic_filter)
            elif lane.to_ask:
                entry = lane.to_ask.pop()
                if self.filters.get(entry.topic_filter) is entry:
                    self._ask_again(entry)
            else:
                return

    def _ask_again(self, entry: BrokerFilter) -> None:
        entry.ask_again()
        if entry.joining:
            self._ask(entry)
        if not entry.packet_id and entry.members:
            if not entry.identifier:
                self._identify(entry)
            self._subscribe(entry, with_retained=False)

    # What the broker reports.

    def mqtt_connected(self, session: MqttSession, answer: ConnectAnswer) -> None:
        """Subscribe to everything again: the broker may have forgotten it, and it costs little if not."""
        assert isinstance(session, Lane)
        if self.is_closed:
            return
        if not session.number:
            self.up_since_ns = self._gateway.now_ns
            self._gateway.routes.clear()
            if str(answer.limits) != str(self._limits):
                self._gateway.act(LogLine(f"{self.name} takes {str(answer.limits) or 'everything'}"))
            self._limits = answer.limits
            entries, self.filters = self.filters, {}
            for entry in entries.values():
                entry.lane = self._lane_for(entry.topic_filter)
                self.filters[entry.topic_filter] = entry
            if not answer.session_present:
                self.to_unsubscribe.clear()
        # Backwards, since they are taken from the end.
        session.to_ask = [entry for entry in reversed(self.filters.values()) if entry.lane is session]
        self._ask_more(session)

    def mqtt_refused(self, session: MqttSession, answer: ConnectAnswer) -> None:
        """The broker does not let us in; the connection tries again."""
        if not self.peer:
            self._gateway.counters.refused[f"connect: broker, {answer.refusal}"] += 1

    def mqtt_lost(self, session: MqttSession) -> None:
        """A connection is gone: requests over it will not be answered."""
        assert isinstance(session, Lane)
        if self.is_closed:
            return
        session.to_ask.clear()
        session.by_packet.clear()
        for entry in list(self.filters.values()):
            if entry.lane is session:
                entry.ask_again()
                entry.early.clear()
                self._drop_if_unused(entry)
        if not session.number and self.up_since_ns is not None:
            self.up_since_ns = None
            self._gateway.counters.broker_losses += not self.peer
        if self.peer and not session.number:
            for entry in list(self.filters.values()):
                entry.answer_all()

    def mqtt_message(self, session: MqttSession, message: Message) -> None:
        """A message for some of the clients."""
        assert isinstance(session, Lane)
        if not self.is_closed:
            self._gateway.counters.broker_messages += 1
            self._gateway.counters.broker_bytes += len(message.payload)
            by_lane = (self._first_origin - session.number,)
            origin = message.identifiers if session.has_identifiers else by_lane
            self._gateway.fan_out(self, origin, message)

    def mqtt_published(self, session: MqttSession, packet: Packet, code: int) -> None:
        """The broker has what a client published, or refuses it."""
        self._gateway.broker_answered(packet, code)

    def mqtt_released(self, session: MqttSession, packet: Packet) -> None:
        """The broker holds what a client published at QoS 2, or may have lost it."""
        self._gateway.broker_released(packet)

    def mqtt_answered(self, session: MqttSession, packet_id: int, code: int) -> None:
        """The broker's answer goes to everyone who was waiting for it."""
        assert isinstance(session, Lane)
        entry = session.by_packet.pop(packet_id, None)
        self._ask_more(session)
        if entry is not None and entry.packet_id == packet_id:
            self._answered(entry, code)

    def mqtt_writes(self, session: MqttSession) -> None:
        """There is something to write to the broker, once everything is stored."""
        self._gateway.writers.append(session)

    def mqtt_booted(self, session: MqttSession, boot: str) -> None:
        """Remember across a restart which start of the broker it is that knows what we know."""
        self._gateway.changes.put("boots", (session.login.client_id, boot))

    def mqtt_receiving(self, session: MqttSession, packet_id: int, is_unfinished: bool) -> None:
        """QoS 2: remember across a restart what has been taken over already."""
        key = (self.receiving_key(session), packet_id)
        if is_unfinished:
            self._gateway.changes.put("receiving", (*key, 0, 0))
        else:
            self._gateway.changes.remove("receiving", key)

    def receiving_key(self, session: MqttSession) -> str:
        """What QoS 2 state is stored under: all peers know this gateway by the same client id."""
        return f"{session.login.client_id}@{self.peer}" if self.peer else session.login.client_id


class GatewayCore(GatewayState):
    """A gateway with its links: to the broker that clients publish to, and to those of its peers."""

    def create_link(self) -> None:
        """Part of the construction."""
        settings = self.settings
        self.identifiers = Identifiers()
        self.link = BrokerLink(self, self.login(settings.broker_client_id, settings.user, settings.password))
        # By the names of their gateways.
        self.peers: dict[str, BrokerLink] = {}
        self._peers_made = 0
        # QoS 2 messages of their brokers that were taken over before a restart.
        self.restored_receiving: dict[str, set[int]] = {}

    @abstractmethod
    def fan_out(self, link: BrokerLink, origin: Origin, message: Message) -> None:
        """A copy of a message, as a broker sent it."""

    @abstractmethod
    def broker_answered(self, packet: Packet, code: int) -> None:
        """The broker has a message of a client, or refuses it."""

    @abstractmethod
    def broker_released(self, packet: Packet) -> None:
        """QoS 2: the broker has answered PUBREC, or may have lost the message."""

    @abstractmethod
    def refuse_filter(self, session: Session, topic_filter: str) -> None:
        """The broker has refused a filter that it took before."""

    def login(self, client_id: str, user: str | None, password: str | None) -> Login:
        """How it introduces itself to a broker."""
        return Login(
            client_id,
            # Without a store nothing of before is known: the session is for broken connections only.
            session_expiry_seconds=7 * 86400 if self.changes.enabled else 60,
            purges=not self.changes.enabled,
            keep_alive_seconds=self.settings.broker_keep_alive_seconds,
            ping_seconds=self.settings.broker_ping_seconds,
            user=user,
            password=password,
        )

    def publish(self, packet: Packet) -> bool:
        """Publish for a client over the first lane; False if it is lost."""
        lane = self.link.lanes[0]
        if packet.qos and not packet.packet_id and not lane.has_room:
            return False
        if packet.publisher and lane.version < 5:
            # The broker cannot pass the name on.
            own = self.publications.own_messages
            own.sent(packet.topic.decode(), packet.payload, packet.publisher, self.now_ns)
        return lane.publish(packet)

    def fit_peers(self, logins: Mapping[str, Login]) -> None:
        """Be linked to the brokers of these gateways, and no others."""
        for name, link in list(self.peers.items()):
            login = logins.get(name)
            if login is None or link.login != replace(login, purges=link.login.purges):
                self.peers.pop(name).close()
        for name, login in logins.items():
            if name in self.peers:
                continue
            self._peers_made += 1
            link = self.peers[name] = BrokerLink(self, login, name, self._peers_made)
            for session in self.sessions.values():
                for subscription in session.subscriptions.values():
                    link.restore(session, subscription)
            lane = link.lanes[0]
            lane.receiving |= self.restored_receiving.pop(link.receiving_key(lane), set())
            if not link.filters:
                # What it may have for us is for clients that have no session any more.
                link.begin_anew()
            link.open()

    def subscribe(self, session: Session, subscription: Subscription, answer: Callable[[int], None]) -> None:
        """Ask the broker; `answer` gets the granted QoS, or 0x80 and more for a refusal.

        Peers that are there get the filter before it: what is published at one from the answer on comes. One that hangs
        delays that until its silence is noticed.
        """
        topic_filter = subscription.topic_filter
        peers = [peer for peer in self.peers.values() if peer.available]
        unanswered = len(peers)

        def taken_by_peer(_: int) -> None:
            nonlocal unanswered
            unanswered -= 1
            if not unanswered and topic_filter in session.subscribing.values():
                self.link.join(session, subscription, conclude)

        def conclude(code: int) -> None:
            if code >= REFUSED and self.peers and topic_filter not in session.subscriptions:
                self.unsubscribe(session, topic_filter)
            answer(code)

        for peer in list(self.peers.values()):
            peer.join(session, subscription, taken_by_peer if peer in peers else ignored)
        if not peers:
            self.link.join(session, subscription, conclude)

    def unsubscribe(self, session: Session, topic_filter: str) -> None:
        """A client no longer wants a filter."""
        for link in (self.link, *self.peers.values()):
            link.leave(session, topic_filter)

    def withdraw(self, session: Session) -> None:
        """A client does not wait for answers any more."""
        for topic_filter in session.subscribing.values():
            for link in (self.link, *self.peers.values()):
                link.withdraw(session, topic_filter)
        session.subscribing.clear()
