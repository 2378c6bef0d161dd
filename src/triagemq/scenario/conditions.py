"""What happens during a run: the `conditions` of a scenario file, backups of its switches, and situations in between.

Conditions are no part of the Scenario, which a plan starts from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from triagemq.mqttsn.filters import TopicTree, has_wildcard
from triagemq.scenario.model import Floats, Integers, Scenario


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


Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Situation:
    """How things stand from `at_seconds` on: one value per port, publisher, subscriber or switch of the scenario, a
    `rate_per_second` per publication and a `utility_weight` per subscription.

    `fed_by_port` is as in `Switches`. A switch that nothing reaches keeps the port it is fed by in the scenario, and
    is not `switch_reached`.
    """

    at_seconds: float
    bandwidth_bps: Floats
    link_up: Flags
    publisher_works: Flags
    subscriber_present: Flags
    fed_by_port: Integers
    switch_reached: Flags
    port_error: Floats
    publisher_error: Floats
    subscriber_error: Floats
    rate_per_second: Floats
    utility_weight: Floats

    def feeding_ports(self, scenario: Scenario) -> frozenset[str]:
        """The ports that feed a switch now."""
        rows = self.fed_by_port[self.switch_reached & (self.fed_by_port >= 0)]
        return frozenset(scenario.ports.name[row] for row in rows)

    def active_subscriptions(self, scenario: Scenario) -> Flags:
        """Whose subscriber is there and can be reached."""
        reached = self.switch_reached[scenario.ports.switch[scenario.subscribers.port]]
        return (self.subscriber_present & reached)[scenario.subscriptions.subscriber]

    def publication_rate(self, scenario: Scenario) -> Floats:
        """Events per second of each publication; none of a publisher that has failed."""
        return np.where(self.publisher_works[scenario.publications.publisher], self.rate_per_second, 0.0)

    def carried_bps(self, scenario: Scenario) -> Floats:
        """What each port carries; one that feeds a switch in the scenario, what the port in its place carries now.

        So the link to a switch has the bandwidth of the backup while that is used, under its usual name.

        >>> from triagemq.scenario.building import building
        >>> scenario = building()
        >>> bool((situations(scenario, Conditions())[0].carried_bps(scenario) == scenario.ports.bandwidth_bps).all())
        True
        """
        bandwidth_bps = self.bandwidth_bps.copy()
        usual, now = scenario.switches.fed_by_port, self.fed_by_port
        moved = np.flatnonzero(self.switch_reached & (usual >= 0) & (usual != now))
        bandwidth_bps[usual[moved]] = self.bandwidth_bps[now[moved]]
        return bandwidth_bps

    def network(self, scenario: Scenario) -> Scenario:
        """The scenario as things stand now, to plan by. Publications and subscribers stay in it."""
        ports = scenario.ports.with_bandwidths(self.bandwidth_bps.copy())
        return replace(
            scenario,
            ports=replace(ports, error_rate=self.port_error.copy()),
            switches=replace(scenario.switches, fed_by_port=self.fed_by_port.copy()),
            publishers=replace(scenario.publishers, error_rate=self.publisher_error.copy()),
            subscribers=replace(scenario.subscribers, error_rate=self.subscriber_error.copy()),
            publications=replace(scenario.publications, rate_per_second=self.rate_per_second.copy()),
            subscriptions=replace(scenario.subscriptions, utility_weight=self.utility_weight.copy()),
        )


def situations(scenario: Scenario, conditions: Conditions) -> list[Situation]:
    """The situation at the start, and after each time at which something happens.

    What first joins or returns was not there at the start.

    >>> from triagemq.scenario.building import building
    >>> scenario = building()
    >>> name = scenario.subscribers.name[0]
    >>> course = situations(scenario, Conditions((SubscriberState(5.0, name, present=True),)))
    >>> [(each.at_seconds, each.subscriber_present.tolist()[:2]) for each in course]
    [(0.0, [False, True]), (5.0, [True, True])]
    """
    backups = {
        scenario.switches.name.index(switch): scenario.ports.name.index(port)
        for switch, port in conditions.backups.items()
    }
    timeline = sorted(conditions.timeline, key=lambda condition: condition.at_seconds)
    now = _Columns(scenario, timeline, conditions.profiles)
    times = sorted({0.0, *(condition.at_seconds for condition in timeline)})
    course = []
    for time in times:
        for condition in timeline:
            if condition.at_seconds == time:
                now.follow(condition)
        course.append(now.situation(time, backups))
    return course


class _Columns:
    """The columns of a situation while they change."""

    def __init__(
        self, scenario: Scenario, timeline: Sequence[Condition], profiles: Mapping[str, Mapping[str, float]]
    ) -> None:
        self.scenario = scenario
        self.profiles = profiles
        self.topics = TopicTree(scenario.topics.name)
        self.now: dict[str, NDArray[Any]] = {
            "bandwidth_bps": scenario.ports.bandwidth_bps.copy(),
            "link_up": np.ones(len(scenario.ports), dtype=np.bool_),
            "publisher_works": np.ones(len(scenario.publishers), dtype=np.bool_),
            "subscriber_present": np.ones(len(scenario.subscribers), dtype=np.bool_),
            "port_error": scenario.ports.error_rate.copy(),
            "publisher_error": scenario.publishers.error_rate.copy(),
            "subscriber_error": scenario.subscribers.error_rate.copy(),
            "rate_per_second": scenario.publications.rate_per_second.copy(),
            "utility_weight": scenario.subscriptions.utility_weight,
        }
        for condition in reversed(timeline):  # so that the first one has the last word
            change = self._change_of_one(condition)
            if change is not None and isinstance(change[2], bool):
                column, row, state = change
                self.now[column][row] = not state

    def follow(self, condition: Condition) -> None:
        change = self._change_of_one(condition)
        if change is not None:
            column, row, value = change
            self.now[column][row] = value
        elif isinstance(condition, PublicationRate):
            self._change_rate(condition)
        elif isinstance(condition, WorthChange):
            self._change_worth(self.profiles.get(condition.profile, {}))

    def _change_of_one(self, condition: Condition) -> tuple[str, int, float | bool] | None:
        """The column, the row and the value, if a condition changes one value."""
        match condition:
            case PortBandwidth():
                return "bandwidth_bps", self._row("ports", condition.port), condition.bandwidth_bps
            case LinkState():
                return "link_up", self._row("ports", condition.port), condition.up
            case PublisherState():
                return "publisher_works", self._row("publishers", condition.publisher), condition.works
            case SubscriberState():
                return "subscriber_present", self._row("subscribers", condition.subscriber), condition.present
            case ErrorRate():
                row = self._row(f"{condition.of}s", condition.name)
                return f"{condition.of}_error", row, condition.error_rate
        return None

    def _change_rate(self, condition: PublicationRate) -> None:
        publications = self.scenario.publications
        meant = self._is_topic(condition.topic)[publications.topic]
        if condition.publisher is not None:
            meant &= publications.publisher == self._row("publishers", condition.publisher)
        rate = publications.rate_per_second * (condition.rate_factor or 1.0)
        if condition.rate_per_second is not None:
            rate = np.full(len(publications), condition.rate_per_second)
        self.now["rate_per_second"][meant] = rate[meant]

    def _change_worth(self, factors: Mapping[str, float]) -> None:
        """The scenario's weights times a profile's factors; of several that match, the topic's own, else the first."""
        factor = np.ones(len(self.scenario.topics))
        patterns = [topic for topic in factors if has_wildcard(topic)]
        for topic in (*reversed(patterns), *(topic for topic in factors if not has_wildcard(topic))):
            factor[self._is_topic(topic)] = factors[topic]
        wanted = self.scenario.subscriptions
        self.now["utility_weight"] = wanted.utility_weight * factor[wanted.topic]

    def _is_topic(self, topic: str) -> Flags:
        found = np.zeros(len(self.scenario.topics), dtype=np.bool_)
        rows = {name: row for row, name in enumerate(self.scenario.topics.name)}
        found[[rows[name] for name in self.topics.names_matching(topic)]] = True
        return found

    def situation(self, time: float, backups: Mapping[int, int]) -> Situation:
        feeders, reached = _feeders(self.scenario, backups, self.now["link_up"])
        columns = {name: values.copy() for name, values in self.now.items()}
        return Situation(at_seconds=time, fed_by_port=feeders, switch_reached=reached, **columns)

    def _row(self, table: str, name: str) -> int:
        names: tuple[str, ...] = getattr(self.scenario, table).name
        return names.index(name)


def _feeders(scenario: Scenario, backups: Mapping[int, int], link_up: Flags) -> tuple[Integers, Flags]:
    """What feeds each switch, and whether it is reached: grown from the brokers, by backups only where nothing else is.

    A switch whose own link is up, but which hangs at one that is cut off, falls back on its backup too.
    """
    feeders = scenario.switches.fed_by_port.copy()
    reached = feeders < 0
    ordinary = {switch: int(port) for switch, port in enumerate(feeders) if port >= 0}

    def next_reached(links: Mapping[int, int]) -> tuple[int, int] | None:
        for switch, port in links.items():
            if not reached[switch] and link_up[port] and reached[scenario.ports.switch[port]]:
                return switch, port
        return None

    while (step := next_reached(ordinary) or next_reached(backups)) is not None:
        switch, port = step
        feeders[switch], reached[switch] = port, True
    return feeders, reached
