"""Scenario files and directories: read, checked as a whole, and made into a Scenario.

A scenario is one YAML file, or a directory with `scenario.yaml` and the tables `publications.parquet` and
`subscriptions.parquet`. Where a table is there, it holds all rows of its kind and the YAML none.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from triagemq.errors import Problem, ScenarioError
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
from triagemq.scenario.files.consistency import broker_column, check_rows
from triagemq.scenario.files.document import ConditionEntry, Entry
from triagemq.scenario.files.explain import Problems
from triagemq.scenario.files.parquet import read_publication_table, read_subscription_table
from triagemq.scenario.files.reading import Document, read_document
from triagemq.scenario.files.references import check_condition_topics, check_references, joining_port
from triagemq.scenario.files.rows import read_publications, read_subscriptions
from triagemq.scenario.files.rules import PublicationRows, SubscriptionRows
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

__all__ = [
    "PUBLICATIONS_FILE",
    "SCENARIO_FILE",
    "SUBSCRIPTIONS_FILE",
    "check",
    "load",
    "load_conditions",
    "load_with_conditions",
    "loads",
    "loads_with_conditions",
]

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
    return load_with_conditions(path)[0]


def load_conditions(path: str | os.PathLike[str]) -> Conditions:
    """The conditions in a scenario file or directory; a ScenarioError as from `load` if anything in it is wrong.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
    ...     _ = file.write('''
    ... brokers: {hall: }
    ... switches: {core: }
    ... ports: {radio: {switch: core, bandwidth_bps: 320 kbit/s}}
    ... publishers: {sensor: {publishes: {smoke: {rate_per_second: 2, size_bytes: 60}}}}
    ... subscribers: {commander: {port: radio, subscribes: {smoke: log:10}}}
    ... conditions: [{at_seconds: 1 min, port: radio, bandwidth_bps: 160 kbit/s}]
    ... ''')
    ...     file.flush()
    ...     load_conditions(file.name).timeline
    (PortBandwidth(at_seconds=60.0, port='radio', bandwidth_bps=160000.0),)
    """
    return load_with_conditions(path)[1]


def load_with_conditions(path: str | os.PathLike[str]) -> tuple[Scenario, Conditions]:
    """The scenario in a file or directory, and what happens during a run of it."""
    path = Path(path)
    directory = path.is_dir()
    file = path / SCENARIO_FILE if directory else path
    if directory and not file.is_file():
        problem = Problem(
            str(path), None, "file", f"is a directory without {SCENARIO_FILE}", f"add {SCENARIO_FILE}"
        )
        raise ScenarioError([problem])
    return _read(
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
    return loads_with_conditions(text, file)[0]


def loads_with_conditions(text: str, file: str = "<text>") -> tuple[Scenario, Conditions]:
    """The scenario in a YAML text, and what happens during a run of it."""
    return _read(text, file, name="scenario")


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
def _read(
    text: str,
    file: str,
    name: str,
    publications: Path | None = None,
    subscriptions: Path | None = None,
) -> tuple[Scenario, Conditions]:
    document = read_document(text, file)
    found: list[Problems] = [document.file]
    check_references(document)
    published: PublicationRows | None
    subscribed: SubscriptionRows | None = None
    if publications is None:
        published = read_publications(document)
    else:
        _refuse_rows(document, "publishers", "publishes", publications)
        found.append(Problems(str(publications)))
        published = read_publication_table(publications, found[-1], document.names["publishers"])
    if published is not None:
        for topic in document.names["topics"]:
            published.topics.setdefault(topic, len(published.topics))
        if subscriptions is None:
            subscribed = read_subscriptions(document, published)
        else:
            _refuse_rows(document, "subscribers", "subscribes", subscriptions)
            found.append(Problems(str(subscriptions)))
            subscribed = read_subscription_table(
                subscriptions,
                found[-1],
                document.names["subscribers"],
                published,
                document.names["topics"],
            )
        check_condition_topics(document, published)
    if published is not None and subscribed is not None:
        check_rows(document, published, subscribed)
    problems = [
        problem for one in found for problem in sorted(one.problems, key=lambda problem: problem.line or 0)
    ]
    if problems or published is None or subscribed is None:
        raise ScenarioError(problems)
    return _built(name, document, published, subscribed), _conditions(document)


def _refuse_rows(document: Document, title: str, key: str, table: Path) -> None:
    for name, entry in document.names[title].items():
        if isinstance(entry, dict) and key in entry:
            document.file.complain(
                (title, name, key),
                f"stands beside {table.name}, which holds all of them",
                f"move the rows into the table, or delete {table.name}",
            )


def _built(
    name: str, document: Document, published: PublicationRows, subscribed: SubscriptionRows
) -> Scenario:
    file = document.right
    planning = file.planning
    return Scenario.of(
        name=file.name or name,
        topics=Topics(tuple(published.topics)),
        brokers=Brokers(
            tuple(file.brokers),
            _floats(file.brokers, "inbound_rate_per_second"),
            _floats(file.brokers, "outbound_rate_per_second"),
        ),
        broker_links=_links(document),
        unmanaged_switches=UnmanagedSwitches(
            tuple(file.unmanaged_switches), _floats(file.unmanaged_switches, "bandwidth_bps")
        ),
        switches=Switches(
            tuple(file.switches),
            _floats(file.switches, "inbound_rate_per_second"),
            _indices(file.switches, "fed_by", file.ports),
        ),
        ports=OutputPorts(
            tuple(file.ports),
            _indices(file.ports, "switch", file.switches),
            _floats(file.ports, "bandwidth_bps"),
            _floats(file.ports, "buffer_packets"),
            np.array([port.queues or 0 for port in file.ports.values()], dtype=np.int32),
            _floats(file.ports, "error_rate"),
            _floats(file.ports, "propagation_seconds"),
        ),
        publishers=Publishers(
            tuple(file.publishers),
            broker_column(document, "publishers"),
            _indices(file.publishers, "switch", file.unmanaged_switches),
            _floats(file.publishers, "error_rate"),
            _floats(file.publishers, "propagation_seconds"),
        ),
        publications=published.table,
        size_samples=published.samples,
        subscribers=Subscribers(
            tuple(file.subscribers),
            broker_column(document, "subscribers"),
            _indices(file.subscribers, "port", file.ports),
            _floats(file.subscribers, "error_rate"),
            _floats(file.subscribers, "propagation_seconds"),
        ),
        subscriptions=subscribed.table,
        planning=PlanningSettings(
            planning.flows_per_subscriber,
            planning.priority_classes,
            planning.rho_tolerance,
            planning.judged_over_seconds,
        ),
        # Without fragmentation an event is one packet, whatever its size: the MTU was a check, and done with.
        mtu_bytes=file.mtu_bytes if file.mtu_bytes is not None and file.fragmentation else np.inf,
        overhead_bytes=file.overhead_bytes,
        sending_order=file.order,
    )


def _floats(section: Mapping[str, Entry], field: str) -> Floats:
    """One field of all entries; infinity, "no limit", where it is left out."""
    values = [getattr(entry, field) for entry in section.values()]
    return np.array([np.inf if value is None else value for value in values], dtype=np.float64)


def _indices(section: Mapping[str, Entry], field: str, named: Iterable[str]) -> Integers:
    """One field of all entries that names others, as their numbers; -1 where it is left out."""
    numbers = {name: number for number, name in enumerate(named)}
    return np.array(
        [numbers.get(getattr(entry, field) or "", -1) for entry in section.values()], dtype=np.int32
    )


def _links(document: Document) -> BrokerLinks:
    brokers = {name: number for number, name in enumerate(document.right.brokers)}
    links = [(ends, link) for link in document.right.broker_links.values() for ends in link.directions]
    directions = {str(number): link for number, (_, link) in enumerate(links)}
    return BrokerLinks(
        np.array([brokers[source] for (source, _), _ in links], dtype=np.int32),
        np.array([brokers[target] for (_, target), _ in links], dtype=np.int32),
        _floats(directions, "bandwidth_bps"),
        _floats(directions, "error_rate"),
        _floats(directions, "propagation_seconds"),
    )


def _conditions(document: Document) -> Conditions:
    file = document.right
    timeline = [_condition(document, entry) for entry in file.conditions.values()]
    return Conditions(
        timeline=tuple(sorted(timeline, key=lambda condition: condition.at_seconds)),
        backups={name: switch.backup for name, switch in file.switches.items() if switch.backup},
        profiles=file.worth_profiles,
    )


def _condition(document: Document, entry: ConditionEntry) -> Condition:
    at_seconds, present = entry.at_seconds, entry.state in ("returns", "joins")
    if entry.worth_profile is not None:
        return WorthChange(at_seconds, entry.worth_profile)
    if entry.topic is not None:
        return PublicationRate(
            at_seconds, entry.topic, entry.publisher, entry.rate_per_second, entry.rate_factor
        )
    if entry.error_rate is not None:
        if entry.publisher is not None:
            return ErrorRate(at_seconds, "publisher", entry.publisher, entry.error_rate)
        if entry.subscriber is not None:
            return ErrorRate(at_seconds, "subscriber", entry.subscriber, entry.error_rate)
        return ErrorRate(at_seconds, "port", entry.port or "", entry.error_rate)
    if entry.publisher is not None:
        return PublisherState(at_seconds, entry.publisher, present)
    if entry.subscriber is not None:
        return SubscriberState(at_seconds, entry.subscriber, present)
    if entry.link is not None:
        return LinkState(at_seconds, joining_port(document, entry.link) or "", present)
    return PortBandwidth(at_seconds, entry.port or "", entry.bandwidth_bps or 0.0)
