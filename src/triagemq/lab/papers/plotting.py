"""Draws an experiment's panels: a PNG that needs no display, and the plots of a page that needs no network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from plotly.graph_objects import Bar, Scatter
from plotly.graph_objects import Figure as Page
from plotly.subplots import make_subplots

from triagemq.lab.papers.experiment import Panel, Series
from triagemq.plain import plain

COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#7f7f7f")
PANELS_PER_ROW = 3
PANEL_INCHES = (5.6, 4.4)
DOTS_PER_INCH = 110
PAGE_ROW_PIXELS = 430


def draw_png(path: Path, title: str, panels: tuple[Panel, ...]) -> None:
    """All panels side by side, written as a PNG."""
    rows, columns = _grid(len(panels))
    figure = Figure(
        figsize=(PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows + 0.4),
        dpi=DOTS_PER_INCH,
        layout="constrained",
    )
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    for number, panel in enumerate(panels):
        axes = figure.add_subplot(rows, columns, number + 1)
        axes.set_title(panel.title, fontsize="medium")
        axes.set_xlabel(panel.x_label)
        axes.set_ylabel(panel.y_label)
        for series, colour in zip(panel.series, _colours(panel.series), strict=True):
            _draw(axes, series, colour, bars=panel.bars)
        if panel.logarithmic:
            axes.set_yscale("log")
        if panel.logarithmic_x:
            axes.set_xscale("log")
        if panel.bars:
            for label in axes.get_xticklabels():
                label.set(rotation=30, horizontalalignment="right")
        else:
            axes.legend(fontsize="x-small")
        axes.grid(visible=True, alpha=0.3)
    figure.savefig(path, format="png")


def plots_as_html(panels: tuple[Panel, ...]) -> str:
    """The same panels to explore: an HTML fragment that carries all of plotly with it."""
    rows, columns = _grid(len(panels))
    page = make_subplots(rows=rows, cols=columns, subplot_titles=[panel.title for panel in panels])
    for number, panel in enumerate(panels):
        row, column = number // columns + 1, number % columns + 1
        for series, colour in zip(panel.series, _colours(panel.series), strict=True):
            page.add_trace(_trace(series, colour, bars=panel.bars), row=row, col=column)
        page.update_xaxes(
            title_text=panel.x_label, type="log" if panel.logarithmic_x else None, row=row, col=column
        )
        page.update_yaxes(
            title_text=panel.y_label, type="log" if panel.logarithmic else None, row=row, col=column
        )
    page.update_layout(height=PAGE_ROW_PIXELS * rows, template="plotly_white", showlegend=False)
    return _html(page)


def _html(page: Page) -> str:
    return str(page.to_html(full_html=False, include_plotlyjs=True, config={"displaylogo": False}))


def _grid(panels: int) -> tuple[int, int]:
    """Rows and columns, as full as they get.

    >>> _grid(2), _grid(4), _grid(5)
    ((1, 2), (2, 2), (2, 3))
    """
    rows = -(-panels // PANELS_PER_ROW)
    return rows, -(-panels // rows)


def _colours(series: tuple[Series, ...]) -> list[str]:
    """A colour for each subject: what is named "x, forecast" or "x, printed" takes the colour of "x"."""
    subjects: list[str] = []
    for each in series:
        subject = each.name.partition(",")[0]
        if subject not in subjects:
            subjects.append(subject)
    return [COLOURS[subjects.index(each.name.partition(",")[0]) % len(COLOURS)] for each in series]


def _draw(axes: Any, series: Series, colour: str, *, bars: bool) -> None:
    if bars:
        axes.bar(series.x, series.y, color=colour, label=series.name)
        return
    line = {"line": "-", "dashed": "--", "marks": ""}[series.style]
    marker = {"line": "o" if len(series.x) <= 20 else "", "dashed": "", "marks": "x"}[series.style]
    axes.plot(
        series.x, series.y, linestyle=line, marker=marker, markersize=5, color=colour, label=series.name
    )


def _trace(series: Series, colour: str, *, bars: bool) -> Any:
    gaps = plain(series.y)
    if bars:
        return Bar(x=list(series.x), y=gaps, name=series.name, marker_color=colour)
    return Scatter(
        x=list(series.x),
        y=gaps,
        name=series.name,
        mode={"line": "lines+markers", "dashed": "lines", "marks": "markers"}[series.style],
        line={"color": colour, "dash": "dash" if series.style == "dashed" else "solid"},
        marker={"symbol": "x" if series.style == "marks" else "circle", "size": 7},
        hovertemplate=f"{series.name}<br>%{{x}}: %{{y:.4g}}<extra></extra>",
    )
