"""simulate_cases(): simulations that are each given as a whole, plan included, as Spark tasks.

A sweep plans in its tasks and keeps figures per class; here the caller has planned, and gets what `simulate` returns
for every subscription, to the last bit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from triagemq import __version__
from triagemq.lab.sweep.jobs import Progress, ResultsTable, simulated, simulation_seconds
from triagemq.pipeline.session import SparkOptions
from triagemq.pipeline.store import TableStore
from triagemq.plan import Plan, dump_plan
from triagemq.scenario import Scenario
from triagemq.simulate import SubscriptionResults, simulate

_FLOATS = [column.name for column in fields(SubscriptionResults) if column.type == "Floats"]
_COLUMNS = [column.name for column in fields(SubscriptionResults)]
_SCHEMA = pa.schema([("key", pa.string()), *((name, pa.binary()) for name in _COLUMNS)])
_REPRODUCTION = ResultsTable("reproduction", _SCHEMA, ("key",))


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One simulation; the fields are what `simulate` takes. Give either publications or duration_seconds."""

    scenario: Scenario
    plan: Plan
    publications: int | None = None
    duration_seconds: float | None = None
    seed: int = 0
    replications: int = 1
    warmup: float = 0.1

    def simulate(
        self, *, threads: int | None = None, progress: Callable[[float], None] | None = None
    ) -> SubscriptionResults:
        """Run it in this process."""
        given: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        return simulate(**given, threads=threads, progress=progress).subscriptions

    @property
    def key(self) -> tuple[str]:
        """Equal for simulations with equal results, on any machine."""
        length = (self.publications, self.duration_seconds, self.warmup)
        chance = (self.seed, self.replications)
        parts = (__version__, self.scenario.fingerprint, dump_plan(self.plan), length, chance)
        told_apart = "".join(f"{part!r}\0" for part in parts).encode()
        return (hashlib.blake2b(told_apart, digest_size=16).hexdigest(),)

    @property
    def seconds(self) -> float:
        """About how long a core takes for it."""
        publications = float(self.publications or 0)
        if self.duration_seconds is not None:
            publications = self.duration_seconds * float(self.scenario.publications.rate_per_second.sum())
        return simulation_seconds(self.scenario, publications * self.replications)

    def rows(self) -> list[dict[str, Any]]:
        """One row with all figures, each column of theirs as its octets."""
        # The other cores have tasks of their own.
        found = self.simulate(threads=1)
        return [{name: getattr(found, name).tobytes() for name in _COLUMNS}]

    def __str__(self) -> str:
        return f"seed {self.seed}"


def simulate_cases(
    cases: Sequence[Case],
    *,
    out: Path,
    options: SparkOptions | None = None,
    progress: Progress | None = None,
) -> list[SubscriptionResults]:
    """The results of every case, in their order.

    What `out` holds already is not simulated again: when this was killed, the next call continues. `progress` is
    called with the cases done and all of them.

    >>> from triagemq.plan import make_plan
    >>> from triagemq.lab.generators import table2
    >>> scenario = table2(seed=1)
    >>> case = Case(scenario, make_plan(scenario), publications=10_000)
    >>> results = simulate_cases([case], out=Path("out/cases"))  # doctest: +SKIP
    """
    rows, _ = simulated(cases, _REPRODUCTION, out, options, progress)
    return [_results(row) for row in rows.to_pylist()]


def forget_cases(out: Path) -> None:
    """Remove what `simulate_cases` has stored in a directory."""
    if out.is_dir():
        with TableStore.open(out, kind=_REPRODUCTION.name) as store:
            store.forget()


def _results(row: dict[str, Any]) -> SubscriptionResults:
    columns: dict[str, Any] = {
        name: np.frombuffer(row[name], dtype=np.float64 if name in _FLOATS else np.int64) for name in _COLUMNS
    }
    return SubscriptionResults(**columns)
