"""Scenario files and directories: read, checked as a whole, and made into a Scenario.

A scenario is one YAML file, or a directory with `scenario.yaml` and the tables `publications.parquet` and
`subscriptions.parquet`. Where a table is there, it holds all rows of its kind and the YAML none.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from triagemq.errors import Problem, ScenarioError
from triagemq.scenario.condition_checks import check_condition_topics
from triagemq.scenario.consistency import broker_column, check_rows
from triagemq.scenario.lines import parse
from triagemq.scenario.model import (
    BrokerLinks,
    Brokers,
    Floats,
    Integers,
    OutputPorts,
    PlanningSettings,
    Publishers,
    Scenario,
    Subscribers,
    Switches,
    Topics,
    UnmanagedSwitches,
)
from triagemq.scenario.reader import Reader
from triagemq.scenario.references import check_references
from triagemq.scenario.rows import PublicationRows, SubscriptionRows, read_publications, read_subscriptions
from triagemq.scenario.sections import Entries, Sections, SomeEntry, read_sections
from triagemq.scenario.tables import read_publication_table, read_subscription_table

__all__ = ["PUBLICATIONS_FILE", "SCENARIO_FILE", "SUBSCRIPTIONS_FILE", "check", "load", "loads"]

SCENARIO_FILE = "scenario.yaml"
PUBLICATIONS_FILE = "publications.parquet"
SUBSCRIPTIONS_FILE = "subscriptions.parquet"


def load(path: str | os.PathLike[str]) -> Scenario:
    """The scenario in a YAML file or a scenario directory.

    Raises ScenarioError with every Problem in it, each with file, line, field, and what to write instead.

    >>> from triagemq.scenario import load
    >>> try:
    ...     load("no-such-file.yaml")
    ... except ScenarioError as error:
    ...     print(error)
    no-such-file.yaml: file: does not exist; give the path of a scenario file or directory
    """
    path = Path(path)
    directory = path.is_dir()
    file = path / SCENARIO_FILE if directory else path
    if directory and not file.is_file():
        problem = Problem(
            str(path), None, "file", f"is a directory without {SCENARIO_FILE}", f"add {SCENARIO_FILE}"
        )
        raise ScenarioError([problem])
    return _scenario(
        _text(file),
        str(file),
        name=path.resolve().name if directory else path.stem,
        publications=_table(path / PUBLICATIONS_FILE) if directory else None,
        subscriptions=_table(path / SUBSCRIPTIONS_FILE) if directory else None,
    )


def loads(text: str, file: str = "<text>") -> Scenario:
    """The scenario in a YAML text. `file` is what problems call it.

    >>> scenario = loads('''
    ... brokers: {hall: }
    ... switches: {core: }
    ... ports: {radio: {switch: core, bandwidth_bps: 320000}}
    ... publishers: {sensor: {publishes: {smoke: {rate_per_second: 2, size_bytes: 60}}}}
    ... subscribers: {commander: {port: radio, subscribes: {smoke: log:10}}}
    ... ''')
    >>> len(scenario.subscriptions), scenario.topics.name
    (1, ('smoke',))
    """
    return _scenario(text, file, name="scenario")


def check(path: str | os.PathLike[str]) -> list[Problem]:
    """Everything that is wrong with a scenario file or directory, in order of lines; empty if nothing is.

    >>> [problem.what for problem in check("no-such-file.yaml")]
    ['does not exist']
    """
    try:
        load(path)
    except ScenarioError as error:
        return list(error.problems)
    return []


def _table(path: Path) -> Path | None:
    return path if path.exists() else None


def _text(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        what, fix = "does not exist", "give the path of a scenario file or directory"
    except UnicodeDecodeError:
        what, fix = "is not text in UTF-8", "give a YAML file"
    except (OSError, ValueError) as error:
        what, fix = (
            f"cannot be read: {getattr(error, 'strerror', None) or error}",
            "look at the path and its permissions",
        )
    raise ScenarioError([Problem(str(file), None, "file", what, fix)])


@contextmanager
def _collector_paused() -> Iterator[None]:
    """No cyclic garbage collection: reading makes many objects, no cycles, and would take twice as long."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@_collector_paused()
def _scenario(
    text: str,
    file: str,
    name: str,
    publications: Path | None = None,
    subscriptions: Path | None = None,
) -> Scenario:
    reader = Reader(file)
    readers = [reader]
    sections = read_sections(reader, parse(text, file))
    if sections is None:
        raise ScenarioError(reader.problems)
    check_references(reader, sections)
    published: PublicationRows | None
    subscribed: SubscriptionRows | None = None
    if publications is None:
        published = read_publications(reader, sections)
    else:
        _refuse_rows(reader, sections.publishers, "publishes", publications)
        readers.append(Reader(str(publications)))
        published = read_publication_table(publications, readers[-1], _numbers(sections.publishers))
    if published is not None:
        for topic in sections.topics:
            published.topics.setdefault(topic, len(published.topics))
        if subscriptions is None:
            subscribed = read_subscriptions(reader, sections, published)
        else:
            _refuse_rows(reader, sections.subscribers, "subscribes", subscriptions)
            readers.append(Reader(str(subscriptions)))
            subscribed = read_subscription_table(
                subscriptions, readers[-1], _numbers(sections.subscribers), published, sections.topics
            )
    if published is not None:
        check_condition_topics(reader, sections, published)
    if published is not None and subscribed is not None:
        check_rows(reader, sections, published, subscribed)
    problems = [
        problem for one in readers for problem in sorted(one.problems, key=lambda problem: problem.line or 0)
    ]
    if problems or published is None or subscribed is None:
        raise ScenarioError(problems)
    return _built(name, sections, published, subscribed)


def _refuse_rows(reader: Reader, section: Entries[SomeEntry], key: str, table: Path) -> None:
    for name, position in section.pairs.items():
        place = reader.inner(position, key)
        if place is not None:
            reader.report(
                place.key,
                f"{section.title}.{name}.{key}",
                f"stands beside {table.name}, which holds all of them",
                f"move the rows into the table, or delete {table.name}",
            )


def _numbers(names: Entries[SomeEntry]) -> dict[str, int]:
    return {name: number for number, name in enumerate(names)}


def _built(
    name: str, sections: Sections, published: PublicationRows, subscribed: SubscriptionRows
) -> Scenario:
    header, planning = sections.header, sections.planning
    if header is None or planning is None:
        raise AssertionError("a file with problems is not built")
    brokers, ports = _numbers(sections.brokers), _numbers(sections.ports)
    switches, unmanaged = _numbers(sections.switches), _numbers(sections.unmanaged_switches)
    return Scenario.of(
        name=header.name or name,
        topics=Topics(tuple(published.topics)),
        brokers=Brokers(
            tuple(sections.brokers),
            _floats(sections.brokers, "inbound_rate_per_second"),
            _floats(sections.brokers, "outbound_rate_per_second"),
        ),
        broker_links=_links(sections, brokers),
        unmanaged_switches=UnmanagedSwitches(
            tuple(sections.unmanaged_switches), _floats(sections.unmanaged_switches, "bandwidth_bps")
        ),
        switches=Switches(
            tuple(sections.switches),
            _floats(sections.switches, "inbound_rate_per_second"),
            _indices(sections.switches, "fed_by", ports),
        ),
        ports=OutputPorts(
            tuple(sections.ports),
            _indices(sections.ports, "switch", switches),
            _floats(sections.ports, "bandwidth_bps"),
            _floats(sections.ports, "buffer_packets"),
            np.array([port.queues or 0 for port in sections.ports.right.values()], dtype=np.int32),
            _floats(sections.ports, "error_rate"),
            _floats(sections.ports, "propagation_seconds"),
        ),
        publishers=Publishers(
            tuple(sections.publishers),
            broker_column(sections.publishers, brokers),
            _indices(sections.publishers, "switch", unmanaged),
            _floats(sections.publishers, "error_rate"),
            _floats(sections.publishers, "propagation_seconds"),
        ),
        publications=published.table,
        size_samples=published.samples,
        subscribers=Subscribers(
            tuple(sections.subscribers),
            broker_column(sections.subscribers, brokers),
            _indices(sections.subscribers, "port", ports),
            _floats(sections.subscribers, "error_rate"),
            _floats(sections.subscribers, "propagation_seconds"),
        ),
        subscriptions=subscribed.table,
        planning=PlanningSettings(
            planning.flows_per_subscriber,
            planning.priority_classes,
            planning.rho_tolerance,
            planning.judged_over_seconds,
        ),
        # Without fragmentation an event is one packet, whatever its size: the MTU was a check, and done with.
        mtu_bytes=header.mtu_bytes if header.mtu_bytes is not None and header.fragmentation else np.inf,
        overhead_bytes=header.overhead_bytes,
        sending_order=header.order,
    )


def _floats(section: Entries[SomeEntry], field: str) -> Floats:
    """One field of all entries; infinity, "no limit", where it is left out."""
    values = [getattr(entry, field) for entry in section.right.values()]
    return np.array([np.inf if value is None else value for value in values], dtype=np.float64)


def _indices(section: Entries[SomeEntry], field: str, numbers: Mapping[str, int]) -> Integers:
    """One field of all entries that names others, as their numbers; -1 where it is left out."""
    return np.array(
        [numbers.get(getattr(entry, field) or "", -1) for entry in section.right.values()], dtype=np.int32
    )


def _links(sections: Sections, brokers: Mapping[str, int]) -> BrokerLinks:
    directions = [
        (brokers[source], brokers[target], link.entry)
        for link in sections.broker_links
        if link.entry is not None
        for source, target in link.entry.directions
    ]
    bandwidths = [entry.bandwidth_bps for _, _, entry in directions]
    return BrokerLinks(
        np.array([source for source, _, _ in directions], dtype=np.int32),
        np.array([target for _, target, _ in directions], dtype=np.int32),
        np.array([np.inf if bandwidth is None else bandwidth for bandwidth in bandwidths], dtype=np.float64),
        np.array([entry.error_rate for _, _, entry in directions], dtype=np.float64),
        np.array([entry.propagation_seconds for _, _, entry in directions], dtype=np.float64),
    )
