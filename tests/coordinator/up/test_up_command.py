"""`triage up` as a person starts it: figures beside the forecast, the end by Ctrl-C or a kill, mistakes in one line."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.client.loopback import QUICK
from tests.coordinator.up.exchanging import (
    BUILDING_FIRE,
    LONG_SECONDS,
    TRIAGE,
    TWO_PORTS,
    Up,
    ask,
    children_of,
    is_alive,
)

from triagemq.client import BlockingPublisher, BlockingSubscriber
from triagemq.trace import Trace, runs


def _figures(directory: Path, *options: str) -> dict[str, Any]:
    with Up(directory, *options, file=BUILDING_FIRE) as running:
        code, output = running.result()
        assert code == 0, running.errors()
    figures: dict[str, Any] = json.loads(output)
    assert set(figures["restarts"].values()) == {0}
    return figures


def _command(name: str, *arguments: str) -> dict[str, Any]:
    done = subprocess.run([*TRIAGE, name, *arguments, "--json"], check=True, capture_output=True)
    return dict(json.loads(done.stdout))


def _is_as_forecast(figures: dict[str, Any]) -> None:
    """Class 0 delivers everything; every class is within 0.03 of the forecast, or has it inside its 99 % interval."""
    assert figures["classes"][0]["priority_class"] == 0
    assert figures["classes"][0]["success_rate"] == 1.0
    forecast = {row["priority_class"]: row for row in figures["forecast"]["classes"]}
    assert set(forecast) == {row["priority_class"] for row in figures["classes"]}
    for row in figures["classes"]:
        expected = forecast[row["priority_class"]]["success_rate"]
        assert abs(row["success_rate"] - expected) <= max(0.03, row["success_ci99"] or 0.0), (row, expected)


def test_measured_beside_forecast_with_the_keys_of_simulate(tmp_path: Path) -> None:
    figures = _figures(tmp_path, "--for", "10")
    _is_as_forecast(figures)
    simulated = _command("simulate", str(BUILDING_FIRE), "--for", "10")
    for key in ("scenario", "publications", "measured_publications", "copies", "deliveries"):
        assert type(figures[key]) is type(simulated[key])
    assert set(simulated["classes"][0]) <= set(figures["classes"][0])
    assert set(simulated["utility"]) == set(figures["utility"])
    assert figures["scenario"] == simulated["scenario"]
    found = runs(tmp_path / figures["trace"])
    assert len(found.complete) == 1
    assert not found.incomplete
    trace = Trace.open(found.complete[0])
    assert len(trace.table("publications")) == figures["publications"]
    assert len(trace.table("decisions")) > 0
    assert len(trace.table("queue_samples")) > 0


def test_without_triage_what_matters_most_fares_like_the_rest(tmp_path: Path) -> None:
    figures = _figures(tmp_path, "--for", "6", "--no-triage")
    assert figures["triage"] is False
    assert figures["classes"][0]["priority_class"] == 0
    assert figures["classes"][0]["success_rate"] < 0.95
    with_triage = _command("forecast", str(BUILDING_FIRE))
    assert figures["utility"]["rate"] < with_triage["utility"]["rate"]
    assert figures["forecast"]["utility"]["rate"] < with_triage["utility"]["rate"]


def test_a_broker_in_python_is_enough(tmp_path: Path) -> None:
    _is_as_forecast(_figures(tmp_path, "--for", "8", "--broker", "embedded"))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("broker", [(), ("--broker", "embedded")], ids=["default", "embedded"])
def test_a_minute_of_the_building_fire(tmp_path: Path, broker: tuple[str, ...]) -> None:
    _is_as_forecast(_figures(tmp_path, "--for", "60", *broker))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_minute_without_triage(tmp_path: Path) -> None:
    figures = _figures(tmp_path, "--for", "60", "--no-triage")
    forecast = {row["priority_class"]: row for row in figures["forecast"]["classes"]}
    for row in figures["classes"]:
        expected = forecast[row["priority_class"]]["success_rate"]
        assert abs(row["success_rate"] - expected) <= max(0.03, row["success_ci99"] or 0.0), (row, expected)


def _wait(what: Callable[[], Any]) -> None:
    deadline = time.monotonic() + LONG_SECONDS
    while not what():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def _is_measured(url: str, topic: str) -> bool:
    return any(row["measured"] for row in ask(url, "/v1/topics") if row["topic"] == topic)


def test_ctrl_c_ends_everything_and_leaves_figures_and_a_trace(tmp_path: Path) -> None:
    with Up(tmp_path, "--state", str(tmp_path / "state"), file=TWO_PORTS) as running:
        url = running.ready()["coordinator"]
        _wait(lambda: _is_measured(url, "alarm"))
        children = children_of(running.process.pid)
        assert len(children) == 5
        running.signal(signal.SIGINT)
        code, output = running.result(LONG_SECONDS)
        assert code == 0, running.errors()
        assert json.loads(output)["publications"] > 0
        assert not any(map(is_alive, children))
    found = runs(tmp_path / "state" / "trace")
    assert len(found.complete) == 1
    assert not found.incomplete


def test_a_killed_exchange_leaves_nothing_behind_and_is_taken_up_again_beside_another(tmp_path: Path) -> None:
    options = ["--state", str(tmp_path / "state")]
    with Up(tmp_path / "other") as other, Up(tmp_path / "one", *options) as one:
        ready, others = one.ready(), other.ready()
        for key in ("coordinator", "gateway", "broker", "state"):
            assert ready[key] != others[key]
        with (
            BlockingSubscriber(
                ready["coordinator"], name="keeper", keep_session=True, lease_seconds=60, settings=QUICK
            ) as subscriber,
            BlockingPublisher(
                ready["coordinator"], name="steady", keep_session=True, lease_seconds=60, settings=QUICK
            ) as publisher,
        ):
            subscriber.subscribe("floor/+", utility="log:3", qos=1)
            publisher.publish("floor/1", b"before", qos=1)
            assert _payload(subscriber) == b"before"
            _wait(lambda: ask(ready["coordinator"], "/v1/subscribers/keeper")["in_force"])
            intent = ask(ready["coordinator"], "/v1/subscribers/keeper")
            decided = ask(ready["coordinator"], "/v1/decisions")["decisions"]
            children = children_of(one.process.pid)
            assert len(children) == 3
            with Up(tmp_path / "thief", *options) as thief:
                assert thief.result()[0] == 2
                assert "in use" in thief.errors()
            one.signal(signal.SIGKILL)
            one.process.wait()
            _wait(lambda: not any(map(is_alive, children)))
            same = ["--gateway", ready["gateway"], "--rest", ready["coordinator"].removeprefix("http://")]
            with Up(tmp_path / "again", *options, *same) as again:
                assert again.ready()["coordinator"] == ready["coordinator"]
                found = ask(ready["coordinator"], "/v1/subscribers/keeper")
                assert found["subscriptions"] == intent["subscriptions"]
                health = ready["coordinator"], "/v1/health"
                _wait(lambda: ask(*health)["in_force_generation"] >= intent["generation"])
                assert ask(ready["coordinator"], "/v1/decisions")["decisions"][: len(decided)] == decided
                publisher.publish("floor/2", b"after", qos=1)
                assert _payload(subscriber) == b"after"
        assert other.process.poll() is None
        assert ask(others["coordinator"], "/v1/health")["status"] == "ok"


def _payload(subscriber: BlockingSubscriber) -> bytes | None:
    event = subscriber.next(LONG_SECONDS)
    return None if event is None else event.payload


@pytest.mark.parametrize(
    ("option", "kind"), [("--gateway", socket.SOCK_DGRAM), ("--rest", socket.SOCK_STREAM)]
)
def test_a_port_in_use_is_one_line(tmp_path: Path, option: str, kind: socket.SocketKind) -> None:
    with socket.socket(socket.AF_INET, kind) as taken:
        taken.bind(("127.0.0.1", 0))
        if kind is socket.SOCK_STREAM:
            taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with Up(tmp_path, option, address) as running:
            code, output = running.result(LONG_SECONDS)
            assert code not in (0, None)
            assert output == ""
            error = running.errors()
    assert len(error.strip().splitlines()) == 1, error
    assert address in error


def test_a_bad_file_is_refused_before_anything_starts(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("name: Bad\nports: {radio: {switch: nowhere, bandwidth_bps: fast}}\n")
    with Up(tmp_path, file=bad) as running:
        code, output = running.result(LONG_SECONDS)
        assert code == 2
        assert output == ""
        assert "Traceback" not in running.errors()
        assert "bad.yaml" in running.errors()
    assert not (tmp_path / "out").exists()
