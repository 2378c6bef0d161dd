"""What went wrong in Spark reaches the user: the cause itself, in one line."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from triagemq.errors import ParameterError, PipelineError
from triagemq.pipeline import SparkOptions, Tables, run_pipeline
from triagemq.pipeline.session import cause_of, explained

JAVA = """An error occurred while calling o7.parquet.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 5.0 failed 1 times
\tat org.apache.spark.scheduler.Task.run(Task.scala:147)
Caused by: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows
\t... 9 more
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
"""
WORKER = """Job aborted due to stage failure: Task 0 in stage 5.0 failed 1 times
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
KeyError: 'topic'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "reduction.py", line 7, in reduce
    raise ValueError("no such topic")
ValueError: no such topic

\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)
"""


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (JAVA, "java.io.IOException: No space left on device"),
        (WORKER, "ValueError: no such topic"),
        (
            "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"
            ": org.apache.spark.SparkException: Could not parse Master URL: 'local[x]'\n\tat a.b(C.scala:1)",
            "org.apache.spark.SparkException: Could not parse Master URL: 'local[x]'",
        ),
        ("[PATH_NOT_FOUND] Path does not exist: file:/x. SQLSTATE: 42K03", None),
        ("", "RuntimeError"),
    ],
)
def test_the_innermost_cause_is_found(said: str, cause: str | None) -> None:
    assert cause_of(RuntimeError(said)) == (said if cause is None else cause)


def test_what_a_python_worker_raised_is_said(spark: SparkSession) -> None:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise ValueError(f"cannot read {sum(batch.num_rows for batch in batches)} rows")

    with pytest.raises(PipelineError) as raised, explained("it failed"):
        spark.range(0, 3, 1, 1).mapInArrow(work, "id bigint").collect()
    assert str(raised.value) == "it failed: ValueError: cannot read 3 rows"
    assert raised.value.__cause__ is not None, "--debug shows the whole of it"


def test_a_damaged_input_is_named_and_nothing_is_published(
    spark: object, trace: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(trace, tmp_path / "run")
    part = next((run / "deliveries").glob("*.parquet"))
    part.write_bytes(b"\0" * part.stat().st_size)
    with pytest.raises(PipelineError, match=f"{part.name} is not a Parquet file") as raised:
        run_pipeline([run], tmp_path / "out")
    assert "\n" not in str(raised.value)
    assert Tables(tmp_path / "out").rows == {}


def test_a_master_that_spark_does_not_know_is_refused_before_java_starts() -> None:
    with pytest.raises(ParameterError, match="spark://HOST:PORT"):
        SparkOptions(master="nonsense")
