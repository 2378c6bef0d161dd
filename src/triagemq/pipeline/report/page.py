"""The page: sections and figures as one HTML document that fetches nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from triagemq import __version__
from triagemq.pipeline.report.words import safe

__all__ = ["Figure", "Section", "page", "table_html"]

LONGEST_NOTE = 2000

# Even if a name slipped through as markup, a browser would load nothing for it.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing for Plotly. Colours are variables of the style sheet (`--series-0`), filled in by the page."""

    title: str
    caption: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    height: int = 340


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, and below it HTML and figures in their order. `identifier` is where links lead."""

    identifier: str
    title: str
    parts: list[str | Figure] = field(default_factory=list)


GENERATOR = '<meta name="generator" content="TriageMQ">'
"""By this line a page that may be replaced is told from somebody else's."""


def page(title: str, notes: Sequence[str], sections: Sequence[Section]) -> str:
    """The whole document; Plotly's program is in it once, and only if something is drawn."""
    figures: list[Figure] = []
    content = "\n".join(_section(section, figures) for section in sections)
    links = "".join(f'<a href="#{section.identifier}">{section.title}</a>' for section in sections)
    paragraphs = "".join(f'<p class="note">{safe(note, LONGEST_NOTE)}</p>' for note in notes)
    drawing = ""
    if figures:
        drawn = _json([{"data": figure.data, "layout": figure.layout} for figure in figures])
        drawing = (
            f"<script>{_plotly()}</script>\n"
            f'<script type="application/json" id="figures">{drawn}</script>\n'
            f"<script>{_file('page.js')}</script>"
        )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
{GENERATOR}
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{safe(title, 200)}</title>
<style>{_file("page.css")}</style>
</head>
<body>
<header><h1>{safe(title, 200)}</h1>{paragraphs}<nav>{links}</nav></header>
<main>
<noscript><p class="nothing">The figures need JavaScript; the tables below hold their main numbers.</p></noscript>
{content}
</main>
<footer>Made by TriageMQ {__version__} from its tables. This file is complete: it loads nothing.</footer>
{drawing}
</body>
</html>
"""


def table_html(head: Sequence[str], rows: Sequence[str], *, text_columns: int = 1, folded: str = "") -> str:
    """A table from cells that are HTML already; `folded` puts it behind a line to click on."""
    names = "".join(
        f'<th scope="col"{"" if place < text_columns else " class=number"}>{name}</th>'
        for place, name in enumerate(head)
    )
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    table = f'<div class="table"><table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table></div>'
    return f"<details><summary>{folded}</summary>{table}</details>" if folded else table


def _section(section: Section, figures: list[Figure]) -> str:
    parts = []
    for part in section.parts:
        if isinstance(part, str):
            parts.append(part)
            continue
        parts.append(
            f"<figure><h3>{part.title}</h3>"
            f'<div class="plot" id="figure-{len(figures)}" style="height:{part.height}px"></div>'
            + (f"<figcaption>{part.caption}</figcaption>" if part.caption else "")
            + "</figure>"
        )
        figures.append(part)
    return (
        f'<section id="{section.identifier}"><h2>{section.title}</h2>\n' + "\n".join(parts) + "\n</section>"
    )


def _json(value: Any) -> str:
    """For a script element, which ends at the first `</script`, wherever that stands."""
    text = json.dumps(_finite(value), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(value: Any) -> Any:
    """Five digits are more than a figure can show, and halve the size of the page."""
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return value


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    program: str = get_plotlyjs()
    return program.replace("</script", "<\\/script")
