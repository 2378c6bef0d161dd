"""What templates make of records: names are escaped, what is not known is a dash, deadlines are met or not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from triagemq.client.coordinator import Promise
from triagemq.coordinator.loop.figures import SubscriptionFigures
from triagemq.coordinator.subscriptions import SubscriptionPage, SubscriptionView
from triagemq.page.frame import render


def _row(**more: Any) -> SubscriptionView:
    usual: dict[str, Any] = {
        "subscriber": "crew",
        "topic": "hall/<b>smoke</b>",
        "utility": "log:10",
        "weight": 10.0,
        "priority_class": 0,
        "drop_rate": 0.0,
        "promised": False,
        "max_latency_seconds": None,
        "max_latency_share": None,
        "measured": None,
        "forecast": None,
    }
    return SubscriptionView(**usual | more)


def _table(row: SubscriptionView, *, may_change: bool = True) -> str:
    return render(
        "subscriptions_table.html",
        page=SubscriptionPage(1, 1, [row]),
        order="rank",
        descending=False,
        offset=0,
        rows=20,
        marked=None,
        may_change=may_change,
    )


def test_a_subscription_that_is_neither_measured_nor_forecast_is_shown_and_its_name_is_no_markup() -> None:
    page = _table(_row())
    assert "hall/&lt;b&gt;smoke" in page
    assert "<b>smoke" not in page


def test_only_who_may_change_has_something_to_change_with() -> None:
    assert 'data-do="worth"' in _table(_row())
    assert 'data-do="worth"' not in _table(_row(), may_change=False)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, "–"),
        ({"max_latency_seconds": 0.5, "measured": 0.1}, "500 ms met"),
        ({"max_latency_seconds": 0.5, "measured": 0.9}, "500 ms missed"),
        ({"max_latency_seconds": 0.5, "forecast": {"p95_seconds": 0.2}}, "500 ms met"),
        (
            {
                "max_latency_seconds": 0.5,
                "max_latency_share": 0.9,
                "forecast": {"p95_seconds": 0.7, "share_within_max_latency": 0.92},
            },
            "500 ms met",
        ),
        ({"promised": True, "forecast": {"mean_latency_seconds": 0.004}}, "bound 4 ms"),
    ],
)
def test_a_deadline_is_met_or_missed_and_a_promise_has_its_bound(more: dict[str, Any], words: str) -> None:
    tail = more.pop("measured", None)
    if tail is not None:
        more = more | {"measured": SubscriptionFigures(0, 60.0, 1.0, 1.0, tail, tail, tail, ())}
    assert words in _table(_row(**more))


def test_a_promise_is_shown_with_what_is_to_spare_and_a_refusal_with_what_could_be_had() -> None:
    kept = Promise("crew", "pulse", "pump", True, 0.02, bound_seconds=0.005, slack_seconds=0.015)
    refused = Promise("press", "pulse", "pump", False, 0.001, reason="too late", offer_seconds=0.006)
    page = render("promises.html", admitted=[kept], refused=[refused], more=0)
    for words in ("5 ms", "15 ms", "6 ms", "too late"):
        assert words in page


def test_every_part_of_the_overview_can_be_shown_before_there_is_anything() -> None:
    for name in ("cards", "ports", "classes", "decisions"):
        assert "class=" in render(f"overview_{name}.html", now=None, readings=None, decisions=[])


@pytest.mark.parametrize(("load", "is_marked"), [(None, False), (1.19, False), (1.21, True), (17.0, True)])
def test_a_load_beyond_the_scale_of_its_bar_is_marked(load: float | None, is_marked: bool) -> None:
    port = SimpleNamespace(
        port="radio", sent_bps=1e5, bandwidth_bps=1e5, backlog_packets=0, dropped_by_buffer_per_second=0.0,
        load=load, tolerance=0.9, rho_offered=load, rho_planned=0.9,
    )  # fmt: skip
    page = render(
        "overview_ports.html",
        now=SimpleNamespace(ports=[port]),
        readings=SimpleNamespace(series={("port", "radio"): [0.9]}),
    )
    assert ('class="beyond"' in page) == is_marked
