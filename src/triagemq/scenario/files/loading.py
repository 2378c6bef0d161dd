"""Scenario files and directories: read, checked as a whole, and made into a Scenario.

A scenario is one YAML file, or a directory with `scenario.yaml` and the tables `publications.parquet` and
`subscriptions.parquet`. Where a table is there, it holds all rows of its kind and the YAML none.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

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
from triagemq.scenario.files.document import FIGURES, ConditionEntry, FileEntry, PortEntry
from triagemq.scenario.files.explain import Problems
from triagemq.scenario.files.models import SwitchModel, figures, read_models
from triagemq.scenario.files.parquet import read_publication_table, read_subscription_table
from triagemq.scenario.files.reading import Document, read_document
from triagemq.scenario.files.references import (
    broker_column,
    check_condition_topics,
    check_references,
    check_rows,
    joining_port,
)
from triagemq.scenario.files.rows import read_publications, read_subscriptions
from triagemq.scenario.files.rules import PublicationRows, SubscriptionRows
from triagemq.scenario.kinds import Discipline
from triagemq.scenario.model import (
    DEFAULTS,
    FLOOR_SHARE,
    BrokerLinks,
    Brokers,
    Floats,
    Integers,
    OutputPorts,
    PlanningSettings,
    Publishers,
    Scenario,
    SomeTable,
    Subscribers,
    Switches,
    Topics,
    UnmanagedSwitches,
    filled,
)

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


def load_with_conditions(path: str | os.PathLike[str]) -> tuple[Scenario, Conditions]:
    """The scenario in a file or directory, and what happens during a run of it.

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
    ...     load_with_conditions(file.name)[1].timeline
    (PortBandwidth(at_seconds=60.0, port='radio', bandwidth_bps=160000.0),)
    """
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
        folder=file.parent,
        publications=_if_there(path / PUBLICATIONS_FILE) if directory else None,
        subscriptions=_if_there(path / SUBSCRIPTIONS_FILE) if directory else None,
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


def _if_there(path: Path) -> Path | None:
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
    folder: Path | None = None,
    publications: Path | None = None,
    subscriptions: Path | None = None,
) -> tuple[Scenario, Conditions]:
    document = read_document(text, file)
    found: list[Problems] = [document.file]
    check_references(document)
    models = read_models(document, folder, found)
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
    return _built(name, document, models, published, subscribed), _conditions(document)


def _refuse_rows(document: Document, title: str, key: str, table: Path) -> None:
    for name, entry in document.names[title].items():
        if isinstance(entry, dict) and key in entry:
            document.file.report_at(
                (title, name, key),
                f"stands beside {table.name}, which holds all of them",
                f"move the rows into the table, or delete {table.name}",
            )


def _built(
    name: str,
    document: Document,
    models: Mapping[str, SwitchModel],
    published: PublicationRows,
    subscribed: SubscriptionRows,
) -> Scenario:
    file = document.valid
    model_of = {name: models.get(switch.model or "", SwitchModel()) for name, switch in file.switches.items()}
    built = [figures(model_of[name], switch) for name, switch in file.switches.items()]
    return Scenario.of(
        name=file.name or name,
        topics=Topics(tuple(published.topics)),
        brokers=_table(Brokers, file.brokers),
        broker_links=_links(document),
        unmanaged_switches=_table(UnmanagedSwitches, file.unmanaged_switches),
        switches=_table(
            Switches,
            file.switches,
            fed_by_port=("fed_by", file.ports),
            **{key: [each[key] for each in built] for key in FIGURES},
        ),
        ports=_table(
            OutputPorts,
            file.ports,
            switch=("switch", file.switches),
            to_switch=("to", file.switches),
            discipline=[int(Discipline[port.discipline.upper()]) for port in file.ports.values()],
            queues=[port.queues or model_of[port.switch].queues or 0 for port in file.ports.values()],
            widths_bps=[np.array(port.widths_bps or (), dtype=np.float64) for port in file.ports.values()],
            floors_bps=[_floors(port) for port in file.ports.values()],
        ),
        publishers=_table(
            Publishers,
            file.publishers,
            broker=broker_column(document, "publishers"),
            unmanaged_switch=("switch", file.unmanaged_switches),
            access_switch=("access", file.switches),
        ),
        publications=published.table,
        size_samples=published.samples,
        subscribers=_table(
            Subscribers,
            file.subscribers,
            broker=broker_column(document, "subscribers"),
            port=("port", file.ports),
        ),
        subscriptions=subscribed.table,
        planning=PlanningSettings(**dict(file.planning)),
        # Without fragmentation an event is one packet, whatever its size: the MTU was a check, and done with.
        mtu_bytes=file.mtu_bytes if file.mtu_bytes is not None and file.fragmentation else np.inf,
        overhead_bytes=file.overhead_bytes,
        sending_order=file.order,
    )


def _table(
    kind: type[SomeTable],
    section: Mapping[str, FileEntry],
    **references: Integers | list[int] | list[float] | list[Floats] | tuple[str, Iterable[str]],
) -> SomeTable:
    """A section as a table: its names, its fields, and for fields that name others, which these are and the others."""
    columns: dict[str, Any] = {"name": tuple(section)}
    for column, given in references.items():
        if isinstance(given, tuple):
            field, names = given
            numbers = {name: number for number, name in enumerate(names)}
            columns[column] = [numbers.get(getattr(entry, field) or "", -1) for entry in section.values()]
        else:
            columns[column] = given
    for each in fields(kind):  # type: ignore[arg-type]
        if each.name not in columns:
            values = [getattr(entry, each.name) for entry in section.values()]
            columns[each.name] = [DEFAULTS[each.name] if value is None else value for value in values]
    return filled(kind, len(section), **columns)


def _floors(port: PortEntry) -> Floats:
    if port.floors_bps is not None:
        return np.array(port.floors_bps, dtype=np.float64)
    return FLOOR_SHARE * np.array(port.widths_bps or (), dtype=np.float64)


def _links(document: Document) -> BrokerLinks:
    brokers = {name: number for number, name in enumerate(document.valid.brokers)}
    links = [(ends, link) for link in document.valid.broker_links.values() for ends in link.directions]
    return filled(
        BrokerLinks,
        len(links),
        source_broker=[brokers[source] for (source, _), _ in links],
        target_broker=[brokers[target] for (_, target), _ in links],
        bandwidth_bps=[np.inf if link.bandwidth_bps is None else link.bandwidth_bps for _, link in links],
        error_rate=[link.error_rate for _, link in links],
        propagation_seconds=[link.propagation_seconds for _, link in links],
    )


def _conditions(document: Document) -> Conditions:
    file = document.valid
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
