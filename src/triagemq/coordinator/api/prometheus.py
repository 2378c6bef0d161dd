"""Metrics for Prometheus, collected at each scrape."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from triagemq.certificates import expires_at
from triagemq.coordinator.channel.handle import GatewayHandle
from triagemq.coordinator.channel.messages import shallow
from triagemq.coordinator.control_plane import ControlPlane
from triagemq.coordinator.loop.health import PROMISE_DECISIONS
from triagemq.intents import PUBLISHER, SUBSCRIBER

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Samples = Iterable[tuple[Mapping[str, str], float]]

_COUNTER_SUFFIX = "_total"


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
        for part in (_coordinator_metrics, _gateway_metrics, _class_metrics, _port_metrics, _machine_metrics):
            yield from part(self._coordinator)


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


def _coordinator_metrics(coordinator: ControlPlane) -> Iterator[Metric]:
    runtime, counted = coordinator.runtime, coordinator.metrics
    checks = coordinator.health(in_detail=False)["checks"].items()
    yield metric(
        "triage_check_ok",
        "1 for each check of /v1/health that is ok, 0 if it is not.",
        [({"check": name}, check["ok"]) for name, check in checks],
    )
    starved = len(coordinator.starved())
    yield metric(
        "triage_starved_subscriptions", "Subscriptions that get nothing by the latest plan.", starved
    )
    intents = [({"kind": kind}, coordinator.count(kind)) for kind in (PUBLISHER, SUBSCRIBER)]
    yield metric("triage_intents", "Intents announced.", intents)
    planned = 0 if runtime.decided is None else len(runtime.decided.scenario.subscriptions)
    yield metric("triage_subscriptions", "Subscriptions planned for.", planned)
    yield metric("triage_generation", "Generation of the latest orders.", runtime.planned_generation)
    yield metric("triage_in_force_generation", "Generation of the orders in force.", runtime.generation)
    yield metric("triage_plans_unchanged_total", "Plans that changed nothing.", counted.plans_unchanged)
    yield metric("triage_plans_refused_total", "Plans that could not be made.", counted.plans_refused)
    promised = len(runtime.assignments.orders.promised.promises)
    yield metric("triage_promises", "Promises that are kept.", promised)
    decisions = [({"kind": kind}, counted.promises[kind]) for kind in PROMISE_DECISIONS]
    yield metric("triage_promise_decisions_total", "Promises admitted, refused and released.", decisions)
    yield metric("triage_leases_ended_total", "Clients that vanished.", coordinator.service.leases_ended)
    yield metric("triage_measurement_rows_total", "Rows of the pipeline used.", counted.measurements)
    seconds = counted.plan_seconds
    yield HistogramMetricFamily(
        "triage_plan_seconds", "Time to make a plan.", buckets=list(seconds.rows()), sum_value=seconds.total
    )


def _gateway_metrics(coordinator: ControlPlane) -> Iterator[Metric]:
    gateways, now = tuple(coordinator.runtime.gateways), time.monotonic()
    connections = coordinator.metrics.gateway_connections

    def of_each(name: str, words: str, figure: Callable[[GatewayHandle], float]) -> Metric:
        return metric(name, words, [({"gateway": each.name}, figure(each)) for each in gateways])

    yield of_each(
        "triage_gateway_up",
        "1 for each gateway that is there, answers and has a broker, 0 if not.",
        lambda each: each.answers(now) and not each.problem,
    )
    yield of_each(
        "triage_wanted_version",
        "Version of the state that a gateway should follow.",
        lambda each: each.reconciler.wanted_version,
    )
    yield of_each(
        "triage_in_force_version",
        "Version that it has confirmed.",
        lambda each: each.reconciler.confirmed_version or 0,
    )
    yield of_each(
        "triage_not_in_force_seconds",
        "For how long it has not followed what is wanted.",
        lambda each: each.reconciler.behind_seconds or 0.0,
    )
    yield of_each(
        "triage_tellings_failed_total", "Times it could not be told.", lambda each: each.reconciler.failures
    )
    yield of_each(
        "triage_gateway_connected",
        "1 while the gateway is there and answers.",
        lambda each: each.answers(now),
    )
    yield of_each(
        "triage_gateway_connections_total", "Connections to it.", lambda each: connections[each.name]
    )
    counters = [
        ({"gateway": each.name, **labels}, value)
        for each in gateways
        if each.latest is not None
        for labels, value in _counter_samples(each.latest.counters)
    ]
    yield metric("triage_gateway_total", "What a gateway counts since its start.", counters)
    yield of_each(
        "triage_gateway_sessions",
        "Clients connected.",
        lambda each: 0 if each.latest is None else each.latest.sessions,
    )


def _machine_metrics(coordinator: ControlPlane) -> Iterator[Metric]:
    """Metrics of files that the coordinator depends on, without samples for files that it does not have."""
    free: Samples = ()
    settings = coordinator.settings
    if settings.gateway_socket:
        with contextlib.suppress(OSError):
            found = os.statvfs(Path(settings.gateway_socket).parent)
            free = [({}, found.f_bavail * found.f_frsize)]
    yield metric("triage_state_free_bytes", "Bytes free on the disk of the state directory.", free)
    expiries: Samples = ()
    if settings.tls_certificate is not None:
        with contextlib.suppress(OSError, ValueError):
            expiries = [({"file": settings.tls_certificate}, expires_at(settings.tls_certificate))]
    yield metric(
        "triage_certificate_expires_seconds",
        "When the certificate of REST expires, in Unix seconds.",
        expiries,
    )


_FORECAST = {
    "success_rate": ("success_rate", "Share of events that should arrive, by class."),
    "latency_seconds": ("mean_latency_seconds", "Mean latency that events should have, by class."),
    "p95_seconds": ("p95_seconds", "Latency that 95 % of the events should not exceed, by class."),
    "p99_seconds": ("p99_seconds", "Latency that 99 % of the events should not exceed, by class."),
    "latency_error": (
        "latency_error",
        "Share by which the forecast latency may be off, by class; 0: within 2 %.",
    ),
    "success_error": (
        "success_error",
        "Share by which the forecast success may be off, by class; 0: within 2 %.",
    ),
}
"""Metrics of a forecast: the end of the name, the key of `triage forecast --json`, and the help."""


def _class_metrics(coordinator: ControlPlane) -> Iterator[Metric]:
    """Counters since the coordinator's start; shares of the last second, beside the forecast."""
    passed, received = sorted(coordinator.live.traffic.items()), sorted(coordinator.live.total.items())
    yield metric(
        "triage_offered_total",
        "Packets with events that came to the output ports, by class.",
        [(_class(level), row.offered) for level, row in passed],
    )
    yield metric(
        "triage_sent_total",
        "Those of them that left, by class.",
        [(_class(level), row.sent) for level, row in passed],
    )
    yield metric(
        "triage_dropped_total",
        "Those that were dropped, by class and why.",
        [
            ({**_class(level), "outcome": outcome}, getattr(row, outcome))
            for level, row in passed
            for outcome in ("dropped_by_policy", "dropped_by_buffer")
        ],
    )
    yield metric(
        "triage_success_rate",
        "Share of the packets offered in the last second that left, by class.",
        _known(_last_second(coordinator, "classes"), "sent_share", "priority_class"),
    )
    predicted = (coordinator.forecasts.latest() or {}).get("classes", [])
    for name, (key, words) in _FORECAST.items():
        yield metric(f"triage_forecast_{name}", words, _known(predicted, key, "priority_class"))
    yield metric(
        "triage_received_total",
        "Events that subscribers reported as received, by class.",
        [(_class(level), row.count) for level, row in received],
    )
    yield metric(
        "triage_received_latency_seconds_total",
        "Sum of the latencies of those events, by class.",
        [(_class(level), row.latency_seconds_sum) for level, row in received],
    )
    yield metric(
        "triage_received_timed_total",
        "Those of them that say when they were published, of which alone the latency is known, by class.",
        [(_class(level), row.timed) for level, row in received],
    )


def _port_metrics(coordinator: ControlPlane) -> Iterator[Metric]:
    runtime = coordinator.runtime
    facts = [{"port": name, **shallow(port)} for name, port in runtime.port_watch.facts().items()]
    yield metric(
        "triage_port_stated_bandwidth_bps",
        "Bandwidth that an output port is stated to have.",
        _known(facts, "stated_bps", "port"),
    )
    yield metric(
        "triage_port_planned_bandwidth_bps",
        "Bandwidth that it is planned with.",
        _known(facts, "planned_bps", "port"),
    )
    yield metric(
        "triage_port_measured_bandwidth_bps",
        "Bandwidth that was measured, by bound.",
        _bounds(facts, "bandwidth_bps"),
    )
    yield metric(
        "triage_port_planned_error_rate",
        "Share of packets that is planned to be lost behind an output port.",
        _known(facts, "planned_error_rate", "port"),
    )
    yield metric(
        "triage_port_measured_error_rate",
        "Share of copies that was lost there as its subscribers report, by bound.",
        _bounds(facts, "error_rate"),
    )
    yield metric(
        "triage_port_load",
        "Share of its bandwidth that an output port used in the last second.",
        _known(_last_second(coordinator, "ports"), "load", "port"),
    )
    planned: Samples = ()
    if runtime.decided is not None:
        loads = runtime.decided.plan.ports.rho_planned.tolist()
        names = runtime.decided.scenario.ports.name
        planned = [({"port": name}, load) for name, load in zip(names, loads, strict=True)]
    yield metric("triage_port_planned_load", "Share of it that the latest plan gives away.", planned)
    measured = runtime.measuring.latest if _is_any_connected(coordinator) else None
    queues = [
        ({"port": name, **_class(level)}, queue)
        for name, port in (measured.ports.items() if measured is not None else ())
        for level, queue in enumerate(port.queues)
    ]
    yield metric(
        "triage_port_backlog_packets",
        "Packets that wait at an output port, by class.",
        [(labels, queue.backlog_packets) for labels, queue in queues],
    )
    yield metric(
        "triage_port_backlog_bytes",
        "Their bytes on the wire.",
        [(labels, queue.backlog_bytes) for labels, queue in queues],
    )


def _last_second(coordinator: ControlPlane, table: str) -> Iterable[Mapping[str, Any]]:
    """Rows of the live figures; none while no gateway is connected, when they are of the past."""
    latest = coordinator.live.latest if _is_any_connected(coordinator) else None
    return () if latest is None else latest[table]


def _is_any_connected(coordinator: ControlPlane) -> bool:
    return any(each.reconciler.link.connected for each in coordinator.runtime.gateways)


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
