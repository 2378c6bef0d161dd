"""Metrics for Prometheus, collected at each scrape."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from triagemq.certificates import expires_at
from triagemq.channel.messages import shallow
from triagemq.coordinator.control_plane import MOST_NAMED, ControlPlane
from triagemq.coordinator.gateways.handle import GatewayHandle
from triagemq.coordinator.loop.health import PROMISE_DECISIONS
from triagemq.intents import PUBLISHER, SUBSCRIBER

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Samples = Iterable[tuple[Mapping[str, str], float]]

_COUNTER_SUFFIX = "_total"

_HELP = {
    "triage_check_ok": "1 for each check of /v1/health that is ok, 0 if it is not.",
    "triage_starved_subscriptions": "Subscriptions that get nothing, or less than their minimum, by the latest plan.",
    "triage_starved_subscription_share": "Share that the plan gives each of those, worth most first, at most 100.",
    "triage_intents": "Intents announced.",
    "triage_subscriptions": "Subscriptions planned for.",
    "triage_generation": "Generation of the latest orders.",
    "triage_in_force_generation": "Generation of the orders in force.",
    "triage_plans_unchanged_total": "Plans that changed nothing.",
    "triage_plans_refused_total": "Plans that could not be made.",
    "triage_promises": "Admitted promises.",
    "triage_promise_decisions_total": "Promises admitted, refused and released.",
    "triage_leases_ended_total": "Clients whose leases expired.",
    "triage_gateway_up": "1 for each gateway that is there, answers and has a broker, 0 if not.",
    "triage_gateway_connected": "1 while the gateway is there and answers.",
    "triage_gateway_connections_total": "Connections to the gateway.",
    "triage_gateway_sessions": "Clients connected to the gateway.",
    "triage_gateway_total": "Counters of the gateway since its start.",
    "triage_wanted_version": "Version of the state that the gateway should follow.",
    "triage_in_force_version": "Version that the gateway has confirmed.",
    "triage_not_in_force_seconds": "For how long the gateway has not followed the desired state.",
    "triage_state_sends_failed_total": "Failed attempts to send the desired state.",
    "triage_offered_total": "Packets with events that came to the output ports, by class.",
    "triage_sent_total": "Packets with events that left the output ports, by class.",
    "triage_dropped_total": "Packets with events that were dropped, by class and reason.",
    "triage_success_rate": "Share of the packets offered in the last five seconds that left, by class.",
    "triage_received_total": "Events that subscribers reported as received, by class.",
    "triage_received_latency_seconds_total": "Sum of the latencies of the reported events, by class.",
    "triage_received_timed_total": "Reported events with a time of publication, by class.",
    "triage_forecast_success_rate": "Share of events that should arrive, by class.",
    "triage_forecast_latency_seconds": "Mean latency that events should have, by class.",
    "triage_forecast_p95_seconds": "Latency that 95 % of the events should not exceed, by class.",
    "triage_forecast_p99_seconds": "Latency that 99 % of the events should not exceed, by class.",
    "triage_forecast_latency_error": "Share by which the forecast latency may be off; 0: within 2 %.",
    "triage_forecast_success_error": "Share by which the forecast success may be off; 0: within 2 %.",
    "triage_port_load": "Share of its bandwidth that an output port used in the last second.",
    "triage_port_planned_load": "Share of its bandwidth that the latest plan assigns.",
    "triage_port_stated_bandwidth_bps": "Bandwidth that an output port is stated to have.",
    "triage_port_planned_bandwidth_bps": "Bandwidth that an output port is planned with.",
    "triage_port_measured_bandwidth_bps": "Bandwidth that was measured, by bound.",
    "triage_port_planned_error_rate": "Share of packets planned to be lost behind an output port.",
    "triage_port_measured_error_rate": "Share of copies lost there as subscribers report, by bound.",
    "triage_port_backlog_packets": "Packets that wait at an output port, by class.",
    "triage_port_backlog_bytes": "Their bytes on the wire.",
    "triage_state_free_bytes": "Bytes free on the disk of the state directory.",
    "triage_certificate_expires_seconds": "When the certificate of REST expires, in Unix seconds.",
}


def metrics_text(coordinator: ControlPlane) -> bytes:
    """Metrics of a coordinator, its gateways and their traffic, in the text format of Prometheus."""
    registry = CollectorRegistry()
    registry.register(_CoordinatorCollector(coordinator))
    return generate_latest(registry)


class _CoordinatorCollector(Collector):
    def __init__(self, coordinator: ControlPlane) -> None:
        self._coordinator = coordinator

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        for part in (_coordinator_samples, _gateway_samples, _class_samples, _port_samples, _machine_samples):
            for name, samples in part(self._coordinator):
                yield metric(name, _HELP[name], samples)
        yield from self._coordinator.runtime.metrics.plan_seconds.collect()


def metric(name: str, words: str, samples: Samples | float) -> Metric:
    """A counter if its name says so, else a gauge; a number is a sample without labels.

    >>> metric("triage_generation", "Of the orders.", 3).type
    'gauge'
    """
    is_counter = name.endswith(_COUNTER_SUFFIX)
    found = Metric(name.removesuffix(_COUNTER_SUFFIX), words, "counter" if is_counter else "gauge")
    for labels, value in [({}, samples)] if isinstance(samples, int | float) else samples:
        found.add_sample(name, dict(labels), value)
    return found


_Named = Iterator[tuple[str, Samples | float]]


def _coordinator_samples(coordinator: ControlPlane) -> _Named:
    runtime, counted, decided = coordinator.runtime, coordinator.runtime.metrics, coordinator.runtime.decided
    checks = coordinator.health(in_detail=False)["checks"].items()
    yield "triage_check_ok", [({"check": name}, check["ok"]) for name, check in checks]
    starved = coordinator.starved()
    yield "triage_starved_subscriptions", len(starved)
    yield (
        "triage_starved_subscription_share",
        [
            ({name: each[name] for name in ("subscriber", "topic", "reason")}, each["share"])
            for each in starved[:MOST_NAMED]
        ],
    )
    yield (
        "triage_intents",
        [({"kind": kind}, coordinator.service.registry.count(kind)) for kind in (PUBLISHER, SUBSCRIBER)],
    )
    yield "triage_subscriptions", 0 if decided is None else len(decided.scenario.subscriptions)
    yield "triage_generation", runtime.planned_generation
    yield "triage_in_force_generation", runtime.generation
    yield "triage_plans_unchanged_total", counted.plans_unchanged
    yield "triage_plans_refused_total", counted.plans_refused
    yield "triage_promises", len(runtime.assignments.orders.promised.promises)
    decisions = [({"kind": kind}, counted.promises[kind]) for kind in PROMISE_DECISIONS]
    yield "triage_promise_decisions_total", decisions
    yield "triage_leases_ended_total", coordinator.service.leases_ended


def _gateway_samples(coordinator: ControlPlane) -> _Named:
    gateways, now = tuple(coordinator.runtime.gateways), time.monotonic()
    connections = coordinator.runtime.metrics.gateway_connections
    figures: dict[str, Callable[[GatewayHandle], float]] = {
        "up": lambda each: each.answers(now) and not each.problem,
        "connected": lambda each: each.answers(now),
        "connections_total": lambda each: connections[each.name],
        "sessions": lambda each: 0 if each.latest is None else each.latest.sessions,
    }
    states: dict[str, Callable[[GatewayHandle], float]] = {
        "wanted_version": lambda each: each.reconciler.wanted_version,
        "in_force_version": lambda each: each.reconciler.confirmed_version or 0,
        "not_in_force_seconds": lambda each: each.reconciler.behind_seconds or 0.0,
        "state_sends_failed_total": lambda each: each.reconciler.failures,
    }
    for prefix, several in (("triage_gateway_", figures), ("triage_", states)):
        for name, figure in several.items():
            yield prefix + name, [({"gateway": each.name}, figure(each)) for each in gateways]
    yield (
        "triage_gateway_total",
        [
            ({"gateway": each.name, **labels}, value)
            for each in gateways
            if each.latest is not None
            for labels, value in _counter_samples(each.latest.counters)
        ],
    )


def _machine_samples(coordinator: ControlPlane) -> _Named:
    """Metrics of files that the coordinator depends on, without samples for files that it does not have."""
    settings = coordinator.settings
    free: Samples = ()
    if settings.gateway_socket:
        with contextlib.suppress(OSError):
            found = os.statvfs(Path(settings.gateway_socket).parent)
            free = [({}, found.f_bavail * found.f_frsize)]
    yield "triage_state_free_bytes", free
    expiries: Samples = ()
    if settings.tls_certificate is not None:
        with contextlib.suppress(OSError, ValueError):
            expiries = [({"file": settings.tls_certificate}, expires_at(settings.tls_certificate))]
    yield "triage_certificate_expires_seconds", expiries


def _class_samples(coordinator: ControlPlane) -> _Named:
    """Counters since the coordinator's start; shares of the last second, and the forecast."""
    for outcome in ("offered", "sent"):
        yield f"triage_{outcome}_total", _by_class(coordinator.live.traffic, itemgetter(outcome))
    dropped = [
        ({**labels, "outcome": outcome}, count)
        for outcome in ("dropped_by_policy", "dropped_by_buffer")
        for labels, count in _by_class(coordinator.live.traffic, itemgetter(outcome))
    ]
    yield "triage_dropped_total", dropped
    yield "triage_success_rate", _known(_last_second(coordinator, "classes"), "sent_share", "priority_class")
    received = {"": "count", "_latency_seconds": "latency_seconds_sum", "_timed": "timed"}
    for name, figure in received.items():
        yield f"triage_received{name}_total", _by_class(coordinator.live.total, attrgetter(figure))
    predicted = (coordinator.forecasts.latest() or {}).get("classes", [])
    for name in ("success_rate", "p95_seconds", "p99_seconds", "latency_error", "success_error"):
        yield f"triage_forecast_{name}", _known(predicted, name, "priority_class")
    yield "triage_forecast_latency_seconds", _known(predicted, "mean_latency_seconds", "priority_class")


def _port_samples(coordinator: ControlPlane) -> _Named:
    runtime = coordinator.runtime
    facts = [{"port": name, **shallow(port)} for name, port in runtime.port_watch.facts().items()]
    yield "triage_port_stated_bandwidth_bps", _known(facts, "bandwidth_bps", "port")
    for name in ("planned_bandwidth_bps", "planned_error_rate"):
        yield f"triage_port_{name}", _known(facts, name, "port")
    for name in ("measured_bandwidth_bps", "measured_error_rate"):
        yield f"triage_port_{name}", _bounds(facts, name)
    yield "triage_port_load", _known(_last_second(coordinator, "ports"), "load", "port")
    planned: Samples = ()
    if runtime.decided is not None:
        loads = runtime.decided.plan.ports.rho_planned.tolist()
        names = runtime.decided.scenario.ports.name
        planned = [({"port": name}, load) for name, load in zip(names, loads, strict=True)]
    yield "triage_port_planned_load", planned
    measured = runtime.measuring.latest if _is_any_connected(coordinator) else None
    queues = [
        ({"port": name, **_class(level)}, queue)
        for name, port in (measured.ports.items() if measured is not None else ())
        for level, queue in enumerate(port.queues)
    ]
    yield "triage_port_backlog_packets", [(labels, queue.backlog_packets) for labels, queue in queues]
    yield "triage_port_backlog_bytes", [(labels, queue.backlog_bytes) for labels, queue in queues]


def _last_second(coordinator: ControlPlane, table: str) -> Iterable[Mapping[str, Any]]:
    """Rows of the live figures; none while no gateway is connected, when they are of the past."""
    latest = coordinator.live.latest if _is_any_connected(coordinator) else None
    return () if latest is None else latest[table]


def _is_any_connected(coordinator: ControlPlane) -> bool:
    return any(each.reconciler.link.connected for each in coordinator.runtime.gateways)


def _by_class(rows: Mapping[int, Any], figure: Callable[[Any], float]) -> Samples:
    return [(_class(level), figure(row)) for level, row in sorted(rows.items())]


def _known(rows: Iterable[Mapping[str, Any]], figure: str, label: str) -> Samples:
    return [({label: str(row[label])}, row[figure]) for row in rows if row.get(figure) is not None]


def _bounds(ports: Iterable[Mapping[str, Any]], figure: str) -> Samples:
    """Estimates of ports with the ends of their intervals, where they are finite."""
    return [
        ({"port": port["port"], "bound": bound}, value)
        for port in ports
        if figure in port
        for bound, value in asdict(port[figure]).items()
        if math.isfinite(value)
    ]


def _class(level: int) -> dict[str, str]:
    return {"priority_class": str(level)}


def _counter_samples(counters: Mapping[str, Any]) -> Samples:
    """A gateway's counters: numbers by name, and counters by reason."""
    for name, value in sorted(counters.items()):
        if isinstance(value, Mapping):
            for reason, count in sorted(value.items()):
                yield {"counter": name, "reason": str(reason)}, float(count)
        elif isinstance(value, int | float):
            yield {"counter": name, "reason": ""}, float(value)
