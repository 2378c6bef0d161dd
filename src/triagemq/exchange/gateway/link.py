"""A way to the broker: which filters are subscribed there for whom, over which connection, and what is known of them.

The aggregating mode has one link for all clients, the transparent mode one for each (and one for those who publish
without a connection). Retained messages come with the answer to a SUBSCRIBE only, so every client that joins a filter
makes the link subscribe again, with a new identifier: a retained message with that identifier is for those who were
joining then, and for nobody else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from triagemq.exchange.gateway import broker_presence, publishing, subscribing
from triagemq.exchange.gateway.actions import CloseBroker, OpenBroker
from triagemq.exchange.gateway.filters import Filter, Identifiers, Join
from triagemq.exchange.gateway.model import Session, Subscription
from triagemq.exchange.gateway.route_table import RouteTable
from triagemq.exchange.gateway.routes import Origin, overlap
from triagemq.exchange.mqtt.owner import Login
from triagemq.exchange.mqtt.packets import REFUSED, ConnAck, Message
from triagemq.exchange.mqtt.session import MqttSession
from triagemq.mqttsn import matches

if TYPE_CHECKING:
    from triagemq.exchange.gateway.core import GatewayCore
    from triagemq.exchange.mqtt.suspicion import Packet

__all__ = ["Link"]

# Without an answer: what is more waits for answers.
_MOST_REQUESTS = 10_000


class Link:
    """See the module's text. `key` is the client's id in transparent mode, else empty."""

    def __init__(self, gateway: GatewayCore, key: str, login: Login) -> None:
        self._gateway = gateway
        self.key = key
        self.login = login
        self.lanes = [MqttSession(self, login, version=gateway.settings.mqtt_version)]
        self.filters: dict[str, Filter] = {}
        self.routes = RouteTable()
        self.is_down_since_ns: int | None = gateway.now_ns
        self.up_since_ns: int | None = None
        self.identifiers = Identifiers()
        self._by_packet: dict[tuple[int, int], Filter] = {}
        # Filters that the broker may have for us without need, and those to ask for again over each lane.
        self._to_unsubscribe: dict[str, None] = {}
        self._to_ask: dict[int, list[Filter]] = {}
        # Clients that wait for an answer to a SUBSCRIBE.
        self._waiting = 0
        self.is_closed = False

    @property
    def available(self) -> bool:
        """Can the broker be reached now?"""
        return not self.is_closed and self.lanes[0].connected

    @property
    def is_busy(self) -> bool:
        """Do too many wait for the broker's answers to subscribe to anything more?"""
        most = self._gateway.settings.broker_backlog
        return self._waiting >= most or any(
            lane.unanswered_requests >= most or not lane.has_room for lane in self.lanes
        )

    def open(self) -> None:
        """Connect, and stay connected."""
        if self.is_closed:
            self.lanes = [MqttSession(self, self.login, version=self.lanes[0].version)]
            self.is_closed = False
        for lane in self.lanes:
            self._gateway.act(OpenBroker(lane))

    def begin_anew(self) -> None:
        """Before `open`: whatever the broker still has for this gateway is for clients that nobody knows any more."""
        self.login = replace(self.login, purges=True)
        for lane in self.lanes:
            lane.login = self.login

    def close(self) -> None:
        """Leave the broker."""
        self.is_closed = True
        for lane in self.lanes:
            self._gateway.act(CloseBroker(lane))

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        qos: int,
        retain: bool,
        sender: str = "",
        publisher: str = "",
        token: object = None,
    ) -> bool:
        """Publish over the first lane; False if it is lost."""
        if self._gateway.quarantine.refuses(sender, topic) or (qos and not self.lanes[0].has_room):
            return False
        self.note_publisher(topic, payload, publisher)
        return self.lanes[0].publish(
            topic.encode(),
            payload,
            qos=qos,
            retain=retain,
            sender=sender,
            publisher=publisher,
            token=token,
        )

    def note_publisher(self, topic: str, payload: bytes, publisher: str) -> None:
        """Before a client's message goes to a broker that cannot tell anybody whose it is."""
        if publisher and self.lanes[0].version < 5:
            self._gateway.spread.own_messages.sent(topic, payload, publisher, self._gateway.now_ns)

    # Subscriptions.

    def subscribe(self, session: Session, subscription: Subscription, answer: Callable[[int], None]) -> None:
        """Ask the broker; `answer` gets the granted QoS, or 0x80 and more for a refusal."""
        entry = self.filters.get(subscription.topic_filter)
        if entry is None:
            lane = self._lane_for(subscription.topic_filter)
            entry = self.filters[subscription.topic_filter] = Filter(subscription.topic_filter, lane)
        if entry.members and subscription.qos <= entry.granted and not self.lanes[entry.lane].has_identifiers:
            # Only the retained messages have to wait for the next SUBSCRIBE; the answer is known.
            entry.members[session] = subscription
            answer(entry.granted)
            self.routes.forget_topics_of(entry.topic_filter)
            entry.joining.append(Join(session, subscription, lambda code: None))
        else:
            entry.joining.append(Join(session, subscription, answer))
        self._waiting += 1
        self._ask(entry)

    def restore(self, session: Session, subscription: Subscription, identifier: int) -> None:
        """Put back a subscription of before a restart."""
        topic_filter = subscription.topic_filter
        entry = self.filters.get(topic_filter)
        if entry is None:
            entry = self.filters[topic_filter] = Filter(
                topic_filter, self._lane_for(topic_filter), identifier
            )
            self.identifiers.restore(entry)
        entry.members[session] = subscription

    def unsubscribe(self, session: Session, topic_filter: str) -> None:
        """A client no longer wants a filter."""
        entry = self.filters.get(topic_filter)
        if entry is None:
            return
        self._waiting -= entry.leave(session)
        self.routes.forget_topics_of(topic_filter)
        self._drop_if_unused(entry)

    def leave(self, session: Session) -> None:
        """A client is gone with all its subscriptions."""
        self.routes.forget(session)
        self.withdraw(session)
        for topic_filter in list(session.subscriptions):
            self.unsubscribe(session, topic_filter)

    def withdraw(self, session: Session) -> None:
        """A client does not wait for answers any more."""
        for topic_filter in session.subscribing.values():
            entry = self.filters.get(topic_filter)
            if entry is not None:
                self._waiting -= entry.withdraw(session)
                self._drop_if_unused(entry)
            if topic_filter not in session.subscriptions:
                self._gateway.numbers.unsubscribed(session.client_id, topic_filter)
        session.subscribing.clear()

    def _drop_if_unused(self, entry: Filter) -> None:
        if not entry.is_unused or self.filters.get(entry.topic_filter) is not entry:
            return
        self._forget(entry)
        lane = self.lanes[entry.lane]
        if lane.connected and lane.unanswered_requests < _MOST_REQUESTS and lane.has_room:
            lane.unsubscribe(entry.topic_filter)
        elif entry.identifier:
            self._to_unsubscribe[entry.topic_filter] = None

    def _forget(self, entry: Filter) -> None:
        del self.filters[entry.topic_filter]
        self._gateway.changes.remove("filters", (self.key, entry.topic_filter))
        self.identifiers.forget(entry)

    def _lane_for(self, topic_filter: str) -> int:
        """One that has no overlapping filter; the first always has when messages carry identifiers."""
        if self.lanes[0].has_identifiers or not self.lanes[0].connected:
            return 0
        taken = {entry.lane for entry in self.filters.values() if overlap(entry.topic_filter, topic_filter)}
        lane = next(number for number in range(len(taken) + 1) if number not in taken)
        if lane == len(self.lanes):
            login = replace(self.login, client_id=f"{self.login.client_id}~{lane}")
            self.lanes.append(MqttSession(self, login, version=self.lanes[0].version))
            self._gateway.act(OpenBroker(self.lanes[lane]))
        return lane

    def _ask(self, entry: Filter) -> None:
        lane = self.lanes[entry.lane]
        if not entry.joining or entry.packet_id or not lane.connected:
            return
        gateway = self._gateway
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
        self._subscribe(entry, lane, with_retained=True)

    def _identify(self, entry: Filter) -> None:
        self.identifiers.give(entry)
        self._gateway.changes.put(
            "filters", (self.key, entry.topic_filter), (self.key, entry.topic_filter, entry.identifier)
        )

    def _subscribe(self, entry: Filter, lane: MqttSession, *, with_retained: bool) -> None:
        identifier = entry.identifier if lane.has_identifiers else None
        entry.packet_id = lane.subscribe(
            entry.topic_filter, entry.qos, identifier=identifier, with_retained=with_retained
        )
        self._by_packet[entry.lane, entry.packet_id] = entry

    # Who gets a message.

    def filters_for(self, origin: Origin, topic: str) -> list[Filter]:
        """The filters that a copy of a message is for."""
        if origin and origin[0] >= 0:
            named = self.identifiers.filters(origin)
            if named is not None:
                return named
        lane = -1 - origin[0] if origin and origin[0] < 0 else 0
        return [
            entry
            for entry in self.filters.values()
            if entry.lane == lane and matches(entry.topic_filter, topic)
        ]

    def fetchers_for(self, origin: Origin, topic: str) -> list[tuple[Session, Filter]]:
        """Who gets a retained message: those whose SUBSCRIBE has brought it."""
        found = []
        for entry in self.filters_for(origin, topic):
            identifiers = [number for number in origin if number in entry.fetchers]
            if not identifiers and (not origin or origin[0] < 0):
                identifiers = [entry.identifier]
            for identifier in identifiers:
                found += [(session, entry) for session in entry.fetchers.get(identifier, ())]
        return found

    # What the broker says.

    def mqtt_connected(self, session: MqttSession, answer: ConnAck) -> None:
        """Subscribe to everything again: the broker may have forgotten it, and it costs little if not."""
        if self.is_closed or session not in self.lanes:
            return
        number = self.lanes.index(session)
        if number == 0:
            self.is_down_since_ns = None
            self.up_since_ns = self._gateway.now_ns
            self.routes.clear()
            self._spread_over_lanes(session)
            if not answer.session_present:
                self._to_unsubscribe.clear()
        # Backwards, since they are taken from the end.
        self._to_ask[number] = [entry for entry in reversed(self.filters.values()) if entry.lane == number]
        self._ask_more(number)
        if number == 0:
            broker_presence.reached(self._gateway, self)

    def _ask_more(self, number: int) -> None:
        """Go on with what was not asked for at once: packets have no more than 65,535 numbers."""
        lane, to_ask = self.lanes[number], self._to_ask.get(number, [])
        while lane.connected and lane.unanswered_requests < _MOST_REQUESTS and lane.has_room:
            if number == 0 and self._to_unsubscribe:
                topic_filter, _ = self._to_unsubscribe.popitem()
                if topic_filter not in self.filters:
                    lane.unsubscribe(topic_filter)
            elif to_ask:
                entry = to_ask.pop()
                if self.filters.get(entry.topic_filter) is entry:
                    self._resubscribe(entry, lane)
            else:
                return

    def _resubscribe(self, entry: Filter, lane: MqttSession) -> None:
        entry.ask_again()
        if entry.joining:
            self._ask(entry)
        if not entry.packet_id and entry.members:
            if not entry.identifier:
                self._identify(entry)
            self._subscribe(entry, lane, with_retained=False)

    def _spread_over_lanes(self, first: MqttSession) -> None:
        if first.has_identifiers:
            for entry in self.filters.values():
                entry.lane = 0
            return
        entries, self.filters = self.filters, {}
        for entry in entries.values():
            entry.lane = self._lane_for(entry.topic_filter)
            self.filters[entry.topic_filter] = entry

    def mqtt_refused(self, session: MqttSession, answer: ConnAck) -> None:
        """The broker does not want us, or this client."""
        if not self.is_closed and session in self.lanes:
            broker_presence.refused(self._gateway, self, answer)

    def lost(self, session: MqttSession) -> None:
        """A connection is gone: whatever was asked over it will not be answered."""
        if session not in self.lanes or self.is_closed:
            return
        number = self.lanes.index(session)
        self._to_ask.pop(number, None)
        for key in [key for key in self._by_packet if key[0] == number]:
            del self._by_packet[key]
        for entry in list(self.filters.values()):
            if entry.lane == number:
                entry.ask_again()
                entry.early.clear()
                self._drop_if_unused(entry)
        if number == 0 and self.is_down_since_ns is None:
            self.is_down_since_ns = self._gateway.now_ns
            self.up_since_ns = None
            broker_presence.lost(self._gateway, self)

    def mqtt_message(self, session: MqttSession, message: Message) -> None:
        """A message for some of the clients."""
        if self.is_closed:
            return
        if session.has_identifiers:
            self._gateway.spread.message(self, message.identifiers, message)
        else:
            self._gateway.spread.message(self, (-1 - self.lanes.index(session),), message)

    def mqtt_published(self, session: MqttSession, token: object, code: int) -> None:
        """The broker has what a client published."""
        publishing.broker_answered(self._gateway, token, code)

    def mqtt_released(self, session: MqttSession, token: object, holds: bool) -> None:
        """The broker holds what a client published at QoS 2, or may have lost it."""
        publishing.broker_holds(self._gateway, token, holds)

    def mqtt_subscribed(self, session: MqttSession, packet_id: int, code: int) -> None:
        """The broker's answer goes to everyone who was waiting for it."""
        if session not in self.lanes:
            return
        number = self.lanes.index(session)
        entry = self._by_packet.pop((number, packet_id), None)
        self._ask_more(number)
        if entry is None or entry.packet_id != packet_id:
            return
        entry.packet_id = 0
        if code < REFUSED:
            entry.granted = code
            self._gateway.on_subscriptions()
        asking, entry.asking = entry.asking, []
        self._waiting -= len(asking)
        for join in asking:
            if code < REFUSED:
                entry.members[join.session] = join.subscription
            join.answer(code)
        self.routes.forget_topics_of(entry.topic_filter)
        early, entry.early = entry.early, []
        for origin, message in early:
            self._gateway.spread.retained(self, origin, message)
        self._ask(entry)
        self._drop_if_unused(entry)

    def mqtt_unsubscribed(self, session: MqttSession) -> None:
        """There is room for another request."""
        if session in self.lanes:
            self._ask_more(self.lanes.index(session))

    def mqtt_rejected(self, session: MqttSession, packet: Packet) -> None:
        """The broker has ended the connection over a packet."""
        self._gateway.quarantine.rejected(self, session, packet)

    def reject(self, topic_filter: str) -> None:
        """The broker will not be asked for a filter: whoever waits for it is refused, whoever has it loses it."""
        entry = self.filters.get(topic_filter)
        if entry is None:
            return
        self._forget(entry)
        for join in (*entry.asking, *entry.joining):
            self._waiting -= 1
            join.answer(REFUSED)
        for session in list(entry.members):
            subscribing.drop(self._gateway, session, topic_filter)

    def mqtt_writes(self, session: MqttSession) -> None:
        """There is something to write to the broker, once everything is stored."""
        self._gateway.writers.append(session)

    def mqtt_booted(self, session: MqttSession, boot: str) -> None:
        """Remember across a restart which start of the broker it is that knows what we know."""
        client_id = session.login.client_id
        self._gateway.changes.put("boots", client_id, (client_id, boot))

    def mqtt_receiving(
        self, session: MqttSession, packet_id: int, digest: int | None, finished: bool
    ) -> None:
        """QoS 2: remember across a restart what has been taken over already."""
        key = (session.login.client_id, packet_id)
        if digest is None:
            self._gateway.changes.remove("receiving", key)
        else:
            self._gateway.changes.put("receiving", key, (*key, digest, int(finished)))
