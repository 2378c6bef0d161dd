"""Scenarios and plans built by hand, small enough to follow, and a sink that keeps a run in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from triagemq.plan.model import Flows, Plan, PlannerChoice, PortLoads
from triagemq.scenario import (
    ArrivalProcess,
    BrokerLinks,
    Brokers,
    OutputPorts,
    Publications,
    Publishers,
    Scenario,
    SendingOrder,
    SizeDistribution,
    SizeSamples,
    Subscribers,
    Subscriptions,
    Switches,
    Topics,
    UnmanagedSwitches,
)
from triagemq.scenario.model import filled
from triagemq.simulate import Steering


def integers(values: Any) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def floats(values: Any, count: int) -> np.ndarray:
    return np.broadcast_to(np.asarray(values, dtype=np.float64), (count,)).copy()


def build_scenario(
    *,
    topics: int = 1,
    publications: list[tuple[int, int]] | None = None,
    rates: Any = 1.0,
    sizes: Any = 100.0,
    size_distribution: Any = SizeDistribution.CONSTANT,
    size_samples: Any = -1,
    samples: SizeSamples | None = None,
    arrival_process: Any = ArrivalProcess.POISSON,
    pareto_shape: Any = 2.5,
    on_seconds: Any = 1.0,
    off_seconds: Any = 1.0,
    publisher_broker: Any = (0,),
    publisher_switch: Any = -1,
    publisher_error: Any = 0.0,
    publisher_propagation: Any = 0.0,
    unmanaged_bandwidth: Any = (),
    brokers: int = 1,
    inbound_rate: Any = np.inf,
    outbound_rate: Any = np.inf,
    links: list[tuple[int, int]] | None = None,
    link_bandwidth: Any = 1e6,
    link_error: Any = 0.0,
    link_propagation: Any = 0.0,
    fed_by: Any = (-1,),
    switch_rate: Any = np.inf,
    port_switch: Any = (0,),
    bandwidth: Any = 8e6,
    buffer: Any = np.inf,
    port_error: Any = 0.0,
    port_propagation: Any = 0.0,
    subscriber_broker: Any = (0,),
    subscriber_port: Any = (0,),
    subscriber_error: Any = 0.0,
    subscriber_propagation: Any = 0.0,
    subscriptions: list[tuple[int, int]] | None = None,
    mtu: float = np.inf,
    overhead: float = 0.0,
    sending_order: SendingOrder = SendingOrder.BY_CLASS,
) -> Scenario:
    """Tables by number: names sort like numbers, and pairs are given in canonical order, so rows keep their places."""
    publications = publications or [(0, topic) for topic in range(topics)]
    subscriptions = subscriptions or [(0, topic) for topic in range(topics)]
    links = links or []
    n, p = len(publications), len(subscriptions)

    def names(kind: str, count: int) -> tuple[str, ...]:
        return tuple(f"{kind}{number:04d}" for number in range(count))

    return Scenario.of(
        name="by hand",
        topics=Topics(names("topic", topics)),
        brokers=filled(
            Brokers,
            brokers,
            name=names("broker", brokers),
            inbound_rate_per_second=inbound_rate,
            outbound_rate_per_second=outbound_rate,
        ),
        broker_links=BrokerLinks(
            integers([a for a, _ in links]),
            integers([b for _, b in links]),
            floats(link_bandwidth, len(links)),
            floats(link_error, len(links)),
            floats(link_propagation, len(links)),
        ),
        unmanaged_switches=UnmanagedSwitches(
            names("unmanaged", len(unmanaged_bandwidth)),
            floats(unmanaged_bandwidth, len(unmanaged_bandwidth)),
        ),
        switches=filled(
            Switches,
            len(fed_by),
            name=names("switch", len(fed_by)),
            inbound_rate_per_second=switch_rate,
            fed_by_port=fed_by,
        ),
        ports=filled(
            OutputPorts,
            len(port_switch),
            name=names("port", len(port_switch)),
            switch=port_switch,
            bandwidth_bps=bandwidth,
            buffer_packets=buffer,
            error_rate=port_error,
            propagation_seconds=port_propagation,
        ),
        publishers=filled(
            Publishers,
            len(publisher_broker),
            name=names("publisher", len(publisher_broker)),
            broker=publisher_broker,
            unmanaged_switch=publisher_switch,
            error_rate=publisher_error,
            propagation_seconds=publisher_propagation,
        ),
        publications=filled(
            Publications,
            n,
            publisher=[a for a, _ in publications],
            topic=[b for _, b in publications],
            rate_per_second=rates,
            size_bytes=sizes,
            size_distribution=size_distribution,
            size_samples=size_samples,
            arrival_process=arrival_process,
            pareto_shape=pareto_shape,
            on_seconds=on_seconds,
            off_seconds=off_seconds,
        ),
        size_samples=samples or SizeSamples((), ()),
        subscribers=Subscribers(
            names("subscriber", len(subscriber_broker)),
            integers(subscriber_broker),
            integers(subscriber_port),
            floats(subscriber_error, len(subscriber_broker)),
            floats(subscriber_propagation, len(subscriber_broker)),
        ),
        subscriptions=filled(
            Subscriptions,
            p,
            subscriber=[a for a, _ in subscriptions],
            topic=[b for _, b in subscriptions],
            utility_weight=1.0,
        ),
        mtu_bytes=mtu,
        overhead_bytes=overhead,
        sending_order=sending_order,
    )


def build_tree(seed: int) -> Scenario:
    """A random tree of switches, two to five levels deep and each with lookups of its own: trunks with delay and
    errors, finite buffers, subscribers at ports of any level."""
    draw = np.random.default_rng(seed)
    fed_by, port_switch = [-1], []
    for _ in range(int(draw.integers(2, 5))):
        port_switch.append(int(draw.integers(len(fed_by))))
        fed_by.append(len(port_switch) - 1)
    trunks = len(port_switch)
    port_switch += draw.integers(0, len(fed_by), 6).tolist()
    ports, topics, subscribers = len(port_switch), 6, 24
    return build_scenario(
        topics=topics,
        rates=draw.uniform(10.0, 40.0, topics),
        sizes=draw.uniform(60.0, 600.0, topics),
        size_distribution=draw.integers(0, 2, topics),
        fed_by=fed_by,
        switch_rate=draw.choice([np.inf, 4e3, 2e4], len(fed_by)),
        port_switch=port_switch,
        bandwidth=np.where(np.arange(ports) < trunks, 6e6, 1e6) * draw.uniform(0.5, 2.0, ports),
        buffer=draw.choice([20.0, np.inf, np.inf], ports),
        port_error=draw.choice([0.0, 0.02]),
        port_propagation=draw.choice([0.0, 0.01, 0.5], ports),
        subscriber_broker=[0] * subscribers,
        subscriber_port=(trunks + draw.integers(0, 6, subscribers)).tolist(),
        subscriber_propagation=draw.choice([0.0, 0.01], subscribers),
        subscriptions=[
            (each, topic) for each in range(subscribers) for topic in range(topics) if draw.random() < 0.7
        ],
        mtu=float(draw.choice([np.inf, 320.0])),
        overhead=20.0,
        sending_order=SendingOrder(int(draw.integers(2))),
    )


def build_plan(scenario: Scenario, classes: Any = 0, drops: Any = 0.0) -> Plan:
    """One flow per subscription, with the given class and drop rate."""
    count, ports = len(scenario.subscriptions), len(scenario.ports)
    subscriber = scenario.subscriptions.subscriber.copy()
    zeros = np.zeros(count)
    return Plan(
        scenario_fingerprint=scenario.fingerprint,
        made_by=PlannerChoice("one", "given", "given", "port", 0, count, 64, 0.1),
        flow=np.arange(count, dtype=np.int32),
        rank=zeros,
        flows=Flows(
            subscriber,
            scenario.subscribers.port[subscriber],
            np.broadcast_to(integers(classes), (count,)).copy(),
            floats(drops, count),
            zeros,
            zeros,
        ),
        ports=PortLoads(np.zeros(ports), np.zeros(ports)),
    )


class MemorySink:
    """Keeps all columns of a run."""

    def __init__(self, with_hops: bool = False) -> None:
        self.with_hops = with_hops
        self._tables: dict[str, list[dict[str, np.ndarray]]] = {}

    def _add(self, table: str, columns: dict[str, np.ndarray]) -> None:
        self._tables.setdefault(table, []).append({name: values.copy() for name, values in columns.items()})

    def publications(self, columns: Any) -> None:
        self._add("publications", columns)

    def deliveries(self, columns: Any) -> None:
        self._add("deliveries", columns)

    def hops(self, columns: Any) -> None:
        self._add("hops", columns)

    def queue_samples(self, columns: Any) -> None:
        self._add("queue_samples", columns)

    def decisions(self, columns: Any) -> None:
        self._add("decisions", columns)

    def table(self, name: str) -> dict[str, np.ndarray]:
        parts = self._tables.get(name, [])
        return (
            {column: np.concatenate([part[column] for part in parts]) for column in parts[0]} if parts else {}
        )


@pytest.fixture
def scenario_of() -> Any:
    return build_scenario


@pytest.fixture
def plan_of() -> Any:
    return build_plan


@pytest.fixture
def tree_of() -> Any:
    return build_tree


class Widths:
    """A Control that sets the queue rates of all ports at its times, a nanosecond after multiples of 200 ms."""

    def __init__(self, *course: tuple[float, Any]) -> None:
        self.course = course

    def sampled(self, seconds: float, queue_samples: Any) -> Steering:
        return Steering(
            {
                port: queue_rates
                for at, ports in self.course
                if at == pytest.approx(seconds, abs=1e-6)
                for port, queue_rates in enumerate(ports)
            }
        )


@pytest.fixture
def queue_rates_from() -> Any:
    return lambda *course: lambda replication: Widths(*course)


@pytest.fixture
def memory_sink() -> Any:
    return MemorySink
