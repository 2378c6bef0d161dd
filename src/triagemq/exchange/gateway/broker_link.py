"""Links to brokers: subscriptions for all clients, and messages in both directions.

Retained messages come with the answer to a SUBSCRIBE only, so every client that joins a filter makes the link subscribe
again, with a new identifier: a retained message with that identifier is for those who were joining then, and for no
others.

Where there are several brokers, what is published at one of them stays there, and each gateway takes what its clients
want from all of them: from its own, and over links to its peers'. So nothing goes round in circles or comes twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from triagemq.exchange.gateway.core import GatewayCore, OpenBroker, Say
from triagemq.exchange.gateway.fanout import fan_out, fan_out_retained
from triagemq.exchange.gateway.messages import Subscription
from triagemq.exchange.gateway.sessions import BrokerLink, Filter, Join, Session
from triagemq.exchange.mqtt.packets import REFUSED, BrokerLimits, ConnectAnswer, Message
from triagemq.exchange.mqtt.session import Login, MqttSession, Receiving
from triagemq.mqttsn.filters import overlap

# Without an answer: what is more waits for answers.
_MOST_REQUESTS = 10_000
# So long a client waits for the brokers of other gateways to take its subscription.
_PEERS_SECONDS = 2.0


def new_link(gateway: GatewayCore, key: str, login: Login) -> BrokerLink:
    """A link to the broker, to be opened."""
    return BrokerLink(
        key,
        login,
        lambda link: _Reports(gateway, link),
        version=gateway.settings.mqtt_version,
        most_waiting=gateway.settings.broker_backlog,
        now_ns=gateway.now_ns,
    )


def publish(
    gateway: GatewayCore,
    session: Session | None,
    topic: str,
    payload: bytes,
    *,
    qos: int,
    retain: bool,
    token: object = None,
) -> bool:
    """Publish for a client, or for one without a connection, over the first lane; False if it is lost."""
    link, sender, publisher = gateway.link, "", ""
    if session is not None:
        link, sender, publisher = session.link, session.client_id, session.publisher
    lane = link.lanes[0]
    if qos and not lane.outbox.has_room:
        return False
    note_publisher(gateway, link, topic, payload, publisher)
    return lane.publish(
        topic.encode(), payload, qos=qos, retain=retain, sender=sender, publisher=publisher, token=token
    )


def note_publisher(
    gateway: GatewayCore, link: BrokerLink, topic: str, payload: bytes, publisher: str
) -> None:
    """Before a client's message goes to a broker that cannot pass its name on."""
    if publisher and link.lanes[0].version < 5:
        gateway.publications.own_messages.sent(topic, payload, publisher, gateway.now_ns)


# Peers.


def fit_peers(gateway: GatewayCore, logins: Mapping[str, Login]) -> None:
    """Be linked to the brokers of these gateways, and no others."""
    for name in [
        name for name, link in gateway.peers.items() if logins.get(name) != replace(link.login, purges=False)
    ]:
        _leave_peer(gateway, gateway.peers.pop(name))
    for name, login in logins.items():
        if name in gateway.peers:
            continue
        gateway.peers_made += 1
        link = gateway.peers[name] = BrokerLink(
            name,
            login,
            lambda link: _PeerReports(gateway, link),
            version=gateway.settings.mqtt_version,
            most_waiting=gateway.settings.broker_backlog,
            now_ns=gateway.now_ns,
            peer_of=gateway.link,
            number=gateway.peers_made,
        )
        for session in gateway.sessions.values():
            for subscription in session.subscriptions.values():
                _put_back(gateway, link, session, subscription, 0)
        lane = link.lanes[0]
        lane.receiving |= gateway.restored_receiving.pop(_receiving_key(link, lane), {})
        if not link.filters:
            # What it may have for us is for clients that have no session any more.
            link.begin_anew()
        gateway.open(link)


def _receiving_key(link: BrokerLink, session: MqttSession) -> str:
    """What QoS 2 state is stored under: all peers know this gateway by the same client id."""
    return f"{session.login.client_id}@{link.key}" if link.is_peer else session.login.client_id


def _leave_peer(gateway: GatewayCore, link: BrokerLink) -> None:
    for entry in list(link.filters.values()):
        _answer_for(entry)
        _forget(gateway, link, entry)
    link.routes.clear()
    gateway.close(link)


def _answer_for(entry: Filter) -> None:
    """Nothing waits for a peer that is away: its filters are requested again when it is back."""
    for join in (*entry.asking, *entry.joining):
        answer, join.answer = join.answer, _ignored
        answer(0)


# Subscriptions.


def subscribe(
    gateway: GatewayCore, session: Session, subscription: Subscription, answer: Callable[[int], None]
) -> None:
    """Ask the broker; `answer` gets the granted QoS, or 0x80 and more for a refusal.

    Peers that are there get the filter as well, and `answer` waits for theirs: what is published from then on comes.
    One that hangs does not delay the answer for long: it takes no messages either.
    """
    if not gateway.peers:
        _join(gateway, session.link, session, subscription, answer)
        return
    waiting = 1 + sum(peer.available for peer in gateway.peers.values())
    own_code: int | None = None
    is_late = is_done = False

    def answered(code: int | None = None) -> None:
        nonlocal waiting, own_code
        waiting -= 1
        own_code = own_code if code is None else code
        conclude()

    def overdue() -> None:
        nonlocal is_late
        is_late = True
        if subscription.topic_filter in session.subscribing.values():
            conclude()

    def conclude() -> None:
        nonlocal is_done
        if is_done or own_code is None or (waiting and not is_late):
            return
        is_done = True
        gateway.timers.cancel(timer)
        if own_code >= REFUSED and subscription.topic_filter not in session.subscriptions:
            unsubscribe(gateway, session, subscription.topic_filter)
        answer(own_code)

    timer = gateway.after(_PEERS_SECONDS, overdue)
    for peer in list(gateway.peers.values()):
        of_peer = (lambda code: answered()) if peer.available else _ignored
        _join(gateway, peer, session, subscription, of_peer)
    _join(gateway, session.link, session, subscription, answered)


def _ignored(code: int) -> None:
    """No client waits for the answer."""


def _join(
    gateway: GatewayCore,
    link: BrokerLink,
    session: Session,
    subscription: Subscription,
    answer: Callable[[int], None],
) -> None:
    entry = link.filters.get(subscription.topic_filter)
    if entry is None:
        lane = _lane_for(gateway, link, subscription.topic_filter)
        entry = link.filters[subscription.topic_filter] = Filter(subscription.topic_filter, lane)
    if entry.members and subscription.qos <= entry.granted and not link.lanes[entry.lane].has_identifiers:
        # Only the retained messages have to wait for the next SUBSCRIBE; the answer is known.
        entry.members[session] = subscription
        answer(entry.granted)
        link.routes.forget_topics_of(entry.topic_filter)
        entry.joining.append(Join(session, subscription, _ignored))
    else:
        entry.joining.append(Join(session, subscription, answer))
    link.waiting += 1
    _ask(gateway, link, entry)


def restore(gateway: GatewayCore, session: Session, subscription: Subscription, identifier: int) -> None:
    """Put back a subscription of before a restart."""
    _put_back(gateway, session.link, session, subscription, identifier)


def _put_back(
    gateway: GatewayCore, link: BrokerLink, session: Session, subscription: Subscription, identifier: int
) -> None:
    topic_filter = subscription.topic_filter
    entry = link.filters.get(topic_filter)
    if entry is None:
        entry = link.filters[topic_filter] = Filter(
            topic_filter, _lane_for(gateway, link, topic_filter), identifier
        )
        link.identifiers.restore(entry)
    entry.members[session] = subscription


def unsubscribe(gateway: GatewayCore, session: Session, topic_filter: str) -> None:
    """A client no longer wants a filter."""
    for link in (session.link, *gateway.peers.values()):
        entry = link.filters.get(topic_filter)
        if entry is not None:
            link.waiting -= entry.leave(session)
            link.routes.forget_topics_of(topic_filter)
            _drop_if_unused(gateway, link, entry)


def leave(gateway: GatewayCore, session: Session) -> None:
    """A client is gone with all its subscriptions."""
    session.link.routes.forget(session)
    withdraw(gateway, session)
    for topic_filter in list(session.subscriptions):
        unsubscribe(gateway, session, topic_filter)


def withdraw(gateway: GatewayCore, session: Session) -> None:
    """A client does not wait for answers any more."""
    for topic_filter in session.subscribing.values():
        for link in (session.link, *gateway.peers.values()):
            entry = link.filters.get(topic_filter)
            if entry is not None:
                link.waiting -= entry.withdraw(session)
                _drop_if_unused(gateway, link, entry)
        if topic_filter not in session.subscriptions:
            gateway.numbers.unsubscribed(session.client_id, topic_filter)
    session.subscribing.clear()


def _drop_if_unused(gateway: GatewayCore, link: BrokerLink, entry: Filter) -> None:
    if not entry.is_unused or link.filters.get(entry.topic_filter) is not entry:
        return
    _forget(gateway, link, entry)
    lane = link.lanes[entry.lane]
    if lane.connected and lane.outbox.unanswered_requests < _MOST_REQUESTS and lane.outbox.has_room:
        lane.unsubscribe(entry.topic_filter)
    elif entry.identifier:
        link.to_unsubscribe[entry.topic_filter] = None


def _forget(gateway: GatewayCore, link: BrokerLink, entry: Filter) -> None:
    del link.filters[entry.topic_filter]
    if not link.is_peer:
        gateway.changes.remove("filters", (link.key, entry.topic_filter))
    link.identifiers.forget(entry)


def _lane_for(gateway: GatewayCore, link: BrokerLink, topic_filter: str) -> int:
    """One that has no overlapping filter; the first always has when messages carry identifiers."""
    if link.lanes[0].has_identifiers or not link.lanes[0].connected:
        return 0
    taken = {entry.lane for entry in link.filters.values() if overlap(entry.topic_filter, topic_filter)}
    lane = next(number for number in range(len(taken) + 1) if number not in taken)
    if lane == len(link.lanes):
        login = replace(link.login, client_id=f"{link.login.client_id}~{lane}")
        link.lanes.append(link.lane(login, link.lanes[0].version))
        gateway.act(OpenBroker(link.lanes[lane], link.key if link.is_peer else ""))
    return lane


def _ask(gateway: GatewayCore, link: BrokerLink, entry: Filter) -> None:
    lane = link.lanes[entry.lane]
    if not entry.joining or entry.packet_id or not lane.connected:
        return
    if not lane.has_identifiers:
        # Without identifiers only time tells whose retained messages they are.
        quiet_ns = entry.asked_ns + int(gateway.settings.retained_quiet_seconds * 1e9)
        if gateway.now_ns < quiet_ns:
            gateway.schedule(quiet_ns, lambda: _ask(gateway, link, entry))
            return
    entry.asking, entry.joining = entry.joining, []
    entry.asked_ns = gateway.now_ns
    _identify(gateway, link, entry)
    entry.fetchers[entry.identifier] = dict.fromkeys(join.session for join in entry.asking)
    _subscribe(gateway, link, entry, lane, with_retained=True)


def _identify(gateway: GatewayCore, link: BrokerLink, entry: Filter) -> None:
    link.identifiers.give(entry)
    if not link.is_peer:
        # Of a peer all is subscribed to anew after a restart.
        gateway.changes.put("filters", (link.key, entry.topic_filter, entry.identifier))


def _subscribe(
    gateway: GatewayCore, link: BrokerLink, entry: Filter, lane: MqttSession, *, with_retained: bool
) -> None:
    refusal = lane.refuses_filter(entry.topic_filter)
    if refusal:
        _answered(gateway, link, entry, refusal)
        return
    identifier = entry.identifier if lane.has_identifiers else None
    entry.packet_id = lane.subscribe(
        entry.topic_filter, entry.qos, identifier=identifier, with_retained=with_retained
    )
    link.by_packet[entry.lane, entry.packet_id] = entry


def _answered(gateway: GatewayCore, link: BrokerLink, entry: Filter, code: int) -> None:
    """The answer to a SUBSCRIBE goes to every client that waits for it, and a refusal to those who lose the filter."""
    entry.packet_id = 0
    asking, entry.asking = entry.asking, []
    link.waiting -= len(asking)
    if code < REFUSED:
        entry.granted, entry.is_subscribed = code, True
        entry.members |= {join.session: join.subscription for join in asking}
        gateway.on_subscriptions()
    for join in asking:
        join.answer(code)
    if code >= REFUSED and not entry.is_subscribed:
        _lose(gateway, link, entry, code)
    link.routes.forget_topics_of(entry.topic_filter)
    early, entry.early = entry.early, []
    for origin, message in early:
        fan_out_retained(gateway, link, origin, message)
    _ask(gateway, link, entry)
    _drop_if_unused(gateway, link, entry)


def _lose(gateway: GatewayCore, link: BrokerLink, entry: Filter, code: int) -> None:
    """The broker does not take a filter any more that clients have."""
    members = list(entry.members)
    if not members:
        return
    broker = f"the broker of {link.key}" if link.is_peer else "the broker"
    gateway.act(
        Say(
            f"{broker} refuses the filter {entry.topic_filter!r} ({code:#04x}), which {len(members)} clients have"
        )
    )
    if link.is_peer:
        gateway.counters.refused["subscribe: broker of a peer"] += len(members)
        return
    for session in members:
        gateway.handlers.filter_refused(gateway, session, entry.topic_filter)


def _ask_more(gateway: GatewayCore, link: BrokerLink, number: int) -> None:
    """Go on with requests that had to wait: packets have no more than 65,535 numbers."""
    lane, to_ask = link.lanes[number], link.to_ask.get(number, [])
    while lane.connected and lane.outbox.unanswered_requests < _MOST_REQUESTS and lane.outbox.has_room:
        if number == 0 and link.to_unsubscribe:
            topic_filter, _ = link.to_unsubscribe.popitem()
            if topic_filter not in link.filters:
                lane.unsubscribe(topic_filter)
        elif to_ask:
            entry = to_ask.pop()
            if link.filters.get(entry.topic_filter) is entry:
                _resubscribe(gateway, link, entry, lane)
        else:
            return


def _resubscribe(gateway: GatewayCore, link: BrokerLink, entry: Filter, lane: MqttSession) -> None:
    entry.ask_again()
    if entry.joining:
        _ask(gateway, link, entry)
    if not entry.packet_id and entry.members:
        if not entry.identifier:
            _identify(gateway, link, entry)
        _subscribe(gateway, link, entry, lane, with_retained=False)


def _spread_over_lanes(gateway: GatewayCore, link: BrokerLink) -> None:
    if link.lanes[0].has_identifiers:
        for entry in link.filters.values():
            entry.lane = 0
        return
    entries, link.filters = link.filters, {}
    for entry in entries.values():
        entry.lane = _lane_for(gateway, link, entry.topic_filter)
        link.filters[entry.topic_filter] = entry


class _Reports:
    """What the broker says over the lanes of a link."""

    def __init__(self, gateway: GatewayCore, link: BrokerLink) -> None:
        self._gateway = gateway
        self._link = link
        self._limits = BrokerLimits()

    def mqtt_connected(self, session: MqttSession, answer: ConnectAnswer) -> None:
        """Subscribe to everything again: the broker may have forgotten it, and it costs little if not."""
        gateway, link = self._gateway, self._link
        if link.is_closed or session not in link.lanes:
            return
        number = link.lanes.index(session)
        if number == 0:
            link.is_down_since_ns = None
            link.up_since_ns = gateway.now_ns
            link.routes.clear()
            self._say(answer.limits)
            _spread_over_lanes(gateway, link)
            if not answer.session_present:
                link.to_unsubscribe.clear()
        # Backwards, since they are taken from the end.
        link.to_ask[number] = [entry for entry in reversed(link.filters.values()) if entry.lane == number]
        _ask_more(gateway, link, number)
        if number == 0:
            self._is_up()

    def _say(self, limits: BrokerLimits) -> None:
        if str(limits) != str(self._limits) and (self._link.is_peer or not self._link.key):
            broker = f"the broker of {self._link.key}" if self._link.is_peer else "the broker"
            self._gateway.act(Say(f"{broker} takes {str(limits) or 'everything'}"))
        self._limits = limits

    def _is_up(self) -> None:
        self._gateway.handlers.broker_reached(self._gateway, self._link)

    def _is_down(self) -> None:
        self._gateway.handlers.broker_lost(self._gateway, self._link)

    def mqtt_refused(self, session: MqttSession, answer: ConnectAnswer) -> None:
        """The broker does not want us, or this client."""
        if not self._link.is_closed and session in self._link.lanes:
            self._gateway.handlers.broker_refused(self._gateway, self._link, answer)

    def mqtt_lost(self, session: MqttSession) -> None:
        """A connection is gone: requests over it will not be answered."""
        gateway, link = self._gateway, self._link
        if session not in link.lanes or link.is_closed:
            return
        number = link.lanes.index(session)
        link.to_ask.pop(number, None)
        for key in [key for key in link.by_packet if key[0] == number]:
            del link.by_packet[key]
        for entry in list(link.filters.values()):
            if entry.lane == number:
                entry.ask_again()
                entry.early.clear()
                _drop_if_unused(gateway, link, entry)
        if number == 0 and link.is_down_since_ns is None:
            link.is_down_since_ns = gateway.now_ns
            link.up_since_ns = None
            self._is_down()

    def mqtt_message(self, session: MqttSession, message: Message) -> None:
        """A message for some of the clients."""
        link = self._link
        if link.is_closed:
            return
        if session.has_identifiers:
            fan_out(self._gateway, link, message.identifiers, message)
        else:
            fan_out(self._gateway, link, link.origin_of(session), message)

    def mqtt_published(self, session: MqttSession, token: object, code: int) -> None:
        """The broker has what a client published."""
        self._gateway.handlers.broker_answered(self._gateway, token, code)

    def mqtt_released(self, session: MqttSession, token: object, holds: bool) -> None:
        """The broker holds what a client published at QoS 2, or may have lost it."""
        self._gateway.handlers.broker_holds(self._gateway, token, holds)

    def mqtt_subscribed(self, session: MqttSession, packet_id: int, code: int) -> None:
        """The broker's answer goes to everyone who was waiting for it."""
        gateway, link = self._gateway, self._link
        if session not in link.lanes:
            return
        number = link.lanes.index(session)
        entry = link.by_packet.pop((number, packet_id), None)
        _ask_more(gateway, link, number)
        if entry is None or entry.packet_id != packet_id:
            return
        _answered(gateway, link, entry, code)

    def mqtt_unsubscribed(self, session: MqttSession) -> None:
        """There is room for another request."""
        if session in self._link.lanes:
            _ask_more(self._gateway, self._link, self._link.lanes.index(session))

    def mqtt_writes(self, session: MqttSession) -> None:
        """There is something to write to the broker, once everything is stored."""
        self._gateway.writers.append(session)

    def mqtt_booted(self, session: MqttSession, boot: str) -> None:
        """Remember across a restart which start of the broker it is that knows what we know."""
        self._gateway.changes.put("boots", (session.login.client_id, boot))

    def mqtt_receiving(
        self, session: MqttSession, packet_id: int, digest: int | None, stage: Receiving
    ) -> None:
        """QoS 2: remember across a restart what has been taken over already."""
        key = (_receiving_key(self._link, session), packet_id)
        if digest is None:
            self._gateway.changes.remove("receiving", key)
        else:
            self._gateway.changes.put("receiving", (*key, digest, int(stage)))


class _PeerReports(_Reports):
    """What the broker of a peer says: messages, and answers that no client waits for longer than for our own's."""

    def mqtt_refused(self, session: MqttSession, answer: ConnectAnswer) -> None:
        """It does not let us in; the connection tries again."""

    def _is_up(self) -> None:
        pass

    def _is_down(self) -> None:
        for entry in list(self._link.filters.values()):
            _answer_for(entry)
