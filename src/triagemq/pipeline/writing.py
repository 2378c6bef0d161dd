"""A table of a batch as Parquet files, one folder a run: `PLACE/run=<number>/part-*.parquet`.

Large tables are written where their rows are, by Spark's tasks. A table that one task makes is handed over and written
here: Spark would first set up its committer, make a dozen folders and files, and call `chmod` for every one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from triagemq.errors import PipelineError
from triagemq.pipeline.storage import spark_url

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["write_table", "write_where_they_are"]

# Where Spark looks for its own schema, with what each column means, in a Parquet file.
_SPARK_SCHEMA = "org.apache.spark.sql.parquet.row.metadata"


def write_table(rows: DataFrame, place: Path, runs: int, partitions: int) -> None:
    """Write rows that have `run` last, which counts up to `runs`; a run without rows may have no files."""
    if partitions == 1:
        _write_here(rows, place, runs)
    elif runs == 1:
        write_where_they_are(rows.drop("run"), place / "run=0", what=place.name)
    else:
        write_where_they_are(rows, place, what=place.name, partition_by=["run"])


def write_where_they_are(
    rows: DataFrame, place: Path, *, what: str, partition_by: Sequence[str] = ()
) -> None:
    """Have Spark's tasks write rows, and compare what is in the files afterwards with what was made.

    Executors that have another disk than this machine write their rows where nobody finds them.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812

    counted = Observation()
    writer = rows.observe(counted, F.count(F.lit(1)).alias("rows")).write.partitionBy(*partition_by)
    writer.parquet(spark_url(place))
    made = int(counted.get["rows"])
    found = sum(pq.read_metadata(file).num_rows for file in place.rglob("part-*.parquet"))
    if found != made:
        raise PipelineError(
            f"{what}: {made:,} rows were made and {found:,} are in {place}; nothing is published. Do all "
            "executors share this disk? Give a directory that they do, or run with --master 'local[*]'"
        )


def _write_here(rows: DataFrame, place: Path, runs: int) -> None:
    schema = rows.drop("run").schema
    made = rows.toArrow()
    table = made.drop_columns(["run"]).replace_schema_metadata({_SPARK_SCHEMA: schema.json()})
    for run in range(runs):
        part = table if runs == 1 else table.filter(pc.equal(made["run"], pa.scalar(run, pa.int32())))
        if part.num_rows or runs == 1:
            folder = place / f"run={run}"
            folder.mkdir(parents=True)
            pq.write_table(part, folder / "part-0.parquet", compression="zstd")
