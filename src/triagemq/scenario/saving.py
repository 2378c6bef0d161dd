"""Scenarios written to files: YAML that a person likes to read, or a directory with tables.

Everything is written in the Scenario's canonical order, what is at its default is left out, and numbers are
exact, so that what is loaded again has the same fingerprint.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path

from triagemq.errors import OutputError, ParameterError
from triagemq.scenario.conditions import Conditions
from triagemq.scenario.loading import PUBLICATIONS_FILE, SCENARIO_FILE, SUBSCRIPTIONS_FILE
from triagemq.scenario.model import Scenario
from triagemq.scenario.save_conditions import conditions_text
from triagemq.scenario.save_tables import write_publication_table, write_subscription_table
from triagemq.scenario.save_text import scenario_text

__all__ = ["dumps", "save"]


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
    text = _with_conditions(scenario, conditions, with_rows=not as_directory)
    writers[path / SCENARIO_FILE if as_directory else path] = lambda part: _write_text(part, text)
    taken = next((place for place in writers if place.exists()), None)
    if taken is not None and not overwrite:
        raise OutputError(f"{taken} exists already; choose another path, or overwrite it")
    _write_all(writers)


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
    return _with_conditions(scenario, conditions, with_rows=True)


def _with_conditions(scenario: Scenario, conditions: Conditions | None, *, with_rows: bool) -> str:
    if conditions is None:
        return scenario_text(scenario, with_rows)
    return scenario_text(scenario, with_rows, conditions.backups) + conditions_text(scenario, conditions)


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")


def _write_all(writers: dict[Path, Callable[[Path], None]]) -> None:
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
