"""docs/reference has every key of a scenario file: scenario-files.md, promises.md, and the guide of policies theirs."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

import pytest

from triagemq.coordinator.policy.files import PolicyFile
from triagemq.scenario.files.document import FileEntry, ScenarioFile
from triagemq.scenario.files.rows import PUBLICATION_COLUMNS, SUBSCRIPTION_COLUMNS

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"
SAID = {
    word
    for page in ("scenario-files.md", "promises.md", "../guides/policy.md")
    for text in re.findall(r"```yaml.*?```|`[^`\n]+`", (REFERENCE / page).read_text(), re.DOTALL)
    for word in re.findall(r"\w+", text)
}


def entries(kind: type[FileEntry]) -> set[type[FileEntry]]:
    return {kind}.union(*(entries(below) for below in kind.__subclasses__()))


@pytest.mark.parametrize("entry", sorted(entries(FileEntry), key=lambda kind: kind.__name__))
def test_the_pages_have_every_key_of(entry: type[FileEntry]) -> None:
    assert {field.alias or name for name, field in entry.model_fields.items()} <= SAID


def test_all_of_a_file_is_looked_at() -> None:
    assert {ScenarioFile, PolicyFile} <= entries(FileEntry)
    assert len(entries(FileEntry)) > 15


@pytest.mark.parametrize(
    ("table", "columns"), [("publications", PUBLICATION_COLUMNS), ("subscriptions", SUBSCRIPTION_COLUMNS)]
)
def test_the_page_has_the_columns_of_parquet_tables(table: str, columns: Collection[str]) -> None:
    listed = (
        (REFERENCE / "scenario-files.md").read_text().partition(f"`{table}.parquet`: ")[2].partition(".\n")[0]
    )
    assert set(re.findall(r"`(\w+)`", listed.partition(". Null")[0])) == set(columns)
