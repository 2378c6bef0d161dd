"""Pictures of every page, light and dark, of a live building fire: what docs/images holds.

python benchmarks/page_pictures.py docs/images
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from playwright.async_api import Browser, ViewportSize, async_playwright

from triagemq.live.up.exchange import Exchange, ExchangeOptions

PAGES = {
    "overview": "",
    "subscriptions": "subscriptions",
    "situation": "situation",
    "network": "network",
    "what-if": "what-if",
    "history": "history",
    "promises": "promises",
}
FIRE = Path(__file__).parents[1] / "examples" / "building-fire.yaml"
_TABLET: ViewportSize = {"width": 1180, "height": 820}


async def take(directory: Path, seconds: float, tables: Path | None, names: Sequence[str]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        options = ExchangeOptions(state=Path(folder) / "state", scenario=FIRE, tables=tables)
        async with Exchange(options) as exchange, async_playwright() as playwright:
            await exchange.start_clients()
            assert exchange.page is not None, "NiceGUI is not installed"
            sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
            chromium = await playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=sandbox
            )
            await _look(chromium, exchange.page, seconds)
            for name, path in ((name, PAGES[name]) for name in names):
                for scheme in ("light", "dark"):
                    await _picture(
                        chromium, f"{exchange.page}/{path}", scheme, directory / f"page-{name}-{scheme}.png"
                    )
            await chromium.close()


async def _look(chromium: Browser, address: str, seconds: float) -> None:
    """So that lines have something to show."""
    page = await chromium.new_page()
    await page.goto(f"{address}/")
    await asyncio.sleep(seconds)
    await page.close()


async def _picture(chromium: Browser, address: str, scheme: str, target: Path) -> None:
    context = await chromium.new_context(
        viewport=_TABLET, color_scheme="dark" if scheme == "dark" else "light"
    )
    page = await context.new_page()
    await page.goto(address)
    await page.wait_for_selector("h1")
    await asyncio.sleep(4.0)
    await page.screenshot(path=target)
    await context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument(
        "--for", dest="seconds", type=float, default=90.0, help="seconds of fire before the first"
    )
    parser.add_argument(
        "--only", action="append", choices=list(PAGES), help="one of the pages; may be repeated"
    )
    parser.add_argument("--tables", type=Path, help="finished tables, for the page of history")
    arguments = parser.parse_args()
    asyncio.run(take(arguments.directory, arguments.seconds, arguments.tables, arguments.only or [*PAGES]))


if __name__ == "__main__":
    main()
