"""Who gets a message: for each topic and copy of the broker, once worked out and then looked up.

A broker sends one copy per matching filter. MQTT 5 says which filters a copy is for (subscription identifiers); for
3.1.1 filters that overlap go over different connections (lanes), so that the connection says it. A client with
several matching filters takes the copy of the best of them, and no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from triagemq.mqttsn import TopicIdType, matches, short_topic_id

if TYPE_CHECKING:
    from triagemq.exchange.gateway.model import Session, Subscription
    from triagemq.exchange.gateway.topics import Topic

__all__ = [
    "Group",
    "Member",
    "Origin",
    "Route",
    "RouteKey",
    "best_subscription",
    "has_wildcard",
    "in_class_order",
    "overlap",
    "topic_reference",
]

Origin: TypeAlias = tuple[int, ...]
"""Subscription identifiers of a copy, or the negative number of its lane."""

RouteKey: TypeAlias = tuple[bytes, Origin, int]
"""Topic, origin, QoS."""


Member: TypeAlias = "tuple[Session, Subscription]"
"""Who gets a message, and by which subscription."""


class Group:
    """Clients that get the same datagram. `tail` is what follows length and type: flags, topic id, message id."""

    __slots__ = ("members", "prepared", "tail", "traced")

    def __init__(self, id_type: TopicIdType, topic_id: int) -> None:
        self.tail = bytes((id_type,)) + topic_id.to_bytes(2) + b"\0\0"
        self.members: list[Member] = []
        # Kept here by whoever sends and whoever traces; a group never changes once it is in a route.
        self.prepared: Any = None
        self.traced: Any = None

    def datagram(self, payload: bytes) -> bytes:
        """A PUBLISH at QoS 0, as `mqttsn.encode_publish` makes it.

        >>> Group(TopicIdType.NORMAL, 7).datagram(b"on").hex()
        '090c00000700006f6e'
        """
        size = len(payload) + 7
        if size < 256:
            return bytes((size, 0x0C)) + self.tail + payload
        return b"\x01" + (size + 2).to_bytes(2) + b"\x0c" + self.tail + payload


class Route:
    """All recipients of a copy in the order of their classes: groups who get it at once at QoS 0, and those to be
    looked at one by one."""

    __slots__ = ("recipients", "subscribers", "topic", "topic_name")

    def __init__(self, topic_name: str, topic: Topic | None) -> None:
        self.topic_name = topic_name
        self.topic = topic
        self.recipients: list[Group | Member] = []
        # Those who subscribed and get their messages through another session.
        self.subscribers: list[Session] = []

    def members(self) -> Iterator[Member]:
        """Every recipient, those in groups too."""
        for one in self.recipients:
            if isinstance(one, Group):
                yield from one.members
            else:
                yield one

    def sessions(self) -> Iterator[Session]:
        """Everyone on whom it depends."""
        for session, _ in self.members():
            yield session
        yield from self.subscribers


def in_class_order(
    ranked: Iterable[tuple[int, tuple[TopicIdType, int] | None, Member]],
) -> list[Group | Member]:
    """Recipients by class, topic reference (None: one by one) and who it is, in the order in which they are sent to.

    Class 0 comes first, whoever subscribed first. A group goes on into the next class where the reference is the
    same: as a rule all have one, and one system call serves them.
    """
    by_class: dict[int, dict[tuple[TopicIdType, int] | None, list[Member]]] = {}
    for priority_class, reference, member in ranked:
        by_class.setdefault(priority_class, {}).setdefault(reference, []).append(member)
    recipients: list[Group | Member] = []
    last, group = None, None
    for priority_class in sorted(by_class):
        alike = by_class[priority_class]
        singles = alike.pop(None, [])
        for reference in sorted(alike, key=lambda one: one != last):
            assert reference is not None
            if group is None or reference != last:
                last, group = reference, Group(*reference)
                recipients.append(group)
            group.members += alike[reference]
        if singles:
            recipients += singles
            last, group = None, None
    return recipients


def best_subscription(session: Session, topic_name: str) -> Subscription | None:
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


def topic_reference(subscription: Subscription, topic_name: str) -> tuple[TopicIdType, int] | None:
    """How a topic is named to a subscriber without registering it; None if only a normal id will do."""
    if subscription.id_type is TopicIdType.PREDEFINED:
        return TopicIdType.PREDEFINED, subscription.predefined_id
    if subscription.id_type is TopicIdType.SHORT:
        return TopicIdType.SHORT, short_topic_id(topic_name)
    if subscription.topic_filter != topic_name and len(topic_name.encode()) == 2:
        # By a wildcard: the client has no id yet, and needs none for a name of two octets.
        return TopicIdType.SHORT, short_topic_id(topic_name)
    return None


def has_wildcard(topic_filter: str) -> bool:
    """Does it take in more than the topic of the same name?

    >>> has_wildcard("a/+"), has_wildcard("a/b")
    (True, False)
    """
    return "+" in topic_filter or "#" in topic_filter


def overlap(one: str, other: str) -> bool:
    """Is there a topic name that both filters take in?

    >>> overlap("a/+", "+/b"), overlap("a/#", "a"), overlap("a/+", "b/+"), overlap("+/a", "$SYS/a")
    (True, True, False, False)
    """
    if one == other:
        return True
    if (one[0] == "$" and other[0] in "+#") or (other[0] == "$" and one[0] in "+#"):
        return False
    left, right = one.split("/"), other.split("/")
    for index in range(max(len(left), len(right))):
        a = left[index] if index < len(left) else None
        b = right[index] if index < len(right) else None
        if a == "#" or b == "#":
            return True
        if a is None or b is None:
            # `#` also takes in its parent: only then may one filter be a level longer.
            return False
        if a != b and "+" not in (a, b):
            return False
    return True
