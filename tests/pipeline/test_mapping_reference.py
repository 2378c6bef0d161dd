"""docs/reference/logs.md: every key of a mapping is there with an example, and the example says what really happens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from triagemq.pipeline import Mapping, load_mapping
from triagemq.pipeline.inputs import LogInput, find_inputs
from triagemq.pipeline.mapping import SizeColumn, TimeColumn
from triagemq.pipeline.store import Location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "logs.md"
BLOCK = re.compile(
    r"(?:^`(?P<path>[^`\n]+)`\n\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
ENDINGS = {"csv": "csv", "json": "jsonl"}


@dataclass(frozen=True)
class Example:
    keys: tuple[str, ...]
    mapping: str
    files: dict[str, str]
    result: list[str]


def examples() -> Iterator[Example]:
    for section in re.split(r"^### ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        mapping, files, result = "", {}, ""
        for block in BLOCK.finditer(section):
            if block["kind"] == "yaml":
                mapping = block["text"]
            elif block["kind"] == "result":
                result = block["text"]
            else:
                files[block["path"] or f"log.{ENDINGS[block['kind']]}"] = block["text"]
        yield Example(
            tuple(re.findall("`(.+?)`", section.partition("\n")[0])), mapping, files, result.splitlines()
        )


def test_every_key_has_an_example_and_a_line_in_the_table() -> None:
    keys = {*Mapping.model_fields}
    keys |= {f"time.{name}" for name in TimeColumn.model_fields} | {
        f"size_bytes.{name}" for name in SizeColumn.model_fields
    }
    assert {key for example in examples() for key in example.keys} == keys
    listed = {name for line in PAGE.read_text().splitlines() for name in re.findall(r"\[`(\w+)`\]\(#", line)}
    assert listed == {*Mapping.model_fields}


@pytest.mark.parametrize("example", [*examples()], ids=lambda example: "-".join(example.keys))
def test_an_example_does_what_the_page_says(example: Example, spark: SparkSession, tmp_path: Path) -> None:
    from triagemq.pipeline.ingest import ingest

    (tmp_path / "mapping.yaml").write_text(example.mapping)
    for name, text in example.files.items():
        (tmp_path / "log" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "log" / name).write_text(text)
    mapping = load_mapping(tmp_path / "mapping.yaml")
    (log,), skipped = find_inputs([tmp_path / "log"], mapping)
    assert isinstance(log, LogInput)
    made = ingest(spark, log, Location(tmp_path / "work"))
    events = sorted(
        (row.published_ns, row.topic, row.publisher, row.size_bytes) for row in made.readings().collect()
    )
    found = [f"{moment(time)} {topic} {publisher} {size}" for time, topic, publisher, size in events]
    found += [f"line {row.line}: {row.reason}" for row in made.bad().orderBy("source", "line").collect()]
    found += [f"left out: {Path(each.source).name}" for each in skipped]
    assert found == example.result


def moment(nanoseconds: int) -> str:
    since_1970 = timedelta(microseconds=nanoseconds // 1000)
    return (datetime(1970, 1, 1, tzinfo=UTC) + since_1970).replace(tzinfo=None).isoformat()
