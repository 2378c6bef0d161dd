"""Global control of delays: what subscriptions ask for becomes constraints of ports, refusals, and slower publishers.

`max_latency_seconds` of a subscription, with neither a share nor a guarantee beside it, is a requirement at the ports
with widths on its way. The administrator (delay.administrator) divides it among them, and again every second by the
delays that control of their widths has found. What no port can be quick enough for slows publishers down. Where no
queue is controlled, a delay is refused that is shorter than sending the event takes.

Pure: the caller tells the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from triagemq.client.coordinator import RequiredDelay
from triagemq.coordinator.channel.messages import PortConstraints, PortDelays
from triagemq.coordinator.decide.account import MOST_ROWS
from triagemq.coordinator.decide.decide import Decided
from triagemq.delay.administrator import (
    Administered,
    Administrator,
    ClusterDelays,
    ClusterJoined,
    PlaceSeconds,
)
from triagemq.delay.constraints import Pace, Place, Refusal, Requirement, SlowDown
from triagemq.delay.control import ControlledPort
from triagemq.plan import Decision
from triagemq.scenario import Discipline, Scenario, port_paths

CLUSTER = "gateway"
"""The ports behind the gateway are one cluster."""

TELL_SHARE = 0.05
"""Constraints are sent when one differs from the last ones by more than this part."""

Subscription = tuple[str, str]
"""By the names of subscriber and topic."""


@dataclass(slots=True)
class _Slowed:
    """A publication that is to be published less often than its publisher would."""

    own_rate: float
    pace: Pace


class DelayRequirements:
    """`planned` after every plan, `measured` every second; both say what was decided."""

    def __init__(self, *, controlled: bool = True) -> None:
        self._controlled = controlled
        self.constraints: PortConstraints = {}
        """How long packets may wait, by port and class."""
        self._administrator = Administrator()
        self._decided: Decided | None = None
        self._smallest: tuple[tuple[str, float], ...] = ()
        self._asking: dict[Requirement, list[Subscription]] = {}
        # Where no queue is controlled.
        self._too_short: list[Requirement] = []
        self._refused: dict[Requirement, Refusal] = {}
        # Whose refusal is recorded, and of how many seconds.
        self._recorded: set[tuple[Subscription, float]] = set()
        # By port and class, the topics that wait there.
        self._topics_at: dict[Place, set[str]] = {}
        self._slowed: dict[Subscription, _Slowed] = {}

    def of(self, subscriber: str) -> list[RequiredDelay]:
        """What became of all that a subscriber asks for."""
        return [
            RequiredDelay(
                topic,
                requirement.delay_seconds,
                requirement.path,
                requirement in self._refused,
                self._refused[requirement].offer_seconds if requirement in self._refused else None,
            )
            for requirement in (*self._asking, *self._too_short)
            for name, topic in self._subscriptions(requirement)
            if name == subscriber
        ]

    def slow_down(self, publisher: str, now: float) -> dict[str, float]:
        """The topics that a publisher is to publish less often, and how many events a second it may."""
        return {
            topic: each.own_rate * share
            for (name, topic), each in self._slowed.items()
            if name == publisher and (share := each.pace.share(now)) < 1
        }

    def planned(self, decided: Decided) -> list[Decision]:
        """Take the requirements of now, if it is another plan than before."""
        if decided is self._decided:
            return []
        self._decided = decided
        asked, (self._asking, too_short) = self._asking, _requirements(decided, self._controlled)
        self._too_short = [each.requirement for each in too_short]
        self._topics_at = _topics_at(decided)
        smallest = _smallest_seconds(decided.scenario)
        if smallest != self._smallest:
            self._smallest = smallest
            self._told(self._administrator.joined(ClusterJoined(CLUSTER, smallest)))
        if self._asking.keys() != asked.keys():
            # Only then: what constraints have been adjusted to since counts for the same requirements.
            self._told(self._administrator.require(self._asking))
        self._refused = {each.requirement: each for each in (*self._administrator.refused, *too_short)}
        # A subscription may join a requirement that is refused already, or another one with the next plan.
        before, self._recorded = self._recorded, set()
        news = []
        for requirement, refusal in self._refused.items():
            for subscriber, topic in self._subscriptions(requirement):
                mark = (subscriber, topic), requirement.delay_seconds
                self._recorded.add(mark)
                if mark not in before:
                    own = replace(refusal, requirement=replace(requirement, subscriber=subscriber))
                    news.append(
                        Decision(
                            "delay_refused",
                            f"{subscriber} {topic}",
                            f"asked for {requirement.delay_seconds:.6g} s",
                            f"{refusal.offer_seconds:.6g} s or more",
                            str(own),
                        )
                    )
        if len(news) > MOST_ROWS:
            rest = f"{len(news) - MOST_ROWS} more delays are refused"
            news = [*news[:MOST_ROWS], Decision("delay_refused", "more subscriptions", "", "", rest)]
        return news

    def _subscriptions(self, requirement: Requirement) -> list[Subscription]:
        return self._asking.get(requirement) or [(requirement.subscriber, requirement.topic)]

    def measured(self, managed: Mapping[str, PortDelays], now: float) -> list[Decision]:
        """Take the delays of queues; constraints change, and publishers slow down or come back."""
        known = dict(self._smallest)
        delays = ClusterDelays(
            CLUSTER,
            tuple(
                PlaceSeconds(name, priority, seconds)
                for name, port in managed.items()
                if name in known
                for priority, seconds in enumerate(port.delay_seconds)
            ),
            tuple((name, priority) for name, port in managed.items() for priority in port.cannot_hold),
        )
        news = self._returned(now)
        if self._asking and delays.measured:
            told = self._administrator.measured(delays)
            self._told(told)
            news += self._ask(told.slow_down, now)
        return news

    def _told(self, told: Administered) -> None:
        for cluster in told.constraints:
            found: dict[str, dict[int, float]] = {}
            for place in cluster.allowed:
                found.setdefault(place.switch, {})[place.priority] = place.seconds
            if _differ(self.constraints, found):
                self.constraints = found

    def _ask(self, requests: Iterable[SlowDown], now: float) -> list[Decision]:
        """Everyone who publishes what waits there: for each publication the smallest share that is required."""
        asked: dict[Subscription, SlowDown] = {}
        for request in requests:
            for name, topic, rate in self._publications((request.switch, request.requirement.priority)):
                known = asked.get((name, topic))
                self._slowed.setdefault((name, topic), _Slowed(rate, Pace()))
                if known is None or request.share < known.share:
                    asked[name, topic] = request
        news = []
        for (name, topic), request in asked.items():
            slowed = self._slowed[name, topic]
            before = slowed.pace.share(now)
            slowed.pace.requested(request.share, now)
            if before == 1:
                required = (
                    f"{1e3 * request.requirement.delay_seconds:.4g} ms for {request.requirement.subscriber}"
                )
                news.append(
                    Decision(
                        "slow_down",
                        f"{name} {topic}",
                        f"{slowed.own_rate:.4g} a second",
                        f"{slowed.own_rate * slowed.pace.share(now):.4g} a second",
                        f"port {request.switch} cannot be quick enough for {required}",
                    )
                )
        return news

    def _publications(self, place: Place) -> Iterable[tuple[str, str, float]]:
        if self._decided is None:
            return
        scenario = self._decided.scenario
        table, topics = scenario.publications, self._topics_at.get(place, set())
        wanted = np.isin(
            table.topic, [row for row, name in enumerate(scenario.topics.name) if name in topics]
        )
        for row in np.flatnonzero(wanted & (table.rate_per_second > 0)).tolist():
            yield (
                scenario.publishers.name[int(table.publisher[row])],
                scenario.topics.name[int(table.topic[row])],
                float(table.rate_per_second[row]),
            )

    def _returned(self, now: float) -> list[Decision]:
        over = [key for key, each in self._slowed.items() if each.pace.share(now) == 1]
        return [
            Decision(
                "as_before",
                f"{name} {topic}",
                "slowed down",
                f"{self._slowed.pop((name, topic)).own_rate:.4g} a second",
                "delays have allowed it for a while",
            )
            for name, topic in over
        ]


def _smallest_seconds(scenario: Scenario) -> tuple[tuple[str, float], ...]:
    """What each port with widths takes at least: the largest packet, at the most that class 0 can have."""
    ports, sizes = scenario.ports, scenario.publications.size_bytes
    packet = min(float(scenario.mtu_bytes), float(sizes.max(initial=1.0)) + scenario.overhead_bytes)
    return tuple(
        (
            ports.name[row],
            ControlledPort(
                ports.name[row],
                tuple(map(int, ports.widths_bps[row])),
                tuple(map(int, ports.floors_bps[row])),
            ).smallest_seconds(packet),
        )
        for row in np.flatnonzero(ports.discipline == Discipline.WIDTHS).tolist()
    )


def _requirements(
    decided: Decided, controlled: bool
) -> tuple[dict[Requirement, list[Subscription]], list[Refusal]]:
    """The requirements and their subscriptions: equal ones at the same controlled ports and class are one.

    Behind ports that are not controlled, what sending an event takes longer than is allowed.
    """
    scenario, wanted = decided.scenario, decided.scenario.subscriptions
    ports, is_controlled = scenario.ports, controlled & (scenario.ports.discipline == Discipline.WIDTHS)
    asks = (
        np.isfinite(wanted.max_latency_seconds) & (wanted.max_latency_share == 0) & (wanted.guaranteed == 0)
    )
    paths = port_paths(scenario)
    size_bytes = np.zeros(len(scenario.topics))
    np.maximum.at(size_bytes, scenario.publications.topic, scenario.publications.size_bytes)
    found: dict[tuple[tuple[str, ...], int, float], list[Subscription]] = {}
    too_short = []
    for row in np.flatnonzero(asks).tolist():
        subscriber, topic = int(wanted.subscriber[row]), int(wanted.topic[row])
        names = scenario.subscribers.name[subscriber], scenario.topics.name[topic]
        path = [port for port in paths[int(scenario.subscribers.port[subscriber])].tolist() if port >= 0]
        priority, seconds = int(decided.plan.subscription_class[row]), float(wanted.max_latency_seconds[row])
        if where := tuple(ports.name[port] for port in path if is_controlled[port]):
            found.setdefault((where, priority, seconds), []).append(names)
            continue
        bits = 8 * (float(size_bytes[topic]) + scenario.overhead_bytes)
        least = sum(bits / float(ports.bandwidth_bps[port]) for port in path)
        if seconds < least:
            where = tuple(ports.name[port] for port in path)
            too_short.append(Refusal(Requirement(names[0], where, priority, seconds, names[1]), least))
    return {
        Requirement(who[0][0], where, priority, seconds, who[0][1]): who
        for (where, priority, seconds), who in found.items()
    }, too_short


def _topics_at(decided: Decided) -> dict[Place, set[str]]:
    scenario, wanted = decided.scenario, decided.scenario.subscriptions
    paths = port_paths(scenario)[scenario.subscribers.port[wanted.subscriber]]
    found: dict[Place, set[str]] = {}
    for port in np.flatnonzero(scenario.ports.discipline == Discipline.WIDTHS).tolist():
        passing = (paths == port).any(axis=1)
        for priority in np.unique(decided.plan.subscription_class[passing]).tolist():
            rows = passing & (decided.plan.subscription_class == priority)
            found[scenario.ports.name[port], priority] = {
                scenario.topics.name[topic] for topic in np.unique(wanted.topic[rows]).tolist()
            }
    return found


def _differ(before: PortConstraints, after: PortConstraints) -> bool:
    if {name: set(own) for name, own in before.items()} != {name: set(own) for name, own in after.items()}:
        return True
    return any(
        abs(seconds - before[name][priority]) > TELL_SHARE * before[name][priority]
        for name, own in after.items()
        for priority, seconds in own.items()
    )
