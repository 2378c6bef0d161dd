"""Chromium for tests of the page: a session that notes what goes wrong in the browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")

PATHS = ("", "subscriptions", "situation", "network", "what-if", "history", "promises")
_PATIENCE_MS = 60_000


@contextmanager
def browser() -> Iterator[Browser]:
    """Debian's Chromium; nothing is downloaded."""
    with sync_playwright() as playwright:
        # Whoever is root has no use for a sandbox that only others can make.
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        yield started
        started.close()


class Onlooker:
    """One session with cookies of its own; `problems` are errors on its console and requests that failed."""

    def __init__(self, started: Browser, address: str, **options: Any) -> None:
        self.address = address
        self.problems: list[str] = []
        options = {"viewport": {"width": 1280, "height": 900}, **options}
        self.context = started.new_context(**options)
        self.context.set_default_timeout(_PATIENCE_MS)
        self.page: Page = self.context.new_page()
        self.page.on("console", lambda said: self._note(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self._note(str(error)))
        self.page.on("request", self._only_from_here)

    def _note(self, words: str) -> None:
        self.problems.append(words)

    def _only_from_here(self, request: Any) -> None:
        """The page is for machines without a way to anywhere else."""
        if not request.url.startswith((self.address.rpartition("/")[0], "data:", "blob:")):
            self.problems.append(f"asked for {request.url}")

    def go(self, path: str) -> Page:
        """Open a page, and wait until it lives."""
        self.page.goto(f"{self.address}/{path}")
        self.page.wait_for_selector("h1")
        return self.page

    def sign_in(self, token: str) -> None:
        self.page.goto(f"{self.address}/")
        self.page.fill("#token", token)
        self.page.click("button[type=submit]")
