"""The page of an exchange with thousands of subscriptions: how soon it is there, what it costs, and whom it holds up.

Real clients publish and subscribe all the while. Each page is opened by browsers that have nothing of it yet; beside
the seconds stands the processor time of coordinator and browser, which says on a busy machine what they would be. The
page is first opened once, which is told apart: what browsers load is compressed then, and figures are first gathered.

Times of an answer are the browser's own: from the release of a slider until what comes of it has been drawn.

Class 0 is measured without and with three open pages, in stretches that alternate; each pair gives a difference, and
the differences an interval. What the trace says of every copy counts, and that by when it was published. What would be
noticed is one packet more in front of everyone: as long as a packet takes at the port.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
from playwright.async_api import Browser, Locator, Page, async_playwright

from gateway_speed import cpu_seconds
from measuring import finish, machine, options
from triagemq.live.up.exchange import Exchange, ExchangeOptions
from triagemq.theory.interval import half_width
from triagemq.trace import Outcome, Trace, runs

PUBLICATIONS_PER_SECOND = 200.0
LIMITS = {
    "interactive_seconds": 2.0,
    "what_if_seconds": 0.2,
    "changed_seconds": 3.0,
    "page_cpu_share": 0.20,
}
PARTS = ("pages", "what-if", "worth", "class-0")
PATHS = ("", "subscriptions", "situation", "network", "what-if", "history", "promises")
_UNSEEN = 3
"""Stretches before the page is opened at all: from then on figures are gathered for it, open or not."""
OPENED = ("", "subscriptions", "network")
"""The pages that are open beside class 0."""
FLOORS = 10
WATCHED = "floor-0/stairs/heat"
"""A topic that nobody but the page wants: often enough that a second says which share of it comes."""
_WATCHED_RATE = 5.0
_SETTLING_SECONDS = 1.5
_LAST = 19
_FORGOTTEN_SECONDS = 12.0
"""A page that is closed is kept for ten seconds: its browser might come back."""
_LOAD = 1.4
"""What the port is offered, in bandwidths."""
_SIZE_BYTES = 100.0
_WIRE_BYTES = 149.0


def bandwidth_bps(subscribers: int) -> float:
    return subscribers * PUBLICATIONS_PER_SECOND / FLOORS * _WIRE_BYTES * 8 / _LOAD


def scenario(subscribers: int, topics: int) -> str:
    """Everybody wants all rooms of a floor; some more than others, and some rooms more than others."""
    rate = (PUBLICATIONS_PER_SECOND - _WATCHED_RATE) / topics
    rooms = [f"floor-{number % FLOORS}/room-{number:03}/smoke" for number in range(topics)]
    lines = [
        "name: Page load",
        "overhead_bytes: 49",
        "planning: {flows_per_subscriber: 4, priority_classes: 7}",
        "brokers: {broker: {}}",
        "switches: {edge: {}}",
        f"ports: {{radio: {{switch: edge, bandwidth_bps: {bandwidth_bps(subscribers):.0f}, buffer_packets: 400}}}}",
        "publishers:",
    ]
    event = f"{{rate_per_second: {rate}, size_bytes: {_SIZE_BYTES}, sizes: constant, arrivals: periodic}}"
    for floor in range(FLOORS):
        lines += [f"  sensors-{floor}:", "    publishes:"]
        lines += [f"      {room}: {event}" for room in rooms[floor::FLOORS]]
    lines += [
        "  stairs:",
        "    publishes:",
        f"      {WATCHED}: {event.replace(str(rate), str(_WATCHED_RATE))}",
    ]
    lines.append("subscribers:")
    for number in range(subscribers):
        lines += [f"  crew-{number:03}:", "    port: radio", "    subscribes:"]
        lines += [
            f"      {room}: log:{1 + (7 * place + number) % 23}"
            for place, room in enumerate(rooms[number % FLOORS :: FLOORS])
        ]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured: subscribers and topics, openings of each page, answers, and pairs of stretches."""

    subscribers: int
    topics: int
    openings: int
    answers: int
    pairs: int
    stretch_seconds: float


@dataclass(slots=True)
class Visit:
    """A browser beside a running exchange; `errors` are those on its consoles, `stretches` those of class 0."""

    chromium: Browser
    exchange: Exchange
    errors: list[str] = field(default_factory=list)
    stretches: list[tuple[bool, int, int, float]] = field(default_factory=list)

    def cpu(self) -> tuple[float, float]:
        """Processor time of the coordinator and of the browser so far."""
        return cpu_seconds(self.exchange.pids["coordinator"]), _browser_cpu()

    async def opened(self, path: str) -> tuple[Page, dict[str, float]]:
        """A page of a browser that has nothing of it, and what it took until it was there and answered."""
        context = await self.chromium.new_context(viewport={"width": 1280, "height": 900})
        context.set_default_timeout(120_000)
        page = await context.new_page()
        page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        before, begun = self.cpu(), time.perf_counter()
        await page.goto(f"{self.exchange.page}/{path}")
        await page.wait_for_selector("h1")
        await page.wait_for_function("() => window.socket && window.socket.connected")
        return page, {"seconds": time.perf_counter() - begun, **_since(before, self.cpu())}


async def measure(size: Size, parts: Collection[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "load.yaml"
        file.write_text(scenario(size.subscribers, size.topics))
        async with Exchange(ExchangeOptions(state=Path(folder) / "state", scenario=file)) as exchange:
            await exchange.start_clients()
            await asyncio.sleep(size.stretch_seconds)
            assert exchange.page is not None, "NiceGUI is not installed"
            async with async_playwright() as playwright:
                sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
                chromium = await playwright.chromium.launch(
                    executable_path=shutil.which("chromium"), args=sandbox
                )
                visit = Visit(chromium, exchange)
                found = await _measured(visit, size, parts)
                await chromium.close()
        if visit.stretches:
            found |= _class_0(exchange.trace, visit.stretches)
        return found | {"console_errors": visit.errors, "load_average": os.getloadavg()[0]}


async def _measured(visit: Visit, size: Size, parts: Collection[str]) -> dict[str, Any]:
    unseen = [(await _stretch(visit, False, size.stretch_seconds))[-1] for _ in range(_UNSEEN)]
    page, first = await visit.opened("subscriptions")
    total = re.sub(r"\D", "", (await page.locator(".pager span").inner_text()).rpartition("of")[2])
    found: dict[str, Any] = {"subscriptions": int(total), "first_opening": first, "unseen_cpu": unseen}
    if "pages" in parts:
        found["search_seconds"] = await _search(page)
        found["pages"] = {path or "overview": await _openings(visit, path, size.openings) for path in PATHS}
    await page.context.close()
    if "what-if" in parts:
        found["what_if"] = await _what_if(visit, size.answers)
    if "worth" in parts:
        found["changed"] = await _worth(visit, size.answers)
    if "class-0" in parts:
        await _alternate(visit, size)
    return found


async def _openings(visit: Visit, path: str, openings: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for _ in range(openings):
        page, took = await visit.opened(path)
        await page.context.close()
        _add(found, took)
    return found


def _add(found: dict[str, list[float]], took: Mapping[str, float]) -> None:
    for name, value in took.items():
        found.setdefault(name, []).append(value)


def _since(before: tuple[float, float], now: tuple[float, float]) -> dict[str, float]:
    names = ("coordinator_cpu_seconds", "browser_cpu_seconds")
    return {name: later - earlier for name, earlier, later in zip(names, before, now, strict=True)}


async def _search(page: Page) -> float:
    """From the last letter to the rows found; the pause after typing is a part of it."""
    begun = time.perf_counter()
    await page.get_by_label("Search").fill("crew-001")
    await page.wait_for_function(
        "() => [...document.querySelectorAll('tr[data-subscriber]')]"
        ".every(row => row.dataset.subscriber === 'crew-001')"
    )
    return time.perf_counter() - begun


_UNTIL_DRAWN = """([place, texts]) => {
    window.drawn = null;
    let released = null;
    const text = (name) => (document.querySelector(`${place} ${name}`) || {innerText: ''}).innerText.split('\\n')[0];
    const look = () => {
        const left = Object.entries(texts).filter(([name, before]) => text(name) === before || !/\\d/.test(text(name)));
        if (released === null || left.length) return;
        watching.disconnect();
        requestAnimationFrame(() => setTimeout(() => { window.drawn = (performance.now() - released) / 1000; }));
    };
    const watching = new MutationObserver(look);
    watching.observe(document.body, {subtree: true, childList: true, characterData: true});
    document.addEventListener('mouseup', () => { released = performance.now(); }, {capture: true, once: true});
}"""
"""Beginning with the next release of the mouse, until texts have changed and what they are now has been drawn."""


async def _drawn(page: Page, slider: Locator, share: float, place: str, names: Sequence[str]) -> float:
    """Seconds from the release of a slider at a share of its length until these texts are others."""
    before = {}
    for name in names:
        before[name] = (await page.locator(f"{place} {name}").inner_text()).split("\n")[0]
    await page.evaluate(_UNTIL_DRAWN, [place, before])
    box = await slider.bounding_box()
    assert box is not None
    await slider.click(position={"x": max(1.0, share * box["width"] - 1), "y": box["height"] / 2})
    # Seldom, because looking takes the browser time, and it notes the time itself.
    await page.wait_for_function("() => window.drawn !== null", polling=100)
    return float(await page.evaluate("() => window.drawn"))


async def _what_if(visit: Visit, answers: int) -> dict[str, list[float]]:
    """Bandwidths from half to twice of what is."""
    page, _ = await visit.opened("what-if")
    await page.wait_for_selector("#supposed")
    slider = page.get_by_label("Bandwidth of radio")
    shares = [0.25 + 0.5 * ((7 * number) % 11) / 10 for number in range(answers)]
    found: dict[str, list[float]] = {}
    for share in shares:
        before = visit.cpu()
        _add(found, {"seconds": await _drawn(page, slider, share, "body", ["#supposed"])})
        _add(found, _since(before, visit.cpu()))
    await page.context.close()
    return found


async def _worth(visit: Visit, answers: int) -> dict[str, list[float]]:
    """A subscription made on the page, worth next to nothing and very much in turns: until class and success change."""
    page, _ = await visit.opened("subscriptions")
    await page.get_by_role("button", name="Subscribe", exact=True).click()
    await page.get_by_label("Topic or pattern").fill(WATCHED)
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("slider").press("Home")
    await dialog.locator(".confirm").click()
    await dialog.wait_for(state="detached")
    await page.get_by_label("Search").fill("operator")
    place = f"tr[data-subscriber=operator][data-topic='{WATCHED}']"
    await page.locator(f"{place} [data-do=worth]").click()
    slider, found = page.get_by_label("worth"), []
    for number in range(answers):
        # By then it is known what it gets as it is.
        await page.wait_for_function(
            "place => /\\d/.test(document.querySelector(place).innerText.split('\\n')[0])",
            arg=f"{place} .success",
        )
        await asyncio.sleep(_SETTLING_SECONDS)
        share = 0.0 if number % 2 else 1.0
        found.append(await _drawn(page, slider, share, place, [".level", ".success"]))
    await page.context.close()
    return {"seconds": found}


async def _alternate(visit: Visit, size: Size) -> None:
    """Pairs of stretches, the other way round every second time: what grows all the while is nobody's fault."""
    pages: list[Page] = []
    for number in range(size.pairs):
        for opened in (False, True) if number % 2 == 0 else (True, False):
            if opened and not pages:
                pages = [(await visit.opened(path))[0] for path in OPENED]
                _step_back()
                await asyncio.sleep(_SETTLING_SECONDS)
            elif pages and not opened:
                for page in pages:
                    await page.context.close()
                pages = []
                await asyncio.sleep(_FORGOTTEN_SECONDS)
            visit.stretches.append(await _stretch(visit, opened, size.stretch_seconds))
    for page in pages:
        await page.context.close()


async def _stretch(visit: Visit, opened: bool, seconds: float) -> tuple[bool, int, int, float]:
    (cpu, _), begun, from_ns = visit.cpu(), time.perf_counter(), time.time_ns()
    await asyncio.sleep(seconds)
    share = (visit.cpu()[0] - cpu) / (time.perf_counter() - begun)
    return opened, from_ns, time.time_ns(), share


def _class_0(trace: Path, stretches: Sequence[tuple[bool, int, int, float]]) -> dict[str, Any]:
    """Figures of each stretch, and of the pairs their differences."""
    wanted = (pc.field("priority_class") == 0) & (pc.field("outcome") == Outcome.delivered.name)
    columns = ["priority_class", "outcome", "published_ns", "delivered_ns"]
    rows = [Trace.open(run).table("deliveries", columns, wanted) for run in runs(trace).complete]
    published, delivered = (
        np.concatenate([each[name].to_numpy() for each in rows]) for name in ("published_ns", "delivered_ns")
    )
    latency = (delivered - published) / 1e9
    figures: dict[str, dict[bool, list[float]]] = {}
    copies = 0
    for opened, from_ns, until_ns, share in stretches:
        own = latency[(published >= from_ns) & (published < until_ns)]
        copies += len(own)
        found = {
            "mean": own.mean(),
            "median": np.median(own),
            "p95": np.quantile(own, 0.95),
            "coordinator_cpu": share,
        }
        for name, value in found.items():
            figures.setdefault(name, {False: [], True: []})[opened].append(float(value))
    compared = {name: _compared(both[False], both[True]) for name, both in figures.items()}
    return {
        "coordinator_cpu": compared.pop("coordinator_cpu"),
        "class_0": compared,
        "class_0_copies": copies,
        "class_0_stretches": len(stretches),
    }


def _compared(without: Sequence[float], beside: Sequence[float]) -> dict[str, float]:
    """Means of both, and the mean of the pairs' differences with the half-width of its 95 % interval."""
    differences = np.subtract(beside, without)
    return {
        "without": statistics.fmean(without),
        "with": statistics.fmean(beside),
        "difference": float(differences.mean()),
        "half_width": float(half_width(differences)),
    }


def _browser_cpu() -> float:
    """What all processes of browsers that were started from here have taken so far."""
    return sum(_browsers().values()) / os.sysconf("SC_CLK_TCK")


def _step_back() -> None:
    """Browsers are elsewhere in earnest: here they come last, so that they hold nobody up by themselves."""
    for pid in _browsers():
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, pid, _LAST)


def _browsers() -> dict[int, int]:
    """The processes of browsers that were started from here, with the ticks that each has taken."""
    known = {}
    for each in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, rest = each.read_text().partition(" (")[2].rpartition(") ")
            fields = rest.split()
            known[int(each.parent.name)] = int(fields[1]), name, int(fields[11]) + int(fields[12])

    def is_own(pid: int) -> bool:
        return pid == os.getpid() or (pid in known and is_own(known[pid][0]))

    return {pid: ticks for pid, (_, name, ticks) in known.items() if name.startswith("chrom") and is_own(pid)}


def _lines(found: dict[str, Any], packet_seconds: float) -> list[str]:
    lines = [
        f"{found['subscriptions']:,} subscriptions, {PUBLICATIONS_PER_SECOND:g} publications a second; "
        f"load of the machine {found['load_average']:.1f}",
        f"opened for the first time: {_taken({name: [value] for name, value in found['first_opening'].items()})}",
    ]
    lines += [
        f"{name}: there and answering after {_taken(took)}" for name, took in found.get("pages", {}).items()
    ]
    if "search_seconds" in found:
        lines.append(f"search: {found['search_seconds']:.2f} s")
    for name, words in (("what_if", "what if"), ("changed", "class and success after a change")):
        if name in found:
            lines.append(f"{words}: {_taken(found[name])}")
    if "class_0" in found:
        cpu = found["coordinator_cpu"]
        lines.append(
            f"coordinator: {statistics.fmean(found['unseen_cpu']):.1%} of a core before the page is opened, "
            f"{cpu['without']:.1%} while it is closed, with three pages {cpu['with']:.1%} "
            f"({cpu['difference']:+.1%}, give or take {cpu['half_width']:.1%})"
        )
        lines.append(f"class 0: {found['class_0_copies']:,} copies in {found['class_0_stretches']} stretches")
        for name, each in found["class_0"].items():
            low, high = (each["difference"] + side * each["half_width"] for side in (-1, 1))
            lines.append(
                f"class 0, {name}: {1e3 * each['without']:.2f} ms, with three pages {1e3 * each['difference']:+.2f} ms "
                f"({1e3 * low:+.2f} to {1e3 * high:+.2f}), "
                f"{'less' if high < packet_seconds else 'perhaps more'} than a packet's {1e3 * packet_seconds:.2f} ms"
            )
    return [*lines, f"errors on the console: {len(found['console_errors'])}"]


def _taken(took: Mapping[str, Sequence[float]]) -> str:
    seconds = took["seconds"]
    words = f"{statistics.median(seconds):.2f} s, at most {max(seconds):.2f} s of {len(seconds)}"
    if len(took) > 1:
        coordinator, browser = (
            statistics.fmean(took[f"{name}_cpu_seconds"]) for name in ("coordinator", "browser")
        )
        words += f" (processor time of the coordinator {coordinator:.2f} s, of the browser {browser:.2f} s)"
    return words


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--only", action="append", choices=PARTS, help="a part of it; may be repeated")
    arguments = parser.parse_args()
    size = Size(20, 100, 1, 2, 2, 3.0) if arguments.quick else Size(100, 500, 3, 8, 12, 6.0)
    found = asyncio.run(measure(size, arguments.only or PARTS))
    packet_seconds = _WIRE_BYTES * 8 / bandwidth_bps(size.subscribers)
    result = {
        "machine": machine("nicegui", "playwright"),
        "publications_per_second": PUBLICATIONS_PER_SECOND,
        **found,
        "limits": LIMITS | {"class_0_seconds": packet_seconds},
    }
    finish(result, _lines(found, packet_seconds), as_json=arguments.json)


if __name__ == "__main__":
    main()
