"""Scenario files and directories: read, checked as a whole, and made into a Scenario.

A scenario is one YAML file, or a directory with `scenario.yaml` and the tables `publications.parquet` and
`subscriptions.parquet`. Where a table is there, it holds all rows of its kind and the YAML none.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from triagemq.errors import Problem, ScenarioError
from triagemq.scenario.conditions import Condition, Conditions
from triagemq.scenario.files.document import FIGURES, FileEntry
from triagemq.scenario.files.explain import Problems, refuse_errors
from triagemq.scenario.files.models import SwitchModel, figures, read_models
from triagemq.scenario.files.parquet import read_publication_table, read_subscription_table
from triagemq.scenario.files.reading import Document, read_document
from triagemq.scenario.files.references import (
    KEYS,
    check_names,
    check_network,
    check_rows,
    first_broker,
)
from triagemq.scenario.files.rows import (
    PublicationRows,
    SubscriptionRows,
    read_publications,
    read_subscriptions,
)
from triagemq.scenario.kinds import WORDS, SendingOrder, codes_of
from triagemq.scenario.model import (
    DEFAULTS,
    FLOOR_SHARE,
    REFERENCES,
    BrokerLinks,
    Brokers,
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

    Raises ScenarioError with Problems, each with file, line, field, and what to write instead: those of entries by
    themselves, or if there are none, those between entries.

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
    ...     (slower,) = load_with_conditions(file.name)[1].timeline
    ...     slower.at_seconds, slower.port, slower.bandwidth_bps
    (60.0, 'radio', 160000.0)
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
        text_of(file),
        str(file),
        name=path.resolve().name if directory else path.stem,
        folder=file.parent,
        tables=path if directory else None,
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
    """What is wrong with a scenario file or directory, in order of lines; empty if nothing is.

    >>> [problem.what for problem in check("no-such-file.yaml")]
    ['does not exist']
    """
    try:
        load(path)
    except ScenarioError as error:
        return list(error.problems)
    return []


def text_of(file: Path) -> str:
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
    text: str, file: str, name: str, folder: Path | None = None, tables: Path | None = None
) -> tuple[Scenario, Conditions]:
    """Entries by themselves first, then names and rows, then all that these lead to."""
    document = read_document(text, file)
    check_names(document)
    models, files = read_models(document, folder)
    published, subscribed = _rows(document, files, tables)
    refuse_errors(document.file, *files)
    assert published is not None
    assert subscribed is not None
    check_network(document)
    refuse_errors(document.file)
    scenario = _built(name, document, models, published, subscribed)
    conditions = _conditions(document)
    check_rows(document, scenario, conditions, published, subscribed)
    refuse_errors(document.file, *files)
    return scenario.with_tables(), conditions


def _rows(
    document: Document, files: list[Problems], tables: Path | None
) -> tuple[PublicationRows | None, SubscriptionRows | None]:
    """Publications and subscriptions, those of tables with their files; None where a table cannot be read."""
    valid = document.valid
    paths = [None if tables is None else tables / name for name in (PUBLICATIONS_FILE, SUBSCRIPTIONS_FILE)]
    publications, subscriptions = (path if path is not None and path.exists() else None for path in paths)
    published: PublicationRows | None
    if publications is None:
        published = read_publications(document)
    else:
        _refuse_rows(document, "publishers", "publishes", publications)
        files.append(Problems(str(publications)))
        published = read_publication_table(publications, files[-1], valid.publishers)
    if published is None:
        return None, None
    if subscriptions is None:
        return published, read_subscriptions(document, published)
    _refuse_rows(document, "subscribers", "subscribes", subscriptions)
    files.append(Problems(str(subscriptions)))
    return published, read_subscription_table(
        subscriptions, files[-1], valid.subscribers, published, valid.topics
    )


def _refuse_rows(document: Document, title: str, key: str, table: Path) -> None:
    for name, entry in getattr(document.valid, title).items():
        if getattr(entry, key):
            document.file.report_at(
                (title, name, key),
                f"stands next to {table.name}, which holds all of them",
                f"move the rows into the table, or delete {table.name}",
            )


def _built(
    name: str,
    document: Document,
    models: Mapping[str, SwitchModel],
    published: PublicationRows,
    subscribed: SubscriptionRows,
) -> Scenario:
    """The scenario with its rows in the order of the file."""
    file = document.valid
    model_of = {name: models.get(switch.model or "", SwitchModel()) for name, switch in file.switches.items()}
    built = [figures(model_of[name], switch) for name, switch in file.switches.items()]
    brokers = {name: number for number, name in enumerate(file.brokers)}
    ports = file.ports.values()
    queue_rates = [np.array(port.queue_rates_bps or (), dtype=np.float64) for port in ports]
    # Floors that are not stated are a share of the queue rates.
    floors = [
        FLOOR_SHARE * width if port.floors_bps is None else np.array(port.floors_bps, dtype=np.float64)
        for port, width in zip(ports, queue_rates, strict=True)
    ]

    def table(kind: type[SomeTable], title: str, **columns: Any) -> SomeTable:
        return _table(document, kind, title, columns)

    return Scenario(
        name=file.name or name,
        topics=Topics(tuple(dict.fromkeys((*published.topics, *file.topics)))),
        brokers=table(Brokers, "brokers"),
        broker_links=_links(document),
        unmanaged_switches=table(UnmanagedSwitches, "unmanaged_switches"),
        switches=table(Switches, "switches", **{key: [each[key] for each in built] for key in FIGURES}),
        ports=table(
            OutputPorts,
            "ports",
            queues=[port.queues or model_of[port.switch].queues or 0 for port in ports],
            queue_rates_bps=queue_rates,
            floors_bps=floors,
        ),
        publishers=table(
            Publishers,
            "publishers",
            broker=[brokers[first_broker(document, "publishers", each)] for each in file.publishers.values()],
        ),
        publications=published.table,
        size_samples=published.samples,
        subscribers=table(
            Subscribers,
            "subscribers",
            broker=[
                brokers[first_broker(document, "subscribers", each)] for each in file.subscribers.values()
            ],
        ),
        subscriptions=subscribed.table,
        planning=PlanningSettings(**dict(file.planning)),
        # Without fragmentation an event is one packet, whatever its size: the MTU was a check, and done with.
        mtu_bytes=file.mtu_bytes if file.mtu_bytes is not None and file.fragmentation else np.inf,
        overhead_bytes=file.overhead_bytes,
        sending_order=SendingOrder[file.sending_order.upper()],
    )


def _table(document: Document, kind: type[SomeTable], title: str, columns: dict[str, Any]) -> SomeTable:
    """A section as a table: what entries state, names as numbers and words as codes; and columns that are known."""
    section: Mapping[str, FileEntry] = getattr(document.valid, title)
    targets = REFERENCES.get(title, {})
    columns["name"] = tuple(section)
    for column in (each.name for each in fields(kind)):  # type: ignore[arg-type]
        if column in columns:
            continue
        values = [getattr(entry, KEYS.get((title, column), column)) for entry in section.values()]
        codes: Mapping[str, int] = {}
        if column in targets:
            codes = {name: number for number, name in enumerate(getattr(document.valid, targets[column]))}
        elif column in WORDS:
            codes = codes_of(column)
        columns[column] = [DEFAULTS[column] if value is None else codes.get(value, value) for value in values]
    return filled(kind, len(section), **columns)


def _links(document: Document) -> BrokerLinks:
    brokers = {name: number for number, name in enumerate(document.valid.brokers)}
    links = [(ends, link) for link in document.valid.broker_links for ends in link.directions]
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
    timeline = [
        Condition(**dict(entry) | {"link": entry.link and tuple(entry.link)}) for entry in file.conditions
    ]
    return Conditions(
        timeline=tuple(sorted(timeline, key=lambda condition: condition.at_seconds)),
        backups={name: switch.backup for name, switch in file.switches.items() if switch.backup},
        profiles=file.worth_profiles,
    )
