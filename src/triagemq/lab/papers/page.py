"""Writes what an experiment found: a PNG, and one HTML page with plots, tables and differences."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

from triagemq.errors import OutputError
from triagemq.lab.papers.experiment import Findings, PrintedTable

STYLE = """
body { font-family: system-ui, sans-serif; margin: 2rem auto; max-width: 78rem; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0 2rem; }
caption { text-align: left; font-weight: 600; padding-bottom: .4rem; }
th, td { border-bottom: 1px solid #ddd; padding: .25rem .8rem; text-align: right; }
th:first-child, td:first-child { text-align: left; }
dt { font-weight: 600; margin-top: 1rem; }
"""


@dataclass(frozen=True, slots=True)
class Files:
    """Where the plots of one run are."""

    png: Path
    html: Path


def write_files(directory: Path, name: str, title: str, findings: Findings) -> Files:
    """Write NAME.png and NAME.html into the directory, which is made if it is not there."""
    from triagemq.lab.papers.plotting import draw_png, plots_as_html

    files = Files(directory / f"{name}.png", directory / f"{name}.html")
    plots = plots_as_html(findings.panels)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        draw_png(files.png, title, findings.panels)
        files.html.write_text(_page(title, plots, findings), encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{directory}: {error.strerror or error}; choose another --out") from error
    return files


def _page(title: str, plots: str, findings: Findings) -> str:
    differences = "".join(
        f"<dt>{escape(each.subject)}</dt><dd>printed: {escape(each.printed)}<br>ours: {escape(each.ours)}<br>"
        f"{escape(each.why)}</dd>"
        for each in findings.differences
    )
    claims = "".join(
        f"<li>{'holds' if each.holds else '<b>does not hold</b>'}: {escape(each.statement)} ({escape(each.worst)})</li>"
        for each in findings.claims
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head><body><h1>{escape(title)}</h1>{plots}"
        f"{''.join(_table(each) for each in findings.tables)}"
        f"<h2>Differences</h2><dl>{differences}</dl><h2>What ours must show</h2><ul>{claims}</ul></body></html>\n"
    )


def _table(table: PrintedTable) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    return f"<table><caption>{escape(table.title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
