"""`triage pipeline stream mqtt://…`: what is learned of a broker that knows nothing of TriageMQ."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from scipy import stats
from tests.gateway.real import Mosquitto

from triagemq.broker.address import BrokerAddress
from triagemq.broker.process import find_mosquitto
from triagemq.errors import ParameterError, PipelineError
from triagemq.mqtt.packets import encode_connect, encode_publish
from triagemq.mqtt.tap import TopicTap
from triagemq.mqttsn.timestamps import PREFIX_BYTES, stamp_payload
from triagemq.pipeline import Tables, estimate_scenario
from triagemq.pipeline.streaming import stream_pipeline
from triagemq.pipeline.streaming.runs import BrokerRuns
from triagemq.scenario import ArrivalProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

needs_mosquitto = pytest.mark.skipif(
    find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)"
)


class Publisher:
    """A client that knows only MQTT: one topic, at random or by the clock, until it is told to end."""

    def __init__(
        self,
        port: int,
        topic: str,
        rate: float,
        size: int,
        *,
        clockwork: bool = False,
        qos: int = 0,
        stamps: bool = False,
    ) -> None:
        self.topic, self.rate, self.size, self.clockwork = topic, rate, size, clockwork
        self.qos, self.stamps = qos, stamps
        self.sent = 0
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.sendall(
            encode_connect(4, f"device-{topic}", clean=True, keep_alive_seconds=0, user=None, password=None)
        )
        self._socket.recv(64)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        chance = random.Random(self.topic)
        due = time.monotonic()
        while True:
            due += 1 / self.rate if self.clockwork else chance.expovariate(self.rate)
            if self._ended.wait(max(0.0, due - time.monotonic())):
                return
            self.sent += 1
            payload = b"x" * self.size
            if self.stamps:
                payload = stamp_payload(payload[PREFIX_BYTES:], time.time_ns())
            packet_id = self.sent % 60_000 + 1 if self.qos else 0
            octets = encode_publish(4, self.topic.encode(), payload, qos=self.qos, packet_id=packet_id)
            self._socket.sendall(octets)

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
        self._socket.close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    started = Mosquitto(tmp_path / "broker", "log_type all\n")
    yield started
    started.end()


def publishers(broker: Mosquitto) -> list[Publisher]:
    return [
        Publisher(broker.port, "hall/smoke", 30.0, 60),
        Publisher(broker.port, "hall/heat", 12.0, 200),
        Publisher(broker.port, "hall/door", 4.0, 40),
        Publisher(broker.port, "roof/wind", 20.0, 90, clockwork=True),
        Publisher(broker.port, "roof/light", 5.0, 120, clockwork=True),
    ]


@needs_mosquitto
def test_every_message_is_counted_once_with_its_topic_and_size(
    spark: SparkSession, broker: Mosquitto, tmp_path: Path
) -> None:
    started: list[Publisher] = []

    def produce() -> None:
        # What comes before Spark has begun nobody has heard.
        while "SUBSCRIBE from triagemq-" not in (tmp_path / "broker" / "log").read_text():
            time.sleep(0.05)
        started.extend(publishers(broker))
        time.sleep(3)
        for each in started:
            each.end()

    producer = threading.Thread(target=produce)
    producer.start()
    options: dict[str, Any] = {"window_seconds": 1.0, "watermark_seconds": 0.0, "trigger_seconds": 0.3}
    done = stream_pipeline(f"{broker.url}/hall/+", tmp_path / "out", until_idle_seconds=4, **options)
    producer.join()
    sent = {
        each.topic: (each.sent, each.sent * each.size) for each in started if each.topic.startswith("hall")
    }
    assert done.events == sum(count for count, _ in sent.values())
    (run_id,) = done.runs
    assert done.runs[run_id] == {"events": done.events, "late": 0, "duplicates": 0}
    rates = Tables(tmp_path / "out").table("topic_rates")
    found: dict[str, tuple[int, int]] = {}
    for row in rates.to_pylist():
        if row["window_seconds"] == 1.0:
            count, size = found.get(row["topic"], (0, 0))
            found[row["topic"]] = (count + row["publications"], size + row["bytes"])
    assert found == sent
    assert set(rates["topic_id"].to_pylist()) == {None}


class EnoughError(Exception):
    """Ends a stream in this process, which no signal does without ending Spark."""


@needs_mosquitto
def test_time_without_a_stream_is_an_outage_and_no_silence(
    spark: SparkSession, broker: Mosquitto, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    options: dict[str, Any] = {"window_seconds": 1.0, "watermark_seconds": 0.5, "trigger_seconds": 0.3}

    def follow(seconds: int) -> None:
        wanted = heard_seconds(out) + seconds

        def look(_: object) -> None:
            if heard_seconds(out) >= wanted:
                raise EnoughError

        with pytest.raises(EnoughError):
            stream_pipeline(broker.url, out, progress=look, **options)

    started = [
        Publisher(broker.port, "at-most-once", 20.0, 60, clockwork=True),
        Publisher(broker.port, "at-least-once", 20.0, 60, clockwork=True, qos=1),
        Publisher(broker.port, "stamped", 20.0, 60, clockwork=True, qos=1, stamps=True),
    ]
    try:
        follow(4)
        time.sleep(4)
        follow(9)
    finally:
        for each in started:
            each.end()
    tables = Tables(out)
    (state,) = tables.manifest.extra["runs"].values()
    ((begin_ns, end_ns),) = state["outages"]
    assert end_ns - begin_ns > 4e9
    found = estimate_scenario(tables, bandwidth_bps=1e6)
    assert found.outages == 3, "one for each topic"
    assert not found.conditions.timeline
    assert found.scenario.publications.rate_per_second == pytest.approx([20.0] * 3, rel=0.1)
    # What was published meanwhile is no burst.
    rows = [row for row in tables.records("topic_rates") if row["window_seconds"] == 1.0]
    assert max(row["publications"] for row in rows) <= 25
    ends = (begin_ns, end_ns)
    assert not any(0 < end - row["window_start_ns"] < 1e9 for row in rows for end in ends)
    assert not any(
        begin_ns <= row["window_start_ns"] and row["window_start_ns"] + 1e9 <= end_ns for row in rows
    )


@needs_mosquitto
def test_a_broker_that_was_away_is_an_outage_of_the_stream(broker: Mosquitto, tmp_path: Path) -> None:
    ear = TopicTap(BrokerAddress.parse(broker.url), "#", "triagemq-test", None)

    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    wait(lambda: ear.take()[0] is not None)
    assert ear.outages == [], "a table does not begin with one"
    device = Publisher(broker.port, "door", 50.0, 20)
    heard: list[int] = []

    def hears() -> bool:
        heard.extend(ear.take()[3])
        return len(heard) > 5

    wait(hears)
    device.end()
    broker.kill()
    told_ns = None

    def stands_still() -> bool:
        nonlocal told_ns
        before_ns, told_ns = told_ns, ear.take()[0]
        time.sleep(0.5)
        return before_ns == told_ns

    wait(stands_still)
    broker.start()
    wait(lambda: bool(ear.outages))
    ((begin_ns, end_ns),) = ear.outages
    assert begin_ns == told_ns
    assert end_ns - begin_ns > 0.5e9
    wait(lambda: (ear.take()[0] or 0) >= end_ns)
    ear.close()


COMMAND = "import typer; from triagemq.cli.pipeline import stream; typer.run(stream)"


@pytest.fixture
def devices(broker: Mosquitto) -> Iterator[list[Publisher]]:
    started = publishers(broker)
    yield started
    for each in started:
        each.end()


def heard_seconds(out: Path) -> int:
    """How many seconds of the broker are in the table."""
    if not list(out.glob("manifest-*")) or not Tables(out).rows.get("topic_rates"):
        return 0
    return len(set(Tables(out).table("topic_rates")["window_start_ns"].to_pylist()))


@needs_mosquitto
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_scenario_of_five_unknown_publishers(
    devices: list[Publisher], broker: Mosquitto, tmp_path: Path
) -> None:
    began, out = time.monotonic(), tmp_path / "out"
    command = [sys.executable, "-c", COMMAND, broker.url, "--out", str(out), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    while heard_seconds(out) < 30:
        assert process.poll() is None
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    answer, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert json.loads(answer)["events"] > 0
    found = estimate_scenario(Tables(out), bandwidth_bps=1e6)
    print(f"a scenario after {time.monotonic() - began:.1f} s")
    seconds = heard_seconds(out)
    assert found.scenario.publishers.name == ("unknown",)
    publication = found.scenario.publications
    for each in devices:
        topic = found.scenario.topics.name.index(each.topic)
        (place,) = [at for at, its in enumerate(publication.topic) if its == topic]
        low, high = stats.poisson.interval(0.99, each.rate * seconds)
        assert low <= publication.rate_per_second[place] * seconds <= high, each.topic
        assert publication.size_bytes[place] == each.size
        wanted = ArrivalProcess.PERIODIC if each.clockwork else ArrivalProcess.POISSON
        assert publication.arrival_process[place] == wanted, each.topic


@needs_mosquitto
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_stream_that_was_killed_and_started_again_has_the_rates_of_its_sources(
    broker: Mosquitto, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    device = Publisher(broker.port, "roof/wind", 20.0, 90, clockwork=True)
    command = [sys.executable, "-c", COMMAND, broker.url, "--out", str(out), "--json"]
    for end in (signal.SIGKILL, signal.SIGINT):
        wanted = heard_seconds(out) + 12
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        while heard_seconds(out) < wanted:
            assert process.poll() is None
            time.sleep(0.2)
        os.killpg(process.pid, end)
        process.communicate(timeout=60)
        time.sleep(15)
    device.end()
    found = estimate_scenario(Tables(out), bandwidth_bps=1e6)
    assert found.outages == 1
    assert found.scenario.publications.rate_per_second == pytest.approx([20.0], rel=0.03)


@needs_mosquitto
def test_a_broker_that_refuses_says_why(spark: SparkSession, tmp_path: Path) -> None:
    closed = Mosquitto(tmp_path / "broker", "allow_anonymous false\n")
    try:
        with pytest.raises(PipelineError, match=f"127.0.0.1:{closed.port}: refuses the connection"):
            stream_pipeline(f"mqtt://fire:wrong@127.0.0.1:{closed.port}", tmp_path / "out")
    finally:
        closed.end()


def test_what_is_no_broker_or_no_filter_is_named(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="is no topic filter"):
        stream_pipeline("mqtt://localhost/a#b", tmp_path / "out")
    with pytest.raises(ParameterError, match="cannot be read"):
        stream_pipeline("mqtt://fire:s3cret@localhost:port/#", tmp_path / "out")
    with pytest.raises(ParameterError, match="until-idle"):
        stream_pipeline("mqtt://localhost", tmp_path / "out", once=True)
    assert not (tmp_path / "out").exists()
    assert "s3cret" not in BrokerRuns("mqtt://fire:s3cret@localhost/hall/#").source
