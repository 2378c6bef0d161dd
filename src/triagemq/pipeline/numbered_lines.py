"""Lines of text files with their numbers, read in parallel. Spark itself numbers no lines."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from triagemq.pipeline.store import InputFile

# The lower bits of Spark's row ids count the rows of one partition.
_ROW_BITS = (1 << 33) - 1


def numbered_lines(
    spark: SparkSession, files: Sequence[InputFile], *, header: bool, line_end: str = "\n"
) -> DataFrame:
    """Rows (source, line, position, is_utf8, text): line counts from 1 in each file, position from 0 over all files.

    The lines of each piece are counted first, which takes one quick pass; a line's number is then its place in the
    piece behind the lines of the pieces before it. Headers are left out, lines without any character too.
    """
    # Spark's own choice would also take a lone carriage return for an end where lines end with a line feed.
    lines = spark.read.option("lineSep", line_end).text([file.spark_path for file in files])
    placed = lines.select(
        F.col("_metadata.file_path").alias("source"),
        F.col("_metadata.file_name").alias("name"),
        F.col("_metadata.file_block_start").alias("block"),
        F.monotonically_increasing_id().bitwiseAND(F.lit(_ROW_BITS)).alias("row"),
        # Asked before anything else touches the text: Spark replaces bytes that are none when it takes a text apart.
        F.is_valid_utf8("value").alias("is_utf8"),
        F.regexp_replace(F.make_valid_utf8("value"), "^\ufeff|\r$", "").alias("text"),
    )
    counted = placed.groupBy("source", "name", "block").agg(
        F.count("*").alias("lines"), F.min("row").alias("first")
    )
    before_in_file = Window.partitionBy("source").orderBy("block").rowsBetween(Window.unboundedPreceding, -1)
    before_at_all = Window.orderBy("name", "source", "block").rowsBetween(Window.unboundedPreceding, -1)
    pieces = counted.select(
        "source",
        "block",
        "first",
        F.coalesce(F.sum("lines").over(before_in_file), F.lit(0)).alias("earlier_in_file"),
        F.coalesce(F.sum("lines").over(before_at_all), F.lit(0)).alias("earlier"),
    )
    place = F.col("row") - F.col("first")
    numbered = placed.join(F.broadcast(pieces), ["source", "block"]).select(
        "source",
        (F.col("earlier_in_file") + place + 1).alias("line"),
        (F.col("earlier") + place).alias("position"),
        "is_utf8",
        "text",
    )
    if header:
        numbered = numbered.where("line > 1")
    return numbered.where(F.length("text") > 0)
