"""Chromium drives the page of a live `triage up`: sign in, look, subscribe, change what it is worth, suppose, apply."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

from playwright.sync_api import Locator, Page, expect
from tests.coordinator.coordinating import make_token
from tests.live.up.exchanging import TWO_PORTS, Up, ask
from tests.page.browsing import PATHS, Onlooker, browser, needs_chromium

TOPIC = "picture"
# On a loaded machine nothing happens at once.
expect.set_options(timeout=60_000)


@needs_chromium
def test_an_operator_runs_an_incident_from_the_page_and_a_viewer_looks_on(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with (
        Up(tmp_path, "--state", str(state), "--access", file=TWO_PORTS) as running,
        browser() as chromium,
    ):
        ready = running.ready()
        database = f"sqlite:///{state / 'coordinator.sqlite'}"
        operator, viewer = (make_token(database, role) for role in ("operator", "viewer"))
        _a_viewer_may_look_and_not_change(Onlooker(chromium, ready["page"]), viewer)
        subscriber = Onlooker(chromium, ready["page"])
        subscriber.sign_in(operator)
        _figures_are_live(subscriber.page)
        _what_a_subscription_is_worth_decides_what_it_gets(subscriber)
        _what_is_supposed_is_forecast_and_applied(subscriber, ready["coordinator"], operator)
        for path in PATHS:
            subscriber.go(path)
        _a_telephone_shows_it_within_a_few_screens(subscriber)
        assert subscriber.problems == []
        _what_is_old_says_so(subscriber, ready["pids"])
        _a_restart_signs_nobody_out(subscriber, ready["pids"]["coordinator"])
        subscriber.problems.clear()  # The browser notes that the coordinator was away, which is meant.
        subscriber.context.clear_cookies()
        subscriber.page.goto(f"{ready['page']}/network")
        expect(subscriber.page.locator("#token")).to_be_visible()
        assert subscriber.problems == []


def _a_viewer_may_look_and_not_change(subscriber: Onlooker, token: str) -> None:
    subscriber.sign_in("triage_nobody")
    expect(subscriber.page.locator("[role=alert]")).to_contain_text("no token that is valid")
    subscriber.problems.clear()  # The browser notes the refusal, which is meant.
    subscriber.sign_in(token)
    expect(subscriber.page.locator("header")).to_contain_text("viewer")
    page = subscriber.go("subscriptions")
    expect(page.locator("tr[data-topic]").first).to_be_visible()
    expect(page.get_by_role("button", name="Subscribe", exact=True)).to_have_count(0)
    expect(page.locator("[data-do=worth]")).to_have_count(0)
    page = subscriber.go("what-if")
    expect(page.locator(".nothing")).to_contain_text("not an operator's")
    expect(page.locator(".apply")).to_have_count(0)
    assert subscriber.problems == []
    subscriber.context.close()


def _figures_are_live(page: Page) -> None:
    published = page.locator("#published")
    expect(published).to_have_text(re.compile(r"[1-9]\d* */s"))
    before = published.inner_text()
    expect(published).not_to_have_text(before)
    expect(page.locator("#captured")).to_contain_text(re.compile(r"\d %"))
    expect(page.locator("text=radio").first).to_be_visible()


def _what_a_subscription_is_worth_decides_what_it_gets(subscriber: Onlooker) -> None:
    page = subscriber.go("subscriptions")
    page.get_by_role("button", name="Subscribe", exact=True).click()
    page.get_by_label("Topic or pattern").fill(TOPIC)
    page.get_by_label("Output port").click()
    page.get_by_role("option", name="radio").click()
    dialog = page.get_by_role("dialog")
    _push(dialog.get_by_role("slider"), 0.0)
    dialog.locator(".confirm").click()
    expect(dialog).to_have_count(0)
    row = page.locator(f"tr[data-subscriber=operator][data-topic='{TOPIC}']")
    page.get_by_label("Search").fill("operator")
    # Next to nothing is worth next to no bandwidth.
    expect(row.locator(".success")).to_have_text(re.compile(r"^\s*\d?\d\.\d %"))
    assert _level(row) > 0
    row.locator("[data-do=why]").click()
    expect(page.locator(".words")).to_contain_text("Forecast")
    page.get_by_role("button", name="Close").click()
    row.locator("[data-do=worth]").click()
    before = _success(row)
    _push(page.get_by_label("worth"), 1.0)
    expect(row.locator(".level")).to_have_text("0")
    page.wait_for_function(
        "([place, before]) => parseFloat(document.querySelector(place).innerText) > before",
        arg=[f"tr[data-subscriber=operator][data-topic='{TOPIC}'] .success", before],
    )
    expect(page.locator(".news")).to_contain_text("operator")
    page.get_by_role("button", name="Done").click()
    row.locator("[data-do=end]").click()
    expect(row).to_have_count(0)


def _push(slider: Locator, share: float) -> None:
    """To a place of it, as with a finger."""
    box = slider.bounding_box()
    assert box is not None
    slider.click(position={"x": max(1.0, share * box["width"] - 1), "y": box["height"] / 2})


def _level(row: Locator) -> int:
    return int(row.locator(".level").inner_text())


def _success(row: Locator) -> float:
    return float(row.locator(".success").inner_text().split()[0])


def _what_is_supposed_is_forecast_and_applied(subscriber: Onlooker, url: str, token: str) -> None:
    page = subscriber.go("what-if")
    supposed = page.locator("#supposed")
    expect(supposed).to_be_visible()
    before = supposed.inner_text()
    # From as it is to four times as much.
    _push(page.get_by_label("Bandwidth of radio"), 1.0)
    expect(supposed).not_to_have_text(before)
    page.locator(".apply").click()
    expect(page.get_by_text("Applied: the next plan has it")).to_be_visible()
    ports = {port["name"]: port["bandwidth_bps"] for port in ask(url, "/v1/ports", token=token)}
    assert ports["radio"] == 4 * 60_000
    # The page follows: what was supposed is what is, without being loaded anew.
    expect(page.get_by_text("240 kbit/s")).to_be_visible()
    now = page.locator("#now")
    expect(now).to_have_text(supposed.inner_text())
    noted = ask(url, "/v1/decisions?latest=true&limit=1000", token=token)["decisions"]
    applied = next(each for each in noted if each["kind"] == "bandwidth")
    assert (applied["before"], applied["after"]) == ("60000 bit/s", "240000 bit/s")
    assert "by test" in applied["reason"]
    assert "forecast" in applied["reason"]
    assert any(each["kind"] == "worth" and "by test" in each["reason"] for each in noted)


def _a_telephone_shows_it_within_a_few_screens(subscriber: Onlooker) -> None:
    subscriber.page.set_viewport_size({"width": 400, "height": 800})
    page = subscriber.go("")
    expect(page.locator("table.classes")).to_be_visible()
    expect(page.locator("table.stacked")).to_be_visible()
    height, width = page.evaluate(
        "[document.documentElement.scrollHeight, document.documentElement.scrollWidth]"
    )
    assert height < 4_000
    assert width <= 400
    page.set_viewport_size({"width": 1280, "height": 900})


def _what_is_old_says_so(subscriber: Onlooker, pids: dict[str, int]) -> None:
    page = subscriber.go("situation")
    expect(page.locator(".chip.good").first).to_be_visible()
    for process, words in (("gateway", "Figures of traffic are"), ("coordinator", "No contact since")):
        os.kill(pids[process], signal.SIGSTOP)
        try:
            expect(page.locator(".contact", has_text=words)).to_be_visible()
            expect(page.locator("header")).not_to_contain_text("All works", use_inner_text=True)
            assert "fresh" not in page.inner_text("body")
        finally:
            os.kill(pids[process], signal.SIGCONT)
        expect(page.locator(".contact", has_text=words)).to_be_hidden()
        expect(page.locator(".chip.good").first).to_be_visible()


def _a_restart_signs_nobody_out(subscriber: Onlooker, coordinator: int) -> None:
    page = subscriber.page
    page.evaluate("window.before = true")
    os.kill(coordinator, signal.SIGKILL)
    # The browser finds the new one by itself, loads its page, and is who it was.
    page.wait_for_function("window.before === undefined")
    expect(page.locator("header")).to_contain_text("operator")
    expect(page.locator("#token")).to_have_count(0)
