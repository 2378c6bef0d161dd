"""Scenarios written to files: YAML that a person likes to read, or a directory with tables.

Everything is written in the Scenario's canonical order, one line per leaf, and defaults are omitted. Numbers are plain
and exact, so that what is loaded again has the same fingerprint.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from triagemq.errors import OutputError, ParameterError
from triagemq.scenario.conditions import Conditions
from triagemq.scenario.files.document import (
    FIGURES,
    BrokerEntry,
    FileEntry,
    PortEntry,
    PublisherEntry,
    SubscriberEntry,
    SwitchEntry,
    UnmanagedSwitchEntry,
    empirical_mean,
    keys_of,
)
from triagemq.scenario.files.explain import number_text
from triagemq.scenario.files.loading import PUBLICATIONS_FILE, SCENARIO_FILE, SUBSCRIPTIONS_FILE
from triagemq.scenario.files.models import figures, known_models
from triagemq.scenario.files.parquet import write_publication_table, write_subscription_table
from triagemq.scenario.files.references import KEYS
from triagemq.scenario.files.rows import PUBLICATION_COLUMNS, SUBSCRIPTION_COLUMNS, Column
from triagemq.scenario.kinds import WORDS, SendingOrder, word_of
from triagemq.scenario.model import (
    DEFAULTS,
    FLOOR_SHARE,
    REFERENCES,
    PlanningSettings,
    Publications,
    Scenario,
    Subscriptions,
    Switches,
)

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
    overwrite: bool = True,
    conditions: Conditions | None = None,
) -> None:
    """Write a scenario as a YAML file, or as a directory with `scenario.yaml` and two Parquet tables.

    `conditions` are no part of a Scenario, and are written with it where they are given.

    A path ending in .yaml or .yml is a file, one without an ending a directory.
    A file is complete or not there: it is written as a hidden file and then moved. Raises OutputError.

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
    as_directory = not path.suffix
    if path.suffix.lower() not in (".yaml", ".yml", ""):
        raise ParameterError("--out", f"{path}: a scenario is a .yaml file, or a directory without an ending")
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
    """Write every file under a hidden name; move them into place only when all are complete."""
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
    sections: dict[str, Any] = {
        **_header(scenario),
        "brokers": _entries(scenario, "brokers", BrokerEntry),
        "broker_links": _broker_links(scenario),
        "unmanaged_switches": _entries(scenario, "unmanaged_switches", UnmanagedSwitchEntry),
        "switches": _entries(scenario, "switches", SwitchEntry),
        "ports": _entries(scenario, "ports", PortEntry),
        "topics": _unpublished_topics(scenario),
        "publishers": _entries(scenario, "publishers", PublisherEntry),
        "subscribers": _entries(scenario, "subscribers", SubscriberEntry),
        "worth_profiles": {
            name: {topic: _number(factor) for topic, factor in factors.items()}
            for name, factors in conditions.profiles.items()
        },
        "conditions": [
            Line(
                {
                    key: _number(value) if isinstance(value, int | float) else value
                    for key, value in asdict(condition).items()
                    if value is not None
                }
            )
            for condition in conditions.timeline
        ],
    }
    for row, (name, line) in enumerate(sections["switches"].items()):
        line |= {"backup": conditions.backups[name]} if name in conditions.backups else {}
        _shorten_model(scenario.switches, row, line)
    for line, queue_rates in zip(sections["ports"].values(), scenario.ports.queue_rates_bps, strict=True):
        if line.get("floors_bps") == list(map(_number, FLOOR_SHARE * queue_rates)):
            del line["floors_bps"]
    if with_rows:
        _add_rows(
            scenario, sections["publishers"], "publishes", scenario.publications, _publications(scenario)
        )
        _add_rows(
            scenario, sections["subscribers"], "subscribes", scenario.subscriptions, _subscriptions(scenario)
        )
    return sections


def _number(value: float) -> int | float:
    """A whole number without its point, if that is exact."""
    value = float(value)
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


def _entries(scenario: Scenario, title: str, kind: type[FileEntry]) -> dict[str, Any]:
    """What each row of a table states, by its name and the keys of its entry; what is at its default is omitted."""
    table, targets = getattr(scenario, title), REFERENCES.get(title, {})
    columns = {KEYS.get((title, each.name), each.name): each.name for each in fields(table)}
    entries: dict[str, Any] = {name: Line() for name in table.name}
    # How a switch is built stands behind what it is.
    for key in sorted(keys_of(kind), key=FIGURES.__contains__):
        if key not in columns or key == "model" or (key == "broker" and len(scenario.brokers) == 1):
            continue
        column = columns[key]
        names = getattr(scenario, targets[column]).name if column in targets else ()
        default = -1 if column in targets else DEFAULTS.get(column)
        for line, value in zip(entries.values(), getattr(table, column), strict=True):
            if names and value != default:
                line[key] = names[value]
            elif not names and column not in targets:
                _state(line, (key,), column, value)
    return entries


def _state(line: dict[str, Any], path: Sequence[str], column: str, value: Any) -> None:
    """Write the value of a column at a path of keys, if it is not the default."""
    if isinstance(value, np.ndarray):
        written: Any = list(map(_number, value))
    elif value == DEFAULTS.get(column):
        return
    elif column in WORDS:
        written = word_of(column, value)
    elif column in ("head", "borrowing", "guaranteed", "newest_only"):
        written = True
    else:
        written = value if isinstance(value, str) else _number(value)
    if written == []:
        return
    for key in path[:-1]:
        line = line.setdefault(key, Line())
    line[path[-1]] = written


def _add_rows(
    scenario: Scenario,
    entries: dict[str, Any],
    key: str,
    table: Publications | Subscriptions,
    rows: list[Any],
) -> None:
    """Add each owner's rows by their topics; an owner with rows is written in a block."""
    owners = table.publisher if isinstance(table, Publications) else table.subscriber
    names = list(entries)
    for owner, topic, row in zip(owners.tolist(), table.topic.tolist(), rows, strict=True):
        name = names[owner]
        if key not in entries[name]:
            entries[name] = {**entries[name], key: {}}
        entries[name][key][scenario.topics.name[topic]] = row


def _shorten_model(switches: Switches, row: int, line: Line) -> None:
    """Write the model of a switch in the place of its figures where everyone knows it and it says all."""
    model = known_models().get(switches.model[row])
    if model is not None and figures(model) == {key: getattr(switches, key)[row] for key in FIGURES}:
        for key in FIGURES:
            line.pop(key, None)
        line["model"] = switches.model[row]


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
    lines = [Line() for _ in range(len(links))]
    for column in ("bandwidth_bps", "error_rate", "propagation_seconds"):
        for line, value in zip(lines, getattr(links, column).tolist(), strict=True):
            _state(line, (column,), column, value)
    ends = zip(links.source_broker.tolist(), links.target_broker.tolist(), strict=True)
    by_ends = dict(zip(ends, lines, strict=True))
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


def _rows(table: Publications | Subscriptions, columns: Mapping[str, Column]) -> list[Line]:
    """What each row states, at the paths of its columns."""
    lines = [Line() for _ in range(len(table))]
    for name, column in columns.items():
        if column.path and column.kind != "list":
            for line, value in zip(lines, getattr(table, name).tolist(), strict=True):
                _state(line, column.path, name, value)
    return lines


def _publications(scenario: Scenario) -> list[Any]:
    table, samples = scenario.publications, scenario.size_samples
    lines = _rows(table, PUBLICATION_COLUMNS)
    with np.errstate(divide="ignore", over="ignore"):
        implied = table.rate_per_second == 1 / table.min_separation_seconds
    for row in np.flatnonzero(implied).tolist():
        del lines[row]["rate_per_second"]
    for row in np.flatnonzero(table.size_samples >= 0).tolist():
        sample = table.size_samples[row]
        values, weights = samples.size_bytes[sample].tolist(), samples.weight[sample].tolist()
        lines[row]["sizes"] = sizes = Line(values=list(map(_number, values)))
        if any(weight != 1 for weight in weights):
            sizes["weights"] = list(map(_number, weights))
        if table.size_bytes[row] == empirical_mean(values, weights):
            del lines[row]["size_bytes"]
    for line in lines:
        for key, alone in (("sizes", "distribution"), ("arrivals", "process")):
            if line.get(key, {}).keys() == {alone}:
                line[key] = line[key][alone]
    return lines


def _subscriptions(scenario: Scenario) -> list[Any]:
    """The worth alone as `shape:weight`, else a line."""
    table = scenario.subscriptions
    lines: list[Any] = _rows(table, SUBSCRIPTION_COLUMNS)
    for row, line in enumerate(lines):
        word, weight = word_of("utility_shape", table.utility_shape[row]), table.utility_weight[row]
        utility = line.pop("utility", {})
        threshold = f"@{number_text(utility['threshold'])}" if "threshold" in utility else ""
        short: Line | str = f"{word}:{number_text(weight)}{threshold}"
        if "freshness_seconds" in utility:
            short = Line({"shape": word, "weight": _number(weight), **utility})
        lines[row] = Line(utility=short, **line) if line or not isinstance(short, str) else short
    return lines
