"""Generate the tables of docs/background from the findings of `triage reproduce`: `python docs/tables.py`.

A table stands between two comments of a page. The first names the experiment and the part of its findings:

    <!-- triage reproduce midas 8: printed -->
    <!-- end -->

`printed` compares the paper's figures with ours, with reasons; `table 2` is the second table that the command prints.
The same seeds give the same figures, so a second run changes nothing. Execution times and real packets are omitted,
because they vary.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from triagemq.lab.papers import Findings, PrintedTable, reproduce

PAGES = sorted((Path(__file__).parent / "background").glob("*.md"))
MARKED = re.compile(
    r"(?P<head><!-- triage reproduce (?P<paper>\S+) (?P<figure>\S+): (?P<part>printed|table \d+) -->\n)"
    r"(?P<body>.*?)(?P<tail><!-- end -->)",
    re.DOTALL,
)


def experiments_of(text: str) -> list[tuple[str, str]]:
    """The experiments whose tables a page has, each once."""
    return list(dict.fromkeys((each["paper"], each["figure"]) for each in MARKED.finditer(text)))


def remade(text: str, findings: Callable[[str, str], Findings | None]) -> str:
    """The page with new tables; those of experiments without findings stay."""

    def make(marked: re.Match[str]) -> str:
        found = findings(marked["paper"], marked["figure"])
        if found is None:
            return marked[0]
        return f"{marked['head']}{as_markdown(_part(found, marked['part']))}{marked['tail']}"

    return MARKED.sub(make, text)


def _part(found: Findings, part: str) -> PrintedTable:
    if part != "printed":
        return found.tables[int(part.removeprefix("table ")) - 1]
    rows = tuple(
        (each.subject, each.printed, each.ours, each.why) for each in found.differences if not each.timed
    )
    return PrintedTable("", ("", "printed", "ours", "why"), rows)


def as_markdown(table: PrintedTable) -> str:
    rows = (table.columns, ("---",) * len(table.columns), *table.rows)
    lines = "".join(_line(row) for row in rows)
    return f"{table.title[:1].upper()}{table.title[1:]}:\n\n{lines}" if table.title else lines


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Make the tables of docs/background anew.")
    parser.add_argument("experiments", nargs="*", help="such as 'midas 8'; all if none is named")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a page would change")
    options = parser.parse_args(arguments)
    made: dict[tuple[str, str], Findings] = {}

    def findings(paper: str, figure: str) -> Findings | None:
        if options.experiments and f"{paper} {figure}" not in options.experiments:
            return None
        if (paper, figure) not in made:
            print(f"triage reproduce {paper} {figure}", flush=True)
            made[paper, figure] = reproduce(paper, figure).findings
        return made[paper, figure]

    changed = []
    for page in PAGES:
        remade(page.read_text(encoding="utf-8"), findings)
        # Experiments take minutes, in which the page may have been edited.
        before = page.read_text(encoding="utf-8")
        after = remade(before, findings)
        if after != before:
            changed.append(page.name)
            if not options.check:
                page.write_text(after, encoding="utf-8")
    print(f"{'would change' if options.check else 'changed'}: {', '.join(changed) or 'nothing'}")
    return int(options.check and bool(changed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
