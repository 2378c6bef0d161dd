"""`triage up` as a person starts it: the end by Ctrl-C or a kill, another beside it, mistakes in one line."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.client.loopback import QUICK
from tests.gateway.guarded import Guest
from tests.live.up.exchanging import (
    LONG_SECONDS,
    TWO_PORTS,
    Up,
    ask,
    children_of,
    is_alive,
)
from tests.ports import own_port

from triagemq.broker import BrokerProcess, FurtherListener
from triagemq.broker.process import find_mosquitto
from triagemq.broker.users import BrokerUser, hashed_password
from triagemq.certificates import own_certificate
from triagemq.client import BlockingPublisher, BlockingSubscriber
from triagemq.trace import runs


def _wait(what: Callable[[], Any]) -> None:
    deadline = time.monotonic() + LONG_SECONDS
    while not what():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def _is_measured(url: str, topic: str) -> bool:
    return any(row["measured"] for row in ask(url, "/v1/topics") if row["topic"] == topic)


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 0), (signal.SIGTERM, 0)])
def test_a_signal_ends_everything_and_leaves_figures_and_a_trace(
    tmp_path: Path, number: signal.Signals, exit_code: int
) -> None:
    with Up(tmp_path, "--state", str(tmp_path / "state"), file=TWO_PORTS) as running:
        url = running.ready()["coordinator"]
        _wait(lambda: _is_measured(url, "alarm"))
        children = children_of(running.process.pid)
        assert len(children) == 5
        running.signal(number)
        code, output = running.result(LONG_SECONDS)
        assert code == exit_code, running.errors()
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
    assert f"choose another {option} HOST:PORT" in error


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


def test_an_unknown_policy_is_refused_at_the_start_not_when_somebody_comes(tmp_path: Path) -> None:
    with Up(tmp_path, "--drops", "sometimes") as running:
        code, output = running.result(LONG_SECONDS)
        assert (code, output) == (2, "")
        assert "'sometimes' is unknown; known: none, flat," in running.errors()


def test_a_coordinator_that_cannot_be_started_again_is_said_and_is_no_success(tmp_path: Path) -> None:
    with Up(tmp_path, "--state", str(tmp_path / "state")) as running:
        ready = running.ready()
        (tmp_path / "state" / "coordinator.json").write_text('{"database": 7}')
        os.kill(ready["pids"]["coordinator"], signal.SIGKILL)
        _wait(lambda: "still trying" in running.errors())
        assert is_alive(ready["pids"]["gateway"])
        running.signal(signal.SIGINT)
        assert running.result(LONG_SECONDS)[0] == 1
        said = running.errors().splitlines()
    assert len(said) == 2
    for line in said:
        assert "the coordinator ended before it was ready" in line
        assert "database" in line


@pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")
def test_the_built_in_broker_is_where_it_was_told_to_be_also_after_a_restart(tmp_path: Path) -> None:
    state, port = ("--state", str(tmp_path / "state")), own_port()
    for number, given in enumerate((["--mqtt", f"127.0.0.1:{port}"], [])):
        with Up(tmp_path / str(number), *state, *given) as running:
            assert running.ready()["broker"] == f"mqtt://127.0.0.1:{port}"
            guest = Guest(port, None, None)
            guest.end()
            assert guest.code == 0
    with socket.create_server(("127.0.0.1", port)), Up(tmp_path / "third", *state) as running:
        assert running.result(LONG_SECONDS) == (1, "")
        assert running.errors() == (
            f"triage: cannot listen on 127.0.0.1:{port}: Address already in use; choose another --mqtt HOST:PORT\n"
        )


@pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")
def test_another_broker_is_asked_over_tls_with_user_and_password(tmp_path: Path) -> None:
    certificate, key = own_certificate(tmp_path / "tls")
    port = own_port()
    further = FurtherListener("127.0.0.1", port, str(certificate), str(key))
    state = tmp_path / "state"

    async def run() -> None:
        broker = BrokerProcess(tmp_path / "broker", guarded=True, further=further)
        broker.let_in([BrokerUser("hall", hashed_password("s3cret"), ("#",), ("#",))])
        await broker.start()
        try:
            await asyncio.to_thread(talk)
        finally:
            await broker.stop()

    def talk() -> None:
        place = f"127.0.0.1:{port}"
        words = f"the broker at {place} refuses the connection: wrong user or password"
        for password, expected in (("gue55ed", f"triage: {words}; still trying\n"), ("s3cret", "")):
            with Up(
                tmp_path / password, "--state", str(state), "--broker-ca", str(certificate),
                TRIAGE_BROKER=f"mqtts://hall:{password}@{place}",
            ) as up:  # fmt: skip
                ready = up.ready()
                assert ready["broker"] == f"mqtts://{place}"
                said = _said_of_the_broker(up, ready["coordinator"], state, words if expected else "")
                pids = {up.process.pid, *children_of(up.process.pid)}
                lines = "".join(Path(f"/proc/{pid}/cmdline").read_text() for pid in pids)
                up.signal(signal.SIGINT)
                assert up.result(LONG_SECONDS)[0] == 0
                assert up.errors() == expected
                assert password not in lines + said + json.dumps(ready)

    asyncio.run(run())


@pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")
def test_two_exchanges_at_one_broker_stay_connected_and_each_gets_every_event(tmp_path: Path) -> None:
    async def run() -> None:
        broker = BrokerProcess(tmp_path / "broker")
        await broker.start()
        try:
            await asyncio.to_thread(talk, broker.address.with_password())
        finally:
            await broker.stop()

    def talk(address: str) -> None:
        with (
            Up(tmp_path / "one", "--state", str(tmp_path / "one" / "state"), TRIAGE_BROKER=address) as one,
            Up(tmp_path / "two", "--state", str(tmp_path / "two" / "state"), TRIAGE_BROKER=address) as two,
        ):
            urls = [each.ready()["coordinator"] for each in (one, two)]
            with (
                BlockingPublisher(urls[0], name="p") as publisher,
                BlockingSubscriber(urls[0], name="s") as first,
                BlockingSubscriber(urls[1], name="s") as second,
            ):
                for subscriber in (first, second):
                    subscriber.subscribe("a", qos=1)
                sent = [f"{number}".encode() for number in range(20)]
                for payload in sent:
                    publisher.publish("a", payload, qos=1)
                for subscriber in (first, second):
                    assert [
                        event.payload for event in (subscriber.next(LONG_SECONDS) for _ in sent) if event
                    ] == sent
        logs = [(tmp_path / name / "state" / "logs" / "gateway.log").read_text() for name in ("one", "two")]
        assert logs == ["", ""]

    asyncio.run(run())


def _said_of_the_broker(up: Up, url: str, state: Path, words: str) -> str:
    """What terminal, health and log say: these words, or none, and then messages go through."""
    _wait(lambda: words in up.errors())
    _wait(lambda: words in json.dumps(ask(url, "/v1/health")))
    log = (state / "logs" / "gateway.log").read_text()
    if words:
        assert words in log
    else:
        with BlockingPublisher(url, name="p") as publisher:
            publisher.publish("a", b"x", qos=1)
    return log + json.dumps(ask(url, "/v1/health")) + up.errors()
