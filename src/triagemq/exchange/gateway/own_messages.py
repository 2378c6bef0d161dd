"""Who published what comes back from the broker, where MQTT 3.1.1 has no room for the name in the message."""

from __future__ import annotations

__all__ = ["OwnMessages"]

_MOST_MESSAGES = 10_000
_LONGEST_NS = 60_000_000_000


class OwnMessages:
    """Messages that were given to the broker, by topic and payload, until they have come back or are old.

    Equal messages of two clients that are under way at the same time are both the later one's.

    >>> own = OwnMessages()
    >>> own.sent("smoke", b"yes", "sensor-7", 0)
    >>> own.publisher("smoke", b"yes", 5), own.publisher("smoke", b"yes", 6)
    ('sensor-7', '')
    """

    def __init__(self) -> None:
        # Publisher, how many are under way, and when the last was sent; the oldest first. A payload may be long, its
        # hash is not, and nobody outside can make two that are equal.
        self._under_way: dict[int, tuple[str, int, int]] = {}

    def sent(self, topic: str, payload: bytes, publisher: str, now_ns: int) -> None:
        """A client's message goes to the broker."""
        key = hash((topic, payload))
        _, count, last_ns = self._under_way.pop(key, ("", 0, now_ns))
        count = 1 if now_ns - last_ns > _LONGEST_NS else count + 1
        self._under_way[key] = (publisher, count, now_ns)
        if len(self._under_way) > _MOST_MESSAGES:
            del self._under_way[next(iter(self._under_way))]

    def publisher(self, topic: str, payload: bytes, now_ns: int) -> str:
        """A message comes from the broker: the name of who published it here, or nothing."""
        key = hash((topic, payload))
        publisher, count, last_ns = self._under_way.get(key, ("", 0, now_ns))
        if count > 1:
            self._under_way[key] = (publisher, count - 1, last_ns)
        else:
            self._under_way.pop(key, None)
        return "" if now_ns - last_ns > _LONGEST_NS else publisher
