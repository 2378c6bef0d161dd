"""Subscribers join and leave a live exchange: how soon an intent is in force, and whether anybody else loses events.

Then a topic's rate doubles without a word: how soon a plan knows of it.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from measuring import finish, machine, options
from triagemq.client import Event, Publisher, Subscriber
from triagemq.live.up.exchange import Exchange, ExchangeOptions

LIMIT_IN_FORCE_SECONDS = 1.0
LIMIT_NOTICED_SECONDS = 3.0
RATE, SIZE = 50.0, 60
AT_ONCE = 10
POLL_SECONDS = 0.02
# Ten seconds for publishers to begin, and some to count: then it is known how evenly events come.
KNOWN_SECONDS = 15.0
LONG_SECONDS = 60.0


class Clock:
    """A publisher by the clock on one topic; each event is its number."""

    def __init__(self, publisher: Publisher, topic: str, qos: int) -> None:
        self.published, self.rate = 0, RATE
        self._publisher, self._topic, self._qos = publisher, topic, qos
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            payload = (b"%d" % self.published).ljust(SIZE)
            self.published += 1
            await self._publisher.publish(self._topic, payload, qos=self._qos, wait=False)
            due = max(due + 1 / self.rate, loop.time() - 0.2)
            await asyncio.sleep(due - loop.time())

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._publisher.flush()


class Exchanged:
    """An exchange with a publisher and an observer at QoS 0, and the same at QoS 1."""

    def __init__(self, running: Exchange) -> None:
        self.running = running
        self.seen: list[set[int]] = [set(), set()]
        self.clocks: list[Clock] = []

    async def ask(self, path: str) -> Any:
        def answer() -> Any:
            with urllib.request.urlopen(self.running.rest + path, timeout=LONG_SECONDS) as found:
                return json.load(found)

        return await asyncio.to_thread(answer)

    async def until(self, what: Callable[[], Awaitable[bool]]) -> float:
        """The seconds it took."""
        begun = time.perf_counter()
        while not await what():
            if time.perf_counter() - begun > LONG_SECONDS:
                raise SystemExit("waited in vain")
            await asyncio.sleep(POLL_SECONDS)
        return time.perf_counter() - begun

    async def begin(self, stack: AsyncExitStack) -> None:
        for qos in (0, 1):
            publisher = await stack.enter_async_context(Publisher(self.running.rest, name=f"clock-{qos}"))
            await publisher.declare({f"steady/{qos}": (RATE, float(SIZE))})

            def arrived(event: Event, seen: set[int] = self.seen[qos]) -> None:
                seen.add(int(event.payload))

            observer = Subscriber(self.running.rest, name=f"observer-{qos}", on_event=arrived)
            await stack.enter_async_context(observer)
            await observer.subscribe(f"steady/{qos}", utility="log:5", qos=qos)
            await self.until(lambda name=observer.name: self.in_force(name))  # type: ignore[misc]
            self.clocks.append(Clock(publisher, f"steady/{qos}", qos))

    async def in_force(self, name: str) -> bool:
        return bool((await self.ask(f"/v1/subscribers/{name}"))["in_force"])

    async def lost(self) -> list[int]:
        for clock in self.clocks:
            await clock.end()

        async def complete() -> bool:
            return all(
                len(seen) == clock.published for seen, clock in zip(self.seen, self.clocks, strict=True)
            )

        try:
            async with asyncio.timeout(10.0):
                await self.until(complete)
        except TimeoutError:
            pass
        return [clock.published - len(seen) for seen, clock in zip(self.seen, self.clocks, strict=True)]


async def visit(exchanged: Exchanged, number: int, turn: asyncio.Semaphore) -> tuple[float, float]:
    """Join, get an event, leave; seconds from the intent to its being in force, and to its first event."""
    first = asyncio.Event()
    async with (
        turn,
        Subscriber(
            exchanged.running.rest, name=f"visitor-{number}", on_event=lambda event: first.set()
        ) as visitor,
    ):
        begun = time.perf_counter()
        await visitor.subscribe("steady/+", utility=f"log:{1 + number % 9}")
        await exchanged.until(lambda: exchanged.in_force(visitor.name))
        in_force = time.perf_counter() - begun
        async with asyncio.timeout(LONG_SECONDS):
            await first.wait()
        return in_force, time.perf_counter() - begun


async def noticed(exchanged: Exchanged) -> float:
    """Double a rate; the seconds until a decision names the topic."""
    last = (await exchanged.ask("/v1/decisions?limit=1000"))["last"]
    while (more := (await exchanged.ask(f"/v1/decisions?after={last}&limit=1000"))["last"]) != last:
        last = more
    exchanged.clocks[0].rate *= 2

    async def is_decided() -> bool:
        rows = (await exchanged.ask(f"/v1/decisions?after={last}&limit=1000"))["decisions"]
        return any("steady/0" in row["reason"] for row in rows)

    return await exchanged.until(is_decided)


async def measure(subscribers: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        chosen = ExchangeOptions(state=Path(directory), coordinator={"bandwidth_bps": 10e6})
        async with Exchange(chosen) as running, AsyncExitStack() as stack:
            exchanged = Exchanged(running)
            await exchanged.begin(stack)
            begun = time.perf_counter()
            turn = asyncio.Semaphore(AT_ONCE)
            times = await asyncio.gather(*(visit(exchanged, number, turn) for number in range(subscribers)))
            lasted = time.perf_counter() - begun
            plans = (await exchanged.ask("/v1/health"))["plans"]
            await asyncio.sleep(max(0.0, KNOWN_SECONDS - lasted))
            doubling = await noticed(exchanged)
            lost = await exchanged.lost()
    in_force, first_event = ([each[place] for each in times] for place in (0, 1))
    return {
        "subscribers": subscribers,
        "at_once": AT_ONCE,
        "seconds": lasted,
        "plans": plans,
        "in_force_median_seconds": statistics.median(in_force),
        "in_force_p95_seconds": statistics.quantiles(in_force, n=20)[-1],
        "first_event_median_seconds": statistics.median(first_event),
        "limit_in_force_seconds": LIMIT_IN_FORCE_SECONDS,
        "published": [clock.published for clock in exchanged.clocks],
        "lost_by_observers": lost,
        "doubling_noticed_seconds": doubling,
        "limit_noticed_seconds": LIMIT_NOTICED_SECONDS,
    }


def main() -> None:
    arguments = options(__doc__).parse_args()
    run = asyncio.run(measure(40 if arguments.quick else 200))
    lines = [
        f"{run['subscribers']} subscribers joined and left, {run['at_once']} at once, in {run['seconds']:.1f} s, "
        f"{run['plans']} plans",
        f"an intent is in force after {1000 * run['in_force_median_seconds']:.0f} ms (median), "
        f"{1000 * run['in_force_p95_seconds']:.0f} ms (95 %); limit of the median {1000 * LIMIT_IN_FORCE_SECONDS:.0f}",
        f"first event after {1000 * run['first_event_median_seconds']:.0f} ms (median)",
        f"observers lost {run['lost_by_observers'][0]} of {run['published'][0]} events at QoS 0, "
        f"{run['lost_by_observers'][1]} of {run['published'][1]} at QoS 1",
        f"a doubled rate is planned for after {run['doubling_noticed_seconds']:.2f} s; "
        f"limit {LIMIT_NOTICED_SECONDS:.0f}",
    ]
    result = {"run": run, "machine": machine("triagemq", "numpy", "fastapi", "uvicorn")}
    finish(result, lines, as_json=arguments.json)


if __name__ == "__main__":
    main()
