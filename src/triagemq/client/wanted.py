"""What a subscriber wants of a topic, as it is told to the coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from triagemq.client.topics import filter_reference
from triagemq.errors import ParameterError

__all__ = ["Wanted"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A topic or a filter; what it is worth and how late or rarely it may come is for a coordinator to know.

    `utility` is text (log:10, linear:2, step:3@0.8), or a mapping with shape, weight, threshold, freshness_seconds.

    `max_latency_share` judges it by its tail: this share of what arrives shall come within `max_latency_seconds`.

    >>> Wanted("floor3/+/smoke", utility="log:10", max_latency_seconds=0.05).as_json()
    {'topic': 'floor3/+/smoke', 'qos': 0, 'utility': 'log:10', 'max_latency_seconds': 0.05}
    """

    topic: str | int
    utility: str | Mapping[str, Any] | None = None
    max_latency_seconds: float | None = None
    max_separation_seconds: float | None = None
    qos: int = 0
    max_latency_share: float | None = None

    def __post_init__(self) -> None:
        filter_reference(self.topic)
        if self.qos not in (0, 1, 2):
            raise ParameterError("qos", f"must be 0, 1 or 2, is {self.qos}")
        for name in ("max_latency_seconds", "max_separation_seconds"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ParameterError(name, f"must be above 0, is {value}")
        share = self.max_latency_share
        if share is not None and not 0 < share <= 1:
            raise ParameterError("max_latency_share", f"must be above 0 and at most 1, is {share}")
        if share is not None and self.max_latency_seconds is None:
            raise ParameterError(
                "max_latency_share", "is a share within no time; give max_latency_seconds, too"
            )

    @property
    def needs_coordinator(self) -> bool:
        """Does it say more than a gateway alone can heed?"""
        asked = (self.utility, self.max_latency_seconds, self.max_separation_seconds)
        return any(value is not None for value in asked)

    def as_json(self) -> dict[str, Any]:
        """As REST takes it."""
        fields = {
            "topic": self.topic,
            "qos": self.qos,
            "utility": dict(self.utility) if isinstance(self.utility, Mapping) else self.utility,
            "max_latency_seconds": self.max_latency_seconds,
            "max_latency_share": self.max_latency_share,
            "max_separation_seconds": self.max_separation_seconds,
        }
        return {name: value for name, value in fields.items() if value is not None}
