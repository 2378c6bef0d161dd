"""MQTT and MQTT-SN clients share one radio: each gets what is planned for it, and REST and trace show both."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.front.paho_client import Paho, until
from tests.gateway.real import SnClient
from tests.live.up.exchanging import LONG_SECONDS, Up, ask

from triagemq.broker.process import find_mosquitto

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")

# What PUBLISH in TCP has around the payloads of these topics.
SCENARIO = """
name: One radio
overhead_bytes: 78
planning: {priority_classes: 3}
brokers:
  building:
switches:
  edge:
ports:
  radio: {switch: edge, bandwidth_bps: 240000, buffer_packets: 200}
  wire: {switch: edge, bandwidth_bps: 20e6, buffer_packets: 1000}
publishers:
  sensors:
    publishes:
      alarm: {rate_per_second: 20, size_bytes: 60, sizes: constant, arrivals: periodic}
      pressure: {rate_per_second: 120, size_bytes: 60, sizes: constant, arrivals: periodic}
subscribers:
  staff:
    port: wire
    subscribes: {alarm: log:1}
"""
RATES = {"alarm": 20, "pressure": 120}
SECONDS = 10.0


def announce(url: str, name: str) -> dict[str, Any]:
    subscriptions = [{"topic": "alarm", "utility": "log:50"}, {"topic": "pressure", "utility": "log:1"}]
    subscriber = {"name": name, "port": "radio", "lease_seconds": 60, "subscriptions": subscriptions}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/subscribers", json.dumps(subscriber).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return dict(json.loads(answer.read())["connection"])


def drop_rates(url: str, name: str) -> dict[str, float]:
    """Of each of its topics, by the latest plan; empty before there is one."""
    with contextlib.suppress(urllib.error.HTTPError):
        rows = ask(url, f"/v1/subscriptions?search={name}")["subscriptions"]
        return {row["topic"]: row["drop_rate"] for row in rows}
    return {}


def test_clients_of_both_protocols_get_the_shares_that_are_planned_for_them(tmp_path: Path) -> None:
    scenario = tmp_path / "radio.yaml"
    scenario.write_text(SCENARIO)
    with (
        Up(tmp_path / "up", "--front", "127.0.0.1:0", file=scenario) as running,
        contextlib.ExitStack() as stack,
    ):
        ready = running.ready()
        url, front = ready["coordinator"], ready["front"]
        assert front.startswith("mqtt://127.0.0.1:")
        plain, phone = announce(url, "plain"), announce(url, "phone")
        radio = SnClient(int(plain["gateway"].rpartition(":")[2]), plain["client_id"] + "~0").connect()
        stack.callback(radio.end)
        paho = Paho(int(front.rpartition(":")[2]), phone["client_id"] + "~0").connected()
        stack.callback(paho.end)
        ids = {radio.subscribe(topic).topic_id: topic for topic in RATES}
        for topic in RATES:
            paho.subscribe(topic)
        deadline = time.monotonic() + LONG_SECONDS
        while any(len(drop_rates(url, name)) < 2 for name in ("plain", "phone")):
            assert time.monotonic() < deadline, "not planned"
            radio.collect(0.2)
        radio.collect(3.0)
        planned = {name: drop_rates(url, name) for name in ("plain", "phone")}
        assert all(rates["alarm"] == 0.0 for rates in planned.values())
        assert all(0.05 < rates["pressure"] < 0.6 for rates in planned.values()), planned
        radio.messages.clear()
        before = len(paho.messages)
        begun = time.monotonic()
        radio.collect(SECONDS)
        seconds = time.monotonic() - begun
        counted = {
            "plain": Counter(ids[message.topic_id] for message in radio.messages),
            "phone": Counter(message.topic for message in paho.messages[before:]),
        }
        for name, rates in planned.items():
            assert abs(drop_rates(url, name)["pressure"] - rates["pressure"]) < 0.01, "the plan has changed"
            for topic, rate in RATES.items():
                share = counted[name][topic] / (rate * seconds)
                assert abs(share - (1.0 - rates[topic])) < 0.03, (name, topic, share, rates)
        # Publications are counted once, over however many connections they come.
        topics = {row["topic"]: row for row in ask(url, "/v1/topics")}
        assert abs(topics["pressure"]["rate_per_second"] - 120) < 12, topics["pressure"]


POLICY = """
roles:
  command: {budget: 400, rank: 0}
  visitor: {budget: 50, rank: 9}
clients:
  - {user: lead, role: command, port: radio, subscriptions: {alarm: log:50, "#": log:1}}
  - {id: "*", role: visitor, port: radio}
"""


def rows(url: str, name: str) -> dict[str, dict[str, Any]]:
    """What is planned of a client, by topic."""
    with contextlib.suppress(urllib.error.HTTPError):
        return {row["topic"]: row for row in ask(url, f"/v1/subscriptions?search={name}")["subscriptions"]}
    return {}


def test_clients_that_nobody_announces_are_planned_for_by_policy_and_by_what_they_say(tmp_path: Path) -> None:
    scenario, policy = tmp_path / "radio.yaml", tmp_path / "policy.yaml"
    scenario.write_text(SCENARIO)
    policy.write_text(POLICY)
    options = "--front", "127.0.0.1:0", "--policy", str(policy)
    with Up(tmp_path / "up", *options, file=scenario) as running, contextlib.ExitStack() as stack:
        ready = running.ready()
        url, port = ready["coordinator"], int(ready["front"].rpartition(":")[2])
        phone = Paho(port, "phone", user="lead").connected().subscribe("alarm").subscribe("pressure")
        stack.callback(phone.end)
        tablet = Paho(port, "tablet", "5").connected().subscribe("alarm", terms="log:20")
        stack.callback(tablet.end)
        until(lambda: rows(url, "phone").keys() == {"alarm", "pressure"} and "alarm" in rows(url, "tablet"))
        weights = {topic: row["weight"] for topic, row in rows(url, "phone").items()}
        assert weights == {"alarm": 50.0, "pressure": 1.0}
        assert rows(url, "tablet")["alarm"]["weight"] == 20.0
        assert (
            rows(url, "phone")["alarm"]["priority_class"] <= rows(url, "phone")["pressure"]["priority_class"]
        )
        phone.take(20)
        tablet.end()
        until(lambda: not rows(url, "tablet"))
