"""A Scenario as YAML text: one line per leaf, names quoted only where they must be."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from triagemq.scenario.document import empirical_mean
from triagemq.scenario.kinds import ArrivalProcess, SendingOrder, SizeDistribution, UtilityShape
from triagemq.scenario.model import DEFAULT_SERVICE_RATE, Integers, PlanningSettings, Scenario
from triagemq.scenario.units import number_text

__all__ = ["Fields", "entry", "flow", "quoted", "scenario_text", "section"]

PLAIN = re.compile(r"[^\W\d][\w/.\-]*(?: [\w/.\-]+)*")
RESERVED = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}
LONGEST_SIMPLE_KEY = 900
"""YAML takes `key: value` on one line only for keys of up to 1024 characters."""

Fields = list[tuple[str, str]]


def scenario_text(scenario: Scenario, with_rows: bool, backups: Mapping[str, str] | None = None) -> str:
    """The text of a scenario file; without rows, it is the YAML of a scenario directory. `backups` are by switch."""
    lines = [*_header(scenario)]
    for each in (
        section("brokers", _brokers(scenario)),
        section("broker_links", _broker_links(scenario)),
        section("unmanaged_switches", _unmanaged_switches(scenario)),
        section("switches", _switches(scenario, backups or {})),
        section("ports", _ports(scenario)),
        section("topics", _unpublished_topics(scenario)),
        section("publishers", _publishers(scenario, with_rows)),
        section("subscribers", _subscribers(scenario, with_rows)),
    ):
        lines.extend(each)
    return "\n".join(lines) + "\n"


def quoted(name: str) -> str:
    """A name as YAML text that every reader takes for that name.

    >>> quoted("Building fire"), quoted("floor/1/smoke"), quoted("no"), quoted("7"), quoted("a: b")
    ('Building fire', 'floor/1/smoke', '"no"', '"7"', '"a: b"')
    """
    if PLAIN.fullmatch(name) and name.lower() not in RESERVED:
        return name
    return f'"{"".join(map(_escaped, name))}"'


def _escaped(character: str) -> str:
    if character in ESCAPES:
        return ESCAPES[character]
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def flow(fields: Fields) -> str:
    """A mapping on one line."""
    return "{" + ", ".join(f"{key}: {value}" for key, value in fields) + "}"


def entry(indent: str, name: str, value: str) -> str:
    """One key and its value; `value` is empty where an indented block follows."""
    key = quoted(name)
    if len(key) > LONGEST_SIMPLE_KEY:
        return f"{indent}? {key}\n{indent}: {value}".rstrip()
    return f"{indent}{key}: {value}".rstrip()


def section(title: str, lines: Iterable[str]) -> Iterator[str]:
    """A title and its lines; nothing if there are none."""
    lines = list(lines)
    if lines:
        yield from ("", f"{title}:", *lines)


def _stated(fields: Fields, key: str, value: float, default: float) -> None:
    if value != default:
        fields.append((key, number_text(value)))


def _header(scenario: Scenario) -> Iterator[str]:
    yield f"name: {quoted(scenario.name)}"
    if np.isfinite(scenario.mtu_bytes):
        yield f"mtu_bytes: {number_text(scenario.mtu_bytes)}"
        yield "fragmentation: true"
    if scenario.overhead_bytes:
        yield f"overhead_bytes: {number_text(scenario.overhead_bytes)}"
    if scenario.sending_order is not SendingOrder.BY_CLASS:
        yield f"sending_order: {scenario.sending_order.name.lower()}"
    planning: Fields = []
    default = PlanningSettings()
    for key in ("flows_per_subscriber", "priority_classes", "rho_tolerance", "judged_over_seconds"):
        _stated(planning, key, getattr(scenario.planning, key), getattr(default, key))
    if planning:
        yield f"planning: {flow(planning)}"


def _brokers(scenario: Scenario) -> Iterator[str]:
    brokers = scenario.brokers
    for row, name in enumerate(brokers.name):
        fields: Fields = []
        for key in ("inbound_rate_per_second", "outbound_rate_per_second"):
            _stated(fields, key, getattr(brokers, key)[row], DEFAULT_SERVICE_RATE)
        yield entry("  ", name, flow(fields))


def _broker_links(scenario: Scenario) -> Iterator[str]:
    links, names = scenario.broker_links, scenario.brokers.name
    written: dict[tuple[int, int], Fields] = {}
    for row in range(len(links)):
        fields: Fields = []
        _stated(fields, "bandwidth_bps", links.bandwidth_bps[row], np.inf)
        _stated(fields, "error_rate", links.error_rate[row], 0.0)
        _stated(fields, "propagation_seconds", links.propagation_seconds[row], 0.0)
        written[int(links.source_broker[row]), int(links.target_broker[row])] = fields
    for (source, target), fields in written.items():
        ends = quoted(names[source]), quoted(names[target])
        both_ways = written.get((target, source)) == fields
        if both_ways and source < target:
            yield f"  - {flow([('between', f'[{ends[0]}, {ends[1]}]'), *fields])}"
        elif not both_ways:
            yield f"  - {flow([('from', ends[0]), ('to', ends[1]), *fields])}"


def _unmanaged_switches(scenario: Scenario) -> Iterator[str]:
    table = scenario.unmanaged_switches
    for row, name in enumerate(table.name):
        yield entry("  ", name, flow([("bandwidth_bps", number_text(table.bandwidth_bps[row]))]))


def _switches(scenario: Scenario, backups: Mapping[str, str]) -> Iterator[str]:
    switches = scenario.switches
    for row, name in enumerate(switches.name):
        fields: Fields = []
        _stated(
            fields, "inbound_rate_per_second", switches.inbound_rate_per_second[row], DEFAULT_SERVICE_RATE
        )
        if switches.fed_by_port[row] >= 0:
            fields.append(("fed_by", quoted(scenario.ports.name[switches.fed_by_port[row]])))
        if name in backups:
            fields.append(("backup", quoted(backups[name])))
        yield entry("  ", name, flow(fields))


def _ports(scenario: Scenario) -> Iterator[str]:
    ports = scenario.ports
    for row, name in enumerate(ports.name):
        fields = [
            ("switch", quoted(scenario.switches.name[ports.switch[row]])),
            ("bandwidth_bps", number_text(ports.bandwidth_bps[row])),
        ]
        _stated(fields, "buffer_packets", ports.buffer_packets[row], np.inf)
        _stated(fields, "queues", ports.queues[row], 0)
        _stated(fields, "error_rate", ports.error_rate[row], 0.0)
        _stated(fields, "propagation_seconds", ports.propagation_seconds[row], 0.0)
        yield entry("  ", name, flow(fields))


def _unpublished_topics(scenario: Scenario) -> Iterator[str]:
    """Topics that nobody publishes would be lost otherwise; the others are where they are published."""
    published = np.zeros(len(scenario.topics), dtype=bool)
    published[scenario.publications.topic] = True
    for topic in np.flatnonzero(~published):
        yield f"  - {quoted(scenario.topics.name[topic])}"


def _position(
    scenario: Scenario, broker: int, error_rate: float, propagation_seconds: float
) -> tuple[Fields, Fields]:
    """The fields before and after the switch or port of a publisher or subscriber."""
    before = [("broker", quoted(scenario.brokers.name[broker]))] if len(scenario.brokers) > 1 else []
    after: Fields = []
    _stated(after, "error_rate", error_rate, 0.0)
    _stated(after, "propagation_seconds", propagation_seconds, 0.0)
    return before, after


def _publishers(scenario: Scenario, with_rows: bool) -> Iterator[str]:
    table, switches = scenario.publishers, scenario.unmanaged_switches.name
    starts = _starts(scenario.publications.publisher, len(table))
    for row, name in enumerate(table.name):
        before, after = _position(
            scenario, table.broker[row], table.error_rate[row], table.propagation_seconds[row]
        )
        switch = table.unmanaged_switch[row]
        fields = [*before, *([("switch", quoted(switches[switch]))] if switch >= 0 else []), *after]
        rows = range(starts[row], starts[row + 1]) if with_rows else range(0)
        topics = scenario.topics.name
        yield from _owner(
            name,
            fields,
            "publishes",
            ((topics[scenario.publications.topic[one]], _publication(scenario, one)) for one in rows),
        )


def _subscribers(scenario: Scenario, with_rows: bool) -> Iterator[str]:
    table = scenario.subscribers
    starts = _starts(scenario.subscriptions.subscriber, len(table))
    for row, name in enumerate(table.name):
        before, after = _position(
            scenario, table.broker[row], table.error_rate[row], table.propagation_seconds[row]
        )
        fields = [*before, ("port", quoted(scenario.ports.name[table.port[row]])), *after]
        rows = range(starts[row], starts[row + 1]) if with_rows else range(0)
        topics = scenario.topics.name
        yield from _owner(
            name,
            fields,
            "subscribes",
            ((topics[scenario.subscriptions.topic[one]], _subscription(scenario, one)) for one in rows),
        )


def _starts(owner: Integers, owners: int) -> list[int]:
    """Where each owner's rows begin; rows are sorted by owner."""
    return [int(start) for start in np.searchsorted(owner, np.arange(owners + 1))]


def _owner(name: str, fields: Fields, key: str, rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    lines = [entry("      ", topic, value) for topic, value in rows]
    if not lines:
        yield entry("  ", name, flow(fields))
        return
    yield entry("  ", name, "")
    for inner, value in fields:
        yield f"    {inner}: {value}"
    yield f"    {key}:"
    yield from lines


def _publication(scenario: Scenario, row: int) -> str:
    table = scenario.publications
    fields: Fields = []
    rate, shortest = float(table.rate_per_second[row]), float(table.min_separation_seconds[row])
    if shortest == 0 or rate != 1 / shortest:
        fields.append(("rate_per_second", number_text(rate)))
    _stated(fields, "min_separation_seconds", shortest, 0.0)
    _stated(fields, "max_separation_seconds", table.max_separation_seconds[row], np.inf)
    distribution = SizeDistribution(table.size_distribution[row])
    if distribution is SizeDistribution.EMPIRICAL:
        values = scenario.size_samples.size_bytes[table.size_samples[row]].tolist()
        weights = scenario.size_samples.weight[table.size_samples[row]].tolist()
        _stated(fields, "size_bytes", table.size_bytes[row], empirical_mean(values, weights))
        sizes: Fields = [("values", _numbers(values))]
        if any(weight != 1 for weight in weights):
            sizes.append(("weights", _numbers(weights)))
        fields.append(("sizes", flow(sizes)))
    else:
        fields.append(("size_bytes", number_text(table.size_bytes[row])))
        if distribution is not SizeDistribution.EXPONENTIAL:
            fields.append(("sizes", distribution.name.lower()))
    process = ArrivalProcess(table.arrival_process[row])
    if process is not ArrivalProcess.POISSON:
        details: Fields = []
        _stated(details, "shape", table.pareto_shape[row], 0.0)
        _stated(details, "on_seconds", table.on_seconds[row], 0.0)
        _stated(details, "off_seconds", table.off_seconds[row], 0.0)
        word = process.name.lower()
        fields.append(("arrivals", flow([("process", word), *details]) if details else word))
    return flow(fields)


def _numbers(values: list[float]) -> str:
    return f"[{', '.join(map(number_text, values))}]"


def _subscription(scenario: Scenario, row: int) -> str:
    table = scenario.subscriptions
    shape = UtilityShape(table.utility_shape[row])
    weight = number_text(table.utility_weight[row])
    step = shape is UtilityShape.STEP
    word = shape.name.lower()
    threshold = number_text(table.utility_threshold[row]) if step else ""
    utility = f"{word}:{weight}@{threshold}" if step else f"{word}:{weight}"
    limits: Fields = []
    _stated(limits, "max_latency_seconds", table.max_latency_seconds[row], np.inf)
    _stated(limits, "max_latency_share", table.max_latency_share[row], 0.0)
    _stated(limits, "max_separation_seconds", table.max_separation_seconds[row], np.inf)
    freshness = table.freshness_seconds[row]
    if np.isfinite(freshness):
        spelled: Fields = [("shape", word), ("weight", weight), *([("threshold", threshold)] if step else [])]
        utility = flow([*spelled, ("freshness_seconds", number_text(freshness))])
    return flow([("utility", utility), *limits]) if limits or np.isfinite(freshness) else utility
