"""What happens during a run: the `conditions` of a scenario file, backups of its switches, and situations in between.

Conditions are no part of the Scenario, which a plan starts from.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triagemq.mqttsn.filters import TopicTree, has_wildcard
from triagemq.scenario.model import Floats, Integers, Scenario

USUAL_PROFILE = "usual"
"""The worth that the subscriptions of a file state themselves."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One change at a given time, in the words of a scenario file: what it names, and what becomes of that.

    A port's bandwidth or the error rate behind it; whether a publisher works or a subscriber is there, and the error
    rate of its link; whether a link between two switches is up; the rate of a topic or pattern, of one publisher or
    of all; or the worth profile that holds.
    """

    at_seconds: float
    port: str | None = None
    publisher: str | None = None
    subscriber: str | None = None
    link: tuple[str, ...] | None = None
    topic: str | None = None
    worth_profile: str | None = None
    bandwidth_bps: float | None = None
    error_rate: float | None = None
    rate_per_second: float | None = None
    rate_factor: float | None = None
    state: str | None = None

    @property
    def begins(self) -> bool:
        """Whether something returns or joins, and does not fail or leave."""
        return self.state in ("returns", "joins")


@dataclass(frozen=True, slots=True)
class Conditions:
    """Everything that happens, in order of time, and the port that each switch with a backup falls back on.

    `profiles` holds the worth profiles: by name, and by topic or pattern, the factor on what a topic is worth.
    """

    timeline: tuple[Condition, ...] = ()
    backups: Mapping[str, str] = field(default_factory=dict)
    profiles: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def backup_ports(self, scenario: Scenario) -> dict[int, int]:
        """The backups by the numbers of switches and ports."""
        switches, ports = scenario.switches.name, scenario.ports.name
        return {switches.index(switch): ports.index(port) for switch, port in self.backups.items()}


Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Situation:
    """How things stand from `at_seconds` on: one value per port, publisher, subscriber or switch of the scenario, a
    `rate_per_second` per publication and a `utility_weight` per subscription, by the `worth_profile` that holds.

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
    worth_profile: str = USUAL_PROFILE

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


def worth_factors(factors: Mapping[str, float], rows: Mapping[str, int], topics: TopicTree) -> Floats:
    """By row of a topic, the factor of a worth profile or phase: of several that match its own, else the first.

    >>> rows = {"hall/smoke": 0, "hall/noise": 1, "attic/smoke": 2}
    >>> worth_factors({"hall/+": 3.0, "#": 0.5, "hall/noise": 0.0}, rows, TopicTree(rows)).tolist()
    [3.0, 0.0, 0.5]
    """
    found = np.ones(len(rows))
    patterns = [topic for topic in factors if has_wildcard(topic)]
    for topic in (*reversed(patterns), *(topic for topic in factors if not has_wildcard(topic))):
        found[[rows[name] for name in topics.names_matching(topic) if name in rows]] = factors[topic]
    return found


def situations(scenario: Scenario, conditions: Conditions) -> list[Situation]:
    """The situation at the start, and after each time at which something happens.

    What first joins or returns was not there at the start.

    >>> from triagemq.scenario.building import building
    >>> scenario = building()
    >>> name = scenario.subscribers.name[0]
    >>> course = situations(scenario, Conditions((Condition(5.0, subscriber=name, state="joins"),)))
    >>> [(each.at_seconds, each.subscriber_present.tolist()[:2]) for each in course]
    [(0.0, [False, True]), (5.0, [True, True])]
    """
    backups = conditions.backup_ports(scenario)
    timeline = sorted(conditions.timeline, key=lambda condition: condition.at_seconds)
    now = _Columns(scenario, timeline, conditions.profiles, backups)
    times = sorted({0.0, *(condition.at_seconds for condition in timeline)})
    course = []
    for time in times:
        for condition in timeline:
            if condition.at_seconds == time:
                now.follow(condition)
        course.append(now.situation(time))
    return course


_COLUMNS = {
    "port": "bandwidth_bps",
    "publisher": "publisher_works",
    "subscriber": "subscriber_present",
}
"""What changes of a port, publisher or subscriber, other than its error rate."""


def port_of_link(scenario: Scenario, backups: Mapping[int, int], ends: Collection[str]) -> int | None:
    """The port whose link joins two switches, in any order: the one that feeds, else the backup."""
    usual = dict(enumerate(scenario.switches.fed_by_port.tolist()))
    for feeders in (usual, backups):
        for switch, port in feeders.items():
            above = scenario.switches.name[scenario.ports.switch[port]] if port >= 0 else None
            if {scenario.switches.name[switch], above} == set(ends):
                return port
    return None


class _Columns:
    """The columns of a situation while they change."""

    def __init__(
        self,
        scenario: Scenario,
        timeline: Sequence[Condition],
        profiles: Mapping[str, Mapping[str, float]],
        backups: Mapping[int, int],
    ) -> None:
        self.scenario, self.profiles, self.backups = scenario, profiles, backups
        self.topics = TopicTree(scenario.topics.name)
        self.profile = USUAL_PROFILE
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
        elif condition.topic is not None:
            self._change_rate(condition.topic, condition)
        else:
            self.profile = condition.worth_profile or USUAL_PROFILE
            self._change_worth(self.profiles.get(self.profile, {}))

    def _change_of_one(self, condition: Condition) -> tuple[str, int, float | bool] | None:
        """The column, the row and the value, if a condition changes one value."""
        if condition.link is not None:
            port = port_of_link(self.scenario, self.backups, condition.link)
            return None if port is None else ("link_up", port, condition.begins)
        for kind, column in _COLUMNS.items():
            name = getattr(condition, kind)
            if name is None or condition.topic is not None:
                continue
            row = self._row(f"{kind}s", name)
            if condition.error_rate is not None:
                return f"{kind}_error", row, condition.error_rate
            value = condition.begins if condition.bandwidth_bps is None else condition.bandwidth_bps
            return column, row, value
        return None

    def _change_rate(self, topic: str, condition: Condition) -> None:
        publications = self.scenario.publications
        meant = self._is_topic(topic)[publications.topic]
        if condition.publisher is not None:
            meant &= publications.publisher == self._row("publishers", condition.publisher)
        rate = publications.rate_per_second * (condition.rate_factor or 1.0)
        if condition.rate_per_second is not None:
            rate = np.full(len(publications), condition.rate_per_second)
        self.now["rate_per_second"][meant] = rate[meant]

    def _change_worth(self, factors: Mapping[str, float]) -> None:
        """The scenario's weights times a profile's factors."""
        rows = {name: row for row, name in enumerate(self.scenario.topics.name)}
        wanted = self.scenario.subscriptions
        self.now["utility_weight"] = (
            wanted.utility_weight * worth_factors(factors, rows, self.topics)[wanted.topic]
        )

    def _is_topic(self, topic: str) -> Flags:
        found = np.zeros(len(self.scenario.topics), dtype=np.bool_)
        rows = {name: row for row, name in enumerate(self.scenario.topics.name)}
        found[[rows[name] for name in self.topics.names_matching(topic)]] = True
        return found

    def situation(self, time: float) -> Situation:
        feeders, reached = _feeders(self.scenario, self.backups, self.now["link_up"])
        columns = {name: values.copy() for name, values in self.now.items()}
        columns |= {"fed_by_port": feeders, "switch_reached": reached}
        return Situation(at_seconds=time, worth_profile=self.profile, **columns)

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
