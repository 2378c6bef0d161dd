"""Figures for Prometheus, in its text format, written down when they are asked for."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from triagemq.certificates import expires_at
from triagemq.coordinator.channel.gateways import LedGateway
from triagemq.coordinator.channel.messages import shallow
from triagemq.coordinator.coordinator import Coordinator
from triagemq.coordinator.loop.health import PROMISE_DECISIONS, Histogram
from triagemq.intents import PUBLISHER, SUBSCRIBER

Samples = list[tuple[Mapping[str, str], float]]
Families = dict[str, tuple[str, str, float | Samples]]
"""By name: kind, help, and a value or samples with labels."""


def exposition(here: Coordinator) -> str:
    """Everything there is to tell of a coordinator, its gateway and their traffic."""
    families = _coordinator(here) | _gateway(here) | _classes(here) | _ports(here) | _machine(here)
    return text_format(families, here.metrics.plan_seconds)


def _coordinator(here: Coordinator) -> Families:
    runtime, counted = here.runtime, here.metrics
    planned = 0 if runtime.decided is None else len(runtime.decided.scenario.subscriptions)
    intents: Samples = [({"kind": kind}, here.count(kind)) for kind in (PUBLISHER, SUBSCRIBER)]
    promised = len(runtime.assignments.orders.promised.promises)
    decisions: Samples = [({"kind": kind}, counted.promises[kind]) for kind in PROMISE_DECISIONS]
    checks: Samples = [
        ({"check": name}, check["ok"]) for name, check in here.health(in_detail=False)["checks"].items()
    ]
    return {
        "triage_check_ok": ("gauge", "1 for each check of /v1/health that is ok, 0 if it is not.", checks),
        "triage_starved_subscriptions": (
            "gauge",
            "Subscriptions that get nothing by the latest plan.",
            len(here.starved()),
        ),
        "triage_intents": ("gauge", "Intents announced.", intents),
        "triage_subscriptions": ("gauge", "Subscriptions planned for.", planned),
        "triage_generation": ("gauge", "Generation of the latest orders.", runtime.planned_generation),
        "triage_in_force_generation": ("gauge", "Generation of the orders in force.", runtime.generation),
        "triage_plans_unchanged_total": ("counter", "Plans that changed nothing.", counted.plans_unchanged),
        "triage_plans_refused_total": ("counter", "Plans that could not be made.", counted.plans_refused),
        "triage_promises": ("gauge", "Promises that are kept.", promised),
        "triage_promise_decisions_total": ("counter", "Promises admitted, refused and released.", decisions),
        "triage_leases_ended_total": ("counter", "Clients that vanished.", here.service.leases_ended),
        "triage_measurement_rows_total": ("counter", "Rows of the pipeline used.", counted.measurements),
    }


def _gateway(here: Coordinator) -> Families:
    gateways, now, connections = (
        tuple(here.runtime.gateways),
        time.monotonic(),
        here.metrics.gateway_connections,
    )

    def of_each(figure: Callable[[LedGateway], float]) -> Samples:
        return [({"gateway": each.name}, figure(each)) for each in gateways]

    counters: Samples = [
        ({"gateway": each.name, **labels}, value)
        for each in gateways
        if each.latest is not None
        for labels, value in _counter_samples(each.latest.counters)
    ]
    return {
        "triage_gateway_up": (
            "gauge",
            "1 for each gateway that is there, answers and has a broker, 0 if not.",
            of_each(lambda each: each.answers(now) and not each.problem),
        ),
        "triage_wanted_version": (
            "gauge",
            "Version of the state that a gateway should follow.",
            of_each(lambda each: each.lead.wanted_version),
        ),
        "triage_in_force_version": (
            "gauge",
            "Version that it has confirmed.",
            of_each(lambda each: each.lead.confirmed_version or 0),
        ),
        "triage_not_in_force_seconds": (
            "gauge",
            "For how long it has not followed what is wanted.",
            of_each(lambda each: each.lead.behind_seconds or 0.0),
        ),
        "triage_tellings_failed_total": (
            "counter",
            "Times it could not be told.",
            of_each(lambda each: each.lead.failures),
        ),
        "triage_gateway_connected": (
            "gauge",
            "1 while the gateway is there and answers.",
            of_each(lambda each: each.answers(now)),
        ),
        "triage_gateway_connections_total": (
            "counter",
            "Connections to it.",
            of_each(lambda each: connections[each.name]),
        ),
        "triage_gateway_total": ("counter", "What a gateway counts since its start.", counters),
        "triage_gateway_sessions": (
            "gauge",
            "Clients connected.",
            of_each(lambda each: 0 if each.latest is None else each.latest.sessions),
        ),
    }


def _machine(here: Coordinator) -> Families:
    """Of the files that the coordinator depends on; none that it does not have."""
    free: Samples = []
    if here.state is not None:
        with contextlib.suppress(OSError):
            found = os.statvfs(here.state)
            free = [({}, found.f_bavail * found.f_frsize)]
    expiries: Samples = []
    if here.certificate is not None:
        with contextlib.suppress(OSError, ValueError):
            expiries = [({"file": here.certificate}, expires_at(here.certificate))]
    return {
        "triage_state_free_bytes": ("gauge", "Bytes free on the disk of the state directory.", free),
        "triage_certificate_expires_seconds": (
            "gauge",
            "When the certificate of REST expires, in Unix seconds.",
            expiries,
        ),
    }


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
"""What is told of a forecast: the end of the metric's name, the key of `triage forecast --json`, and what it says."""


def _classes(here: Coordinator) -> Families:
    """Counters since the coordinator's start; shares of the last second, beside what was forecast."""
    predicted = (here.forecasts.latest() or {}).get("classes", [])
    passed, received = sorted(here.live.traffic.items()), sorted(here.live.total.items())
    offered: Samples = [(_class(level), row.offered) for level, row in passed]
    sent: Samples = [(_class(level), row.sent) for level, row in passed]
    drops: Samples = [
        ({**_class(level), "outcome": outcome}, getattr(row, outcome))
        for level, row in passed
        for outcome in ("dropped_by_policy", "dropped_by_buffer")
    ]
    success = _known(_now(here, "classes"), "sent_share", "priority_class")
    events: Samples = [(_class(level), row.count) for level, row in received]
    latency: Samples = [(_class(level), row.latency_seconds_sum) for level, row in received]
    timed: Samples = [(_class(level), row.timed) for level, row in received]
    return {
        "triage_offered_total": (
            "counter",
            "Packets with events that came to the output ports, by class.",
            offered,
        ),
        "triage_sent_total": ("counter", "Those of them that left, by class.", sent),
        "triage_dropped_total": ("counter", "Those that were dropped, by class and why.", drops),
        "triage_success_rate": (
            "gauge",
            "Share of the packets offered in the last second that left, by class.",
            success,
        ),
        **{
            f"triage_forecast_{name}": ("gauge", words, _known(predicted, key, "priority_class"))
            for name, (key, words) in _FORECAST.items()
        },
        "triage_received_total": (
            "counter",
            "Events that subscribers reported as received, by class.",
            events,
        ),
        "triage_received_latency_seconds_total": (
            "counter",
            "Sum of the latencies of those events, by class.",
            latency,
        ),
        "triage_received_timed_total": (
            "counter",
            "Those of them that say when they were published, of which alone the latency is known, by class.",
            timed,
        ),
    }


def _ports(here: Coordinator) -> Families:
    decided, measured = here.runtime.decided, here.runtime.measuring.latest
    connected = _is_any_connected(here)
    planned: Samples = (
        []
        if decided is None
        else [
            ({"port": name}, load)
            for name, load in zip(
                decided.scenario.ports.name, decided.plan.ports.rho_planned.tolist(), strict=True
            )
        ]
    )
    waiting = [
        ({"port": name, **_class(level)}, queue)
        for name, port in (measured.ports.items() if measured is not None and connected else ())
        for level, queue in enumerate(port.queues)
    ]
    facts = [{"port": name, **shallow(port)} for name, port in here.runtime.port_watch.facts().items()]
    stated, given = _known(facts, "stated_bps", "port"), _known(facts, "planned_bps", "port")
    return {
        "triage_port_stated_bandwidth_bps": (
            "gauge",
            "Bandwidth that an output port is stated to have.",
            stated,
        ),
        "triage_port_planned_bandwidth_bps": ("gauge", "Bandwidth that it is planned with.", given),
        "triage_port_measured_bandwidth_bps": (
            "gauge",
            "Bandwidth that was measured, by bound.",
            _bounds(facts, "bandwidth_bps"),
        ),
        "triage_port_planned_error_rate": (
            "gauge",
            "Share of packets that is planned to be lost behind an output port.",
            _known(facts, "planned_error_rate", "port"),
        ),
        "triage_port_measured_error_rate": (
            "gauge",
            "Share of copies that was lost there as its subscribers report, by bound.",
            _bounds(facts, "error_rate"),
        ),
        "triage_port_load": (
            "gauge",
            "Share of its bandwidth that an output port used in the last second.",
            _known(_now(here, "ports"), "load", "port"),
        ),
        "triage_port_planned_load": ("gauge", "Share of it that the latest plan gives away.", planned),
        "triage_port_backlog_packets": (
            "gauge",
            "Packets that wait at an output port, by class.",
            [(labels, queue.backlog_packets) for labels, queue in waiting],
        ),
        "triage_port_backlog_bytes": (
            "gauge",
            "Their bytes on the wire.",
            [(labels, queue.backlog_bytes) for labels, queue in waiting],
        ),
    }


def _now(here: Coordinator, table: str) -> Iterable[Mapping[str, Any]]:
    """Rows of the live figures; none while the gateway is away, when those there are tell of the past."""
    latest = here.live.latest if _is_any_connected(here) else None
    return () if latest is None else latest[table]


def _is_any_connected(here: Coordinator) -> bool:
    return any(each.lead.link.connected for each in here.runtime.gateways)


def _known(rows: Iterable[Mapping[str, Any]], figure: str, label: str) -> Samples:
    return [({label: str(row[label])}, row[figure]) for row in rows if row.get(figure) is not None]


def _bounds(ports: Iterable[Mapping[str, Any]], figure: str) -> Samples:
    """Estimates of ports, each with the ends of its interval; what is not known is left out."""
    return [
        ({"port": port["port"], "bound": bound}, value)
        for port in ports
        if figure in port
        for bound, value in asdict(port[figure]).items()
        if math.isfinite(value)
    ]


def _class(level: int) -> dict[str, str]:
    return {"priority_class": str(level)}


def text_format(families: Families, plan_seconds: Histogram) -> str:
    """Families of figures as Prometheus reads them.

    >>> print(text_format({"triage_generation": ("gauge", "Of the orders.", 3)}, Histogram((1.0,))).splitlines()[2])
    triage_generation 3
    """
    lines = []
    for name, (kind, words, value) in families.items():
        lines += [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]
        samples: Samples = value if isinstance(value, list) else [({}, value)]
        lines += [f"{name}{_labels(labels)} {_number(number)}" for labels, number in samples]
    name = "triage_plan_seconds"
    lines += [f"# HELP {name} Time to make a plan.", f"# TYPE {name} histogram"]
    lines += [f'{name}_bucket{{le="{bound}"}} {count}' for bound, count in plan_seconds.rows()]
    lines += [f"{name}_sum {_number(plan_seconds.total)}", f"{name}_count {plan_seconds.count}"]
    return "\n".join(lines) + "\n"


def _counter_samples(counters: Mapping[str, Any]) -> Samples:
    """A gateway's counters: plain numbers by name, and counters by reason."""
    samples: Samples = []
    for name, value in sorted(counters.items()):
        if isinstance(value, Mapping):
            samples += [
                ({"counter": name, "reason": str(reason)}, float(count))
                for reason, count in sorted(value.items())
            ]
        elif isinstance(value, int | float):
            samples.append(({"counter": name, "reason": ""}, float(value)))
    return samples


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return f"{int(value)}" if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))
