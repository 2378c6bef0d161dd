"""Scenarios written to files: YAML that a person likes to read, or a directory with tables.

Everything is written in the Scenario's canonical order, one line per leaf, names quoted only where they must be, and
what is at its default left out. Numbers are plain and exact, so that what is loaded again has the same fingerprint.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np

from triagemq.errors import OutputError, ParameterError
from triagemq.scenario.conditions import (
    Condition,
    Conditions,
    ErrorRate,
    LinkState,
    PortBandwidth,
    PublicationRate,
    PublisherState,
    SubscriberState,
    WorthChange,
)
from triagemq.scenario.files.document import FIGURES, empirical_mean
from triagemq.scenario.files.loading import PUBLICATIONS_FILE, SCENARIO_FILE, SUBSCRIPTIONS_FILE
from triagemq.scenario.files.models import figures, known_models
from triagemq.scenario.files.parquet import write_publication_table, write_subscription_table
from triagemq.scenario.files.quantities import number_text
from triagemq.scenario.kinds import (
    ArrivalProcess,
    Discipline,
    LimiterKind,
    SendingOrder,
    SizeDistribution,
    UtilityShape,
)
from triagemq.scenario.model import (
    FLOOR_SHARE,
    NONE,
    Brokers,
    OutputPorts,
    PlanningSettings,
    Publications,
    Publishers,
    Scenario,
    Subscribers,
    Subscriptions,
    Switches,
    Table,
    UnmanagedSwitches,
)

PLAIN = re.compile(r"[^\W\d][\w/.\-]*(?: [\w/.\-]+)*")
RESERVED = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}
LONGEST_SIMPLE_KEY = 900
"""YAML takes `key: value` on one line only for keys of up to 1024 characters."""

Fields = list[tuple[str, str]]
"""Keys, or topics, and the text of their values."""
Key = str | tuple[str, str, tuple[str, ...]]
"""A column that is written under its name; or a key, its column of references, and the names that these stand for."""
LIMITS = ("max_latency_seconds", "max_latency_share", "max_separation_seconds")


def save(
    scenario: Scenario,
    path: str | os.PathLike[str],
    *,
    as_directory: bool | None = None,
    overwrite: bool = True,
    conditions: Conditions | None = None,
) -> None:
    """Write a scenario as a YAML file, or as a directory with `scenario.yaml` and two Parquet tables.

    `conditions` are no part of a Scenario, and are written with it where they are given.

    A path ending in .yaml or .yml is a file, one without an ending a directory, unless `as_directory` says otherwise.
    A file is complete or not there: it is written beside its place and then moved. Raises OutputError.

    >>> import tempfile
    >>> from triagemq.scenario import load, loads
    >>> scenario = loads('''
    ... brokers: {hall: }
    ... switches: {core: }
    ... ports: {radio: {switch: core, bandwidth_bps: 320000}}
    ... publishers: {sensor: {publishes: {smoke: {rate_per_second: 2, size_bytes: 60}}}}
    ... subscribers: {commander: {port: radio, subscribes: {smoke: log:10}}}
    ... ''')
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(scenario, f"{folder}/fire.yaml")
    ...     load(f"{folder}/fire.yaml").fingerprint == scenario.fingerprint
    True
    """
    path = Path(path)
    if as_directory is None:
        if path.suffix.lower() not in (".yaml", ".yml", ""):
            raise ParameterError(
                "--out", f"{path}: a scenario is a .yaml file, or a directory without an ending"
            )
        as_directory = not path.suffix
    writers: dict[Path, Callable[[Path], None]] = {}
    if as_directory:
        # The YAML goes last: without it there is no scenario.
        writers[path / PUBLICATIONS_FILE] = lambda part: write_publication_table(scenario, part)
        writers[path / SUBSCRIPTIONS_FILE] = lambda part: write_subscription_table(scenario, part)
    text = _text(scenario, conditions, with_rows=not as_directory)
    writers[path / SCENARIO_FILE if as_directory else path] = lambda part: _write_text(part, text)
    taken = next((place for place in writers if place.exists()), None)
    if taken is not None and not overwrite:
        raise OutputError(f"{taken} exists already; choose another path, or overwrite it")
    write_all(writers)


def dumps(scenario: Scenario, conditions: Conditions | None = None) -> str:
    """A scenario as YAML text, with conditions if there are any.

    >>> from triagemq.scenario import loads
    >>> print(dumps(loads('''
    ... brokers: {hall: }
    ... switches: {core: }
    ... ports: {radio: {switch: core, bandwidth_bps: 320e3}}
    ... publishers: {sensor: {publishes: {smoke: {rate_per_second: 2.0, size_bytes: 60, sizes: constant}}}}
    ... subscribers: {commander: {port: radio, subscribes: {smoke: {utility: log:10}}}}
    ... ''')), end="")
    name: scenario
    <BLANKLINE>
    brokers:
      hall: {}
    <BLANKLINE>
    switches:
      core: {}
    <BLANKLINE>
    ports:
      radio: {switch: core, bandwidth_bps: 320000}
    <BLANKLINE>
    publishers:
      sensor:
        publishes:
          smoke: {rate_per_second: 2, size_bytes: 60, sizes: constant}
    <BLANKLINE>
    subscribers:
      commander:
        port: radio
        subscribes:
          smoke: log:10
    """
    return _text(scenario, conditions, with_rows=True)


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")


def write_all(writers: Mapping[Path, Callable[[Path], object]]) -> None:
    """Write every file beside its place; move them into place only when all are complete."""
    mark = uuid.uuid4().hex[:12]
    parts = {place: place.with_name(f".{place.name}.{mark}.part") for place in writers}
    place = next(iter(writers))
    try:
        for place, write in writers.items():
            place.parent.mkdir(parents=True, exist_ok=True)
            write(parts[place])
        for place, part in parts.items():
            os.replace(part, place)
    except OSError as error:
        raise OutputError(f"{place} cannot be written: {error.strerror or error}") from error
    finally:
        for part in parts.values():
            # The parts that were moved are gone, those that were not must not stay behind.
            if part.parent.is_dir():
                part.unlink(missing_ok=True)


def _text(scenario: Scenario, conditions: Conditions | None, *, with_rows: bool) -> str:
    """The text of a scenario file; without rows, it is the YAML of a scenario directory."""
    conditions = conditions or Conditions()
    backups = {name: [("backup", quoted(port))] for name, port in conditions.backups.items()}
    publishes = _rows(scenario, scenario.publications, "publisher", _publication) if with_rows else {}
    subscribes = _rows(scenario, scenario.subscriptions, "subscriber", _subscription) if with_rows else {}
    ports, switches, unmanaged = scenario.ports, scenario.switches, scenario.unmanaged_switches
    broker = ("broker", "broker", scenario.brokers.name if len(scenario.brokers) > 1 else ())
    link = ("error_rate", "propagation_seconds")
    port_keys = ("bandwidth_bps", "buffer_packets", "queues", *link, ("to", "to_switch", switches.name))
    access = (("access", "access_switch", switches.name), "access_bps")
    publisher_keys = (broker, ("switch", "unmanaged_switch", unmanaged.name), *link, *access)
    subscriber_keys = (broker, ("port", "port", ports.name), *link)
    sections: dict[str, Iterable[str]] = {
        "brokers": _entries(
            scenario.brokers,
            ("inbound_rate_per_second", "outbound_rate_per_second", "downlink_bps", "uplink_bps"),
            more=_clusters(scenario.brokers),
        ),
        "broker_links": _broker_links(scenario, ("bandwidth_bps", *link)),
        "unmanaged_switches": _entries(unmanaged, ("bandwidth_bps",)),
        "switches": _entries(
            switches,
            ("inbound_rate_per_second", ("fed_by", "fed_by_port", ports.name)),
            more={
                name: backups.get(name, []) + _built(switches, row) for row, name in enumerate(switches.name)
            },
        ),
        "ports": _entries(ports, (("switch", "switch", switches.name), *port_keys), more=_disciplines(ports)),
        "topics": _unpublished_topics(scenario),
        "publishers": _entries(scenario.publishers, publisher_keys, below=("publishes", publishes)),
        "subscribers": _entries(scenario.subscribers, subscriber_keys, below=("subscribes", subscribes)),
        "worth_profiles": _profiles(conditions),
        "conditions": [f"  - {_flow(_condition(scenario, conditions, one))}" for one in conditions.timeline],
    }
    lines = [*_header(scenario)]
    for title, entries in sections.items():
        found = list(entries)
        if found:
            lines.extend(("", f"{title}:", *found))
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


def _flow(fields: Fields) -> str:
    """A mapping on one line."""
    return "{" + ", ".join(f"{key}: {value}" for key, value in fields) + "}"


def _entry(indent: str, name: str, value: str) -> str:
    """One key and its value; `value` is empty where an indented block follows."""
    key = quoted(name)
    if len(key) > LONGEST_SIMPLE_KEY:
        return f"{indent}? {key}\n{indent}: {value}".rstrip()
    return f"{indent}{key}: {value}".rstrip()


def _fields(table: Table, row: int, keys: Iterable[Key]) -> Fields:
    """What a row states: the numbers that are not the model's none, and the names that its references stand for."""
    fields = []
    for key in keys:
        if isinstance(key, tuple):
            name, column, names = key
            index = getattr(table, column)[row]
            if names and index >= 0:
                fields.append((name, quoted(names[index])))
        elif (value := getattr(table, key)[row]) != NONE[key]:
            fields.append((key, number_text(value)))
    return fields


def _entries(
    table: Brokers | UnmanagedSwitches | Switches | OutputPorts | Publishers | Subscribers,
    keys: Iterable[Key],
    *,
    more: Mapping[str, Fields] | None = None,
    below: tuple[str, Mapping[int, Fields]] = ("", {}),
) -> Iterator[str]:
    """The entries of a section, with `more` of some: on a line each, but for those that have rows below a key."""
    key, rows_of = below
    for row, name in enumerate(table.name):
        fields = [*_fields(table, row, keys), *(more or {}).get(name, [])]
        if row not in rows_of:
            yield _entry("  ", name, _flow(fields))
            continue
        yield _entry("  ", name, "")
        yield from (f"    {inner}: {value}" for inner, value in fields)
        yield f"    {key}:"
        yield from (_entry("      ", topic, value) for topic, value in rows_of[row])


def _built(switches: Switches, row: int) -> Fields:
    """The model of a switch where everyone knows it and it says all; else, how the switch is built in figures."""
    model = known_models().get(switches.model[row])
    if model is not None and all(
        getattr(switches, key)[row] == value for key, value in figures(model).items()
    ):
        return [("model", quoted(switches.model[row]))]
    kind = LimiterKind(switches.limiter[row])
    return _fields(switches, row, (key for key in FIGURES if key != "limiter")) + (
        [] if kind is NONE["limiter"] else [("limiter", kind.name.lower())]
    )


def _clusters(brokers: Brokers) -> Mapping[str, Fields]:
    """The cluster of each broker that has one, and whether it is the head."""
    return {
        name: [("cluster", quoted(cluster)), *([("head", "true")] if head else [])]
        for name, cluster, head in zip(brokers.name, brokers.cluster, brokers.head, strict=True)
        if cluster
    }


def _disciplines(ports: OutputPorts) -> Mapping[str, Fields]:
    """How the ports that do not serve by priority serve, and the widths of their queues."""
    found: dict[str, Fields] = {}
    for row in np.flatnonzero(ports.discipline != Discipline.PRIORITY).tolist():
        found[ports.name[row]] = written = [("discipline", Discipline(ports.discipline[row]).name.lower())]
        widths, floors = ports.widths_bps[row], ports.floors_bps[row]
        if len(widths):
            written.append(("widths_bps", _numbers(widths.tolist())))
        if not np.array_equal(floors, FLOOR_SHARE * widths):
            written.append(("floors_bps", _numbers(floors.tolist())))
        if ports.borrowing[row]:
            written.append(("borrowing", "true"))
    return found


def _rows(
    scenario: Scenario,
    table: Publications | Subscriptions,
    owner: str,
    written: Callable[[Scenario, int], str],
) -> Mapping[int, Fields]:
    """The topics of each owner, and what is written of each."""
    found: dict[int, Fields] = {}
    for row, (of, topic) in enumerate(zip(getattr(table, owner).tolist(), table.topic.tolist(), strict=True)):
        found.setdefault(of, []).append((scenario.topics.name[topic], written(scenario, row)))
    return found


def _header(scenario: Scenario) -> Iterator[str]:
    yield f"name: {quoted(scenario.name)}"
    if np.isfinite(scenario.mtu_bytes):
        yield f"mtu_bytes: {number_text(scenario.mtu_bytes)}"
        yield "fragmentation: true"
    if scenario.overhead_bytes:
        yield f"overhead_bytes: {number_text(scenario.overhead_bytes)}"
    if scenario.sending_order is not SendingOrder.BY_CLASS:
        yield f"sending_order: {scenario.sending_order.name.lower()}"
    default = asdict(PlanningSettings())
    stated = asdict(scenario.planning).items()
    planning = [(key, number_text(value)) for key, value in stated if value != default[key]]
    if planning:
        yield f"planning: {_flow(planning)}"


def _broker_links(scenario: Scenario, keys: Iterable[Key]) -> Iterator[str]:
    links, names = scenario.broker_links, scenario.brokers.name
    written: dict[tuple[int, int], Fields] = {}
    for row in range(len(links)):
        written[int(links.source_broker[row]), int(links.target_broker[row])] = _fields(links, row, keys)
    for (source, target), fields in written.items():
        ends = quoted(names[source]), quoted(names[target])
        both_ways = written.get((target, source)) == fields
        if both_ways and source < target:
            yield f"  - {_flow([('between', f'[{ends[0]}, {ends[1]}]'), *fields])}"
        elif not both_ways:
            yield f"  - {_flow([('from', ends[0]), ('to', ends[1]), *fields])}"


def _unpublished_topics(scenario: Scenario) -> Iterator[str]:
    """Topics that nobody publishes would be lost otherwise; the others are where they are published."""
    published = np.zeros(len(scenario.topics), dtype=bool)
    published[scenario.publications.topic] = True
    for topic in np.flatnonzero(~published):
        yield f"  - {quoted(scenario.topics.name[topic])}"


def _publication(scenario: Scenario, row: int) -> str:
    table = scenario.publications
    rate, shortest = float(table.rate_per_second[row]), float(table.min_separation_seconds[row])
    fields = [] if shortest != 0 and rate == 1 / shortest else [("rate_per_second", number_text(rate))]
    fields += _fields(table, row, ("min_separation_seconds", "max_separation_seconds"))
    distribution = SizeDistribution(table.size_distribution[row])
    if distribution is SizeDistribution.EMPIRICAL:
        values = scenario.size_samples.size_bytes[table.size_samples[row]].tolist()
        weights = scenario.size_samples.weight[table.size_samples[row]].tolist()
        if table.size_bytes[row] != empirical_mean(values, weights):
            fields.append(("size_bytes", number_text(table.size_bytes[row])))
        sizes: Fields = [("values", _numbers(values))]
        if any(weight != 1 for weight in weights):
            sizes.append(("weights", _numbers(weights)))
        fields.append(("sizes", _flow(sizes)))
    else:
        fields.append(("size_bytes", number_text(table.size_bytes[row])))
        if distribution is not SizeDistribution.EXPONENTIAL:
            fields.append(("sizes", distribution.name.lower()))
    fields += _fields(table, row, ("max_size_bytes",))
    process = ArrivalProcess(table.arrival_process[row])
    if process is not ArrivalProcess.POISSON:
        word, details = process.name.lower(), _fields(table, row, ("on_seconds", "off_seconds"))
        if process is ArrivalProcess.PARETO:
            details = [("shape", number_text(table.pareto_shape[row]))]
        fields.append(("arrivals", _flow([("process", word), *details]) if details else word))
    return _flow(fields)


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
    limits = _fields(table, row, LIMITS) + ([("guaranteed", "true")] if table.guaranteed[row] else [])
    freshness = table.freshness_seconds[row]
    if np.isfinite(freshness):
        spelled: Fields = [("shape", word), ("weight", weight), *([("threshold", threshold)] if step else [])]
        utility = _flow([*spelled, ("freshness_seconds", number_text(freshness))])
    return _flow([("utility", utility), *limits]) if limits or np.isfinite(freshness) else utility


def _profiles(conditions: Conditions) -> Iterator[str]:
    for name, factors in conditions.profiles.items():
        yield _entry("  ", name, "" if factors else "{}")
        for topic, factor in factors.items():
            yield _entry("    ", topic, number_text(factor))


def _condition(scenario: Scenario, conditions: Conditions, condition: Condition) -> Fields:
    when = ("at_seconds", number_text(condition.at_seconds))
    match condition:
        case PortBandwidth():
            named, change = ("port", condition.port), ("bandwidth_bps", number_text(condition.bandwidth_bps))
        case PublisherState():
            named = ("publisher", condition.publisher)
            change = ("state", "returns" if condition.works else "fails")
        case SubscriberState():
            named = ("subscriber", condition.subscriber)
            change = ("state", "joins" if condition.present else "leaves")
        case LinkState():
            ends = ", ".join(map(quoted, _ends(scenario, conditions, condition.port)))
            return [when, ("link", f"[{ends}]"), ("state", "returns" if condition.up else "fails")]
        case ErrorRate():
            named, change = (condition.of, condition.name), ("error_rate", number_text(condition.error_rate))
        case PublicationRate():
            named, change = (
                ("topic", condition.topic),
                ("rate_factor", number_text(condition.rate_factor or 1.0)),
            )
            if condition.rate_per_second is not None:
                change = ("rate_per_second", number_text(condition.rate_per_second))
            if condition.publisher is not None:
                return [
                    when,
                    ("publisher", quoted(condition.publisher)),
                    ("topic", quoted(condition.topic)),
                    change,
                ]
        case WorthChange():
            return [when, ("worth_profile", quoted(condition.profile))]
    return [when, (named[0], quoted(named[1])), change]


def _ends(scenario: Scenario, conditions: Conditions, port: str) -> tuple[str, str]:
    """The switch of a port, and the one that it feeds, or would as a backup."""
    row = scenario.ports.name.index(port)
    fed = [
        name
        for name, feeder in zip(scenario.switches.name, scenario.switches.fed_by_port, strict=True)
        if feeder == row or conditions.backups.get(name) == port
    ]
    return scenario.switches.name[scenario.ports.switch[row]], fed[0]
