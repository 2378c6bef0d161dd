"""First alarms on topics never seen, beside an overload: none may be lost at QoS 1, or dropped on purpose at QoS 0.

Each of ten situations starts an exchange of real processes on loopback. Telemetry and a camera offer 1.7 times what the
port carries; 200 detectors fire once each, on topics that were never published before, and a subscriber wants them by
a filter. Counts and latencies are the benchmark's own: the payload says which alarm it is and when it was published.
An alarm that is published while a process is away, or comes back within SECONDS_AWAY, counts apart.

With --greedy there is a policy and everyone has a token: runs with a visitor that claims log:1e12 on the topics that
fill the port are compared with runs without it. Classes, shares and times of the chief may differ by no more than runs
without the visitor differ among themselves, or GREEDY_SHARE and GREEDY_MILLISECONDS.
"""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kills import is_well, until
from measuring import finish, machine, options
from triagemq.client import Event, Publisher, Subscriber
from triagemq.client.settings import ConnectionSettings
from triagemq.coordinator.access.tokens import Role, TokenRequest, new_token
from triagemq.coordinator.store import Store
from triagemq.errors import ClientError
from triagemq.live.up.exchange import Exchange, ExchangeOptions

BANDWIDTH_BPS = 400_000
OVERLOAD = 1.7
WIRE_OVERHEAD_BYTES = 49
TELEMETRY_BYTES, CAMERA_BYTES, ALARM_BYTES = 150, 900, 40
CAMERA_SHARE = 0.3
"""Of the load; the rest is telemetry on TELEMETRY_TOPICS topics."""
TELEMETRY_TOPICS = 20
ORDINARY_PER_SECOND = 5.0
ALARMS = 200
ALARM_SECONDS = 10.0
P95_MILLISECONDS = 250.0
ORDINARY_SHARE = 0.95
"""Of the ordinary alarms at QoS 1: some are under way when the count ends."""
SECONDS_AWAY = 6.0
"""How long after a kill, or a start, a process counts as away."""
LATE_SECONDS = 40.0
GREEDY_RUNS = 3
GREEDY_SHARE, GREEDY_MILLISECONDS = 0.02, 20.0
POLICY = """
roles:
  command: {budget: 1e6, rank: 0}
  sensors: {budget: 0}
  visitor: {budget: 5, rank: 9}
clients: [{id: "*", role: visitor}]
"""
QUICK_TO_ASK = ConnectionSettings(retry_seconds=1.0, ping_seconds=1.0)


@dataclass
class Site:
    """An exchange, its load and its subscribers; what was published and what came."""

    state: Path
    qos: int
    running: Exchange | None = None
    sent: dict[int, float] = field(default_factory=dict)
    """When each alarm was published, by its number."""
    came: dict[int, list[float]] = field(default_factory=dict)
    ordinary_sent: int = 0
    ordinary_came: int = 0
    away: list[tuple[float, float]] = field(default_factory=list)
    tokens: dict[str, str] = field(default_factory=dict)
    """By role of the policy, where there is one."""
    others: dict[str, list[float]] = field(default_factory=dict)
    """Of telemetry and camera, the latencies of what the chief received."""
    published: Counter[str] = field(default_factory=Counter)
    _tasks: list[asyncio.Task[Any]] = field(default_factory=list)
    _numbers: int = 0

    def options(self) -> ExchangeOptions:
        access = {"access": True} if self.tokens else {}
        return ExchangeOptions(
            state=self.state,
            coordinator={"bandwidth_bps": BANDWIDTH_BPS, **access},
            policy=self.state.parent / "policy.yaml" if self.tokens else None,
        )

    def make_tokens(self) -> None:
        """A policy, and a token for each of its roles."""
        (self.state.parent / "policy.yaml").write_text(POLICY)
        self.state.mkdir()
        store = Store(f"sqlite:///{self.state / 'coordinator.sqlite'}")
        for role in ("command", "sensors", "visitor"):
            secret, token = new_token(
                TokenRequest(
                    roles=(Role.SUBSCRIBER, Role.PUBLISHER),
                    publish=("#",),
                    subscribe=("#",),
                    policy_role=role,
                )
            )
            store.add(token)
            self.tokens[role] = secret
        store.close_now()

    @property
    def rest(self) -> str:
        assert self.running is not None
        return self.running.rest

    def heard(self, event: Event) -> None:
        if event.topic.startswith("b1/fire/") and event.payload:
            self.came.setdefault(int(event.payload.split()[0]), []).append(time.monotonic())
        elif event.topic == "alarms/door":
            self.ordinary_came += 1
        elif event.payload[:8].strip(b"\0"):
            late = time.monotonic() - struct.unpack_from("!d", event.payload)[0]
            self.others.setdefault(event.topic.partition("/")[0], []).append(late)

    @asynccontextmanager
    async def exchange(self) -> AsyncIterator[None]:
        async with Exchange(self.options()) as self.running:
            yield
        self.running = None

    @asynccontextmanager
    async def subscriber(self) -> AsyncIterator[Subscriber]:
        async with Subscriber(
            self.rest,
            name="chief",
            keep_session=True,
            on_event=self.heard,
            settings=QUICK_TO_ASK,
            token=self.tokens.get("command"),
        ) as subscriber:
            await subscriber.subscribe("telemetry/+", utility="log:5", qos=0)
            await subscriber.subscribe("camera", utility="log:1", qos=0)
            await subscriber.subscribe("alarms/door", utility="log:50", qos=self.qos)
            await subscriber.subscribe("b1/fire/+", utility="log:1000", qos=self.qos)
            yield subscriber

    @asynccontextmanager
    async def publishers(self, *, declare: bool = False) -> AsyncIterator[tuple[Publisher, Publisher]]:
        async with (
            Publisher(
                self.rest, name="building", settings=QUICK_TO_ASK, token=self.tokens.get("sensors")
            ) as building,
            Publisher(
                self.rest,
                name="detectors",
                keep_session=True,
                settings=QUICK_TO_ASK,
                token=self.tokens.get("sensors"),
            ) as detectors,
        ):
            if declare:
                telemetry, camera = self.rates()
                await building.declare(
                    {
                        **{
                            f"telemetry/{number}": (telemetry / TELEMETRY_TOPICS, TELEMETRY_BYTES)
                            for number in range(TELEMETRY_TOPICS)
                        },
                        "camera": (camera, CAMERA_BYTES),
                        "alarms/door": (ORDINARY_PER_SECOND, ALARM_BYTES),
                    }
                )
            yield building, detectors

    @staticmethod
    def rates() -> tuple[float, float]:
        """Events of telemetry and camera a second, so that the port is offered OVERLOAD."""
        bytes_per_second = OVERLOAD * BANDWIDTH_BPS / 8
        return (
            (1 - CAMERA_SHARE) * bytes_per_second / (TELEMETRY_BYTES + WIRE_OVERHEAD_BYTES),
            CAMERA_SHARE * bytes_per_second / (CAMERA_BYTES + WIRE_OVERHEAD_BYTES),
        )

    @asynccontextmanager
    async def load(self, building: Publisher) -> AsyncIterator[None]:
        telemetry, camera = self.rates()
        flows = [
            (telemetry, lambda n: f"telemetry/{n % TELEMETRY_TOPICS}", bytes(TELEMETRY_BYTES), 0),
            (camera, lambda n: "camera", bytes(CAMERA_BYTES), 0),
            (ORDINARY_PER_SECOND, lambda n: "alarms/door", bytes(ALARM_BYTES), self.qos),
        ]
        tasks = [asyncio.create_task(self._flow(building, *flow)) for flow in flows]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _flow(
        self, publisher: Publisher, rate: float, topic: Callable[[int], str], payload: bytes, qos: int
    ) -> None:
        begun, number = time.monotonic(), 0
        while True:
            await asyncio.sleep(max(0.0, begun + number / rate - time.monotonic()))
            number += 1
            self.ordinary_sent += topic(number) == "alarms/door"
            self.published[topic(number).partition("/")[0]] += 1
            if self.tokens:
                payload = struct.pack("!d", time.monotonic()).ljust(len(payload), b"\0")
            try:
                if qos:
                    self._tasks.append(
                        asyncio.create_task(publisher.publish(topic(number), payload, qos=qos))
                    )
                else:
                    await publisher.publish(topic(number), payload, qos=qos)
            except ClientError:
                # A process is away: telemetry of that time is lost.
                begun, number = time.monotonic(), 0
                await asyncio.sleep(0.2)

    async def fire(self, detectors: Publisher, count: int, seconds: float) -> None:
        """So many detectors, each once, over these seconds."""
        begun = time.monotonic()
        firing = []
        for place in range(count):
            await asyncio.sleep(max(0.0, begun + place * seconds / count - time.monotonic()))
            firing.append(asyncio.create_task(self._alarm(detectors)))
        await asyncio.gather(*firing)

    async def _alarm(self, detectors: Publisher) -> None:
        number, self._numbers = self._numbers, self._numbers + 1
        payload = f"{number} ".encode().ljust(ALARM_BYTES, b".")
        self.sent[number] = time.monotonic()
        for _ in range(30):
            try:
                await detectors.publish(f"b1/fire/{number}", payload, qos=self.qos)
                return
            except ClientError:
                if not self.qos:
                    return
                await asyncio.sleep(0.5)

    async def settle(self) -> None:
        """Until every alarm has come, or none comes any more."""
        last, since = -1, time.monotonic()
        while len(self.came) < len(self.sent) and time.monotonic() - since < LATE_SECONDS / 2:
            if len(self.came) != last:
                last, since = len(self.came), time.monotonic()
            await asyncio.sleep(0.2)

    def was_away(self, at: float) -> bool:
        return any(begun - 0.5 <= at <= end for begun, end in self.away)

    def figures(self, situation: str) -> dict[str, Any]:
        missing = [number for number in self.sent if number not in self.came]
        delays = sorted(
            1e3 * (self.came[number][0] - at)
            for number, at in self.sent.items()
            if number in self.came and not self.was_away(at)
        )
        return {
            "situation": situation,
            "qos": self.qos,
            "published": len(self.sent),
            "received": len(self.came),
            "repeated": sum(len(times) - 1 for times in self.came.values()),
            "lost": len([number for number in missing if not self.was_away(self.sent[number])]),
            "lost_while_away": len([number for number in missing if self.was_away(self.sent[number])]),
            "median_milliseconds": delays[len(delays) // 2] if delays else None,
            "p95_milliseconds": delays[int(0.95 * len(delays))] if delays else None,
            "ordinary_share": self.ordinary_came / self.ordinary_sent if self.ordinary_sent else None,
        }


async def cold(site: Site, count: int) -> None:
    async with site.exchange(), site.subscriber(), site.publishers() as (building, detectors):
        async with site.load(building):
            await site.fire(detectors, count, ALARM_SECONDS)
        await site.settle()


async def warm(site: Site, count: int) -> None:
    async with site.exchange(), site.subscriber(), site.publishers() as (building, detectors):
        async with site.load(building):
            await asyncio.sleep(15.0)
            await site.fire(detectors, count, ALARM_SECONDS)
        await site.settle()


async def declared(site: Site, count: int) -> None:
    async with (
        site.exchange(),
        site.subscriber(),
        site.publishers(declare=True) as (building, detectors),
        site.load(building),
    ):
        await site.fire(detectors, count, ALARM_SECONDS)
        await site.settle()


async def burst(site: Site, count: int) -> None:
    """All within a second; then ordinary alarms keep their place."""
    async with site.exchange(), site.subscriber(), site.publishers() as (building, detectors):
        async with site.load(building):
            await asyncio.sleep(10.0)
            await site.fire(detectors, count, 2.0)
            site.ordinary_sent = site.ordinary_came = 0
            await asyncio.sleep(8.0)
        await site.settle()


async def restarted(site: Site, count: int) -> None:
    """Rates are declared and fall silent before the exchange is stopped and started again."""
    async with site.exchange(), site.subscriber(), site.publishers(declare=True) as (building, _):
        async with site.load(building):
            await asyncio.sleep(5.0)
        await asyncio.sleep(15.0)
    await cold(site, count)


async def _killed(site: Site, count: int, victim: str) -> None:
    async with site.exchange(), site.subscriber(), site.publishers() as (building, detectors):
        assert site.running is not None
        running = site.running
        async with site.load(building):
            await asyncio.sleep(8.0)
            firing = asyncio.create_task(site.fire(detectors, count, 2 * ALARM_SECONDS))
            await asyncio.sleep(ALARM_SECONDS / 2)
            begun, pid = time.monotonic(), running.pids[victim]
            os.kill(pid, signal.SIGKILL)

            async def is_back() -> bool:
                return running.pids.get(victim) not in (None, pid) and await is_well(running)

            await until(is_back)
            site.away.append((begun, time.monotonic() + SECONDS_AWAY))
            await firing
        await site.settle()


def killed(victim: str) -> Callable[[Site, int], Awaitable[None]]:
    return lambda site, count: _killed(site, count, victim)


async def joined(site: Site, count: int) -> None:
    """A second gateway joins, and leaves again."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(site.exchange())
        assert site.running is not None
        await stack.enter_async_context(site.subscriber())
        building, detectors = await stack.enter_async_context(site.publishers())
        async with site.load(building):
            await asyncio.sleep(8.0)
            firing = asyncio.create_task(site.fire(detectors, count, 2 * ALARM_SECONDS))
            await asyncio.sleep(2.0)
            second = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "triagemq", "gateway", "--join", site.rest, "--name", "second"),
                *(
                    "--broker",
                    site.running.broker_address,
                    "--listen",
                    "127.0.0.1:0",
                    "--state",
                    str(site.state / "second"),
                ),
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )
            await asyncio.sleep(8.0)
            leaves = time.monotonic()
            second.terminate()
            await second.wait()
            site.away.append((leaves, time.monotonic() + SECONDS_AWAY))
            await firing
        await site.settle()


async def abused(site: Site, count: int) -> None:
    """Empty messages, and a subscriber that claims an absurd worth for what fills the port."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(site.exchange())
        await stack.enter_async_context(site.subscriber())
        building, detectors = await stack.enter_async_context(site.publishers())
        visitor = Subscriber(site.rest, name="visitor", settings=QUICK_TO_ASK)
        await stack.enter_async_context(visitor)
        await stack.enter_async_context(site.load(building))
        await visitor.subscribe("camera", utility="log:1e12")
        await asyncio.sleep(5.0)
        for number in range(5):
            for topic in ("lamp/7", "telemetry/1", "b1/fire/empty"):
                await building.publish(topic, b"", qos=number % 2)
        await site.fire(detectors, count, ALARM_SECONDS)
        await site.settle()


SITUATIONS: dict[str, Callable[[Site, int], Awaitable[None]]] = {
    "cold": cold,
    "warm": warm,
    "declared rates": declared,
    "burst": burst,
    "restart after silence": restarted,
    "gateway killed": killed("gateway"),
    "coordinator killed": killed("coordinator"),
    "broker killed": killed("broker"),
    "gateway joins and leaves": joined,
    "empty messages and absurd claims": abused,
}


async def situation(name: str, qos: int, count: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        site = Site(Path(directory) / "state", qos)
        await SITUATIONS[name](site, count)
        return site.figures(name)


async def greedy(site: Site, count: int, *, with_visitor: bool) -> dict[str, Any]:
    """One run with a policy; what the chief gets."""
    site.make_tokens()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(site.exchange())
        chief = await stack.enter_async_context(site.subscriber())
        building, detectors = await stack.enter_async_context(site.publishers())
        await stack.enter_async_context(site.load(building))
        visitor = None
        if with_visitor:
            visitor = Subscriber(
                site.rest, name="visitor", settings=QUICK_TO_ASK, token=site.tokens["visitor"]
            )
            await stack.enter_async_context(visitor)
            await visitor.subscribe("camera", utility="log:1e12")
            await visitor.subscribe("telemetry/+", utility="log:1e12", min_share=1.0)
        await asyncio.sleep(15.0)
        for counted in (site.published, site.others):
            counted.clear()
        site.ordinary_sent = site.ordinary_came = 0
        await site.fire(detectors, count, ALARM_SECONDS)
        await asyncio.sleep(10.0)
        assert chief.assignment is not None
        classes: dict[str, set[int]] = {}
        for topic, priority_class in chief.assignment.classes.items():
            classes.setdefault(topic.partition("/")[0], set()).add(priority_class)
        shares = {
            name: len(site.others.get(name, ())) / site.published[name] for name in ("telemetry", "camera")
        }
        times = {name: sorted(site.others.get(name, ())) for name in ("telemetry",)}
        await site.settle()
        row = site.figures("with a greedy visitor" if with_visitor else "without it")
        await stack.aclose()
    return row | {
        "classes": {name: sorted(several) for name, several in sorted(classes.items()) if name != "b1"},
        "shares": shares,
        "telemetry_p95_milliseconds": 1e3 * times["telemetry"][int(0.95 * len(times["telemetry"]))],
        "limited": [] if visitor is None else [str(each.refusal()) for each in visitor.limited_claims],
    }


def compare_greedy(count: int, runs: int, *, as_json: bool) -> None:
    rows: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    for _ in range(runs):
        for with_visitor in rows:
            with tempfile.TemporaryDirectory() as directory:
                site = Site(Path(directory) / "state", 0)
                row = asyncio.run(greedy(site, count, with_visitor=with_visitor))
            rows[with_visitor].append(row)
            if not as_json:
                shares = ", ".join(f"{name} {share:.1%}" for name, share in row["shares"].items())
                print(
                    f"{row['situation']:<22} alarms {row['received']} of {row['published']}, p95 "
                    f"{row['p95_milliseconds']:.0f} ms; {shares}, telemetry p95 "
                    f"{row['telemetry_p95_milliseconds']:.0f} ms; classes {row['classes']}",
                    flush=True,
                )
    different = greedy_differences(rows[False], rows[True])
    figures = {"without": rows[False], "with": rows[True], "different": different}
    finish(figures | {"machine": machine("triagemq")}, [], as_json=as_json)
    if different:
        raise SystemExit(f"not within the noise: {', '.join(different)}")


def greedy_differences(without: list[dict[str, Any]], beside: list[dict[str, Any]]) -> list[str]:
    """What differs by more than runs without the visitor among themselves."""

    def differs(figure: Callable[[dict[str, Any]], float], least: float) -> bool:
        usual, found = [figure(row) for row in without], [figure(row) for row in beside]
        noise = max(max(usual) - min(usual), least)
        return abs(sum(found) / len(found) - sum(usual) / len(usual)) > noise

    found = [
        name
        for name in ("telemetry", "camera")
        if differs(lambda row, name=name: float(row["shares"][name]), GREEDY_SHARE)  # type: ignore[misc]
    ]
    found += [
        name
        for name in ("p95_milliseconds", "telemetry_p95_milliseconds")
        if differs(lambda row, name=name: float(row[name]), GREEDY_MILLISECONDS)  # type: ignore[misc]
    ]
    if any(row["received"] < row["published"] for row in beside):
        found.append("alarms lost")
    # Topics of equal worth are spread over classes: what counts is that none of them comes later.
    for name in without[0]["classes"]:
        last = max(max(row["classes"][name]) for row in without)
        if any(max(row["classes"].get(name, [99])) > last for row in beside):
            found.append(f"classes of {name}")
    return found


def holds(row: dict[str, Any]) -> bool:
    lost = row["lost"] + (row["lost_while_away"] if row["qos"] else 0)
    ordinary = row["qos"] == 0 or (row["ordinary_share"] or 0.0) >= ORDINARY_SHARE
    return not lost and ordinary and (row["p95_milliseconds"] or 0.0) < P95_MILLISECONDS


def line(row: dict[str, Any]) -> str:
    median, p95 = row["median_milliseconds"], row["p95_milliseconds"]
    times = "nothing came" if median is None else f"median {median:.0f} ms, p95 {p95:.0f} ms"
    ordinary = row["ordinary_share"]
    return (
        f"{row['situation']:<34} QoS {row['qos']}: {row['received']} of {row['published']}, {row['lost']} lost, "
        f"{row['lost_while_away']} while a process was away, {row['repeated']} again; {times}; ordinary alarms "
        + ("-" if ordinary is None else f"{ordinary:.0%}")
        + ("" if holds(row) else "   <-- does not hold")
    )


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--situation", choices=list(SITUATIONS), help="only this one")
    parser.add_argument("--qos", type=int, choices=(0, 1), help="only this one")
    parser.add_argument("--greedy", action="store_true", help="a visitor that claims everything, by a policy")
    arguments = parser.parse_args()
    if arguments.greedy:
        count, runs = (50, 1) if arguments.quick else (ALARMS, GREEDY_RUNS)
        compare_greedy(count, runs, as_json=arguments.json)
        return
    rows = []
    for name in SITUATIONS if arguments.situation is None else [arguments.situation]:
        for qos in (0, 1) if arguments.qos is None else (arguments.qos,):
            rows.append(asyncio.run(situation(name, qos, 50 if arguments.quick else ALARMS)))
            if not arguments.json:
                print(line(rows[-1]), flush=True)
    finish({"situations": rows, "machine": machine("triagemq")}, [], as_json=arguments.json)
    if not all(holds(row) for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
