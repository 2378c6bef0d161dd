"""The network an exchange runs on: a scenario of which the brokers, switches, ports and settings hold.

Its publishers and subscribers are not there until they announce themselves; what it says about one of that name
(broker, port, link, arrival process, sizes) holds for what the announcement leaves open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from triagemq.intents import SubscriberIntent
from triagemq.scenario import (
    Brokers,
    Floats,
    Integers,
    OutputPorts,
    PlanningSettings,
    Publications,
    Publishers,
    Scenario,
    Subscribers,
    Subscriptions,
    Switches,
    Topics,
)
from triagemq.scenario.model import filled

OVERHEAD_BYTES = 49
"""Around every event on the wire: MQTT-SN PUBLISH 7, UDP and IP 28, Ethernet 14."""

USUAL_SIZE_BYTES = 100.0
"""The size of events of which none is known."""

PLANNING = PlanningSettings(flows_per_subscriber=8, priority_classes=8)


@dataclass(frozen=True, eq=False)
class Network:
    """The fixed part of an exchange.

    >>> network = Network.plain(bandwidth_bps=1e6)
    >>> network.port_names, network.with_bandwidths({"port": 5e5}).scenario.ports.bandwidth_bps.tolist()
    (('port',), [500000.0])
    """

    scenario: Scenario
    survival: Mapping[str, float] = field(default_factory=dict)
    """By port, what multiplies the share of packets that its subscribers get by the scenario: as was measured."""
    phases: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """The worth profiles of the scenario: by name, factors on worth by topic or filter."""

    @classmethod
    def plain(cls, bandwidth_bps: float = 10e6, buffer_packets: float = 200) -> Network:
        """One broker, one switch and one port, for an exchange without a scenario file."""
        return cls(
            Scenario.of(
                name="exchange",
                topics=Topics(()),
                brokers=filled(Brokers, 1, name=("broker",)),
                switches=filled(Switches, 1, name=("switch",)),
                ports=filled(
                    OutputPorts,
                    1,
                    name=("port",),
                    switch=0,
                    bandwidth_bps=bandwidth_bps,
                    buffer_packets=buffer_packets,
                ),
                publishers=filled(Publishers, 0, name=(), broker=0),
                publications=filled(
                    Publications, 0, publisher=0, topic=0, rate_per_second=0.0, size_bytes=0.0
                ),
                subscribers=filled(Subscribers, 0, name=(), broker=0, port=0),
                subscriptions=filled(Subscriptions, 0, subscriber=0, topic=0, utility_weight=0.0),
                planning=PLANNING,
                overhead_bytes=OVERHEAD_BYTES,
            )
        )

    @property
    def port_names(self) -> tuple[str, ...]:
        """The ports that subscribers may be behind: those that feed no other switch, the default one first."""
        return tuple(self.scenario.ports.name[port] for port in self._open_ports)

    @cached_property
    def _open_ports(self) -> list[int]:
        feeding = set(self.scenario.switches.fed_by_port.tolist())
        return [port for port in range(len(self.scenario.ports)) if port not in feeding]

    @cached_property
    def _port_number(self) -> dict[str, int]:
        return {self.scenario.ports.name[port]: port for port in self._open_ports}

    @cached_property
    def publisher_row(self) -> dict[str, int]:
        """The scenario's publishers by name."""
        return {name: row for row, name in enumerate(self.scenario.publishers.name)}

    @cached_property
    def subscriber_row(self) -> dict[str, int]:
        """The scenario's subscribers by name."""
        return {name: row for row, name in enumerate(self.scenario.subscribers.name)}

    def stated_worth(self, subscriber: str) -> dict[str, float]:
        """By topic, the weight that the scenario states for a subscriber of this name."""
        row = self.subscriber_row.get(subscriber)
        if row is None:
            return {}
        wanted = self.scenario.subscriptions
        first, last = np.searchsorted(wanted.subscriber, [row, row + 1]).tolist()
        names = (self.scenario.topics.name[topic] for topic in wanted.topic[first:last].tolist())
        return dict(zip(names, wanted.utility_weight[first:last].tolist(), strict=True))

    @cached_property
    def publication_row(self) -> dict[tuple[str, str], int]:
        """The scenario's publications by the names of publisher and topic."""
        published, publishers, topics = (
            self.scenario.publications,
            self.scenario.publishers.name,
            self.scenario.topics.name,
        )
        return {
            (publishers[publisher], topics[topic]): row
            for row, (publisher, topic) in enumerate(
                zip(published.publisher.tolist(), published.topic.tolist(), strict=True)
            )
        }

    def has_port(self, intent: SubscriberIntent) -> bool:
        """Whether the port that a subscriber says it is behind exists."""
        return intent.port is None or intent.port in self._port_number

    def port_of(self, intent: SubscriberIntent) -> int:
        """The number of the port that a subscriber is behind: as it says, as the scenario says, or the first."""
        if intent.port is not None:
            return self._port_number[intent.port]
        row = self.subscriber_row.get(intent.name)
        return self._open_ports[0] if row is None else int(self.scenario.subscribers.port[row])

    def with_bandwidths(self, bandwidths_bps: Mapping[str, float]) -> Network:
        """The same network with other bandwidths on some ports."""
        ports = self.scenario.ports
        stated = zip(ports.name, ports.bandwidth_bps.tolist(), strict=True)
        changed = np.array([bandwidths_bps.get(name, bandwidth) for name, bandwidth in stated])
        return replace(self, scenario=replace(self.scenario, ports=ports.with_bandwidths(changed)))

    def error_rates(self, ports: Integers, stated: Floats) -> Floats:
        """The error rates of subscribers behind these ports, from those that the scenario states."""
        factor = np.array([self.survival.get(name, 1.0) for name in self.scenario.ports.name])[ports]
        return np.where(factor == 1.0, stated, np.clip(1 - (1 - stated) * factor, 0.0, 1.0))


def mean_error_rates(scenario: Scenario) -> dict[str, float]:
    """By port, the mean error rate of the subscribers behind it."""
    subscribers, names = scenario.subscribers, scenario.ports.name
    behind = np.bincount(subscribers.port, minlength=len(names))
    total = np.bincount(subscribers.port, subscribers.error_rate, len(names))
    return dict(zip(names, (total / np.maximum(behind, 1)).tolist(), strict=True))
