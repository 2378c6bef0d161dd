"""A client that speaks MQTT-SN and knows nothing of TriageMQ receives the shares that are planned for it."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

from tests.gateway.real import SnClient
from tests.live.up.exchanging import LONG_SECONDS, Up, ask

SCENARIO = """
name: A plain client
overhead_bytes: 49
planning: {priority_classes: 3}
brokers:
  building:
switches:
  edge:
ports:
  radio: {switch: edge, bandwidth_bps: 120000, buffer_packets: 200}
  wire: {switch: edge, bandwidth_bps: 20e6, buffer_packets: 1000}
publishers:
  sensors:
    publishes:
      alarm: {rate_per_second: 20, size_bytes: 60, sizes: constant, arrivals: periodic}
      pressure: {rate_per_second: 150, size_bytes: 60, sizes: constant, arrivals: periodic}
subscribers:
  staff:
    port: wire
    subscribes: {alarm: log:1}
"""
SECONDS = 10.0


def _announce(url: str, subscriber: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{url}/v1/subscribers",
        json.dumps(subscriber).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return dict(json.loads(answer.read()))


def _drop_rates(url: str) -> dict[str, float]:
    """Of each of its topics, by the latest plan; empty before there is one."""
    with contextlib.suppress(urllib.error.HTTPError):
        rows = ask(url, "/v1/subscriptions?search=plain")["subscriptions"]
        return {row["topic"]: row["drop_rate"] for row in rows}
    return {}


def test_a_plain_client_gets_the_shares_that_are_planned_for_it(tmp_path: Path) -> None:
    scenario = tmp_path / "plain.yaml"
    scenario.write_text(SCENARIO)
    with Up(tmp_path / "up", file=scenario) as running:
        ready = running.ready()
        url = ready["coordinator"]
        subscriptions = [
            {"topic": "alarm", "utility": "log:50"},
            {"topic": "pressure", "utility": "log:1"},
        ]
        subscriber = {"name": "plain", "port": "radio", "lease_seconds": 60, "subscriptions": subscriptions}
        connection = _announce(url, subscriber)["connection"]
        host, _, port = connection["gateway"].rpartition(":")
        assert host == "127.0.0.1"
        client = SnClient(int(port), connection["client_id"] + "~0").connect()
        try:
            ids = {client.subscribe(topic).topic_id: topic for topic in ("alarm", "pressure")}
            deadline = time.monotonic() + LONG_SECONDS
            while len(_drop_rates(url)) < len(ids):
                assert time.monotonic() < deadline, "not planned"
                client.collect(0.2)
            client.collect(2.0)
            drop_rates = _drop_rates(url)
            assert drop_rates["alarm"] == 0.0
            assert 0.05 < drop_rates["pressure"] < 0.5, "the radio cannot carry it all"
            client.messages.clear()
            begun = time.monotonic()
            client.collect(SECONDS)
            seconds = time.monotonic() - begun
            counted = Counter(ids[message.topic_id] for message in client.messages)
        finally:
            client.end()
        assert abs(_drop_rates(url)["pressure"] - drop_rates["pressure"]) < 0.005, "the plan has changed"
    for topic, rate in (("alarm", 20), ("pressure", 150)):
        assert abs(counted[topic] / (rate * seconds) - (1.0 - drop_rates[topic])) < 0.02, (
            topic,
            counted,
            drop_rates,
        )
