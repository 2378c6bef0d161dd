"""A table of a batch as Parquet files, one folder a run, with as many rows in them as were made.

Large tables are written where their rows are, by Spark's tasks. A table that one task makes is handed over and written
here: Spark would first set up its committer, make a dozen folders and files, and call `chmod` for every one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from triagemq.errors import PipelineError
from triagemq.pipeline.store.manifest import TableFile
from triagemq.pipeline.store.places import Location
from triagemq.pipeline.store.store import TableStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Where Spark looks for its own schema, with what each column means, in a Parquet file.
SPARK_SCHEMA = "org.apache.spark.sql.parquet.row.metadata"

Written = dict[int, tuple[TableFile, ...]]


def write_table(rows: DataFrame, store: TableStore, table: str, runs: int, tasks: int) -> Written:
    """Write rows with a `run` that counts up to `runs`, each run in a folder; one without rows may have no files."""
    several, columns = runs > 1, rows.drop("run")
    if tasks > 1:
        return write_parts(rows if several else columns, store, table, by="run" if several else None)
    found = rows.toArrow()
    by_run = found["run"]
    found = found.drop_columns(["run"]).replace_schema_metadata({SPARK_SCHEMA: columns.schema.json()})
    parts = {run: found.filter(pc.equal(by_run, run)) for run in range(runs)} if several else {0: found}
    return {
        run: (store.write(table, part, run=run),)
        for run, part in parts.items()
        if part.num_rows or not several
    }


def write_parts(rows: DataFrame, store: TableStore, table: str, *, by: str | None) -> Written:
    """Have Spark's tasks write rows, for each value of the whole number `by` into a folder of its own."""
    folder = store.folder(table)
    made = _write(rows, folder, by=[by]) if by is not None else _write(rows, folder / "run=0")
    written = store.written(table)
    _compare(table, made["rows"], sum(file.rows for files in written.values() for file in files), folder)
    return written


def write_work(rows: DataFrame, place: Location, *, what: str) -> DataFrame:
    """Write rows that are needed again while tables are made, and read them from there."""
    made = _write(rows, place)
    parts = [place / entry.name for entry in place.entries() if entry.name.startswith("part-")]
    _compare(what, made["rows"], sum(part.footer().num_rows for part in parts), place)
    return rows.sparkSession.read.schema(rows.schema).parquet(place.spark_path)


def append_table(
    rows: DataFrame | pa.Table, store: TableStore, table: str, run: int, *, summed: Sequence[str] = ()
) -> tuple[tuple[TableFile, ...], dict[str, int]]:
    """Write more rows of a run; the new files, none of them empty, and the sums of some columns."""
    if isinstance(rows, pa.Table):
        totals = {name: pc.sum(rows[name], min_count=0).as_py() for name in summed}
        return (store.write(table, rows, run=run),) if rows.num_rows else (), totals
    name = f"run={run}"
    folder = store.folder(table) / name
    before = {entry.name for entry in folder.entries()} if folder.exists() else set()
    made = _write(rows, folder, summed=summed)
    files = store.parts(table, name, besides=before)
    _compare(table, made["rows"], sum(file.rows for file in files), folder)
    for file in files:
        if not file.rows:
            store.remove(file.name)
    return tuple(file for file in files if file.rows), {name: made[name] for name in summed}


def _write(
    rows: DataFrame, place: Location, *, by: Sequence[str] = (), summed: Sequence[str] = ()
) -> dict[str, int]:
    """Have Spark's tasks write rows; how many they counted as `rows`, and the sums of some columns."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812

    counted = Observation()
    sums = [F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in summed]
    rows = rows.observe(counted, F.count(F.lit(1)).alias("rows"), *sums)
    rows.write.mode("append").partitionBy(*by).parquet(place.url)
    return {name: int(value) for name, value in counted.get.items()}


def _compare(what: str, made: int, found: int, place: Location) -> None:
    """Executors that have another disk than this machine write their rows where this process cannot find them."""
    if found != made:
        raise PipelineError(
            f"{what}: {made:,} rows were made and {found:,} are in {place.url}; nothing is published. Do all "
            "executors share this disk? Give a directory that they do, or run with --master 'local[*]'"
        )
