"""Reads finished tables, and estimates a Scenario from those of a run. Arrow only, no Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from triagemq.errors import ParameterError, PipelineError
from triagemq.pipeline.store import Location, TablesManifest, current_manifest
from triagemq.plain import plain
from triagemq.scenario import Scenario, loads
from triagemq.scenario.estimated import Estimate, measured

_ATTEMPTS = 5
_MOST_SORTED_ROWS = 500_000


class Tables:
    """The tables that `triage pipeline run` has published in a directory.

    >>> Tables("nowhere")
    Traceback (most recent call last):
    triagemq.errors.ParameterError: nowhere: no tables there; make them with: triage pipeline run TRACE --out nowhere
    """

    def __init__(self, directory: str | Path) -> None:
        self._place = Location(directory)
        self.place = self._place.path
        """The directory, as its file system calls it."""
        self.manifest = self._read_manifest()
        """The runs, and which files belong to them."""

    def _read_manifest(self) -> TablesManifest:
        manifest = current_manifest(self._place)
        if manifest is None:
            raise ParameterError(
                self._place.given,
                f"no tables there; make them with: triage pipeline run TRACE --out {self._place.given}",
            )
        return manifest

    @property
    def rows(self) -> dict[str, int]:
        """Number of rows of every table."""
        return self.manifest.tables()

    def files(self, table: str, run_id: str | None = None) -> list[str]:
        """The Parquet files that make up a table, or one run's part of it, as any reader takes them."""
        if table not in self.rows:
            raise ParameterError(self._place.given, f"no table {table!r}; there are {', '.join(self.rows)}")
        runs = self.manifest.runs
        if run_id is not None and run_id not in runs:
            raise ParameterError(self._place.given, f"no run {run_id!r}; there are {', '.join(runs)}")
        chosen = [runs[run_id]] if run_id is not None else list(runs.values())
        return [(self._place / file.name).path for run in chosen for file in run.tables.get(table, ())]

    def table(
        self,
        name: str,
        *,
        run_id: str | None = None,
        columns: Sequence[str] | None = None,
        where: Mapping[str, str] | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        """A table's rows as Arrow; `where` selects those whose column equals the text.

        Rows are in the order of the columns that are read, and `limit` takes the first; more than half a million, if
        all are requested, are in any order.
        """
        for _ in range(_ATTEMPTS - 1):
            try:
                return self._scan(self.files(name, run_id), name, columns, where or {}, limit)
            except FileNotFoundError:
                # A run was replaced meanwhile, and its files are gone: all is read by the new manifest.
                self.manifest = self._read_manifest()
        return self._scan(self.files(name, run_id), name, columns, where or {}, limit)

    def records(self, name: str, **choice: Any) -> list[dict[str, Any]]:
        """A table's rows as plain values that JSON can hold; takes what `table` takes."""
        return plain(self.table(name, **choice).to_pylist())  # type: ignore[no-any-return]

    def scenario(self, run_id: str) -> Scenario | None:
        """The scenario that a run came with; None if it came without."""
        if "scenarios" not in self.rows:
            return None
        texts = self.table("scenarios", run_id=run_id).to_pylist()
        return (
            loads(texts[0]["text"], file=f"scenario of run {run_id}")
            if texts and texts[0]["text"].strip()
            else None
        )

    def _scan(
        self,
        files: list[str],
        name: str,
        columns: Sequence[str] | None,
        where: Mapping[str, str],
        limit: int | None,
    ) -> pa.Table:
        import pyarrow.dataset as ds

        if not files:
            return pa.table({})
        # Listing the schema of the first file only would hide a column that an older version did not write.
        dataset = ds.dataset(files, filesystem=self._place.arrow, format="parquet")
        known = dataset.schema.names
        unknown = [column for column in [*(columns or ()), *where] if column not in known]
        if unknown:
            raise ParameterError(name, f"no column {', '.join(unknown)}; there are {', '.join(known)}")
        condition = None
        for column, text in where.items():
            clause = ds.field(column) == _scalar(name, column, text, dataset.schema.field(column).type)
            condition = clause if condition is None else condition & clause
        scanner = dataset.scanner(columns=None if columns is None else list(columns), filter=condition)
        if limit is None:
            rows = scanner.to_table()
            return rows if rows.num_rows > _MOST_SORTED_ROWS else _ordered(rows)
        first = scanner.projected_schema.empty_table()
        for batch in scanner.to_batches():
            first = pa.concat_tables([first, pa.Table.from_batches([batch])])
            if first.num_rows > limit + _MOST_SORTED_ROWS:
                first = _ordered(first).slice(0, limit)
        return _ordered(first).slice(0, limit)


def _ordered(rows: pa.Table) -> pa.Table:
    """By all columns: Spark writes in the order in which its tasks end, people and scripts want the same every time."""
    keys = [field.name for field in rows.schema if not pa.types.is_nested(field.type)]
    return rows.sort_by([(key, "ascending") for key in keys])


def _scalar(table: str, column: str, text: str, kind: pa.DataType) -> Any:
    try:
        return pa.scalar(text).cast(kind)
    except (pa.ArrowException, ValueError) as error:
        raise ParameterError(f"{table}.{column}", f"{text!r} is not a {kind}") from error


def estimate_scenario(
    tables: Tables, *, run_id: str | None = None, bandwidth_bps: float | None = None
) -> Estimate:
    """The scenario that a run's measured publications look like.

    `run_id` is needed if the tables hold several runs; `bandwidth_bps`, the bandwidth of the one port, if the run came
    without a scenario (a foreign log).
    """
    chosen = _choose(tables, run_id)
    if tables.manifest.kind == "stream":
        from triagemq.pipeline.streaming.windows import stream_profile

        rows = tables.table("topic_rates", run_id=chosen) if "topic_rates" in tables.rows else pa.table({})
        profile = stream_profile(rows, tables.manifest.extra, chosen)
    else:
        profile = tables.records("publication_profile", run_id=chosen)
    if not profile:
        raise PipelineError(
            f"run {chosen}: nothing was published after warm-up; there is nothing to estimate from"
        )
    scenario = tables.scenario(chosen)
    base = bandwidth_bps if scenario is None else scenario
    if base is None:
        raise PipelineError(
            f"run {chosen}: came without a scenario, so the bandwidth to the subscriber is not known; "
            "give it with --bandwidth-bps"
        )
    name = chosen if scenario is None else scenario.name
    summary = tables.records("run_summary", run_id=chosen) if "run_summary" in tables.rows else []
    begins_ns = summary[0].get("measured_from_ns") if summary else None
    return measured(profile, base, name=name, measured_from_ns=begins_ns)


def _choose(tables: Tables, run_id: str | None) -> str:
    runs = list(tables.manifest.runs)
    matching = [each for each in runs if run_id is None or each.startswith(run_id)]
    if len(matching) == 1:
        return matching[0]
    problem = "several runs" if matching else f"no run {run_id!r}"
    raise ParameterError("--run", f"there are {problem} in these tables; choose one of: {', '.join(runs)}")
