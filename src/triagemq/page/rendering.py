"""Templates with their filters, small drawings, and the style sheet."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Iterable, Sequence
from importlib.resources import files

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from triagemq.pipeline.report.figures import LEVELS
from triagemq.pipeline.report.formatting import FILTERS


def clock_time(decided_ns: int) -> str:
    """Of the day, on this machine's clock."""
    return time.strftime("%H:%M:%S", time.localtime(decided_ns / 1e9))


def level_colour(priority_class: int) -> str:
    """The colour that a class has in the report, too."""
    return f"var(--level-{min(max(priority_class, 0), LEVELS - 1)})"


def sparkline(
    values: Iterable[float | None], width: int = 110, height: int = 26, highest: float | None = None
) -> Markup:
    """A line through the values; what is not known is a gap.

    >>> str(sparkline([0, 1, None, 2])).count("M")
    2
    """
    points = list(values)
    known = [value for value in points if value is not None]
    if len(known) < 2:
        return Markup('<svg class="spark" width="{}" height="{}"></svg>').format(width, height)
    top = max(highest or 0.0, *known) or 1.0
    step = width / max(len(points) - 1, 1)
    path, pen = [], "M"
    for place, value in enumerate(points):
        if value is None:
            pen = "M"
            continue
        path.append(f"{pen}{place * step:.1f} {height - 2 - value / top * (height - 4):.1f}")
        pen = "L"
    return Markup(
        '<svg class="spark" width="{}" height="{}" viewBox="0 0 {} {}" preserveAspectRatio="none" '
        'aria-hidden="true"><path d="{}"/></svg>'
    ).format(width, height, width, height, " ".join(path))


def stacked(rows: Sequence[Sequence[float]], width: int = 640, height: int = 180) -> Markup:
    """Areas on top of one another, one for each class, with the highest total."""
    if len(rows) < 2:
        return Markup("")
    depth = max(len(row) for row in rows)
    totals = [[sum(row[: level + 1]) for row in rows] for level in range(depth)]
    top = max(totals[-1]) or 1.0
    step = width / (len(rows) - 1)

    def line(values: Sequence[float]) -> list[str]:
        return [
            f"{place * step:.1f} {height - value / top * (height - 6):.1f}"
            for place, value in enumerate(values)
        ]

    drawn, below = Markup(""), [f"{width} {height}", f"0 {height}"]
    for level, values in enumerate(totals):
        above = line(values)
        drawn += Markup('<polygon style="fill:{}" points="{}"/>').format(
            level_colour(level), " ".join([*above, *below]).replace("  ", " ")
        )
        below = above[::-1]
    return Markup('<svg class="areas" viewBox="0 0 {} {}" preserveAspectRatio="none">{}</svg>').format(
        width, height, drawn
    )


def decision_words(kind: str) -> str:
    """What a kind of decision is called.

    >>> decision_words("slow_down")
    'Slow down'
    """
    return kind.replace("_", " ").capitalize()


@functools.cache
def _templates() -> Environment:
    # Names may hold anything: they are escaped wherever a template puts them.
    made = Environment(
        loader=PackageLoader("triagemq.page"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    own = (clock_time, level_colour, sparkline, stacked, decision_words)
    made.filters |= FILTERS | {each.__name__: each for each in own}
    return made


def render(template: str, **what: object) -> str:
    """A template as HTML."""
    return _templates().get_template(template).render(**what)


@functools.cache
def script() -> str:
    """What the browser does by itself: it says when it has lost contact."""
    return files("triagemq.page").joinpath("templates/page.js").read_text(encoding="utf-8")


@functools.cache
def style_sheet() -> str:
    """The report's colours for light and dark, as the page switches between them, and the page's own rules."""
    report = files("triagemq.pipeline.report").joinpath("templates/page.css").read_text(encoding="utf-8")
    light, dark = re.findall(r":root \{(.*?)\}", report, re.DOTALL)[:2]
    own = files("triagemq.page").joinpath("templates/page.css").read_text(encoding="utf-8")
    return f"body {{{light}}}\nbody.body--dark {{{dark}}}\n{own}"
