"""Subscribers join, leave and vanish, and topics change, while an exchange runs: nobody else loses anything."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.client.loopback import QUICK
from tests.live.up.exchanging import LONG_SECONDS, TWO_PORTS, decisions, exchange, rest, until

from triagemq.client import Event, Publisher, Subscriber
from triagemq.live.up.exchange import Exchange

KNOWN_SECONDS = 14
"""Ten for publishers to begin, and some to count."""


class Steady:
    """A publisher that publishes on several topics by the clock, each event with a number of its own."""

    def __init__(
        self, publisher: Publisher, rates: dict[str, float], *, size: int = 60, qos: int = 0
    ) -> None:
        self.published: dict[str, int] = dict.fromkeys(rates, 0)
        self.rates = dict(rates)
        self._publisher, self._size, self._qos = publisher, size, qos
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Steady:
        self._tasks = [asyncio.create_task(self._publish(topic)) for topic in self.rates]
        return self

    async def __aexit__(self, error: object, *_: object) -> None:
        await self.end()

    async def end(self) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks)
        await self._publisher.flush()

    async def _publish(self, topic: str) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while not self._stop.is_set():
            payload = b"%d" % self.published[topic]
            self.published[topic] += 1
            await self._publisher.publish(topic, payload.ljust(self._size), qos=self._qos, wait=False)
            # By the clock, but without making up for a pause of the whole machine in one burst.
            due = max(due + 1 / self.rates[topic], loop.time() - 0.2)
            await asyncio.sleep(due - loop.time())


class Seen:
    """The numbers of the events that came, by topic."""

    def __init__(self) -> None:
        self.numbers: dict[str, set[int]] = {}

    def __call__(self, event: Event) -> None:
        self.numbers.setdefault(event.topic, set()).add(int(event.payload))

    def has(self, topic: str, published: int, first: int = 0) -> bool:
        return set(range(first, published)) <= self.numbers.get(topic, set())


async def _in_force(running: Exchange, name: str) -> None:
    async def is_in_force() -> bool:
        return bool((await rest(running.rest, f"/v1/subscribers/{name}"))["in_force"])

    await until(is_in_force)


async def _churn(directory: Path, subscribers: int, at_once: int) -> None:
    """Observers on the wire see every event while others come and go on the wire and on the radio."""
    async with exchange(directory, scenario=TWO_PORTS) as running, AsyncExitStack() as stack:
        publishers = [
            await stack.enter_async_context(Publisher(running.rest, name=f"p{qos}", settings=QUICK))
            for qos in (0, 1)
        ]
        seen = [Seen(), Seen()]
        for qos in (0, 1):
            await publishers[qos].declare({f"steady/{qos}": (50.0, 60.0)})
            observer = Subscriber(
                running.rest, name=f"observer-{qos}", port="wire", on_event=seen[qos], settings=QUICK
            )
            await stack.enter_async_context(observer)
            await observer.subscribe(f"steady/{qos}", utility="log:5", qos=qos)
            await _in_force(running, observer.name)
        turn = asyncio.Semaphore(at_once)
        got = 0

        async def visit(number: int) -> None:
            nonlocal got
            async with (
                turn,
                Subscriber(
                    running.rest,
                    name=f"visitor-{number}",
                    port=("wire", "radio")[number % 2],
                    settings=QUICK,
                ) as visitor,
            ):
                await visitor.subscribe("steady/+", utility=f"log:{1 + number % 9}")
                await _in_force(running, visitor.name)
                if number % 2:
                    # The radio cannot carry what they want, and may have nothing left for the least.
                    return
                event = await visitor.next(LONG_SECONDS)
                got += event is not None

        async with (
            Steady(publishers[0], {"steady/0": 50}, qos=0) as first,
            Steady(publishers[1], {"steady/1": 50}, qos=1) as second,
        ):
            generation = (await rest(running.rest, "/v1/health"))["generation"]
            await asyncio.gather(*(visit(number) for number in range(subscribers)))
            assert (await rest(running.rest, "/v1/health"))["generation"] > generation
        assert got == subscribers // 2
        await until(lambda: seen[0].has("steady/0", first.published["steady/0"]))
        await until(lambda: seen[1].has("steady/1", second.published["steady/1"]))
        assert (await rest(running.rest, "/v1/health"))["subscribers"] == 2
        assert set(running.restarts.values()) == {0}


def test_while_others_come_and_go_an_observer_loses_nothing(tmp_path: Path) -> None:
    asyncio.run(_churn(tmp_path, subscribers=40, at_once=8))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_hundred_come_and_go(tmp_path: Path) -> None:
    asyncio.run(_churn(tmp_path, subscribers=200, at_once=10))


def test_a_rate_that_doubles_unannounced_is_planned_for(tmp_path: Path) -> None:
    rates = {"alarm": 10.0, "smoke": 20.0, "picture": 20.0}

    async def scene() -> None:
        async with (
            exchange(tmp_path, scenario=TWO_PORTS) as running,
            Publisher(running.rest, name="sensors", settings=QUICK) as publisher,
        ):
            seen = Seen()
            crew = Subscriber(running.rest, name="crew", port="radio", on_event=seen, settings=QUICK)
            async with crew:
                await publisher.declare({topic: (rate, 220.0) for topic, rate in rates.items()})
                for topic, weight in (("alarm", 50), ("smoke", 10), ("picture", 1)):
                    await crew.subscribe(topic, utility=f"log:{weight}")
                await _in_force(running, "crew")
                await until(lambda: crew.assignment is not None and len(crew.assignment.classes) == 3)
                async with Steady(publisher, rates, size=220) as steady:
                    await until(lambda: len(seen.numbers) >= 2)
                    # By then it is known how evenly they come.
                    await until(lambda: steady.published["smoke"] > KNOWN_SECONDS * rates["smoke"])
                    assert crew.assignment is not None
                    assert crew.assignment.classes["alarm"] == 0
                    before = await decisions(running.rest)
                    generation = (await rest(running.rest, "/v1/health"))["generation"]
                    steady.rates["smoke"] *= 2

                    async def noticed() -> bool:
                        new = (await decisions(running.rest))[len(before) :]
                        return any("smoke" in row["reason"] or "smoke" in row["subject"] for row in new)

                    seconds = await until(noticed)
                    print(f"doubling noticed after {seconds:.1f} s")

                    async def planned() -> bool:
                        health = await rest(running.rest, "/v1/health")
                        return bool(health["in_force_generation"] > generation)

                    await until(planned)
                    await asyncio.sleep(1.0)
                await until(lambda: seen.has("alarm", steady.published["alarm"]))
                assert len(seen.numbers["smoke"]) < steady.published["smoke"]

    asyncio.run(scene())


TEN = """
import asyncio, sys
from triagemq.client import Subscriber

async def main(url):
    for number in range(10):
        one = Subscriber(url, name=f"ten-{number}", port="radio", lease_seconds=2, on_event=lambda event: None)
        await one.open()
        await one.subscribe("smoke", utility="log:10")
        await one.subscribe("picture", utility="log:2")
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main(sys.argv[1]))
"""


def test_ten_that_vanish_are_forgotten_and_their_bandwidth_is_given_to_the_others(tmp_path: Path) -> None:
    rates = {"smoke": 20.0, "picture": 10.0}

    async def scene() -> None:
        async with (
            exchange(tmp_path, scenario=TWO_PORTS) as running,
            Publisher(running.rest, name="sensors", settings=QUICK) as publisher,
        ):
            seen = Seen()
            async with Subscriber(
                running.rest, name="stays", port="radio", on_event=seen, settings=QUICK
            ) as stays:
                await publisher.declare({topic: (rate, 100.0) for topic, rate in rates.items()})
                await stays.subscribe("smoke", utility="log:10")
                await stays.subscribe("picture", utility="log:2")
                ten = subprocess.Popen([sys.executable, "-c", TEN, running.rest], stdout=subprocess.PIPE)
                try:
                    assert ten.stdout is not None
                    assert await asyncio.to_thread(ten.stdout.readline) == b"ready\n"
                    await _vanish(running, seen, publisher, ten)
                finally:
                    ten.kill()
                    ten.communicate()

    async def _vanish(
        running: Exchange, seen: Seen, publisher: Publisher, ten: subprocess.Popen[bytes]
    ) -> None:
        async def drop_rates() -> dict[str, float]:
            return dict((await rest(running.rest, "/v1/subscribers/stays/assignment"))["drop_rates"])

        async def pictures_are_dropped() -> bool:
            return (await drop_rates()).get("picture", 0.0) > 0.5

        async def nothing_is_dropped() -> bool:
            return set((await drop_rates()).values()) == {0.0}

        for number in range(10):
            await _in_force(running, f"ten-{number}")
        await until(pictures_are_dropped)
        offered = (await rest(running.rest, "/v1/plan"))["ports"][0]["rho_offered"]
        async with Steady(publisher, rates, size=100) as steady:
            await until(lambda: len(seen.numbers.get("smoke", ())) > 5)
            ten.kill()
            killed, arrived, slowest = time.monotonic(), len(seen.numbers["smoke"]), 0.0

            async def forgotten() -> bool:
                nonlocal slowest
                asked = time.monotonic()
                found = (await rest(running.rest, "/v1/health"))["subscribers"]
                slowest = max(slowest, time.monotonic() - asked)
                return bool(found == 1)

            await until(forgotten)
            print(f"forgotten after {time.monotonic() - killed:.1f} s; slowest answer {slowest:.2f} s")
            # Nobody was blocked meanwhile.
            assert len(seen.numbers["smoke"]) > arrived
            await until(nothing_is_dropped)
            assert (await rest(running.rest, "/v1/plan"))["ports"][0]["rho_offered"] < offered / 3
            ended = [row for row in await decisions(running.rest) if "lease" in json.dumps(row)]
            assert {f"ten-{number}" for number in range(10)} <= {
                name for row in ended for name in [row["subject"].rpartition(" ")[2]]
            }, ended
            # From here on everything arrives.
            await asyncio.sleep(0.5)
            first = dict(steady.published)
            await until(lambda: steady.published["picture"] > first["picture"] + 10)
        await until(lambda: seen.has("picture", steady.published["picture"], first["picture"]))

    asyncio.run(scene())
