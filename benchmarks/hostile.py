"""Strangers and the holder of a small token do their worst; a well-behaved publisher and subscriber notice nothing.

Five minutes of QoS 1 events while one attack follows another, each bounded and its rate printed. Nothing may be lost,
no process may grow by more than a tenth after the first minute, and the 99th percentile of class 0 stays below twice
that of a quiet run before it. `--open` does the same to an exchange without access control, where strangers are let in.
`--broker` does it at a broker that takes no QoS 2 and retains nothing, and crashes every few seconds: then nothing may
be lost all the same, and times and memory are shown and not judged.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from asyncio.subprocess import Process
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from hostile_attacks import ATTACKS, CONNECTIONS_PER_SECOND, OVER_REST, Attacker
from measuring import finish, machine, options
from triagemq.addresses import host_and_port
from triagemq.broker.process import find_mosquitto, free_port
from triagemq.client import Event, Publisher, Subscriber
from triagemq.live.up.exchange import Exchange, ExchangeOptions
from triagemq.live.up.state import own_token

TOPIC, HOLDERS_TOPICS = "steady/alarm", "sensor/1/#"
RATE, SIZE = 200.0, 60
MOST_GROWTH = 1.1
MOST_SLOWDOWN = 2.0
DATAGRAMS_PER_SECOND = 3_000
"""Of one attack, at most."""
FINAL_SECONDS = 20.0
CRASH_EVERY_SECONDS = 5.0
WATCHED = ("gateway", "coordinator", "broker")


@dataclass
class Steady:
    """The well-behaved pair, and what became of their events."""

    acknowledged: set[int] = field(default_factory=set)
    received: set[int] = field(default_factory=set)
    latencies: list[float] = field(default_factory=list)
    client_id: str = ""
    priority_class: int = -1

    def arrived(self, event: Event) -> None:
        # Where strangers are let in, they publish to this topic, too.
        if not event.payload[:12].isdigit():
            return
        self.received.add(int(event.payload[:12]))
        if event.published_ns is not None:
            self.latencies.append((event.received_ns - event.published_ns) * 1e-9)

    @property
    def lost(self) -> int:
        return len(self.acknowledged - self.received)


def p99(latencies: list[float]) -> float:
    return statistics.quantiles(latencies, n=100)[-1]


async def publish(publisher: Publisher, steady: Steady, seconds: float) -> None:
    """At a steady rate, each event its number; returns when the last one is acknowledged."""
    tasks: set[asyncio.Task[None]] = set()

    async def one(number: int) -> None:
        await publisher.publish(TOPIC, (b"%012d" % number).ljust(SIZE), qos=1)
        steady.acknowledged.add(number)

    begun = time.monotonic()
    for number in count():
        due = begun + number / RATE
        if due > begun + seconds:
            break
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        task = asyncio.create_task(one(number))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    async with asyncio.timeout(FINAL_SECONDS):
        await asyncio.gather(*tasks)


def resident(running: Exchange) -> dict[str, int]:
    page = resource.getpagesize()
    return {
        name: int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page
        for name, pid in running.pids.items()
        if name in WATCHED
    }


def ask(url: str, method: str, path: str, token: str | None, body: dict[str, Any] | None = None) -> Any:
    headers = {"Content-Type": "application/json"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


class CrashingBroker:
    """Mosquitto that takes QoS 1 at most and retains nothing; killed every few seconds, and started again."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self._configuration = directory / "mosquitto.conf"
        self._configuration.write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous true\nuser root\nmax_qos 1\nretain_available false\n"
            f"persistence true\npersistence_location {directory}/\nautosave_interval 1\n"
            "max_inflight_messages 0\nmax_queued_messages 0\nset_tcp_nodelay true\nlog_type error\n"
        )
        self._process = self._start()
        self.crashes = 0

    def _start(self) -> subprocess.Popen[bytes]:
        program = find_mosquitto()
        assert program is not None, "needs Mosquitto (apt install mosquitto)"
        return subprocess.Popen([program, "-c", str(self._configuration)], stderr=subprocess.DEVNULL)

    async def keep_crashing(self) -> None:
        while True:
            await asyncio.sleep(CRASH_EVERY_SECONDS)
            self.end()
            await asyncio.sleep(0.2)
            self._process = self._start()
            self.crashes += 1

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def crashing(directory: Path, *, wanted: bool) -> Iterator[CrashingBroker | None]:
    broker = CrashingBroker(directory) if wanted else None
    try:
        yield broker
    finally:
        if broker is not None:
            broker.end()


async def scene(
    seconds: float, *, access: bool, attacked: bool, crashes: bool, report: Callable[[str], None]
) -> dict[str, Any]:
    """One exchange with the well-behaved pair; attacked or left in peace."""
    with (
        tempfile.TemporaryDirectory() as directory,
        tempfile.TemporaryDirectory() as other,
        crashing(Path(other), wanted=crashes) as broker,
    ):
        chosen = ExchangeOptions(
            state=Path(directory),
            broker=None if broker is None else f"mqtt://127.0.0.1:{broker.port}",
            coordinator={"bandwidth_bps": 10e6, "access": access},
        )
        async with Exchange(chosen) as running:
            operator = None
            if access:
                operator = await asyncio.to_thread(
                    own_token,
                    running.state / "operator.token",
                    f"sqlite:///{running.state / 'coordinator.sqlite'}",
                )
            steady = Steady()
            async with (
                Publisher(
                    running.rest, name="steady", token=operator, stamp=True, keep_session=True
                ) as publisher,
                Subscriber(
                    running.rest, name="listener", token=operator, keep_session=True, on_event=steady.arrived
                ) as subscriber,
            ):
                await publisher.declare({TOPIC: (RATE, float(SIZE))})
                await subscriber.subscribe(TOPIC, utility="log:10", qos=1)
                found = await asyncio.to_thread(
                    ask, running.rest, "GET", "/v1/subscribers/listener", operator
                )
                steady.client_id = f"{found['connection']['client_id']}~0"
                await asyncio.sleep(2.0)
                holder = await asyncio.to_thread(holders_client_id, running, operator)
                attacker = await ready_attacker() if attacked else None
                publishing = asyncio.create_task(publish(publisher, steady, seconds))
                crashing_task = None
                if broker is not None and attacked:
                    crashing_task = asyncio.create_task(broker.keep_crashing())
                begun = time.monotonic()
                watching = asyncio.create_task(memory_after(running, min(60.0, seconds / 5)))
                attacks = (
                    []
                    if attacker is None
                    else await attack_all(attacker, running, steady, seconds, holder, report)
                )
                if crashing_task is not None:
                    crashing_task.cancel()
                    await asyncio.gather(crashing_task, return_exceptions=True)
                    report(f"  the broker has crashed {0 if broker is None else broker.crashes} times")
                await publishing
                took = time.monotonic() - begun
                before, after = await watching, resident(running)
                await wait_until(lambda: not steady.lost, FINAL_SECONDS)
                assigned = await asyncio.to_thread(
                    ask, running.rest, "GET", "/v1/subscribers/listener/assignment", operator
                )
                restarts = {name: count for name, count in running.restarts.items() if name in WATCHED}
    return {
        "seconds": took,
        "published": len(steady.acknowledged),
        "lost": steady.lost,
        "p50_seconds": statistics.median(steady.latencies),
        "p99_seconds": p99(steady.latencies),
        "priority_class": assigned["classes"].get(TOPIC),
        "resident_early_bytes": before,
        "resident_end_bytes": after,
        "restarts": restarts,
        "attacks": attacks,
    }


async def memory_after(running: Exchange, seconds: float) -> dict[str, int]:
    await asyncio.sleep(seconds)
    return resident(running)


async def wait_until(what: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not what() and time.monotonic() < deadline:
        await asyncio.sleep(0.05)


def holders_client_id(running: Exchange, operator: str | None) -> str:
    """The id by which somebody with a token for a few topics is let in."""
    token = None
    if operator is not None:
        made = ask(
            running.rest,
            "POST",
            "/v1/tokens",
            operator,
            {
                "label": "the holder of a small token",
                "roles": ["publisher", "subscriber"],
                "names": ["holder"],
                "publish": [HOLDERS_TOPICS],
                "subscribe": [HOLDERS_TOPICS],
            },
        )
        token = made["token"]
    # It claims that its own topics are worth more than anything. Without tokens a claim is as good as any other's.
    claimed = {"topic": HOLDERS_TOPICS, "qos": 1, "utility": "log:1e12" if token else "log:1"}
    wanted = {"subscriptions": [claimed], "lease_seconds": 3600}
    answer = ask(running.rest, "PUT", "/v1/subscribers/holder", token, wanted)
    return str(answer["connection"]["client_id"])


async def ready_attacker() -> Process:
    """A process that is told on its standard input what to do; starting a Python would be the worst of all attacks."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, __file__, "--attacker"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    return process


async def attack_all(
    attacker: Process,
    running: Exchange,
    steady: Steady,
    seconds: float,
    holder: str,
    report: Callable[[str], None],
) -> list[dict[str, Any]]:
    assert attacker.stdin is not None
    assert attacker.stdout is not None
    done = []
    ending = time.monotonic() + seconds
    for number, name in enumerate(ATTACKS):
        share = (ending - time.monotonic()) / (len(ATTACKS) - number)
        before = len(steady.latencies)
        rest = running.rest.rpartition("://")[2]
        order = {
            "name": name,
            "gateway": running.gateway,
            "rest": rest,
            "holder": holder,
            "victim": steady.client_id,
        }
        attacker.stdin.write(json.dumps(order | {"seconds": share}).encode() + b"\n")
        found = json.loads(await attacker.stdout.readline()) | {
            "resident": resident(running),
            "p99_seconds": p99(steady.latencies[before:]),
        }
        done.append(found)
        memory = ", ".join(f"{who} {size / 1e6:.0f} MB" for who, size in found["resident"].items())
        report(
            f"  {name}: {found['sent']:,} sent at {found['sent'] / found['seconds']:,.0f}/s, "
            f"{found['answers']:,} answers; p99 {1e3 * found['p99_seconds']:.2f} ms; {memory}"
        )
    attacker.stdin.close()
    await attacker.wait()
    return done


def attack(given: dict[str, Any]) -> dict[str, Any]:
    """One attack: datagrams at a bounded rate for a bounded time."""
    attacker = Attacker(
        host_and_port(given["gateway"]),
        host_and_port(given["rest"]),
        given["holder"],
        given["victim"],
        random.Random(given["name"]),
    )
    rate = CONNECTIONS_PER_SECOND if given["name"] in OVER_REST else DATAGRAMS_PER_SECOND
    datagrams: Iterator[tuple[int, bytes]] = ATTACKS[given["name"]](attacker)
    begun = time.monotonic()
    sent = 0
    while (elapsed := time.monotonic() - begun) < given["seconds"]:
        due = int(elapsed * rate) + 1
        while sent < due:
            attacker.send(*next(datagrams))
            sent += 1
        attacker.drain()
        time.sleep(0.002)
    attacker.drain()
    attacker.close()
    return {
        "name": given["name"],
        "sent": sent,
        "seconds": elapsed,
        "answers": attacker.answers,
        "let_in": attacker.let_in,
    }


def judge(quiet: dict[str, Any], hostile: dict[str, Any], *, crashes: bool) -> list[str]:
    """What was not kept."""
    wrong = []
    if quiet["lost"] or hostile["lost"]:
        wrong.append(f"lost: {quiet['lost']} in peace, {hostile['lost']} under attack")
    if crashes:
        return wrong
    for name in WATCHED:
        growth = hostile["resident_end_bytes"][name] / hostile["resident_early_bytes"][name]
        if growth > MOST_GROWTH:
            wrong.append(f"the {name} has grown to {growth:.2f} of its size")
    slowdown = hostile["p99_seconds"] / quiet["p99_seconds"]
    if slowdown >= MOST_SLOWDOWN:
        wrong.append(f"p99 is {slowdown:.2f} times that of peace")
    wrong += [
        f"{each['name']}: {each['let_in']} requests of strangers were carried out"
        for each in hostile["attacks"]
        if each["let_in"]
    ]
    if any(hostile["restarts"].values()):
        wrong.append(f"started again: {hostile['restarts']}")
    return wrong


def summary(name: str, run: dict[str, Any]) -> str:
    memory = ", ".join(
        f"{who} {run['resident_early_bytes'][who] / 1e6:.0f} -> {run['resident_end_bytes'][who] / 1e6:.0f} MB"
        for who in run["resident_end_bytes"]
    )
    return (
        f"{name}: {run['published']:,} events in {run['seconds']:.0f} s, {run['lost']} lost, class "
        f"{run['priority_class']}: median {1e3 * run['p50_seconds']:.2f} ms, p99 {1e3 * run['p99_seconds']:.2f} ms; "
        f"{memory}"
    )


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--open", action="store_true", help="without access control")
    parser.add_argument("--broker", action="store_true", help="at a broker that takes little and crashes")
    parser.add_argument("--attacker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.attacker:
        print("ready", flush=True)
        for line in sys.stdin:
            print(json.dumps(attack(json.loads(line))), flush=True)
        return

    def report(line: str) -> None:
        if not arguments.json:
            print(line, flush=True)

    access = not arguments.open
    quiet = asyncio.run(
        scene(
            15.0 if arguments.quick else 60.0,
            access=access,
            attacked=False,
            crashes=arguments.broker,
            report=report,
        )
    )
    report(summary("in peace", quiet))
    hostile = asyncio.run(
        scene(
            60.0 if arguments.quick else 300.0,
            access=access,
            attacked=True,
            crashes=arguments.broker,
            report=report,
        )
    )
    report(summary("under attack", hostile))
    wrong = judge(quiet, hostile, crashes=arguments.broker)
    kept = "" if arguments.broker else ", memory within a tenth, p99 below twice that of peace"
    report("; ".join(wrong) or f"kept: nothing lost{kept}")
    result = {"quiet": quiet, "hostile": hostile, "wrong": wrong, "machine": machine("triagemq")}
    finish(result, [], as_json=arguments.json)
    if wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
