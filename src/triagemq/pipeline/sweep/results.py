"""The results table of sweeps (see parts.py), which says what is done.

A simulation is known by everything that its outcome depends on, and all of that is in its rows: no second record of
what is done could disagree with the results themselves.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from triagemq import __version__
from triagemq.pipeline.sweep.parts import KeptRows
from triagemq.pipeline.sweep.variables import VARIABLES, Value

__all__ = ["KEY", "SCHEMA", "Point", "SweepResults", "point_columns"]

_ARROW = {float: pa.float64(), int: pa.int64(), str: pa.string()}

SCHEMA = pa.schema(
    [
        ("scenario", pa.string()),
        ("scenario_fingerprint", pa.string()),
        ("version", pa.string()),  # of triagemq; a newer one may simulate differently
        *((name, _ARROW[variable.kind]) for name, variable in VARIABLES.items()),  # null where not varied
        ("publications", pa.int64()),
        ("seed", pa.int64()),
        ("priority_class", pa.int32()),  # null in the row of the whole simulation
        ("count", pa.int64()),
        ("delivered", pa.int64()),
        ("success_rate", pa.float64()),
        ("mean_latency_seconds", pa.float64()),  # null where nothing was delivered
        ("p50", pa.float64()),  # latency in seconds, within 0.8 %; of classes only
        ("p95", pa.float64()),
        ("p99", pa.float64()),
        ("max", pa.float64()),
        ("utility", pa.float64()),  # from here on: of the whole simulation only
        ("maximum_utility", pa.float64()),
        ("utility_rate", pa.float64()),  # utility / maximum_utility
        ("utility_rate_mean", pa.float64()),  # mean of that ratio over subscriptions
        ("rho_offered", pa.float64()),  # mean over the ports
        ("rho_planned", pa.float64()),
        ("simulated_seconds", pa.float64()),
    ]
)
"""One row per simulation and priority class, and one per simulation whose class is null."""

KEY = ("scenario_fingerprint", "version", *VARIABLES, "publications", "seed")
"""The columns that tell simulations apart."""

Key = tuple[Value | None, ...]


@dataclass(frozen=True, slots=True)
class Point:
    """One simulation to run."""

    scenario: str
    scenario_fingerprint: str
    publications: int
    seed: int
    settings: Mapping[str, Value] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """What its rows hold in the columns of `KEY`."""
        columns = point_columns(self)
        return tuple(columns[name] for name in KEY)

    def __str__(self) -> str:
        settings = [f"{name}={value}" for name, value in self.settings.items()]
        return ", ".join([self.scenario, *settings, f"seed {self.seed}"])


def point_columns(point: Point) -> dict[str, Value | None]:
    """The columns that say which simulation a row belongs to."""
    return {
        "scenario": point.scenario,
        "scenario_fingerprint": point.scenario_fingerprint,
        "version": __version__,
        **{name: point.settings.get(name) for name in VARIABLES},
        "publications": point.publications,
        "seed": point.seed,
    }


class SweepResults:
    """The results in a directory; one sweep at a time adds to them. Use `SweepResults.open`."""

    def __init__(self, files: KeptRows) -> None:
        self._files = files

    @classmethod
    @contextlib.contextmanager
    def open(cls, directory: str | Path) -> Iterator[SweepResults]:
        """Take the directory."""
        with KeptRows.open(directory, SCHEMA, kind="sweep") as files:
            yield cls(files)

    def done(self) -> set[Key]:
        """The keys of all simulations that are finished."""
        table = self._files.read([*KEY, "priority_class"])
        return set(_keys(table.filter(table["priority_class"].is_null())))

    def add(self, rows: pa.Table) -> None:
        """Keep the rows of some whole simulations; when this returns, they survive anything."""
        self._files.add(rows)

    def rows(self, points: Sequence[Point]) -> pa.Table:
        """The rows of these simulations, in their order, classes in theirs and the whole simulation last."""
        table = self._files.read(SCHEMA.names).sort_by([("priority_class", "ascending")])
        places: dict[Key, list[int]] = {}
        for row, key in enumerate(_keys(table)):
            places.setdefault(key, []).append(row)
        rows = [row for point in points for row in places[point.key]]
        names = [point.scenario for point in points for _ in places[point.key]]
        chosen = table.take(pa.array(rows, pa.int64()))
        # The same situation may have had another name when it was simulated.
        return chosen.set_column(0, SCHEMA.field("scenario"), pa.array(names, pa.string()))


def _keys(table: pa.Table) -> Iterator[Key]:
    return zip(*(table[name].to_pylist() for name in KEY), strict=True)
