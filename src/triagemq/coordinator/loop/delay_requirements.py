"""Global control of delays: what subscriptions require becomes constraints of ports, refusals, and slower publishers.

`max_latency_seconds` of a subscription, with neither a share nor a guarantee, is a requirement at the ports
with queue rates on its path. The administrator (delay.constraints) divides it among them, and again every second by the
delays that control of their queue rates has found. What no port can be quick enough for slows publishers down. Where no
queue is controlled, a delay is refused that is shorter than sending the event takes.

Pure: the caller has the clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from triagemq.channel.messages import PortDelays
from triagemq.client.coordinator import RequiredDelay
from triagemq.coordinator.decide.decide import Decided, bounded
from triagemq.delay.constraints import Administrator, Pace, Place, Refusal, Requirement, SlowDown
from triagemq.delay.control import ControlledPort
from triagemq.plan import Decision
from triagemq.scenario import Discipline, Scenario, port_paths

RESEND_SHARE = 0.05
"""Constraints are sent when one differs from the last ones by more than this part."""

Subscription = tuple[str, str]
"""By the names of subscriber and topic."""


@dataclass(slots=True)
class _Slowed:
    """A publication that is to be published less often than its publisher would."""

    own_rate: float
    pace: Pace


class DelayRequirements:
    """`planned` after every plan, `on_delays` every second; both return what was decided."""

    def __init__(self, *, controlled: bool = True) -> None:
        self._controlled = controlled
        self.constraints: dict[str, dict[int, float]] = {}
        """How long packets may wait, by port and class."""
        self._administrator = Administrator()
        self._decided: Decided | None = None
        self._smallest: dict[str, float] = {}
        self._required: dict[Requirement, list[Subscription]] = {}
        # Those, and the refused ones where no queue is controlled.
        self._subscriptions: dict[Requirement, list[Subscription]] = {}
        self._refused: dict[Requirement, Refusal] = {}
        # Whose refusal is recorded, and of how many seconds.
        self._recorded: set[tuple[Subscription, float]] = set()
        self._publications_at: dict[Place, list[tuple[str, str, float]]] = {}
        self._slowed: dict[Subscription, _Slowed] = {}

    def of(self, subscriber: str) -> list[RequiredDelay]:
        """What became of all that a subscriber requires."""
        return [
            RequiredDelay(
                topic,
                requirement.delay_seconds,
                requirement.path,
                requirement in self._refused,
                self._refused[requirement].offer_seconds if requirement in self._refused else None,
            )
            for requirement, subscriptions in self._subscriptions.items()
            for name, topic in subscriptions
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
        before, (self._required, too_short) = self._required, _requirements(decided, self._controlled)
        self._subscriptions = self._required | {
            each.requirement: [(each.requirement.subscriber, each.requirement.topic)] for each in too_short
        }
        self._publications_at = _publications_at(decided)
        smallest = _smallest_seconds(decided.scenario)
        if smallest != self._smallest or self._required.keys() != before.keys():
            # Only then: what constraints have been adjusted to since counts for the same requirements.
            self._smallest = smallest
            self._administrator.require(self._required, smallest)
            self._follow_administrator()
        self._refused = {each.requirement: each for each in (*self._administrator.refused, *too_short)}
        # A subscription may join a requirement that is refused already, or another one with the next plan.
        refused = {
            (name, requirement.delay_seconds): replace(
                refusal, requirement=replace(requirement, subscriber=name[0])
            )
            for requirement, refusal in self._refused.items()
            for name in self._subscriptions[requirement]
        }
        news = [
            Decision(
                "delay_refused",
                " ".join(name),
                f"requested {seconds:.6g} s",
                f"{refusal.offer_seconds:.6g} s or more",
                str(refusal),
            )
            for (name, seconds), refusal in refused.items()
            if (name, seconds) not in self._recorded
        ]
        self._recorded = set(refused)
        return bounded(news, "delay_refused", "more subscriptions", "more delays are refused")

    def on_delays(self, managed: Mapping[str, PortDelays], now: float) -> list[Decision]:
        """Take the delays of queues; constraints change, and publishers slow down or come back."""
        delays = {
            (name, priority): seconds
            for name, port in managed.items()
            if name in self._smallest
            for priority, seconds in enumerate(port.delay_seconds)
        }
        news = self._returned(now)
        if self._required and delays:
            cannot_hold = {(name, queue) for name, port in managed.items() for queue in port.cannot_hold}
            requests = self._administrator.adjust(delays, cannot_hold)
            self._follow_administrator()
            news += self._slow_down(requests, now)
        return news

    def _follow_administrator(self) -> None:
        found = self._administrator.seconds
        sent = {
            (port, queue): each for port, queues in self.constraints.items() for queue, each in queues.items()
        }
        if sent.keys() != found.keys() or any(
            abs(seconds - sent[place]) > RESEND_SHARE * sent[place] for place, seconds in found.items()
        ):
            self.constraints = {}
            for (port, queue), seconds in found.items():
                self.constraints.setdefault(port, {})[queue] = seconds

    def _slow_down(self, requests: Iterable[SlowDown], now: float) -> list[Decision]:
        """Everyone who publishes what waits there: for each publication the smallest share that is required."""
        required: dict[Subscription, SlowDown] = {}
        for request in requests:
            for name, topic, rate in self._publications_at.get(
                (request.switch, request.requirement.priority), ()
            ):
                self._slowed.setdefault((name, topic), _Slowed(rate, Pace()))
                smallest = required.setdefault((name, topic), request)
                if request.share < smallest.share:
                    required[name, topic] = request
        news = []
        for (name, topic), request in required.items():
            slowed, requirement = self._slowed[name, topic], request.requirement
            before = slowed.pace.share(now)
            slowed.pace.requested(request.share, now)
            if before == 1:
                delay = f"{1e3 * requirement.delay_seconds:.4g} ms for {requirement.subscriber}"
                news.append(
                    Decision(
                        "slow_down",
                        f"{name} {topic}",
                        f"{slowed.own_rate:.4g} a second",
                        f"{slowed.own_rate * slowed.pace.share(now):.4g} a second",
                        f"port {request.switch} cannot be quick enough for {delay}",
                    )
                )
        return news

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


def _smallest_seconds(scenario: Scenario) -> dict[str, float]:
    """What each port with queue rates takes at least: the largest packet, at the most that class 0 can have."""
    ports, sizes = scenario.ports, scenario.publications.size_bytes
    packet = min(float(scenario.mtu_bytes), float(sizes.max(initial=1.0)) + scenario.overhead_bytes)
    return {
        ports.name[row]: ControlledPort(
            ports.name[row],
            tuple(map(int, ports.queue_rates_bps[row])),
            tuple(map(int, ports.floors_bps[row])),
        ).smallest_seconds(packet)
        for row in np.flatnonzero(ports.discipline == Discipline.QUEUE_RATES).tolist()
    }


def _requirements(
    decided: Decided, controlled: bool
) -> tuple[dict[Requirement, list[Subscription]], list[Refusal]]:
    """The requirements and their subscriptions: equal ones at the same controlled ports and class are one.

    Behind ports that are not controlled, what sending an event takes longer than is allowed.
    """
    scenario, wanted = decided.scenario, decided.scenario.subscriptions
    ports, is_controlled = scenario.ports, controlled & (scenario.ports.discipline == Discipline.QUEUE_RATES)
    is_required = (
        np.isfinite(wanted.max_latency_seconds) & (wanted.max_latency_share == 0) & (wanted.guaranteed == 0)
    )
    paths = port_paths(scenario)
    size_bytes = np.zeros(len(scenario.topics))
    np.maximum.at(size_bytes, scenario.publications.topic, scenario.publications.size_bytes)
    found: dict[tuple[tuple[str, ...], int, float], list[Subscription]] = {}
    too_short = []
    for row in np.flatnonzero(is_required).tolist():
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


def _publications_at(decided: Decided) -> dict[Place, list[tuple[str, str, float]]]:
    """By port and class, what is published that waits there: publisher, topic and rate."""
    scenario, wanted, table = decided.scenario, decided.scenario.subscriptions, decided.scenario.publications
    paths = port_paths(scenario)[scenario.subscribers.port[wanted.subscriber]]
    publishers, topics = scenario.publishers.name, scenario.topics.name
    found: dict[Place, list[tuple[str, str, float]]] = {}
    for port in np.flatnonzero(scenario.ports.discipline == Discipline.QUEUE_RATES).tolist():
        passing = (paths == port).any(axis=1)
        for priority in np.unique(decided.plan.subscription_class[passing]).tolist():
            waiting = wanted.topic[passing & (decided.plan.subscription_class == priority)]
            rows = np.flatnonzero(np.isin(table.topic, waiting) & (table.rate_per_second > 0))
            columns = (
                table.publisher[rows].tolist(),
                table.topic[rows].tolist(),
                table.rate_per_second[rows].tolist(),
            )
            found[scenario.ports.name[port], priority] = [
                (publishers[publisher], topics[topic], rate)
                for publisher, topic, rate in zip(*columns, strict=True)
            ]
    return found
