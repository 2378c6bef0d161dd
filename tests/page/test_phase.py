"""Chromium switches the phase of an incident: the plan has it within a moment, the figures follow, and it is stored."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect
from tests.coordinator.coordinating import make_token
from tests.live.up.exchanging import LONG_SECONDS, TWO_PORTS, Up, ask
from tests.page.browsing import Onlooker, browser, needs_chromium

POLICY = """
phases:
  drill: {picture: 0}
  fire: {picture: 1000}
"""
# On a loaded machine nothing happens at once.
expect.set_options(timeout=60_000)


def _worth(url: str, token: str) -> float:
    with contextlib.suppress(urllib.error.HTTPError):
        rows = ask(url, "/v1/subscriptions?search=picture", token=token)["subscriptions"]
        return float(rows[0]["weight"]) if rows else -1.0
    return -1.0


def _until(url: str, token: str, what: Any) -> None:
    deadline = time.monotonic() + LONG_SECONDS
    while not what(_worth(url, token)):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def _choose(page: Page, phase: str) -> None:
    page.get_by_label("Phase").click()
    page.get_by_role("option", name=phase).click()
    expect(page.locator("text=the next plan has it")).to_be_visible()


@needs_chromium
def test_an_operator_switches_the_phase_on_the_page_and_a_viewer_sees_it(tmp_path: Path) -> None:
    state = tmp_path / "state"
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    with (
        Up(tmp_path, "--state", str(state), "--access", "--policy", str(policy), file=TWO_PORTS) as running,
        browser() as chromium,
    ):
        ready = running.ready()
        url, database = ready["coordinator"], f"sqlite:///{state / 'coordinator.sqlite'}"
        operator, viewer = (make_token(database, role) for role in ("operator", "viewer"))
        _until(url, operator, lambda worth: worth > 0)
        usual = _worth(url, operator)
        commander, looker = (Onlooker(chromium, ready["page"]) for _ in range(2))
        commander.sign_in(operator)
        looker.sign_in(viewer)
        commander.problems.clear()  # The sign-in page has no icon, which a fresh browser notes.
        _choose(commander.go("situation"), "drill")
        _until(url, operator, lambda worth: worth == 0.0)
        page = looker.go("situation")
        shown = page.locator(".q-field--disabled", has_text="Phase")
        expect(shown).to_contain_text("drill")
        request = urllib.request.Request(
            f"{url}/v1/phase",
            json.dumps({"phase": "fire"}).encode(),
            {"Authorization": f"Bearer {operator}", "Content-Type": "application/json"},
            method="PUT",
        )
        urllib.request.urlopen(request, timeout=LONG_SECONDS).close()
        _until(url, operator, lambda worth: worth == 1000 * usual)
        expect(shown).to_contain_text("fire")
        kinds = [
            each["after"]
            for each in ask(url, "/v1/decisions?limit=1000", token=operator)["decisions"]
            if each["kind"] == "phase"
        ]
        assert kinds == ["drill", "fire"]
        assert commander.problems == looker.problems == []
