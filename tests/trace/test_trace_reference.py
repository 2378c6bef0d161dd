"""docs/reference/trace.md and the schema say the same: tables, columns and outcomes."""

from __future__ import annotations

import re
from pathlib import Path

from triagemq.trace import TABLES, Outcome

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "trace.md").read_text()


def test_the_page_has_every_table_with_its_columns_in_their_order() -> None:
    rows = re.findall(r"^\| (\w+) \| [^|]+ \| ([^|(]+)", PAGE, re.MULTILINE)
    shown = {name: columns.strip().split(", ") for name, columns in rows if name != "table"}
    assert shown == {name: schema.names for name, schema in TABLES.items()}


def test_the_page_has_every_outcome() -> None:
    listed = PAGE.partition("Outcomes: ")[2].partition(".")[0]
    assert re.findall(r"\w+", listed) == [outcome.name for outcome in Outcome]
