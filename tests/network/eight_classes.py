"""One port at 2 Mbit/s with a subscription per priority class, for the simulator, and what became of every packet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from triagemq.plan.model import Flows, Plan, PlannerChoice, PortLoads
from triagemq.scenario import Scenario, loads
from triagemq.simulate import simulate

CLASSES = 8
BANDWIDTH_BPS = 2e6
DATAGRAM_BYTES = 100


def eight_classes(rho: float, buffer_packets: str = ".inf", classes: int = CLASSES) -> Scenario:
    """Equal Poisson streams of packets of 142 bytes in every class (of eight, or fewer), `rho` in all."""
    rate = rho * BANDWIDTH_BPS / 8 / 142 / classes
    publications = ", ".join(
        f"topic{number}: {{rate_per_second: {rate}, size_bytes: {DATAGRAM_BYTES}, sizes: constant}}"
        for number in range(classes)
    )
    subscriptions = ", ".join(f"topic{number}: log:1" for number in range(classes))
    buffer = "" if buffer_packets == ".inf" else f", buffer_packets: {buffer_packets}"
    return loads(
        f"""
overhead_bytes: 42
planning: {{flows_per_subscriber: {classes}, priority_classes: {classes}}}
brokers: {{hall: }}
switches: {{core: }}
ports: {{radio: {{switch: core, bandwidth_bps: {BANDWIDTH_BPS}{buffer}}}}}
publishers: {{sensors: {{publishes: {{{publications}}}}}}}
subscribers: {{commander: {{port: radio, subscribes: {{{subscriptions}}}}}}}
"""
    )


def class_per_topic(scenario: Scenario) -> Plan:
    """Topic i in flow i in class i, nothing dropped."""
    classes = len(scenario.topics)
    zeros = np.zeros(classes)
    nobody = np.zeros(classes, dtype=np.int32)
    numbers = np.arange(classes, dtype=np.int32)
    return Plan(
        scenario_fingerprint=scenario.fingerprint,
        made_by=PlannerChoice("given", "given", "given", "port", 0, classes, classes, 0.1),
        flow=numbers,
        rank=zeros,
        flows=Flows(nobody, nobody, numbers, zeros, zeros, zeros),
        ports=PortLoads(np.zeros(1), np.zeros(1)),
    )


class _Deliveries:
    """A sink that keeps the deliveries."""

    def __init__(self) -> None:
        self.parts: list[dict[str, Any]] = []

    def deliveries(self, columns: Any) -> None:
        self.parts.append({name: values.copy() for name, values in columns.items()})

    def publications(self, columns: Any) -> None: ...

    def queue_samples(self, columns: Any) -> None: ...

    def decisions(self, columns: Any) -> None: ...


def simulated_deliveries(
    scenario: Scenario, *, publications: int | None = None, replay: Sequence[tuple[int, int]] | None = None
) -> dict[str, Any]:
    """The columns of the simulator's deliveries, in the order in which they came to the port, or were replayed.

    `replay` publishes at the given times (ns) on the given topics.
    """
    sink = _Deliveries()
    recorded = None
    if replay is not None:
        recorded = {
            "published_ns": np.array([at_ns for at_ns, _ in replay], dtype=np.int64),
            "publication": np.array([topic for _, topic in replay], dtype=np.int32),
            "size_bytes": np.full(len(replay), float(DATAGRAM_BYTES)),
        }
    simulate(
        scenario,
        class_per_topic(scenario),
        publications=publications,
        replay=recorded,
        sink=sink,
        warmup=0.0,
        seed=7,
    )
    columns = {name: np.concatenate([part[name] for part in sink.parts]) for name in sink.parts[0]}
    # Two events of one instant may change places on their way to the port.
    order = np.argsort(columns["enqueued_ns" if replay is None else "publication_id"], kind="stable")
    return {name: values[order] for name, values in columns.items()}
