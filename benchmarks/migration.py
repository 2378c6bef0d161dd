"""Subscribers that are sent from one real broker's gateway to another's under load, and a broker that is killed.

Every event has a number: what is lost, repeated or out of order is counted at every subscriber. The interruption of a
subscriber is the longest time by which an event came later after the one before it than it was published after that,
while it moved. Then the broker beside the second gateway is killed with kill -9 while its clients get events of QoS 1,
and stays dead: recovery is from the kill until all of them are served by another gateway.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from measuring import finish, machine, options
from triagemq.broker.process import find_mosquitto
from triagemq.client import Event, Publisher, Subscriber, SubscriptionIntent
from triagemq.live.up.exchange import Exchange, ExchangeOptions

SCENARIO = """
name: Two brokers
planning: {flows_per_subscriber: 2, priority_classes: 2}
brokers: {first: {}, second: {}}
broker_links: [{between: [first, second], bandwidth_bps: 1e9}]
switches: {core: }
ports: {cable: {switch: core, bandwidth_bps: 1e9, buffer_packets: 100000}}
topics: {unused: {size_bytes: 100}}
publishers: {nobody: {broker: first, publishes: {unused: {rate_per_second: 1}}}}
subscribers: {nobody: {broker: first, port: cable, subscribes: {unused: {utility: "log:1"}}}}
"""
TOPICS = {"campus/heat": 0, "campus/smoke": 1}
"""With their QoS."""
LONG_SECONDS = 120.0
AT_ONCE = 20
POLL_SECONDS = 0.02


class Watched:
    """A subscriber and all that it got."""

    def __init__(self, url: str, name: str) -> None:
        self.name = name
        self.got: dict[str, list[Event]] = {topic: [] for topic in TOPICS}
        self.client = Subscriber(
            url, name=name, port="cable", on_event=lambda event: self.got[event.topic].append(event)
        )

    async def open(self, turn: asyncio.Semaphore) -> None:
        async with turn:
            await self.client.open()
            await self.client.subscribe_all(
                [SubscriptionIntent(topic, qos=qos) for topic, qos in TOPICS.items()]
            )

    @property
    def port(self) -> int:
        return self.client.connection.address.port

    def mistakes(self, sent: dict[str, int]) -> dict[str, int]:
        found = {"lost": 0, "repeated": 0, "out_of_order": 0}
        for topic, events in self.got.items():
            numbers = [int(event.payload) for event in events]
            found["lost"] += sent[topic] - len(set(numbers))
            found["repeated"] += len(numbers) - len(set(numbers))
            found["out_of_order"] += sum(after < before for before, after in pairwise(numbers))
        return found

    def interruption_seconds(self, from_ns: int, until_ns: int) -> float:
        longest = 0.0
        for events in self.got.values():
            for before, after in pairwise(events):
                if from_ns <= after.received_ns <= until_ns and before.published_ns and after.published_ns:
                    later_ns = (after.received_ns - before.received_ns) - (
                        after.published_ns - before.published_ns
                    )
                    longest = max(longest, later_ns / 1e9)
        return longest


class KilledBroker:
    """A Mosquitto of our own, on one port."""

    def __init__(self, directory: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        directory.mkdir(parents=True)
        self._file = directory / "mosquitto.conf"
        self._file.write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous true\nmax_inflight_messages 0\nmax_queued_messages 0\n"
            f"persistence true\npersistence_location {directory}/\nset_tcp_nodelay true\nuser root\n"
        )
        self.start()

    def start(self) -> None:
        command = find_mosquitto()
        assert command is not None
        self.process = subprocess.Popen([command, "-c", str(self._file)], stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LONG_SECONDS):
        while not condition():
            await asyncio.sleep(POLL_SECONDS)


async def ask(url: str, path: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
    return await asyncio.to_thread(lambda: json.load(urllib.request.urlopen(request, timeout=60)))


async def measure(directory: Path, subscribers: int, rounds: int, kills: int, rate: float) -> dict[str, Any]:
    scenario = directory / "campus.yaml"
    scenario.write_text(SCENARIO)
    broker = KilledBroker(directory / "second")
    beside = {"second": f"mqtt://127.0.0.1:{broker.port}"}
    options_ = ExchangeOptions(
        state=directory / "state", scenario=scenario, name="first", peer_brokers=beside
    )
    try:
        async with Exchange(options_) as running:
            return await _measure(running.rest, broker, subscribers, rounds, kills, rate)
    finally:
        broker.kill()


async def _measure(
    url: str, broker: KilledBroker, subscribers: int, rounds: int, kills: int, rate: float
) -> dict[str, Any]:
    turn = asyncio.Semaphore(AT_ONCE)
    async with asyncio.timeout(LONG_SECONDS):
        while len(gateways := await ask(url, "/v1/gateways")) < 2:
            await asyncio.sleep(POLL_SECONDS)
    port = {each["name"]: int(each["address"].rpartition(":")[2]) for each in gateways}
    watched = [Watched(url, f"crew-{number}") for number in range(subscribers)]
    await asyncio.gather(*(each.open(turn) for each in watched))
    publisher = Publisher(url, name="sensors", stamp=True)
    await publisher.open()
    await publisher.declare(dict.fromkeys(TOPICS, (rate, 50.0)))
    names = [each.name for each in watched]
    sent = dict.fromkeys(TOPICS, 0)
    ended = asyncio.Event()

    async def publish() -> None:
        due = time.monotonic()
        while not ended.is_set():
            for topic, qos in TOPICS.items():
                await publisher.publish(topic, b"%d" % sent[topic], qos=qos)
                sent[topic] += 1
            due += 1 / rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def move(home: str) -> None:
        await ask(url, f"/v1/gateways/{home}/clients", {"subscribers": names})
        await until(lambda: all(each.port == port[home] for each in watched))

    await ask(url, "/v1/gateways/first/clients", {"publishers": ["sensors"]})
    await move("first")
    await until(lambda: publisher.counters.connected > 0)
    working = asyncio.ensure_future(publish())
    interruptions: list[float] = []
    moving: list[float] = []
    for number in range(rounds):
        await asyncio.sleep(3.0)
        from_ns = time.time_ns()
        await move("first" if number % 2 else "second")
        moving.append((time.time_ns() - from_ns) / 1e9)
        await asyncio.sleep(4.0)
        interruptions += [each.interruption_seconds(from_ns, time.time_ns()) for each in watched]
    recoveries: list[float] = []
    for _ in range(kills):
        if broker.process.poll() is not None:
            broker.start()
            async with asyncio.timeout(LONG_SECONDS):
                while not (await ask(url, "/v1/gateways"))[1]["broker_connected"]:
                    await asyncio.sleep(POLL_SECONDS)
        await move("second")
        # A move takes some seconds to its end, and the next one of a client waits for that.
        await asyncio.sleep(8.0)
        killed_at = time.monotonic()
        broker.kill()
        await until(lambda: all(each.port == port["first"] for each in watched))
        recoveries.append(time.monotonic() - killed_at)
        await asyncio.sleep(3.0)
    ended.set()
    await working
    await asyncio.sleep(3.0)
    await publisher.close()
    await asyncio.gather(*(each.client.close() for each in watched))
    mistakes = [each.mistakes(sent) for each in watched]
    return {
        "subscribers": subscribers,
        "events_published": sum(sent.values()),
        "events_received": sum(len(events) for each in watched for events in each.got.values()),
        **{name: sum(each[name] for each in mistakes) for name in ("lost", "repeated", "out_of_order")},
        "moves": rounds * subscribers,
        "all_moved_seconds": moving,
        "median_interruption_seconds": statistics.median(interruptions) if interruptions else None,
        "longest_interruption_seconds": max(interruptions, default=None),
        "kills": kills,
        "recovery_seconds": recoveries,
    }


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--subscribers", type=int, help="how many (default 200, quick 40)")
    arguments = parser.parse_args()
    subscribers = arguments.subscribers or (40 if arguments.quick else 200)
    rounds, kills = (2, 1) if arguments.quick else (2, 10)
    with tempfile.TemporaryDirectory(prefix="triage-migration-") as directory:
        figures = asyncio.run(measure(Path(directory), subscribers, rounds, kills, rate=10.0))
    lines = [f"{name}: {value}" for name, value in figures.items()]
    finish({"machine": machine("triagemq"), **figures}, lines, as_json=arguments.json)


if __name__ == "__main__":
    main()
