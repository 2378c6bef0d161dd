"""Foreign logs in Spark: CSV, JSON lines or Parquet become publications; other rows are set aside with the reason.

One row of the log is either good, and becomes one publication for each of its values, or it is set aside as a whole,
so that rows in and rows set aside add up to the rows read. It is parsed once, into a folder that holds it as long as
tables are made. Copies and times that go backwards are found afterwards, from a few numbers of each: rows as a whole
are never sorted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import reduce

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType

from triagemq.errors import PipelineError
from triagemq.pipeline.inputs import UNREADABLE, LogInput, require_columns
from triagemq.pipeline.mapping import TEMPLATE_COLUMN, Mapping, SizeColumn
from triagemq.pipeline.session import cause_of
from triagemq.pipeline.store import InputFile, Location
from triagemq.pipeline.store.store import write_work

_NANOSECONDS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_LATEST_NS = 2**63 - 1
_CALENDAR_NS = (631_152_000_000_000_000, 4_102_444_800_000_000_000)
"""1990 and 2100: the times of a clock that was set are between them."""
_SECOND_KIND = 1 << 40
_LONGEST_TOPIC_BYTES = 65_535
_BACKWARDS = "clock going backwards"
_CLOCK_SHARE, _CLOCK_ROWS = 0.01, 2
"""A file with more rows than both that are before their predecessor is not in order of time; no clock is that bad."""
_BAD = "table string, reason string, source string, line bigint, raw string"
_ISO = r"^\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}|$)"
_OFFSET = r"Z?([+-]\d{2}):?(\d{2})$"
"""Behind a local time, with a Z before it as mosquitto_sub 2.0 prints it, too."""
_ROW_BITS = (1 << 33) - 1
"""The lower bits of Spark's row ids count the rows of one partition."""


@dataclass(frozen=True, slots=True)
class Ingested:
    """A log: every row with `reason` (null for a good one), `source`, `line`, `raw` and its `readings`."""

    log: LogInput
    """The log, with notes on it."""
    rows: DataFrame
    unreadable: dict[str, str] = field(default_factory=dict)
    """Files that were left out, and why."""

    def counts(self) -> dict[str | None, int]:
        """How many rows have each reason, and none; a file that was left out counts as one."""
        counts = {row["reason"]: row["count"] for row in self.rows.groupBy("reason").count().collect()}
        return counts | ({UNREADABLE: len(self.unreadable)} if self.unreadable else {})

    def readings(self) -> DataFrame:
        """Good rows, one line per value: topic, publisher, published_ns, size_bytes, payload, publication_id."""
        good = self.rows.where(F.col("reason").isNull())
        place = F.col("position") * len(self.log.mapping.topics_of_values)
        return good.select("*", F.posexplode("readings").alias("number", "reading")).select(
            (place + F.col("number")).alias("publication_id"),
            "publisher",
            "published_ns",
            F.col("reading.topic").alias("topic"),
            F.col("reading.size_bytes").cast("int").alias("size_bytes"),
            F.encode("reading.value", "UTF-8").alias("payload"),
        )

    def bad(self) -> DataFrame:
        """Rows set aside, as the quarantine takes them, without `run`."""
        table = F.lit("publications").alias("table")
        is_text = self.rows.schema["raw"].dataType == StringType()
        raw = F.col("raw") if is_text else F.to_json("raw").alias("raw")
        bad = self.rows.where(F.col("reason").isNotNull()).select(table, "reason", "source", "line", raw)
        if not self.unreadable:
            return bad
        rows = [("publications", UNREADABLE, url, None, why) for url, why in self.unreadable.items()]
        return bad.union(self.rows.sparkSession.createDataFrame(rows, _BAD))


def ingest(spark: SparkSession, log: LogInput, work: Location) -> Ingested:
    """Parse and check a log. The order of rows is that of the files' names, then of their lines."""
    rows, unreadable = _read(spark, log, work)
    notes = [f"left out: {url}: {why}" for url, why in unreadable.items()]
    log = replace(log, notes=(*log.notes, *notes))
    found = write_work(_out_of_order(rows, log.mapping), work / "order", what=log.source)
    if not found.isEmpty():
        rows = rows.join(found, "position", "left")
        unsorted = _unsorted_files(rows)
        order = F.col("order")
        if unsorted:
            order = F.when((order != _BACKWARDS) | ~F.col("source").isin(list(unsorted)), order)
            note = (
                f"{sum(unsorted.values()):,} rows are earlier than the one before them: {len(unsorted):,} files are "
                f"not in order of time (the first: {min(unsorted)}), and are sorted"
            )
            log = replace(log, notes=(*log.notes, note))
        rows = _unless_known(rows, order).drop("order")
    return Ingested(log, _with_plausible_times(rows, log.mapping), unreadable)


def _read(spark: SparkSession, log: LogInput, work: Location) -> tuple[DataFrame, dict[str, str]]:
    """The rows of all files; where Spark fails, of those that it can read, and why it cannot read the others."""
    try:
        return write_work(_checked(_parse(spark, log), log.mapping), work / "rows", what=log.source), {}
    except (PySparkException, Py4JError, PipelineError):
        groups, unreadable = _readable(spark, log)
        if not groups or (len(groups) == 1 and not unreadable):
            raise
        parts = [_checked(_parse(spark, log, files), log.mapping) for files in groups]
        if log.format == "parquet":
            # Types that differ are the same as texts.
            parts = [part.withColumn("raw", F.to_json("raw")) for part in parts]
        rows = reduce(DataFrame.unionByName, parts)
        return write_work(rows, work / "readable", what=log.source), unreadable


def _readable(spark: SparkSession, log: LogInput) -> tuple[list[list[InputFile]], dict[str, str]]:
    """Files that can be read one by one, those with columns of the same types together; and why others cannot."""

    def schema_of_file(file: InputFile) -> str | PipelineError:
        try:
            rows = spark.read.format("parquet" if log.format == "parquet" else "text").load(file.spark_path)
            if log.format == "parquet":
                require_columns(file.url, rows.columns, log.mapping)
            rows.write.format("noop").mode("overwrite").save()
            return rows.schema.json()
        except (PySparkException, Py4JError) as error:
            return PipelineError(cause_of(error))
        except PipelineError as error:
            return error

    by_schema: dict[str, list[InputFile]] = {}
    unreadable = {}
    with ThreadPoolExecutor() as pool:
        for file, found in zip(log.files, pool.map(schema_of_file, log.files), strict=True):
            if isinstance(found, str):
                by_schema.setdefault(found, []).append(file)
            else:
                unreadable[file.url] = str(found)
    return list(by_schema.values()), unreadable


def _unsorted_files(rows: DataFrame) -> dict[str, int]:
    """Files whose lines are not in order of time, and how many rows of each are before their predecessor."""
    counted = rows.where("reason is null").groupBy("source")
    counts = counted.agg(F.count("*"), F.count_if(F.col("order") == _BACKWARDS)).collect()
    return {
        source: backwards
        for source, count, backwards in counts
        if backwards > max(count * _CLOCK_SHARE, _CLOCK_ROWS)
    }


def _checked(parsed: DataFrame, mapping: Mapping) -> DataFrame:
    """Rows with what each alone shows."""
    fields = parsed.withColumns(
        {
            "published_ns": published_ns(mapping),
            "publisher": _template(mapping.publisher),
            # All values a row may hold.
            "candidates": F.array(*(_reading(mapping, *each) for each in mapping.topics_of_values.items())),
        }
    )
    present = F.filter("candidates", lambda reading: reading["value"].isNotNull())
    return _unless_known(fields, _first(_row_reasons(mapping))).select(
        "source", "line", "position", "raw", "published_ns", "publisher", present.alias("readings"), "reason"
    )


def _is_of_no_calendar(published_ns: Column) -> Column:
    """Whether a time is of a clock that was not set (1970, 1980) or overflowed (2106)."""
    return (published_ns < _CALENDAR_NS[0]) | (published_ns >= _CALENDAR_NS[1])


def _with_plausible_times(rows: DataFrame, mapping: Mapping) -> DataFrame:
    """The same, with rows of a clock that was not set put aside: for this the whole log must have been seen.

    A clock that starts at 0 is as good as any. But if other times of the same log are of a calendar, those that are not
    are set aside, unless the mapping has an earliest and a latest time.
    """
    published = F.col("published_ns")
    outside = _is_of_no_calendar(published)
    some, others = rows.where("reason is null").agg(F.bool_or(outside), F.bool_or(~outside)).collect()[0]
    if not (some and others):
        return rows
    earliest, latest = mapping.time.bounds_ns
    if earliest is None:
        rows = _unless_known(rows, F.when(published < _CALENDAR_NS[0], "clock not set"))
    if latest is None:
        rows = _unless_known(rows, F.when(published >= _CALENDAR_NS[1], "clock far ahead"))
    return rows


def _parse(spark: SparkSession, log: LogInput, some: Sequence[InputFile] | None = None) -> DataFrame:
    """Rows with `fields` (a map of texts), `raw`, `source`, `line`, `position` and the reason of a row that is none.

    Of some files, or of all.
    """
    files = log.files if some is None else some
    rows = (_parse_parquet if log.format == "parquet" else _parse_lines)(spark, log, files)
    names, place = log.mapping.path_columns, _path(F.col("source"))
    if not names:
        return rows
    parts = {
        name: F.regexp_extract(place, log.mapping.path_pattern, number)
        for number, name in enumerate(names, start=1)
    }
    own = F.map_filter("fields", lambda name, _: ~name.isin(names))
    return rows.withColumn("fields", F.map_concat(own, _map(parts)))


def _map(cells: dict[str, Column]) -> Column:
    return F.create_map(*(part for name, cell in cells.items() for part in (F.lit(name), cell)))


def _path(url: Column) -> Column:
    """The URL of a file as an InputFile has it, with the path as it is; Spark has escapes in it, and fewer slashes."""
    plain = F.coalesce(F.try_url_decode(F.replace(url, F.lit("+"), F.lit("%2B"))), url)
    return F.regexp_replace(plain, "^file:/+", "file:///")


def _parse_lines(spark: SparkSession, log: LogInput, files: Sequence[InputFile]) -> DataFrame:
    header = log.format == "csv" and log.mapping.header
    kinds, chosen_files = [], set(files)
    for number, group in enumerate(log.lines):
        chosen = [file for file in group.files if file in chosen_files]
        if not chosen:
            continue
        lines = _numbered_lines(spark, chosen, header=header, line_end=group.line_end)
        fields, reasons = _json_fields() if group.columns is None else _csv_fields(log.mapping, group.columns)
        reasons = {"not UTF-8": ~F.col("is_utf8")} | reasons
        kinds.append(
            lines.select(
                "source",
                "line",
                (F.col("position") + number * _SECOND_KIND).alias("position"),
                F.col("text").alias("raw"),
                fields.alias("fields"),
                _first(reasons).alias("reason"),
            )
        )
    return reduce(DataFrame.unionByName, kinds)


def _numbered_lines(
    spark: SparkSession, files: Sequence[InputFile], *, header: bool, line_end: str
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
        # Before anything else touches the text: Spark replaces bytes that are none when it takes a text apart.
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


def _json_fields() -> tuple[Column, dict[str, Column]]:
    """The fields of an object in a line, and what may be wrong with it."""
    parsed = F.from_json(F.col("text"), "map<string,string>")
    keys = F.map_keys(parsed)
    return parsed, {
        "not JSON": parsed.isNull() | (F.size(parsed) == 0),
        "duplicate column": F.size(F.array_distinct(keys)) < F.size(keys),
    }


def _csv_fields(mapping: Mapping, columns: Sequence[str]) -> tuple[Column, dict[str, Column]]:
    """The fields of a line by columns, and the reasons against it."""
    names = [f"c{number}" for number in range(len(columns))]
    schema = ", ".join(f"{name} string" for name in (*names, "malformed"))
    options = {"sep": mapping.delimiter, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": "malformed"}
    struct = F.from_csv(F.col("text"), schema, options)
    # Columns that the mapping does not name may share a name.
    needed = mapping.needed_columns()
    cells = {column: struct[name] for column, name in zip(columns, names, strict=True) if column in needed}
    return _map(cells), {
        # Spark would take what follows a line end within a text for the next row, and leave it out.
        "line end within a row": F.col("text").rlike("[\\r\\n]"),
        "wrong number of columns": struct["malformed"].isNotNull(),
    }


def _first(reasons: dict[str, Column]) -> Column:
    """The first of the reasons that holds; null if none does."""
    return F.coalesce(*(F.when(condition, text) for text, condition in reasons.items()))


def _parse_parquet(spark: SparkSession, log: LogInput, files: Sequence[InputFile]) -> DataFrame:
    rows = spark.read.parquet(*(file.spark_path for file in files))
    require_columns(log.source, rows.columns, log.mapping)
    cells = {name: F.col(f"`{name}`").cast("string") for name in log.mapping.needed_columns()}
    # Files are numbered by path; a row's place in all of them needs no more than to be unique and in order.
    urls = F.array(*(F.lit(file.url) for file in log.files))
    number = F.array_position(urls, _path(F.col("_metadata.file_path")))
    index = F.col("_metadata.row_index")
    return rows.select(
        F.col("_metadata.file_path").alias("source"),
        (index + 1).alias("line"),
        (F.shiftleft(number.cast("bigint"), 36) + index).alias("position"),
        F.struct("*").alias("raw"),
        _map(cells).alias("fields"),
        F.lit(None).cast("string").alias("reason"),
    )


def _text(column: str) -> Column:
    """A field's text without spaces around it; null if it is empty."""
    text = F.trim(F.col("fields")[column])
    return F.when(text != "", text)


def _template(template: str) -> Column:
    """A template with the texts of its columns; null if one of them is missing."""
    # Every second part is the name of a column.
    parts = TEMPLATE_COLUMN.split(template)
    return F.concat(*(_text(part) if number % 2 else F.lit(part) for number, part in enumerate(parts)))


def published_ns(mapping: Mapping) -> Column:
    """The time of a row in nanoseconds since 1970; null if it cannot be read."""
    text = _text(mapping.time.column)
    if mapping.time.unit is not None:
        number = F.call_function(
            "try_multiply", text.try_cast("decimal(29,9)"), F.lit(_NANOSECONDS[mapping.time.unit])
        )
        return F.floor(number).try_cast("bigint")
    if mapping.time.format is not None:
        moment = F.try_to_timestamp(text, F.lit(mapping.time.format))
    else:
        iso = F.regexp_replace(text, _OFFSET, "$1:$2")
        moment = F.when(text.rlike(_ISO), F.try_to_timestamp(iso))
    if mapping.time.zone != "UTC":
        moment = F.to_utc_timestamp(moment, mapping.time.zone)
    return F.unix_micros(moment) * 1000


def _reading(mapping: Mapping, column: str, topic: str) -> Column:
    """A value as (topic, value, size, size_bytes)."""
    # A log without values counts rows: each is an event, whatever is in it.
    value = _text(column) if column else F.lit("")
    if isinstance(mapping.size_bytes, SizeColumn):
        size = _text(mapping.size_bytes.column)
    elif mapping.size_bytes is not None:
        size = F.lit(str(mapping.size_bytes))
    else:
        size = F.octet_length(value).cast("string")
    return F.struct(
        _template(topic).alias("topic"),
        value.alias("value"),
        size.alias("size"),
        _whole(size).alias("size_bytes"),
    )


def _whole(text: Column) -> Column:
    """A whole number, also if it is written as 60.0; null if it is none."""
    exact = text.try_cast("decimal(38,9)")
    return F.when(exact == F.floor(exact), exact.cast("decimal(29,0)"))


def _row_reasons(mapping: Mapping) -> dict[str, Column]:
    """Reasons in the order in which they are looked for: a row gets the first that holds."""
    time, published = _text(mapping.time.column), F.col("published_ns")
    earliest, latest = mapping.time.bounds_ns
    candidates = [F.col("candidates")[number] for number in range(len(mapping.topics_of_values))]
    reasons = {
        "missing time": time.isNull(),
        "unparseable time": published.isNull(),
        "time out of range": (published < (earliest or 0)) | (published >= (latest or _LATEST_NS)),
        "missing publisher": F.col("publisher").isNull(),
        "missing value": reduce(Column.__and__, (reading["value"].isNull() for reading in candidates)),
    }
    # Only values that are there can be wrong: in a wide log an empty cell is no reading. Not by a function over the
    # array, which Spark would interpret row by row.
    of_readings = [_reading_reasons(mapping, reading) for reading in candidates]
    for text in of_readings[0]:
        wrong = (
            reading["value"].isNotNull() & own[text]
            for reading, own in zip(candidates, of_readings, strict=True)
        )
        reasons[text] = reduce(Column.__or__, wrong)
    return reasons


def _reading_reasons(mapping: Mapping, reading: Column) -> dict[str, Column]:
    """The reasons against one of the values of a row."""
    topic, size_bytes, number = reading["topic"], reading["size_bytes"], reading["value"].try_cast("double")
    reasons = {
        "missing topic": topic.isNull(),
        "invalid topic": topic.rlike("[+#\\x00]") | (F.octet_length(topic) > _LONGEST_TOPIC_BYTES),
        "missing size": reading["size"].isNull(),
        "unparseable size": size_bytes.isNull(),
        "negative size": size_bytes < 0,
        "absurd size": size_bytes > mapping.largest_size_bytes,
    }
    if mapping.topics is not None:
        reasons["unknown topic"] = ~topic.isin(mapping.topics)
    if mapping.numbers:
        reasons["value is not a number"] = number.isNull()
        # A comparison of Spark's takes NaN for larger than everything.
        reasons["value is not finite"] = F.abs(number) >= float("inf")
    return reasons


def _out_of_order(rows: DataFrame, mapping: Mapping) -> DataFrame:
    """The `position` of copies of earlier rows, and of rows whose time is before that of their publisher's row just
    before in their file; and which of both it is, as `order`.

    Rows are identified by 96 bits of what is in them, and clocks by 64.
    """
    published = F.col("published_ns")
    usable = rows.where("reason is null").select(
        "position",
        "published_ns",
        F.xxhash64("publisher", "readings").alias("content"),
        F.hash("publisher", "readings").alias("more"),
        # Times of a clock that was not set, or far ahead, are none that others could be before or after.
        F.xxhash64("publisher", "source", _is_of_no_calendar(published)).alias("clock"),
    )
    same = Window.partitionBy("published_ns", "content", "more").orderBy("position")
    marked = usable.select(
        "position", "published_ns", "clock", (F.row_number().over(same) > 1).alias("is_copy")
    )
    tolerance_ns = round(mapping.backwards_seconds * 1e9)
    before = F.lag("published_ns").over(Window.partitionBy("clock", "is_copy").orderBy("position"))
    order = F.when(F.col("is_copy"), "duplicate").when(published < before - tolerance_ns, _BACKWARDS)
    return marked.select("position", order.alias("order")).where("order is not null")


def _unless_known(rows: DataFrame, reason: Column) -> DataFrame:
    """Rows with this reason, if it is one, unless they have another."""
    return rows.withColumn("reason", F.coalesce("reason", reason))


def names_to_ids(readings: DataFrame, columns: Iterable[str], run: int) -> dict[str, pa.Table]:
    """For each column its names in alphabetical order, with the number of the run and ids from 0 on."""
    found = readings.select(*columns).distinct().toArrow()
    named = {}
    for column in found.column_names:
        names = found.group_by(column).aggregate([]).sort_by(column)
        ids = pa.array(range(len(names)), pa.int32())
        runs = pa.repeat(pa.scalar(run, pa.int32()), len(names))
        named[column] = pa.table({"run": runs, f"{column}_id": ids, column: names[column]})
    return named
