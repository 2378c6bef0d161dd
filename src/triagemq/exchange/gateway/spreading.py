"""A message of the broker, and to whom it goes: worked out once per topic, then looked up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from triagemq.exchange.gateway.actions import SendMany
from triagemq.exchange.gateway.model import Publication, SessionState
from triagemq.exchange.gateway.own_messages import OwnMessages
from triagemq.exchange.gateway.routes import (
    Group,
    Member,
    Origin,
    Route,
    RouteKey,
    best_subscription,
    in_class_order,
)
from triagemq.exchange.gateway.topic_counts import TopicCounts
from triagemq.exchange.mqtt.packets import Message
from triagemq.mqttsn import TopicIdType, valid_topic_name
from triagemq.mqttsn.timestamps import PUBLISHER_PROPERTY, USER_PROPERTY, published_ns_of
from triagemq.trace.schema import Outcome

if TYPE_CHECKING:
    from triagemq.exchange.gateway.core import GatewayCore
    from triagemq.exchange.gateway.link import Link

__all__ = ["Spreader"]

# The largest UDP payload, less the headers of MQTT-SN and of an encapsulation.
_LARGEST_PAYLOAD = 65_507 - 9 - 255
_LONGEST_NAME = 255


class Spreader:
    """The way from the broker to the queues of the clients."""

    def __init__(self, gateway: GatewayCore) -> None:
        self._gateway = gateway
        self._next_publication = 0
        self._last: Publication | None = None
        self._last_origins: set[Origin] = set()
        self.counts = TopicCounts()
        """Publications by topic, whatever the number of copies."""
        self.own_messages = OwnMessages()

    def message(self, link: Link, origin: Origin, message: Message) -> None:
        """A copy of a message, as the broker sent it."""
        gateway = self._gateway
        gateway.counters.broker_messages += 1
        if message.retain:
            self.retained(link, origin, message)
            return
        key = (message.topic, origin, message.qos)
        route = link.routes.get(key)
        if route is None:
            topic_name = _topic_name(message.topic)
            if topic_name is None:
                gateway.counters.undelivered["limited: topic name not fit for MQTT-SN"] += 1
                return
            route = self._route(link, key, topic_name)
        if not route.recipients:
            return
        publication = self._publication(route.topic_name, origin, message)
        payload = message.payload
        if len(payload) > _LARGEST_PAYLOAD:
            for session, subscription in route.members():
                gateway.settle(
                    session, subscription, publication, Outcome.limited, "too large for a datagram"
                )
            return
        if route.topic is not None:
            route.topic.used_ns = gateway.now_ns
        for one in route.recipients:
            if isinstance(one, Group):
                gateway.act(SendMany(one, publication, one.datagram(payload)))
            else:
                session, subscription = one
                qos = min(message.qos, subscription.qos)
                gateway.deliver.deliver(session, subscription, publication, qos)

    def retained(self, link: Link, origin: Origin, message: Message) -> None:
        """A retained message: for those alone who have just subscribed."""
        gateway = self._gateway
        topic_name = _topic_name(message.topic)
        if topic_name is None:
            gateway.counters.undelivered["limited: topic name not fit for MQTT-SN"] += 1
            return
        fetchers = link.fetchers_for(origin, topic_name)
        publication = None
        for session, entry in fetchers:
            if entry.packet_id and any(join.session is session for join in entry.asking):
                if all(early is not message for _, early in entry.early):
                    entry.early.append((origin, message))
                continue
            subscription = session.subscriptions.get(entry.topic_filter)
            if subscription is None or gateway.sessions.get(session.client_id) is not session:
                continue
            publication = publication or self._publication(topic_name, origin, message)
            if len(message.payload) > _LARGEST_PAYLOAD:
                gateway.settle(
                    session, subscription, publication, Outcome.limited, "too large for a datagram"
                )
                continue
            qos = min(message.qos, subscription.qos)
            carrier = gateway.slots.carrier(session, topic_name)
            gateway.deliver.deliver(carrier, subscription, publication, qos, retain=True)

    def publication(self, topic: str, payload: bytes, published_ns: int, received_ns: int) -> Publication:
        """A publication with the next id."""
        publication = Publication(self._next_publication, topic, payload, published_ns, received_ns)
        self._next_publication += 1
        return publication

    def _publication(self, topic_name: str, origin: Origin, message: Message) -> Publication:
        """The copies of one message for several filters follow each other: they are one publication."""
        last = self._last
        if (
            last is not None
            and origin not in self._last_origins
            and last.topic == topic_name
            and last.payload == message.payload
        ):
            self._last_origins.add(origin)
            return last
        gateway = self._gateway
        published_ns, publisher = None, ""
        reads = gateway.settings.read_timestamps
        if reads:
            published_ns = published_ns_of(message.payload)
        for name, value in message.user_properties:
            if name == PUBLISHER_PROPERTY:
                # Anybody may have written it; names of ours are short.
                publisher = value[:_LONGEST_NAME]
            elif reads and name == USER_PROPERTY and value.isascii() and value.isdigit() and len(value) < 19:
                published_ns = int(value)
        if published_ns is None:
            published_ns = gateway.now_ns
        publication = self.publication(topic_name, message.payload, published_ns, gateway.now_ns)
        publication.publisher = publisher or self.own_messages.publisher(
            topic_name, message.payload, gateway.now_ns
        )
        self._last = publication
        self._last_origins = {origin}
        if not message.retain:
            self.counts.count(topic_name, len(message.payload), gateway.now_ns)
        if gateway.observer is not None:
            gateway.observer.published(publication, message.qos)
        return publication

    def _route(self, link: Link, key: RouteKey, topic_name: str) -> Route:
        gateway = self._gateway
        _, origin, qos = key
        route = Route(topic_name, gateway.topics.named(topic_name))
        policy = gateway.settings.policy
        ranked: list[tuple[int, tuple[TopicIdType, int] | None, Member]] = []
        for entry in link.filters_for(origin, topic_name):
            for session in entry.members:
                best = best_subscription(session, topic_name)
                if best is None or best.topic_filter != entry.topic_filter:
                    continue
                carrier = gateway.slots.carrier(session, topic_name)
                if carrier is not session:
                    route.subscribers.append(session)
                    session.routes.add(key)
                carrier.routes.add(key)
                reference = None
                if (
                    min(qos, best.qos) == 0
                    and carrier.state is SessionState.ACTIVE
                    and not carrier.draining
                    and len(carrier.endpoint) == 2
                ):
                    reference = gateway.deliver.reference(carrier, best, topic_name)
                priority_class = policy.priority_class(carrier.client_id, topic_name)
                ranked.append((priority_class, reference, (carrier, best)))
        route.recipients = in_class_order(ranked)
        link.routes.keep(key, route)
        return route


def _topic_name(octets: bytes) -> str | None:
    """The name, if a REGISTER can tell it: brokers are not all strict, and topics may be longer than datagrams."""
    try:
        name = octets.decode()
    except UnicodeDecodeError:
        return None
    return name if valid_topic_name(name) and len(octets) <= _LARGEST_PAYLOAD else None
