"""What a subscriber tells the coordinator about the events that arrived: how many of each topic, and how late."""

from __future__ import annotations

from typing import Any

from triagemq.client.events import Event

__all__ = ["Received"]

_MOST_TOPICS = 50_000
_LONGEST_TOPIC = 1_024


class Received:
    """Counts since the last report.

    >>> received = Received()
    >>> received.count(Event("smoke", b"", 1_000_000_000, 1_250_000_000))
    >>> received.report()
    {'received': {'smoke': {'count': 1, 'latency_seconds_sum': 0.25, 'latency_seconds_max': 0.25}}}
    >>> received.report()
    {}
    """

    def __init__(self) -> None:
        self._topics: dict[str, list[float]] = {}

    def count(self, event: Event) -> None:
        """An event has arrived; its latency counts if its publisher has put in the time."""
        found = self._topics.get(event.topic)
        if found is None:
            if len(self._topics) >= _MOST_TOPICS or len(event.topic) > _LONGEST_TOPIC:
                return
            found = self._topics[event.topic] = [0, 0.0, 0.0]
        found[0] += 1
        latency_seconds = event.latency_seconds
        if latency_seconds is not None:
            found[1] += latency_seconds
            found[2] = max(found[2], latency_seconds)

    def report(self) -> dict[str, Any]:
        """What a heartbeat tells; the counts begin anew."""
        topics, self._topics = self._topics, {}
        if not topics:
            return {}
        return {
            "received": {
                topic: {"count": int(count), "latency_seconds_sum": total, "latency_seconds_max": longest}
                for topic, (count, total, longest) in topics.items()
            }
        }
