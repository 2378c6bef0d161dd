"""Pictures of every page, light and dark, of a live building fire: what docs/images holds.

The tables of the history are those of the same fire.

python benchmarks/page_pictures.py docs/images
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from playwright.async_api import Browser, Page, ViewportSize, async_playwright

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


async def take(directory: Path, seconds: float, names: Sequence[str]) -> None:
    """Everything but the history is of a run, and the history is of that run when it has ended."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        options = ExchangeOptions(state=Path(folder) / "state", scenario=FIRE)
        async with Exchange(options) as exchange:
            await exchange.start_clients()
            await _take(exchange, directory, [name for name in names if name != "history"], seconds)
        if "history" in names:
            await _make_tables(exchange.trace, options.state / "tables")
            async with Exchange(options) as exchange:
                await _take(exchange, directory, ["history"], 0.0)


async def _make_tables(trace: Path, tables: Path) -> None:
    command = Path(sys.executable).with_name("triage")
    made = await asyncio.create_subprocess_exec(command, "pipeline", "run", trace, "--out", tables)
    if await made.wait():
        raise SystemExit("the pipeline made no tables")


async def _take(exchange: Exchange, directory: Path, names: Sequence[str], seconds: float) -> None:
    assert exchange.page is not None, "NiceGUI is not installed"
    async with async_playwright() as playwright:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        chromium = await playwright.chromium.launch(executable_path=shutil.which("chromium"), args=sandbox)
        await _look(chromium, exchange.page, seconds)
        for name in names:
            for scheme in ("light", "dark"):
                target = directory / f"page-{name}-{scheme}.png"
                await _picture(chromium, f"{exchange.page}/{PAGES[name]}", scheme, target)
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
    if address.endswith("what-if"):
        await _suppose(page)
    await asyncio.sleep(4.0)
    await page.screenshot(path=target)
    await context.close()


async def _suppose(page: Page) -> None:
    """Half as much again of the first port's bandwidth, so that there is something to compare."""
    await page.wait_for_selector("#supposed")
    slider = page.get_by_role("slider").first
    box = await slider.bounding_box()
    assert box is not None
    await slider.click(position={"x": 0.65 * box["width"], "y": box["height"] / 2})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument(
        "--for", dest="seconds", type=float, default=90.0, help="seconds of fire before the first"
    )
    parser.add_argument(
        "--only", action="append", choices=list(PAGES), help="one of the pages; may be repeated"
    )
    arguments = parser.parse_args()
    asyncio.run(take(arguments.directory, arguments.seconds, arguments.only or [*PAGES]))


if __name__ == "__main__":
    main()
