"""Topic names and topic filters that are valid (MQTT 3.1.1, section 4.7); what they match is in filters.py.

What MQTT only advises against (control characters and non-characters, section 1.5.3) is refused here, and so are more
levels than Mosquitto takes: a broker may end the connection over them, and a gateway shares it among all its clients.

A short topic name (MQTT-SN 1.2, section 3) is two octets of UTF-8 that stand where a topic id would stand.
"""

from __future__ import annotations

import re
from typing import Final

from triagemq.errors import ParameterError
from triagemq.mqttsn.messages import RejectionReason

MAXIMUM_TOPIC_LEVELS: Final = 200

_MAXIMUM_TOPIC_BYTES = 0xFFFF
_CONTROL_CHARACTER = re.compile("[\x01-\x1f\x7f-\x9f]")
# U+FDD0 to U+FDEF, and the last two code points of each of the 17 planes.
_PLANE_ENDS = "".join(chr((plane << 16) + last) for plane in range(17) for last in (0xFFFE, 0xFFFF))
_NON_CHARACTER = re.compile(f"[\ufdd0-\ufdef{_PLANE_ENDS}]")
# Mosquitto ends the connection of a client that publishes to them; by MQTT they are the broker's own.
_BROKERS_OWN = ("$SYS", "$share")


def topic_name_problem(name: str) -> RejectionReason | None:
    """Why `name` is no topic name, or None."""
    return _text_problem(name) or (
        RejectionReason.WILDCARD_IN_TOPIC_NAME if "+" in name or "#" in name else None
    )


def topic_filter_problem(topic_filter: str) -> RejectionReason | None:
    """Why `topic_filter` cannot be subscribed to, or None."""
    if problem := _text_problem(topic_filter):
        return problem
    if "+" not in topic_filter and "#" not in topic_filter:
        return None
    *levels, last = topic_filter.split("/")
    if any("#" in level for level in levels) or ("#" in last and last != "#"):
        return RejectionReason.INVALID_TOPIC_FILTER
    if any("+" in level and level != "+" for level in (*levels, last)):
        return RejectionReason.INVALID_TOPIC_FILTER
    return None


def _text_problem(text: str) -> RejectionReason | None:
    if not text:
        return RejectionReason.EMPTY_TOPIC
    if "\0" in text:
        return RejectionReason.NUL_CHARACTER
    if _CONTROL_CHARACTER.search(text):
        return RejectionReason.CONTROL_CHARACTER
    if not text.isascii() and _NON_CHARACTER.search(text):
        return RejectionReason.NON_CHARACTER
    if text.count("/") >= MAXIMUM_TOPIC_LEVELS:
        return RejectionReason.TOO_MANY_LEVELS
    return None


def is_plain_text(text: str) -> bool:
    """Does no broker end the connection over these characters?

    >>> is_plain_text("pump 7/a"), is_plain_text("pump\\n"), is_plain_text("")
    (True, False, True)
    """
    return _text_problem(text) not in (
        RejectionReason.NUL_CHARACTER,
        RejectionReason.CONTROL_CHARACTER,
        RejectionReason.NON_CHARACTER,
    )


def valid_topic_name(name: str) -> bool:
    """Is it the name of a topic?

    >>> valid_topic_name("floor3/smoke"), valid_topic_name("floor3/+"), valid_topic_name("")
    (True, False, False)
    >>> valid_topic_name("floor3\\n"), valid_topic_name("\\uffff"), valid_topic_name("/" * 200)
    (False, False, False)
    """
    return topic_name_problem(name) is None and _fits(name)


def publishable_topic_name(name: str) -> bool:
    """Can a client publish to `name`? Some topics are the broker's own, to be read only.

    >>> publishable_topic_name("floor3/smoke"), publishable_topic_name("$SYS/broker/uptime")
    (True, False)
    """
    return valid_topic_name(name) and not is_brokers_own(name)


def is_brokers_own(name: str) -> bool:
    """Is it a topic that only the broker itself publishes to?

    >>> is_brokers_own("$SYS/broker/uptime"), is_brokers_own("$floor3")
    (True, False)
    """
    return name[:1] == "$" and name.startswith(_BROKERS_OWN)


def is_shared(topic_filter: str) -> bool:
    """Is it a shared subscription (MQTT 5, section 4.8.2), of which each message goes to one subscriber only?

    >>> is_shared("$share/pumps/floor3/#"), is_shared("floor3/#")
    (True, False)
    """
    return topic_filter.split("/", 1)[0] == "$share"


def valid_topic_filter(topic_filter: str) -> bool:
    """Can a client subscribe to `topic_filter`?

    >>> valid_topic_filter("floor3/+/smoke"), valid_topic_filter("#"), valid_topic_filter("floor#")
    (True, True, False)
    """
    return topic_filter_problem(topic_filter) is None and _fits(topic_filter)


def short_topic_id(name: str) -> int:
    """The two octets of a short topic name, as the topic id that stands for it on the wire.

    >>> hex(short_topic_id("ab"))
    '0x6162'
    """
    try:
        octets = name.encode()
    except UnicodeEncodeError:
        raise ParameterError("name", f"{name!r} has characters that UTF-8 cannot hold") from None
    if len(octets) != 2:
        raise ParameterError("name", f"a short topic name is two octets long, {name!r} is {len(octets)}")
    if problem := topic_name_problem(name):
        raise ParameterError("name", f"{name!r} is no topic name: {problem.replace('_', ' ')}")
    return int.from_bytes(octets)


def short_topic_name(topic_id: int) -> str:
    """The short topic name that a topic id of type SHORT stands for.

    >>> short_topic_name(0x6162)
    'ab'
    """
    if not 0 <= topic_id <= 0xFFFF:
        raise ParameterError("topic_id", f"must be from 0 to 65535, is {topic_id}")
    try:
        name = topic_id.to_bytes(2).decode()
    except UnicodeDecodeError:
        raise ParameterError("topic_id", f"0x{topic_id:04X} is no short topic name: not UTF-8") from None
    if problem := topic_name_problem(name):
        raise ParameterError(
            "topic_id", f"0x{topic_id:04X} is no short topic name: {problem.replace('_', ' ')}"
        )
    return name


def _fits(topic: str) -> bool:
    try:
        return len(topic.encode()) <= _MAXIMUM_TOPIC_BYTES
    except UnicodeEncodeError:
        return False
