"""What happens during a run: the `conditions` of a scenario file, and the backups of its switches.

They are no part of the Scenario, which is what a plan starts from: what then changes is for those who run it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from triagemq.errors import ScenarioError
from triagemq.scenario.condition_checks import joining_port
from triagemq.scenario.condition_entry import ConditionEntry
from triagemq.scenario.lines import parse
from triagemq.scenario.loading import SCENARIO_FILE, load
from triagemq.scenario.reader import Reader
from triagemq.scenario.sections import Sections, read_sections

__all__ = [
    "Condition",
    "Conditions",
    "ErrorRate",
    "LinkState",
    "PortBandwidth",
    "PublicationRate",
    "PublisherState",
    "SubscriberState",
    "WorthChange",
    "load_conditions",
    "loads_conditions",
]


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


def load_conditions(path: str | os.PathLike[str], *, checked: bool = False) -> Conditions:
    """The conditions in a scenario file or directory; a ScenarioError as from `load` if anything in it is wrong.

    `checked` says that `load` has found it right.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
    ...     _ = file.write('''
    ... brokers: {hall: }
    ... switches: {core: }
    ... ports: {radio: {switch: core, bandwidth_bps: 320000}}
    ... publishers: {sensor: {publishes: {smoke: {rate_per_second: 2, size_bytes: 60}}}}
    ... subscribers: {commander: {port: radio, subscribes: {smoke: log:10}}}
    ... conditions: [{at_seconds: 20, port: radio, bandwidth_bps: 160000}]
    ... ''')
    ...     file.flush()
    ...     load_conditions(file.name).timeline
    (PortBandwidth(at_seconds=20.0, port='radio', bandwidth_bps=160000.0),)
    """
    if not checked:
        load(path)
    file = Path(path) / SCENARIO_FILE if Path(path).is_dir() else Path(path)
    return loads_conditions(file.read_bytes().decode("utf-8-sig"), str(file))


def loads_conditions(text: str, file: str = "<text>") -> Conditions:
    """The conditions in a YAML text that `loads` has found right. `file` is what problems call it."""
    reader = Reader(file)
    sections = read_sections(reader, parse(text, file))
    if sections is None:
        raise ScenarioError(reader.problems)
    timeline = [_condition(sections, each.entry) for each in sections.conditions if each.entry is not None]
    return Conditions(
        timeline=tuple(sorted(timeline, key=lambda condition: condition.at_seconds)),
        backups={name: switch.backup for name, switch in sections.switches.right.items() if switch.backup},
        profiles={name: profile.factors for name, profile in sections.worth_profiles.items()},
    )


def _condition(sections: Sections, entry: ConditionEntry) -> Condition:
    at_seconds, present = entry.at_seconds, entry.state in ("returns", "joins")
    if entry.worth_profile is not None:
        return WorthChange(at_seconds, entry.worth_profile)
    if entry.topic is not None:
        return PublicationRate(
            at_seconds, entry.topic, entry.publisher, entry.rate_per_second, entry.rate_factor
        )
    if entry.error_rate is not None:
        if entry.publisher is not None:
            return ErrorRate(at_seconds, "publisher", entry.publisher, entry.error_rate)
        if entry.subscriber is not None:
            return ErrorRate(at_seconds, "subscriber", entry.subscriber, entry.error_rate)
        return ErrorRate(at_seconds, "port", entry.port or "", entry.error_rate)
    if entry.publisher is not None:
        return PublisherState(at_seconds, entry.publisher, present)
    if entry.subscriber is not None:
        return SubscriberState(at_seconds, entry.subscriber, present)
    if entry.link is not None:
        return LinkState(at_seconds, joining_port(sections, entry.link) or "", present)
    return PortBandwidth(at_seconds, entry.port or "", entry.bandwidth_bps or 0.0)
