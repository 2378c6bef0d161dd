"""What is wrong with topics and patterns that people have written, and what to do."""

from __future__ import annotations

from triagemq.mqttsn.filters import has_wildcard

__all__ = ["filter_mistake", "topic_mistake"]

LONGEST_BYTES = 65_535
"""MQTT carries a topic's length in two bytes."""


def topic_mistake(name: str) -> tuple[str, str] | None:
    """What is wrong with the name of a topic, and what to do; None if nothing is.

    >>> topic_mistake("floor/#")
    ('is a pattern, not a topic', 'publish on topics without + and #')
    """
    if not name:
        return "is empty", "write the name of a topic"
    if has_wildcard(name):
        return "is a pattern, not a topic", "publish on topics without + and #"
    return _unfit_for_mqtt(name)


def filter_mistake(name: str) -> tuple[str, str] | None:
    """What is wrong with the topic or pattern of a subscription, and what to do; None if nothing is.

    >>> filter_mistake("floor/1+/smoke")
    ('has + or # beside other characters', 'let + or # stand alone between slashes, # only at the end')
    """
    if not name:
        return "is empty", "write the name of a topic"
    levels = name.split("/")
    if any(len(level) > 1 and has_wildcard(level) for level in levels) or "#" in levels[:-1]:
        return (
            "has + or # beside other characters",
            "let + or # stand alone between slashes, # only at the end",
        )
    return _unfit_for_mqtt(name)


def _unfit_for_mqtt(name: str) -> tuple[str, str] | None:
    if "\0" in name:
        return "holds a null character", "remove it"
    if len(name.encode()) > LONGEST_BYTES:
        return f"is longer than the {LONGEST_BYTES} bytes MQTT allows", "write a shorter name"
    return None
