"""Section: what the plan of each run promised, beside what came of it: success, mean, 95 % and 99 %, and how sure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from triagemq.pipeline.report.inputs import Inputs, Run
from triagemq.pipeline.report.page import Section, table_html
from triagemq.pipeline.report.summary import named, nothing
from triagemq.pipeline.report.words import cell, duration, percent, safe

__all__ = ["SHOWN_SUBSCRIPTIONS", "section"]

SHOWN_SUBSCRIPTIONS = 400
"""Rows of all runs together; the tables hold the others."""

_PAIRS = ("success_rate", "mean_latency_seconds", "p95", "p99")
_COLUMNS = (
    "priority_class",
    *_PAIRS,
    *(f"forecast_{name}" for name in _PAIRS),
    "forecast_sampled",
    "forecast_flag",
    "forecast_latency_error",
    "forecast_success_error",
)
_OWN_COLUMNS = (
    "subscription_id",
    "subscriber",
    "topic",
    "max_latency_share",
    "max_latency_seconds",
    "share_within_max_latency",
    "forecast_share_within_max_latency",
    "maximum_utility",
    *_COLUMNS,
)
_HEAD = ("success", "forecast", "mean", "forecast", "95 %", "forecast", "99 %", "forecast")


def section(inputs: Inputs) -> Section:
    """A table by class, and one by subscription."""
    title = "Beside the forecast"
    classes = inputs.rows("class_performance", _COLUMNS)
    runs = [run for run in inputs.runs if run.run_id in classes]
    if not runs:
        return Section(
            "forecast",
            title,
            [nothing("Nothing was delivered or lost: there is nothing to put beside a forecast.")],
        )
    words = (
        "<p>What was measured, and beside it what the forecast of the run's own plan said: the share delivered, its "
        "mean latency, and the times within which 95 % and 99 % of it came. A forecast claims to be within 2 %; where "
        "it does not, the last column says by how much it may be off, and why; where no formula is known, a sample of "
        "events was followed. A run without a plan has no forecast, "
        "nor has one during which conditions changed.</p>"
    )
    by_class = [
        cell(named(run), is_number=False)
        + cell("none" if row["priority_class"] is None else str(row["priority_class"]))
        + _figures(row)
        for run in runs
        for row in sorted(
            classes[run.run_id],
            key=lambda row: -1 if row["priority_class"] is None else row["priority_class"],
        )
    ]
    table = table_html(("run", "class", *_HEAD, "how sure the forecast is"), by_class)
    return Section("forecast", title, [words, table, *_subscriptions(inputs, runs)])


def _subscriptions(inputs: Inputs, runs: list[Run]) -> list[str]:
    table = inputs.table("subscription_performance", _OWN_COLUMNS)
    if table is None:
        return []
    names = {run.run_id: run for run in runs}
    rows, left_out = _most_worth(table, names)
    if not rows:
        return []
    judged = any(row["max_latency_share"] is not None for row in rows)
    lines = []
    for row in rows:
        texts = (
            named(names[row["run_id"]]),
            f"<bdi>{safe(row['subscriber'] or 'subscription {}'.format(row['subscription_id']))}</bdi>",
            f"<bdi>{safe(row['topic'] or '–')}</bdi>",
        )
        level = row["priority_class"]
        lines.append(
            "".join(cell(text, is_number=False) for text in texts)
            + cell("none" if level is None else str(level))
            + (_deadline(row) if judged else "")
            + _figures(row)
        )
    head = ("run", "subscriber", "topic", "class", *(("asked for", "in time", "forecast") if judged else ()))
    which = (
        f"The {len(rows)} subscriptions that are worth most, of {len(rows) + left_out:,}"
        if left_out
        else f"All {len(rows)} subscriptions"
    )
    columns = (*head, *_HEAD, "how sure the forecast is")
    return [table_html(columns, lines, text_columns=3, folded=which)]


def _most_worth(table: pa.Table, names: Mapping[str, Run]) -> tuple[list[dict[str, Any]], int]:
    """As many of each run as there is room for, those first that are worth most; and how many are left out."""
    found: list[dict[str, Any]] = []
    total = 0
    for run_id in names:
        own = table.filter(pc.equal(table["run_id"], run_id))
        worth = pc.fill_null(own["maximum_utility"].cast(pa.float64()), 0.0)
        ranked = own.append_column("worth", worth)
        order = pc.select_k_unstable(
            ranked,
            min(SHOWN_SUBSCRIPTIONS // len(names), own.num_rows),
            [("worth", "descending"), ("subscription_id", "ascending")],
        )
        total += own.num_rows
        found += ranked.take(order).to_pylist()
    return found, total - len(found)


def _deadline(row: dict[str, Any]) -> str:
    if row["max_latency_share"] is None:
        return cell("") * 3
    asked = f"{percent(row['max_latency_share'])} within {duration(row['max_latency_seconds'])}"
    shares = (row["share_within_max_latency"], row["forecast_share_within_max_latency"])
    return cell(asked) + "".join(cell(percent(share)) for share in shares)


def _figures(row: dict[str, Any]) -> str:
    texts = []
    for name in _PAIRS:
        shown = percent if name == "success_rate" else duration
        texts += [shown(row[name]), shown(row[f"forecast_{name}"])]
    return "".join(map(cell, texts)) + cell(_doubt(row), is_number=False)


def _doubt(row: dict[str, Any]) -> str:
    """By how much the forecast may be off, and why; nothing where a formula claims to be right."""
    words = []
    if row["forecast_flag"] is not None:
        off = max(row["forecast_latency_error"] or 0.0, row["forecast_success_error"] or 0.0)
        reason = safe(row["forecast_flag"])
        words.append(f"± {100 * off:.0f} %, {reason}" if off > 0 else reason)
    if row["forecast_sampled"]:
        words.append("sampled")
    return "; ".join(words)
