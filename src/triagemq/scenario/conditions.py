"""What happens during a run: the `conditions` of a scenario file, and the backups of its switches.

They are no part of the Scenario, which is what a plan starts from: what then changes is for those who run it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class PortBandwidth:
    """A port's bandwidth becomes another."""

    at_seconds: float
    port: str
    bandwidth_bps: float


@dataclass(frozen=True, slots=True)
class PublisherState:
    """A publisher fails, or returns."""

    at_seconds: float
    publisher: str
    works: bool


@dataclass(frozen=True, slots=True)
class SubscriberState:
    """A subscriber joins, or leaves."""

    at_seconds: float
    subscriber: str
    present: bool


@dataclass(frozen=True, slots=True)
class LinkState:
    """The link from a port to the switch that it feeds fails, or returns."""

    at_seconds: float
    port: str
    up: bool


@dataclass(frozen=True, slots=True)
class ErrorRate:
    """The share of packets that a link loses becomes another: of a publisher, of a subscriber, or behind a port."""

    at_seconds: float
    of: Literal["port", "publisher", "subscriber"]
    name: str
    error_rate: float


@dataclass(frozen=True, slots=True)
class PublicationRate:
    """Events on a topic, or on all that a pattern matches, come at another rate: a stated one, or so many times the
    scenario's. Without a `publisher`, everyone's."""

    at_seconds: float
    topic: str
    publisher: str | None = None
    rate_per_second: float | None = None
    rate_factor: float | None = None


@dataclass(frozen=True, slots=True)
class WorthChange:
    """Another worth profile holds: what topics are worth to everyone."""

    at_seconds: float
    profile: str


Condition = (
    PortBandwidth | PublisherState | SubscriberState | LinkState | ErrorRate | PublicationRate | WorthChange
)


@dataclass(frozen=True, slots=True)
class Conditions:
    """Everything that happens, in order of time, and the port that each switch with a backup falls back on.

    `profiles` holds the worth profiles: by name, and by topic or pattern, the factor on what a topic is worth.
    """

    timeline: tuple[Condition, ...] = ()
    backups: Mapping[str, str] = field(default_factory=dict)
    profiles: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
