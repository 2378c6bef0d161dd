"""A message of the broker, and to whom it goes: worked out once per topic and copy, then looked up.

A client with several matching filters takes the copy of the best of them, and no other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from triagemq.gateway.core.broker_link import BrokerLink, GatewayCore
from triagemq.gateway.core.delivery import deliver, drop_as_planned
from triagemq.gateway.core.messages import LARGEST_PAYLOAD, Origin, Publication, Subscription
from triagemq.gateway.core.sessions import (
    Group,
    Member,
    Route,
    RouteKey,
    Session,
    SessionState,
    TopicReference,
)
from triagemq.gateway.core.state import GatewayState, SendMany
from triagemq.mqtt.packets import NO_PROPERTIES, Message
from triagemq.mqttsn import encode_publish, matches, valid_topic_name
from triagemq.mqttsn.properties import NOTHING_SAID, EventProperties
from triagemq.mqttsn.timestamps import PUBLISHER_PROPERTY, USER_PROPERTY, split_publisher, stamped_ns
from triagemq.trace.schema import Outcome

_LONGEST_NAME = 255
_OUR_PROPERTIES = {PUBLISHER_PROPERTY, USER_PROPERTY}
OWN_CONNECTION = 0
"""Of the connections to the broker, those that all MQTT-SN clients share; MQTT clients have others."""


def fan_out(gateway: GatewayCore, link: BrokerLink, origin: Origin, message: Message) -> None:
    """A copy of a message, as the broker sent it."""
    if message.retain:
        _fan_out_retained(gateway, link, origin, message)
        return
    key = (message.topic, origin, message.qos)
    route = gateway.routes.get(key)
    if route is None:
        topic_name = _topic_name(gateway, message.topic)
        if topic_name is None:
            return
        route = _route(gateway, link, key, topic_name)
    if not route.recipients:
        return
    publication = _publication(gateway, route.topic_name, origin, message)
    payload = message.payload
    if len(payload) > LARGEST_PAYLOAD:
        for session, subscription in route.members():
            gateway.settle((session, subscription, publication), Outcome.limited, "too large for a datagram")
        return
    sent_directly = publication.sent_directly is not None
    for one in _others(gateway, route, publication) if sent_directly else route.recipients:
        if isinstance(one, Group):
            places = _drawn(gateway, one, publication)
            if places is None or places:
                gateway.act(SendMany(one, publication, encode_publish(*one.reference, payload), places))
        else:
            session, subscription = one
            qos = min(message.qos, subscription.qos)
            deliver(gateway, (session, subscription, publication), qos)


def _drawn(gateway: GatewayCore, group: Group, publication: Publication) -> list[int] | None:
    """The places of those in a group who get a copy: by the plan some may not. None: all do."""
    treatments = gateway.treatments(group, publication.topic)
    if not group.is_dropped:
        return None
    places = []
    for place, treatment in enumerate(treatments):
        if treatment.drop_rate > 0.0 and gateway.draw() < treatment.drop_rate:
            drop_as_planned(gateway, (*group.members[place], publication), treatment)
        else:
            places.append(place)
    return None if len(places) == len(treatments) else places


def _others(gateway: GatewayCore, route: Route, publication: Publication) -> Iterator[Group | Member]:
    """The recipients of what went to some of them directly: those to whom it did not."""
    policy = gateway.settings.policy

    def needs(member: Member) -> bool:
        session, _ = member
        return not policy.hears_directly(session.client_id, publication)

    for one in route.recipients:
        if not isinstance(one, Group):
            if needs(one):
                yield one
            continue
        members = [member for member in one.members if needs(member)]
        if len(members) == len(one.members):
            yield one
        elif members:
            yield Group(one.reference, members)


def _fan_out_retained(gateway: GatewayCore, link: BrokerLink, origin: Origin, message: Message) -> None:
    """A retained message: for those alone who have just subscribed."""
    topic_name = _topic_name(gateway, message.topic)
    if topic_name is None:
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
        publication = publication or _publication(gateway, topic_name, origin, message)
        if len(message.payload) > LARGEST_PAYLOAD:
            gateway.settle((session, subscription, publication), Outcome.limited, "too large for a datagram")
            continue
        qos = min(message.qos, subscription.qos)
        deliver(gateway, (session, subscription, publication), qos, retain=True)


def _publication(gateway: GatewayCore, topic_name: str, origin: Origin, message: Message) -> Publication:
    """The copies of one message for several filters follow each other: they are one publication."""
    known = gateway.publications
    last = known.last
    if (
        last is not None
        and origin not in known.last_origins
        and last.topic == topic_name
        and last.payload == message.payload
    ):
        known.last_origins.add(origin)
        return last
    publication = publication_of(gateway, OWN_CONNECTION, topic_name, message)
    known.last = publication
    known.last_origins = {origin}
    return publication


def publication_of(gateway: GatewayState, connection: int, topic_name: str, message: Message) -> Publication:
    """The publication of which a copy has come over a connection to the broker."""
    known = gateway.publications
    if known.recent is not None and not message.retain:
        found = known.recent.take(connection, topic_name, message.payload, gateway.now_ns)
        if found is not None:
            return found
    published_ns, publisher = None, ""
    if gateway.settings.read_timestamps:
        published_ns = stamped_ns(message.payload, message.user_properties)
    for name, value in message.user_properties:
        if name == PUBLISHER_PROPERTY:
            # Any publisher may have written it; names of ours are short.
            publisher = value[:_LONGEST_NAME]
    if published_ns is None:
        published_ns = gateway.now_ns
    publication = known.new(topic_name, message.payload, published_ns, gateway.now_ns)
    publisher = publisher or known.own_messages.publisher(topic_name, message.payload, gateway.now_ns)
    publication.publisher, publication.sent_directly = split_publisher(publisher)
    publication.properties = event_properties(message)
    if message.properties.expiry_seconds is not None:
        publication.expires_ns = gateway.now_ns + message.properties.expiry_seconds * 1_000_000_000
    if not message.retain:
        known.counts.count(topic_name, len(message.payload), gateway.now_ns)
        if known.recent is not None:
            known.recent.add(connection, publication)
    if gateway.observer is not None:
        gateway.observer.published(publication, message.qos)
    return publication


def event_properties(message: Message) -> EventProperties | None:
    """What a publisher says of a message, without what is between gateways and publishers of ours."""
    if not message.user_properties and message.properties is NO_PROPERTIES:
        return None
    pairs = tuple(pair for pair in message.user_properties if pair[0] not in _OUR_PROPERTIES)
    said = EventProperties(*message.properties[1:], pairs)
    return None if said == NOTHING_SAID else said


def _route(gateway: GatewayCore, link: BrokerLink, key: RouteKey, topic_name: str) -> Route:
    _, origin, qos = key
    policy = gateway.settings.policy
    ranked: list[tuple[int, TopicReference | None, Member]] = []
    for entry in link.filters_for(origin, topic_name):
        for session in entry.members:
            best = _best_subscription(session, topic_name)
            if best is None or best.topic_filter != entry.topic_filter:
                continue
            session.routes[key] = None
            treatment = policy.treatment(session.client_id, topic_name)
            reference = None
            if (
                treatment.terms is None
                and min(qos, best.qos) == 0
                and session.state is SessionState.ACTIVE
                and not session.draining
                and len(session.endpoint) == 2
            ):
                reference = session.topics.reference(best, topic_name)
            ranked.append((treatment.priority_class, reference, (session, best)))
    route = Route(topic_name, _in_class_order(ranked))
    gateway.routes.keep(key, route)
    return route


def _in_class_order(
    ranked: list[tuple[int, TopicReference | None, Member]],
) -> list[Group | Member]:
    """Recipients by class, and by topic reference (None: one by one) in the order in which they are sent to.

    Class 0 comes first, in any order of subscribing. A group goes on into the next class where the reference is equal:
    as a rule all have one, and one system call serves them.
    """
    recipients: list[Group | Member] = []
    for _, reference, member in sorted(ranked, key=lambda one: (one[0], one[1] is None, one[1] or ())):
        last = recipients[-1] if recipients else None
        if reference is None:
            recipients.append(member)
        elif isinstance(last, Group) and last.reference == reference:
            last.members.append(member)
        else:
            recipients.append(Group(reference, [member]))
    return recipients


def _best_subscription(session: Session, topic_name: str) -> Subscription | None:
    """The one by which a client gets messages of a topic: the highest QoS counts (MQTT 3.1.1, 3.3.5)."""
    exact = session.subscriptions.get(topic_name)
    if exact is not None and (len(session.subscriptions) == 1 or exact.qos == 2):
        return exact
    best = None
    for subscription in session.subscriptions.values():
        if matches(subscription.topic_filter, topic_name) and (
            best is None or subscription.qos > best.qos or (subscription is exact and exact.qos == best.qos)
        ):
            best = subscription
    return best


def _topic_name(gateway: GatewayCore, octets: bytes) -> str | None:
    """The name, if a REGISTER can carry it: brokers are not all strict, and topics may be longer than datagrams."""
    with contextlib.suppress(UnicodeDecodeError):
        name = octets.decode()
        if valid_topic_name(name) and len(octets) <= LARGEST_PAYLOAD:
            return name
    gateway.counters.undelivered["limited: topic name not fit for MQTT-SN"] += 1
    return None
