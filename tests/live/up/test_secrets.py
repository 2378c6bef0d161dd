"""No secret is printed, logged, traced, told to clients or put on a command line: passwords, tokens, session keys."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.real import Mosquitto, SnClient, ended
from tests.live.up.exchanging import LONG_SECONDS, TRIAGE, TWO_PORTS, Up, ask, children_of

from triagemq.broker import BrokerAddress
from triagemq.broker.process import find_mosquitto
from triagemq.errors import ParameterError
from triagemq.mqttsn import ConnAck, Connect, ReturnCode

PASSWORD = "s3cret-of-the-broker"


def _wait(what: Callable[[], Any]) -> None:
    deadline = time.monotonic() + LONG_SECONDS
    while not what():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


@pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")
def test_nothing_prints_logs_or_traces_a_secret(tmp_path: Path) -> None:
    state, passwords = tmp_path / "state", tmp_path / "passwords"
    subprocess.run(["mosquitto_passwd", "-c", "-b", str(passwords), "fire", PASSWORD], check=True)
    broker = Mosquitto(tmp_path / "broker", f"allow_anonymous false\npassword_file {passwords}\n")
    url = broker.url.replace("://", f"://fire:{PASSWORD}@")
    options = ("--access", "--state", str(state))
    with ended(broker), Up(tmp_path / "up", *options, file=TWO_PORTS, TRIAGE_BROKER=url) as running:
        ready = running.ready()
        assert ready["broker"] == broker.url
        rest, gateway_port = ready["coordinator"], int(ready["gateway"].rpartition(":")[2])
        own = state / "operator.token"
        _wait(own.exists)
        operator = own.read_text().strip()
        _wait(lambda: ask(rest, "/v1/health")["publishers"] == 1)
        _wait(lambda: ask(rest, "/v1/health")["broker_connected"])
        connections = [
            ask(rest, f"/v1/{path}", token=operator)["connection"]
            for path in ("subscribers/crew-1", "subscribers/crew-2", "publishers/sensors")
        ]
        assert connections[-1]["broker"] == broker.url
        keys = [each["client_id"].rpartition(".")[2] for each in connections]
        assert all(len(key) == 22 for key in keys)
        stranger = SnClient(gateway_port, f"crew-1.{22 * 'x'}")
        with ended(stranger):
            refusal = stranger.ask(Connect(stranger.client_id, 60, clean_session=True), ConnAck)
            assert refusal.return_code is not ReturnCode.ACCEPTED
            stranger.socket.send(b"\x05\x04" + keys[0].encode())
        read = [
            ask(rest, path, token=operator)
            for path in ("/v1/health", "/metrics", "/v1/plan", "/v1/decisions", "/v1/tokens", "/v1/scenario")
        ]
        pids = {running.process.pid, *children_of(running.process.pid)}
        assert len(pids) == 5
        lines = b"".join(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids)
        running.signal(signal.SIGINT)
        code, output = running.result(LONG_SECONDS)
        assert code == 0, running.errors()
    said = [str(read), output, running.errors(), lines.decode()]
    logs = [path.read_bytes() for path in (state / "logs").iterdir()]
    traced = [path.read_bytes() for path in (state / "trace").rglob("*") if path.is_file()]
    assert len(logs) == 4
    assert traced
    for secret in (PASSWORD, operator, *keys):
        assert not any(secret in text for text in said)
        assert not any(secret.encode() in content for content in (*logs, *traced))


@pytest.mark.parametrize(
    "url",
    [
        "http://fire:s3cret@broker",
        "fire:s3cret@broker:1883",
        "mqtt://fire:s3/cret@broker",
        "mqtt://fire:s3cret@broker:many",
        "mqtt://fire:s3cret@broker?color=red",
        "mqtt://fire:s3cret@broker?version=2",
        "mqtt://fire:s3cret@[broker",
    ],
)
def test_a_broker_address_that_is_refused_is_shown_without_its_password(tmp_path: Path, url: str) -> None:
    with pytest.raises(ParameterError) as refusal:
        BrokerAddress.parse(url)
    assert "s3" not in str(refusal.value)
    assert "cret" not in str(refusal.value)


def test_no_traceback_shows_the_password_of_a_broker(tmp_path: Path) -> None:
    for command in ("up", "gateway"):
        done = subprocess.run(
            [*TRIAGE, command, "--debug", "--broker", "mqtt://fire:s3cret@broker?color=red"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=LONG_SECONDS,
            check=False,
        )
        assert done.returncode == 1, done.stderr
        assert "unknown option 'color'" in done.stderr
        assert "s3cret" not in done.stderr + done.stdout
    assert not any(tmp_path.iterdir())


def test_representations_hide_passwords() -> None:
    address = BrokerAddress.parse("mqtt://fire:s3cret@broker")
    assert address.password == "s3cret"
    assert "s3cret" not in f"{address!r} {address}" + json.dumps({"broker": str(address)})
