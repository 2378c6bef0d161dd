"""Numbers, words and small drawings as HTML: templates with their filters, lines of figures, and the style sheet."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files

from jinja2 import Environment, PackageLoader, Undefined
from markupsafe import Markup

from triagemq.pipeline.report.figures import LEVELS
from triagemq.pipeline.report.formatting import FILTERS, UNKNOWN, number

_RATES = {"Gbit/s": 1e9, "Mbit/s": 1e6, "kbit/s": 1e3, "bit/s": 1.0}


def bit_rate(bps: float | None) -> str:
    """Bits a second in the unit that a person would use.

    >>> bit_rate(495_000), bit_rate(None)
    ('495 kbit/s', '–')
    """
    if bps is None:
        return UNKNOWN
    unit = next((unit for unit, worth in _RATES.items() if bps >= worth), "bit/s")
    return f"{number(bps / _RATES[unit])} {unit}"


def load(share: float | None) -> str:
    """The load of a port, in whole percent.

    >>> load(1.00036), load(None)
    ('100 %', '–')
    """
    return UNKNOWN if share is None else f"{100 * share:.0f} %"


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
    """Areas on top of one another, one for each class, with the highest total beside them."""
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


_DECISIONS = {
    "replanned": "New plan",
    "plan_kept": "Plan kept",
    "treated_differently": "Treated differently",
    "port_overloaded": "Port overloaded",
    "port_relieved": "Port relieved",
    "planned_by_forecast": "Planned by forecast",
    "not_planned_by_forecast": "Not planned by forecast",
    "admitted": "Promise admitted",
    "refused": "Refused",
    "released": "Promise released",
    "limited": "Publisher cut",
    "foreign": "Stranger at a promise",
    "moved": "Moved",
    "joined": "Gateway joined",
    "lease ended": "Client vanished",
    "token ended": "Token ended",
    "class_zero_dropped": "Class 0 thinned out",
    "drop_policy": "Drop policy",
}


def decision_words(kind: str) -> str:
    """What a kind of decision is called.

    >>> decision_words("replanned"), decision_words("slow_down")
    ('New plan', 'Slow down')
    """
    return _DECISIONS.get(kind, kind.replace("_", " ").capitalize())


@functools.cache
def _templates() -> Environment:
    # Names may hold anything: they are escaped wherever a template puts them.
    made = Environment(
        loader=PackageLoader("triagemq.page"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    own: dict[str, Callable[..., object]] = {
        "bit_rate": bit_rate,
        "load": load,
        "clock_time": clock_time,
        "level_colour": level_colour,
        "sparkline": sparkline,
        "stacked": stacked,
        "decision_words": decision_words,
    }
    made.filters |= {name: _of_known(each) for name, each in {**FILTERS, **own}.items()}
    return made


def _of_known(say: Callable[..., object]) -> Callable[..., object]:
    """What a record does not have is not known."""

    def said(value: object, *more: object, **options: object) -> object:
        return say(None if isinstance(value, Undefined) else value, *more, **options)

    return said


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
