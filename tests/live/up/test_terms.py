"""Terms of subscriptions in a whole exchange at overload 1.7, by own counts: how often, how new, and how late."""

from __future__ import annotations

import asyncio
import struct
import threading
import time
from collections import defaultdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.real import Publisher
from tests.live.up.exchanging import exchange, until

from triagemq.broker.address import BrokerAddress
from triagemq.client import Event, Subscriber
from triagemq.mqttsn.timestamps import stamp_payload

TERMS: dict[str, dict[str, Any]] = {
    "filler": {},
    "limited": {"max_rate_per_second": 2.0},
    "newest": {"newest_only": True},
    "expiring": {"expires_seconds": 1.0},
}
WIRE_BYTES = 200
PAYLOAD = struct.Struct(">QQ")
NETWORK = """
name: narrow
overhead_bytes: 49
planning: {{priority_classes: 1}}
brokers: {{b: }}
switches: {{s: }}
ports: {{radio: {{switch: s, bandwidth_bps: {bandwidth_bps}, buffer_packets: {buffer_packets}}}}}
publishers: {{nobody: {{publishes: {{silence: {{rate_per_second: 0.01, size_bytes: 10}}}}}}}}
subscribers: {{nobody-else: {{port: radio, subscribes: {{silence: "log:1"}}}}}}
"""


class Load(threading.Thread):
    """Publishes evenly, and knows what and when."""

    def __init__(self, port: int, rates: dict[str, int]) -> None:
        super().__init__(daemon=True)
        self._publisher = Publisher(port)
        self._rates = rates
        self.published_ns: dict[str, list[int]] = defaultdict(list)
        self._is_over = threading.Event()

    def run(self) -> None:
        due: list[list[Any]] = [[time.monotonic(), 1 / rate, topic] for topic, rate in self._rates.items()]
        while not self._is_over.is_set():
            due.sort(key=lambda each: each[0])
            time.sleep(max(0.0, due[0][0] - time.monotonic()))
            topic = due[0][2]
            due[0][0] += due[0][1]
            now_ns = time.time_ns()
            number = len(self.published_ns[topic])
            self.published_ns[topic].append(now_ns)
            octets = stamp_payload(PAYLOAD.pack(number, now_ns), now_ns)
            # 7 octets of MQTT-SN, 42 of headers below.
            self._publisher.publish(topic, octets.ljust(WIRE_BYTES - 49, b"\0"))

    def end(self) -> None:
        self._is_over.set()
        self.join()
        self._publisher.end()


async def measure(directory: Path, seconds: float, expiring_per_second: int) -> dict[str, Any]:
    """All subscribers behind one port with one queue, and what they got when."""
    rates = {"filler": 200, "limited": 50, "newest": 50, "expiring": expiring_per_second}
    bandwidth_bps = sum(rates.values()) * WIRE_BYTES * 8 / 1.7
    per_second = bandwidth_bps / 8 / WIRE_BYTES
    came: dict[str, list[tuple[int, int, int]]] = {topic: [] for topic in TERMS}

    def hear(topic: str, event: Event) -> None:
        number, published_ns = PAYLOAD.unpack_from(event.payload)
        came[topic].append((number, published_ns, event.received_ns))

    directory.mkdir(exist_ok=True)
    network = directory / "narrow.yaml"
    # Nothing waits for longer than two seconds.
    network.write_text(NETWORK.format(bandwidth_bps=bandwidth_bps, buffer_packets=round(2 * per_second)))
    planner = {"drops": "none", "priorities": "none"}
    async with exchange(directory, scenario=network, planner=planner) as running:
        subscribers = [
            Subscriber(running.rest, name=topic, port="radio", on_event=partial(hear, topic))
            for topic in TERMS
        ]
        for subscriber, topic in zip(subscribers, TERMS, strict=True):
            await subscriber.open()
            await subscriber.subscribe(topic, **TERMS[topic])
        await asyncio.sleep(1)
        port = BrokerAddress.parse(running.broker_address).port
        load = Load(port, rates)
        load.start()
        # Until queues are as long as they get.
        await asyncio.sleep(5)
        begun_ns = time.time_ns()
        await asyncio.sleep(seconds)
        ended_ns = time.time_ns()
        load.end()
        await until(lambda: came["limited"] and time.time_ns() - came["limited"][-1][2] > 2e9)
        for subscriber in subscribers:
            await subscriber.close()
    measured = {
        topic: [one for one in rows if begun_ns <= one[1] <= ended_ns] for topic, rows in came.items()
    }
    arrived = [received_ns for _, _, received_ns in measured["limited"]]
    gaps = [(later - earlier) / 1e9 for earlier, later in pairwise(arrived)]
    successor_ns = load.published_ns["newest"][1:]
    behind = [
        (received_ns - successor_ns[number]) / 1e9
        for number, _, received_ns in measured["newest"]
        if number < len(successor_ns)
    ]
    ages = {
        topic: [(received_ns - published_ns) / 1e9 for _, published_ns, received_ns in rows]
        for topic, rows in measured.items()
    }
    published = {
        topic: sum(begun_ns <= at_ns <= ended_ns for at_ns in all_ns)
        for topic, all_ns in load.published_ns.items()
    }
    return {
        "seconds": (ended_ns - begun_ns) / 1e9,
        "transmission_seconds": 1 / per_second,
        "published": published,
        "delivered": {topic: len(rows) for topic, rows in measured.items()},
        "limited_per_second": (len(arrived) - 1) / ((arrived[-1] - arrived[0]) / 1e9),
        "limited_gap_seconds": (min(gaps), max(gaps)),
        "newest_after_successor_seconds": max(behind),
        "longest_age_seconds": {topic: max(found) for topic, found in ages.items()},
    }


@pytest.mark.slow
def test_at_overload_terms_hold_by_own_counts(tmp_path: Path) -> None:
    found = asyncio.run(measure(tmp_path / "up", 6.0, 50))
    # How late this process, and that of the gateway, may be on a busy machine.
    host = 0.3
    filler = found["longest_age_seconds"]["filler"]
    assert filler > 0.9, "there was no queue in which anything could wait"
    assert abs(found["delivered"]["limited"] - 2 * found["seconds"]) <= 1.5
    assert found["limited_gap_seconds"][1] < 1.0
    assert found["newest_after_successor_seconds"] < found["transmission_seconds"] + host
    assert found["delivered"]["newest"] < found["published"]["newest"] / 2
    assert found["longest_age_seconds"]["expiring"] < 1 + found["transmission_seconds"] + host
    assert found["delivered"]["expiring"] < found["published"]["expiring"]
