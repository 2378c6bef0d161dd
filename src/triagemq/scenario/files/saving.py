"""Scenarios written to files: YAML that a person likes to read, or a directory with tables.

Everything is written in the Scenario's canonical order, one line per leaf, and defaults are omitted. Numbers are plain
and exact, so that what is loaded again has the same fingerprint.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import yaml

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
from triagemq.scenario.files.explain import number_text
from triagemq.scenario.files.loading import PUBLICATIONS_FILE, SCENARIO_FILE, SUBSCRIPTIONS_FILE
from triagemq.scenario.files.models import figures, known_models
from triagemq.scenario.files.parquet import write_publication_table, write_subscription_table
from triagemq.scenario.kinds import (
    ArrivalProcess,
    Discipline,
    LimiterKind,
    SendingOrder,
    SizeDistribution,
    UtilityShape,
)
from triagemq.scenario.model import (
    DEFAULTS,
    FLOOR_SHARE,
    Brokers,
    Integers,
    Names,
    OutputPorts,
    PlanningSettings,
    Scenario,
    Switches,
    Table,
)

LIMITS = ("max_latency_seconds", "max_latency_share", "max_separation_seconds")
Key = str | tuple[str, str, Names]
"""A column that is written under its name; or a key, its column of references, and the names that these stand for."""
SafeDumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class Line(dict[str, Any]):
    """A mapping that is written on one line."""


class ScenarioDumper(SafeDumper):  # type: ignore[misc]
    """YAML without aliases, with each Line on a line."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


ScenarioDumper.add_representer(
    Line,
    lambda dumper, line: dumper.represent_mapping("tag:yaml.org,2002:map", line.items(), flow_style=True),
)


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
    sections = _sections(scenario, conditions or Conditions(), with_rows=with_rows)
    header = {title: sections.pop(title) for title in _HEADER if title in sections}
    parts = [header, *({title: entries} for title, entries in sections.items() if entries)]
    options: dict[str, Any] = {
        "sort_keys": False,
        "allow_unicode": True,
        "default_flow_style": False,
        "width": 2**30,
    }
    return "\n".join(yaml.dump(part, Dumper=ScenarioDumper, **options) for part in parts)


_HEADER = ("name", "mtu_bytes", "fragmentation", "overhead_bytes", "sending_order", "planning")


def _sections(scenario: Scenario, conditions: Conditions, *, with_rows: bool) -> dict[str, Any]:
    """All that a file says, by its keys; sections may be empty."""
    ports, switches, unmanaged = scenario.ports, scenario.switches, scenario.unmanaged_switches
    broker = ("broker", "broker", scenario.brokers.name if len(scenario.brokers) > 1 else ())
    link = ("error_rate", "propagation_seconds")
    access = (("access", "access_switch", switches.name), "access_bps")
    port_keys = ("bandwidth_bps", "buffer_packets", "queues", *link, ("to", "to_switch", switches.name))
    sections = {
        **_header(scenario),
        "brokers": _brokers(scenario.brokers),
        "broker_links": _broker_links(scenario),
        "unmanaged_switches": _named(unmanaged, "bandwidth_bps"),
        "switches": _named(switches, "inbound_rate_per_second", ("fed_by", "fed_by_port", ports.name)),
        "ports": _named(ports, ("switch", "switch", switches.name), *port_keys),
        "topics": _unpublished_topics(scenario),
        "publishers": _named(
            scenario.publishers, broker, ("switch", "unmanaged_switch", unmanaged.name), *link, *access
        ),
        "subscribers": _named(scenario.subscribers, broker, ("port", "port", ports.name), *link),
        "worth_profiles": {
            name: {topic: _number(factor) for topic, factor in factors.items()}
            for name, factors in conditions.profiles.items()
        },
        "conditions": [_condition(scenario, conditions, each) for each in conditions.timeline],
    }
    for row, (name, line) in enumerate(sections["switches"].items()):
        line |= {"backup": conditions.backups[name]} if name in conditions.backups else {}
        line |= _figures(switches, row)
    for row in np.flatnonzero(ports.discipline != Discipline.PRIORITY).tolist():
        sections["ports"][ports.name[row]] |= _discipline(ports, row)
    if with_rows:
        publisher, subscriber = scenario.publications.publisher, scenario.subscriptions.subscriber
        published, wanted = scenario.publications.topic, scenario.subscriptions.topic
        topics = scenario.topics.name
        _add_rows(sections["publishers"], "publishes", publisher, topics, published, _publications(scenario))
        _add_rows(sections["subscribers"], "subscribes", subscriber, topics, wanted, _subscriptions(scenario))
    return sections


def _number(value: float) -> int | float:
    """A whole number without its point, if that is exact."""
    value = float(value)
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


def _lines(table: Table, *keys: Key) -> list[Line]:
    """What each row states: the numbers that are not at their default, and the names that references stand for."""
    return _state([Line() for _ in range(len(table))], table, *keys)


def _state(lines: list[Line], table: Table, *keys: Key) -> list[Line]:
    for key in keys:
        name, column, names = key if isinstance(key, tuple) else (key, key, None)
        values = getattr(table, column)
        for row in np.flatnonzero(values != DEFAULTS.get(column, -1)).tolist():
            if names is None:
                lines[row][name] = _number(values[row])
            elif names:
                lines[row][name] = names[values[row]]
    return lines


def _named(table: Any, *keys: Key) -> dict[str, Any]:
    return dict(zip(table.name, _lines(table, *keys), strict=True))


def _add_rows(
    entries: dict[str, Any], key: str, owners: Integers, names: Names, topics: Integers, rows: Iterable[Any]
) -> None:
    """Add each owner's rows by their topics; an owner with rows is written in a block."""
    owner_names = list(entries)
    for owner, topic, row in zip(owners.tolist(), topics.tolist(), rows, strict=True):
        name = owner_names[owner]
        if key not in entries[name]:
            entries[name] = {**entries[name], key: {}}
        entries[name][key][names[topic]] = row


def _brokers(brokers: Brokers) -> dict[str, Any]:
    entries = _named(
        brokers, "inbound_rate_per_second", "outbound_rate_per_second", "downlink_bps", "uplink_bps"
    )
    for line, cluster, head in zip(entries.values(), brokers.cluster, brokers.head.tolist(), strict=True):
        line |= {"cluster": cluster} if cluster else {}
        line |= {"head": True} if cluster and head else {}
    return entries


def _figures(switches: Switches, row: int) -> Line:
    """The model of a switch where everyone knows it and it says all; else, how the switch is built in figures."""
    model = known_models().get(switches.model[row])
    built = {key: getattr(switches, key)[row] for key in FIGURES}
    if model is not None and figures(model) == built:
        return Line(model=switches.model[row])
    stated = Line({key: _number(value) for key, value in built.items() if value != DEFAULTS[key]})
    if "limiter" in stated:
        stated["limiter"] = LimiterKind(stated["limiter"]).name.lower()
    return stated


def _discipline(ports: OutputPorts, row: int) -> Line:
    widths, floors = ports.widths_bps[row], ports.floors_bps[row]
    line = Line(discipline=Discipline(ports.discipline[row]).name.lower())
    if len(widths):
        line["widths_bps"] = list(map(_number, widths))
    if not np.array_equal(floors, FLOOR_SHARE * widths):
        line["floors_bps"] = list(map(_number, floors))
    if ports.borrowing[row]:
        line["borrowing"] = True
    return line


def _header(scenario: Scenario) -> dict[str, Any]:
    header: dict[str, Any] = {"name": scenario.name}
    if np.isfinite(scenario.mtu_bytes):
        header |= {"mtu_bytes": _number(scenario.mtu_bytes), "fragmentation": True}
    if scenario.overhead_bytes:
        header["overhead_bytes"] = _number(scenario.overhead_bytes)
    if scenario.sending_order is not SendingOrder.BY_CLASS:
        header["sending_order"] = scenario.sending_order.name.lower()
    default = asdict(PlanningSettings())
    planning = {key: value for key, value in asdict(scenario.planning).items() if value != default[key]}
    if planning:
        header["planning"] = Line({key: _number(value) for key, value in planning.items()})
    return header


def _broker_links(scenario: Scenario) -> list[Line]:
    links, names = scenario.broker_links, scenario.brokers.name
    stated = _lines(links, "bandwidth_bps", "error_rate", "propagation_seconds")
    ends = zip(links.source_broker.tolist(), links.target_broker.tolist(), strict=True)
    by_ends = dict(zip(ends, stated, strict=True))
    written = []
    for (source, target), line in by_ends.items():
        both_ways = by_ends.get((target, source)) == line
        if both_ways and source < target:
            written.append(Line({"between": [names[source], names[target]], **line}))
        elif not both_ways:
            written.append(Line({"from": names[source], "to": names[target], **line}))
    return written


def _unpublished_topics(scenario: Scenario) -> list[str]:
    """Topics without a publication would be lost otherwise; the others are where they are published."""
    unpublished = np.ones(len(scenario.topics), dtype=bool)
    unpublished[scenario.publications.topic] = False
    return [scenario.topics.name[topic] for topic in np.flatnonzero(unpublished)]


def _publications(scenario: Scenario) -> list[Line]:
    table, samples = scenario.publications, scenario.size_samples
    lines = [Line() for _ in range(len(table))]
    with np.errstate(divide="ignore", over="ignore"):
        implied = table.rate_per_second == 1 / table.min_separation_seconds
    for row in np.flatnonzero(~implied).tolist():
        lines[row]["rate_per_second"] = _number(table.rate_per_second[row])
    _state(lines, table, "min_separation_seconds", "max_separation_seconds")
    for row, (line, code) in enumerate(zip(lines, table.size_distribution.tolist(), strict=True)):
        sizes: Line | str | None = None
        mean = None
        if code == SizeDistribution.EMPIRICAL:
            sample = table.size_samples[row]
            values, weights = samples.size_bytes[sample].tolist(), samples.weight[sample].tolist()
            mean, sizes = empirical_mean(values, weights), Line(values=list(map(_number, values)))
            if any(weight != 1 for weight in weights):
                sizes["weights"] = list(map(_number, weights))
        elif code != SizeDistribution.EXPONENTIAL:
            sizes = SizeDistribution(code).name.lower()
        line |= {"size_bytes": _number(table.size_bytes[row])} if table.size_bytes[row] != mean else {}
        line |= {"sizes": sizes} if sizes else {}
    _state(lines, table, "max_size_bytes")
    for row in np.flatnonzero(table.arrival_process != ArrivalProcess.POISSON).tolist():
        process = ArrivalProcess(table.arrival_process[row])
        details = {"shape": table.pareto_shape[row]} if process is ArrivalProcess.PARETO else {}
        if process is ArrivalProcess.ON_OFF:
            details = {"on_seconds": table.on_seconds[row], "off_seconds": table.off_seconds[row]}
        word = process.name.lower()
        stated = {key: _number(value) for key, value in details.items()}
        lines[row]["arrivals"] = Line(process=word, **stated) if stated else word
    return lines


def _subscriptions(scenario: Scenario) -> list[Line | str]:
    """The worth alone as `shape:weight`, else a line."""
    table = scenario.subscriptions
    lines: list[Line | str] = []
    for row, limits in enumerate(_lines(table, *LIMITS)):
        shape, weight = UtilityShape(table.utility_shape[row]), table.utility_weight[row]
        word, step = shape.name.lower(), shape is UtilityShape.STEP
        threshold, freshness = table.utility_threshold[row], table.freshness_seconds[row]
        utility: Line | str = f"{word}:{number_text(weight)}" + (f"@{number_text(threshold)}" if step else "")
        if np.isfinite(freshness):
            utility = Line(shape=word, weight=_number(weight))
            utility |= {"threshold": _number(threshold)} if step else {}
            utility["freshness_seconds"] = _number(freshness)
        if table.guaranteed[row]:
            limits["guaranteed"] = True
        lines.append(Line(utility=utility, **limits) if limits or not isinstance(utility, str) else utility)
    return lines


def _condition(scenario: Scenario, conditions: Conditions, condition: Condition) -> Line:
    line = Line(at_seconds=_number(condition.at_seconds))
    match condition:
        case PortBandwidth():
            line |= {"port": condition.port, "bandwidth_bps": _number(condition.bandwidth_bps)}
        case PublisherState():
            line |= {"publisher": condition.publisher, "state": "returns" if condition.works else "fails"}
        case SubscriberState():
            line |= {"subscriber": condition.subscriber, "state": "joins" if condition.present else "leaves"}
        case LinkState():
            ends = _ends(scenario, conditions, condition.port)
            line |= {"link": list(ends), "state": "returns" if condition.up else "fails"}
        case ErrorRate():
            line |= {condition.of: condition.name, "error_rate": _number(condition.error_rate)}
        case PublicationRate():
            line |= {"publisher": condition.publisher} if condition.publisher is not None else {}
            line["topic"] = condition.topic
            if condition.rate_per_second is not None:
                line["rate_per_second"] = _number(condition.rate_per_second)
            else:
                line["rate_factor"] = _number(condition.rate_factor or 1.0)
        case WorthChange():
            line["worth_profile"] = condition.profile
    return line


def _ends(scenario: Scenario, conditions: Conditions, port: str) -> tuple[str, str]:
    """The switch of a port, and the one that it feeds, or would as a backup."""
    row = scenario.ports.name.index(port)
    fed = [
        name
        for name, feeder in zip(scenario.switches.name, scenario.switches.fed_by_port, strict=True)
        if feeder == row or conditions.backups.get(name) == port
    ]
    return scenario.switches.name[scenario.ports.switch[row]], fed[0]
