"""Names of topics on the wire: which need a registration, and which are none."""

from __future__ import annotations

from collections.abc import Mapping

from triagemq.errors import ParameterError
from triagemq.mqttsn import (
    TopicIdType,
    is_shared,
    publishable_topic_name,
    short_topic_id,
    valid_topic_filter,
    valid_topic_name,
)

TopicReference = tuple[TopicIdType, int]
"""How a PUBLISH names a topic."""


def without_registration(topic: str | int, predefined_topics: Mapping[int, str]) -> TopicReference | None:
    """The id of a topic that needs none from the gateway: predefined, or a name of two octets.

    >>> without_registration("ab", {}), without_registration("floor3/smoke", {})
    ((<TopicIdType.SHORT: 2>, 24930), None)
    >>> without_registration("floor3/smoke", {7: "floor3/smoke"})
    (<TopicIdType.PREDEFINED: 1>, 7)
    """
    if isinstance(topic, int):
        return _predefined(topic)
    require_topic_name(topic)
    for topic_id, name in predefined_topics.items():
        if name == topic:
            return TopicIdType.PREDEFINED, topic_id
    if len(topic.encode()) == 2:
        return TopicIdType.SHORT, short_topic_id(topic)
    return None


def filter_reference(topic: str | int) -> tuple[TopicIdType, str | int]:
    """How a SUBSCRIBE names a filter: by a predefined id, as a short name, or in full.

    >>> filter_reference("floor3/+"), filter_reference("ab"), filter_reference(7)
    ((<TopicIdType.NORMAL: 0>, 'floor3/+'), (<TopicIdType.SHORT: 2>, 'ab'), (<TopicIdType.PREDEFINED: 1>, 7))
    """
    if isinstance(topic, int):
        return _predefined(topic)
    if not valid_topic_filter(topic):
        raise ParameterError(
            "topic",
            f"{topic!r} is no topic filter: + is a whole level, # the whole last one, "
            "no control characters, at most 200 levels",
        )
    if is_shared(topic):
        raise ParameterError("topic", f"{topic!r} is a shared subscription, which MQTT-SN does not have")
    if len(topic.encode()) == 2 and valid_topic_name(topic):
        return TopicIdType.SHORT, topic
    return TopicIdType.NORMAL, topic


def require_topic_name(topic: str) -> None:
    """ParameterError unless events can be published to it.

    >>> require_topic_name("floor3/+")
    Traceback (most recent call last):
    triagemq.errors.ParameterError: topic: 'floor3/+' is no topic name to publish to: no wildcards, ...
    """
    if not publishable_topic_name(topic):
        raise ParameterError(
            "topic",
            f"{topic!r} is no topic name to publish to: no wildcards, not empty, no control characters, "
            "at most 200 levels, and neither $SYS nor $share in front",
        )


def _predefined(topic_id: int) -> TopicReference:
    if not 0 < topic_id < 0xFFFF:
        raise ParameterError("topic", f"a predefined topic id is from 1 to 65534, not {topic_id}")
    return TopicIdType.PREDEFINED, topic_id
