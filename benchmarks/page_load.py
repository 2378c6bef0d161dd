"""The page of an exchange with thousands of subscriptions: how soon it is there, what it costs, and whom it holds up.

Real clients publish and subscribe all the while. Class 0 is measured without and with three open pages, in turns; the
cost of the page is what the coordinator's process takes more while they are open. The page is first opened once:
NiceGUI is loaded then, which takes a second or two and is told apart.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import statistics
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page, async_playwright

from gateway_speed import cpu_seconds
from measuring import finish, machine, options
from triagemq.live.up.exchange import Exchange, ExchangeOptions

PUBLICATIONS_PER_SECOND = 200.0
LIMITS = {"interactive_seconds": 2.0, "page_cpu_share": 0.20}
PATHS = ("", "subscriptions", "situation", "network", "what-if")
TURNS = 2
FLOORS = 10
_LOAD = 1.4
"""What the port is offered, in bandwidths."""
_SIZE_BYTES = 100.0
_WIRE_BYTES = 149.0


def scenario(subscribers: int, topics: int) -> str:
    """Everybody wants all rooms of a floor; some more than others, and some rooms more than others."""
    rate = PUBLICATIONS_PER_SECOND / topics
    rooms = [f"floor-{number % FLOORS}/room-{number:03}/smoke" for number in range(topics)]
    bandwidth = subscribers * PUBLICATIONS_PER_SECOND / FLOORS * _WIRE_BYTES * 8 / _LOAD
    lines = [
        "name: Page load",
        "overhead_bytes: 49",
        "planning: {flows_per_subscriber: 4, priority_classes: 7}",
        "brokers: {broker: {}}",
        "switches: {edge: {}}",
        f"ports: {{radio: {{switch: edge, bandwidth_bps: {bandwidth:.0f}, buffer_packets: 400}}}}",
        "publishers:",
    ]
    event = f"{{rate_per_second: {rate}, size_bytes: {_SIZE_BYTES}, sizes: constant, arrivals: periodic}}"
    for floor in range(FLOORS):
        lines += [f"  sensors-{floor}:", "    publishes:"]
        lines += [f"      {room}: {event}" for room in rooms[floor::FLOORS]]
    lines.append("subscribers:")
    for number in range(subscribers):
        lines += [f"  crew-{number:03}:", "    port: radio", "    subscribes:"]
        lines += [
            f"      {room}: log:{1 + (7 * place + number) % 23}"
            for place, room in enumerate(rooms[number % FLOORS :: FLOORS])
        ]
    return "\n".join(lines) + "\n"


async def measure(subscribers: int, topics: int, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "load.yaml"
        file.write_text(scenario(subscribers, topics))
        async with Exchange(ExchangeOptions(state=Path(folder) / "state", scenario=file)) as exchange:
            await exchange.start_clients()
            await asyncio.sleep(seconds)
            assert exchange.page is not None, "NiceGUI is not installed"
            async with async_playwright() as playwright:
                sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
                chromium = await playwright.chromium.launch(
                    executable_path=shutil.which("chromium"), args=sandbox
                )
                found = await _visit(chromium, exchange, seconds)
                await chromium.close()
            return found


async def _visit(chromium: Browser, exchange: Exchange, seconds: float) -> dict[str, Any]:
    assert exchange.page is not None
    errors: list[str] = []
    first = await _opened(chromium, exchange.page, "", errors)
    await first[0].close()
    times = {}
    for path in PATHS:
        page, times[path or "overview"] = await _opened(chromium, exchange.page, path, errors)
        await page.close()
    page, _ = await _opened(chromium, exchange.page, "subscriptions", errors)
    total = re.sub(r"\D", "", (await page.locator(".pager span").inner_text()).rpartition("of")[2])
    searched = await _search(page)
    await page.close()
    page, _ = await _opened(chromium, exchange.page, "what-if", errors)
    await page.wait_for_selector("#supposed")
    supposed = await _suppose(page)
    await page.close()
    turns = [await _turn(chromium, exchange, seconds, errors) for _ in range(TURNS)]
    return {
        "subscriptions": int(total),
        "publications_per_second": PUBLICATIONS_PER_SECOND,
        "first_opening_seconds": first[1],
        "interactive_seconds": times,
        "search_seconds": searched,
        "what_if_seconds": supposed,
        "page_cpu_share": statistics.median(turn["with"]["cpu"] - turn["without"]["cpu"] for turn in turns),
        "coordinator_cpu_share": statistics.median(turn["without"]["cpu"] for turn in turns),
        "class_0_latency_seconds": {
            when: statistics.median(turn[when]["latency"] for turn in turns) for when in ("without", "with")
        },
        "turns": turns,
        "console_errors": errors,
    }


async def _opened(chromium: Browser, address: str, path: str, errors: list[str]) -> tuple[Page, float]:
    """A page of its own context, and how long it took until it was there and answered."""
    context = await chromium.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(60_000)
    page = await context.new_page()
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    begun = time.perf_counter()
    await page.goto(f"{address}/{path}")
    await page.wait_for_selector("h1")
    await page.wait_for_function("() => window.socket && window.socket.connected")
    return page, time.perf_counter() - begun


async def _search(page: Page) -> float:
    """From the last letter to the rows found; the pause after typing is a part of it."""
    begun = time.perf_counter()
    await page.get_by_label("Search").fill("crew-001")
    await page.wait_for_function(
        "() => [...document.querySelectorAll('tr[data-subscriber]')]"
        ".every(row => row.dataset.subscriber === 'crew-001')"
    )
    return time.perf_counter() - begun


async def _suppose(page: Page) -> float:
    """From moving the slider to the figures of the forecast."""
    before = await page.locator("#supposed").inner_text()
    slider = page.get_by_label("Bandwidth of radio")
    box = await slider.bounding_box()
    assert box is not None
    begun = time.perf_counter()
    await slider.click(position={"x": 0.7 * box["width"], "y": box["height"] / 2})
    await page.wait_for_function(
        "before => document.querySelector('#supposed').innerText !== before", arg=before
    )
    return time.perf_counter() - begun


async def _turn(chromium: Browser, exchange: Exchange, seconds: float, errors: list[str]) -> dict[str, Any]:
    assert exchange.page is not None
    without = await _watch(exchange, seconds)
    pages = [
        (await _opened(chromium, exchange.page, path, errors))[0] for path in ("", "subscriptions", "network")
    ]
    await asyncio.sleep(2.0)
    beside = await _watch(exchange, seconds)
    for page in pages:
        await page.context.close()
    await asyncio.sleep(2.0)
    return {"without": without, "with": beside}


async def _watch(exchange: Exchange, seconds: float) -> dict[str, float]:
    pid = exchange.pids["coordinator"]
    before, cpu, begun = await _class_0(exchange.rest), cpu_seconds(pid), time.perf_counter()
    await asyncio.sleep(seconds)
    after, elapsed = await _class_0(exchange.rest), time.perf_counter() - begun
    events, latency = (now - then for now, then in zip(after, before, strict=True))
    return {"cpu": (cpu_seconds(pid) - cpu) / elapsed, "latency": latency / events}


async def _class_0(rest: str) -> tuple[float, float]:
    """Events that subscribers have received in class 0, and the sum of their latencies."""
    text = await asyncio.to_thread(lambda: urllib.request.urlopen(f"{rest}/metrics").read().decode())
    names = ("triage_received_total", "triage_received_latency_seconds_total")
    found = (re.search(rf'^{name}{{priority_class="0"}} (\S+)', text, re.MULTILINE) for name in names)
    events, latency = (0.0 if each is None else float(each[1]) for each in found)
    return events, latency


def main() -> None:
    arguments = options(__doc__).parse_args()
    size = (20, 100, 5.0) if arguments.quick else (100, 500, 12.0)
    found = asyncio.run(measure(*size))
    result = {"machine": machine("nicegui", "playwright"), **found, "limits": LIMITS}
    latency = found["class_0_latency_seconds"]
    lines = [
        f"{found['subscriptions']:,} subscriptions, {PUBLICATIONS_PER_SECOND:g} publications a second",
        f"opened for the first time: {found['first_opening_seconds']:.2f} s",
        *(
            f"{name}: there and answering after {value:.2f} s"
            for name, value in found["interactive_seconds"].items()
        ),
        f"search: {found['search_seconds']:.2f} s, what if: {found['what_if_seconds']:.3f} s",
        f"coordinator: {found['coordinator_cpu_share']:.1%} of a core, with three pages "
        f"{found['page_cpu_share']:+.1%}",
        f"class 0: {1e3 * latency['without']:.2f} ms without, {1e3 * latency['with']:.2f} ms with three pages",
        f"errors on the console: {len(found['console_errors'])}",
    ]
    finish(result, lines, as_json=arguments.json)


if __name__ == "__main__":
    main()
