"""Other people's clients against a running `triage up`: the examples in ten lines, and access with tokens."""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tests.client.loopback import QUICK
from tests.gateway.real import SnClient
from tests.live.up.exchanging import (
    LONG_SECONDS,
    ROOT,
    TRIAGE,
    TWO_PORTS,
    Up,
    ask,
    rest,
    status_of,
    until,
)

from triagemq.client import CoordinatorError, Publisher, RefusedError, Subscriber
from triagemq.mqttsn import ConnAck, Connect, ReturnCode

EXAMPLES = [ROOT / "examples" / name for name in ("subscriber.py", "publisher.py")]


def test_a_publisher_and_a_subscriber_in_ten_lines_each(tmp_path: Path) -> None:
    for path in EXAMPLES:
        assert len([line for line in path.read_text().splitlines() if line.strip()]) <= 10
    with Up(tmp_path) as running:
        url = running.ready()["coordinator"]
        subscriber, publisher = (
            subprocess.Popen(
                [sys.executable, str(path), url], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            for path in EXAMPLES
        )
        try:
            assert subscriber.stdout is not None
            for _ in range(3):
                assert subscriber.stdout.readline() == b"building/3/12/smoke 0.7\n"
            known = {row["topic"] for row in ask(url, "/v1/topics")}
            assert "building/3/12/smoke" in known
            assert (
                ask(url, "/v1/subscribers/fire-fighter-7")["subscriptions"][0]["topic"]
                == "building/3/+/smoke"
            )
        finally:
            for process in (publisher, subscriber):
                process.send_signal(signal.SIGINT)
                process.communicate(timeout=LONG_SECONDS)
        # Ctrl-C has withdrawn what they wanted.
        assert ask(url, "/v1/health")["subscribers"] == 0


def _token(state: Path, *rights: str) -> str:
    command = [*TRIAGE, "token", "create", "--state", str(state), "--json", *rights]
    return str(json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["token"])


def _certificate(directory: Path) -> tuple[Path, Path]:
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    files = ("-keyout", str(key), "-out", str(certificate))
    subject = ("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1")
    command = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, *files)
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


def test_with_access_everyone_needs_a_token_and_gets_no_further_than_it_goes(tmp_path: Path) -> None:
    state = tmp_path / "state"
    certificate, key = _certificate(tmp_path)
    trust = ssl.create_default_context(cafile=str(certificate))
    tls = "--tls-certificate", str(certificate), "--tls-key", str(key)
    with Up(tmp_path, "--access", *tls, "--state", str(state), file=TWO_PORTS) as running:
        ready = running.ready()
        url, gateway_port = ready["coordinator"], int(ready["gateway"].rpartition(":")[2])
        assert url.startswith("https://")
        config = json.loads((state / "gateway.json").read_text())
        assert config["access"] == "required", "closed until it knows who may do what, at every start"
        reader = _token(state, "--role", "subscriber", "--subscribe", "alarm", "--name", "ff-*")
        own = state / "operator.token"

        async def scene() -> None:
            await until(own.exists)
            assert stat.S_IMODE(own.stat().st_mode) == 0o600
            operator = own.read_text().strip()

            async def is_under_way() -> bool:
                health = await rest(url, "/v1/health", trust=trust)
                return bool(health["access"] and health["subscribers"] == 2 and health["publishers"] == 1)

            await until(is_under_way)
            assert await status_of(url, "/v1/plan", token=operator, trust=trust) == 200
            for path in ("/v1/plan", "/v1/topics", "/v1/decisions", "/v1/subscribers/crew-1", "/metrics"):
                assert await status_of(url, path, trust=trust) == 401
                assert await status_of(url, path, token="triage_" + 43 * "x", trust=trust) == 401
            assert await status_of(url, "/v1/plan", token=reader, trust=trust) == 403
            assert await status_of(url, "/v1/subscribers/crew-1", token=reader, trust=trust) in (403, 404)
            with pytest.raises(CoordinatorError) as refusal:
                await Subscriber(url, name="stranger", ssl_context=trust).open()
            assert refusal.value.status == 401
            with pytest.raises(CoordinatorError) as refusal:
                await Publisher(url, name="ff-7", token=reader, ssl_context=trust).open()
            assert refusal.value.status == 403
            async with Subscriber(
                url, name="ff-7", token=reader, port="wire", ssl_context=trust, settings=QUICK
            ) as subscriber:
                with pytest.raises(CoordinatorError) as refusal:
                    await subscriber.subscribe("smoke")
                assert refusal.value.status == 403
                await subscriber.subscribe("alarm", utility="log:2")
                event = await subscriber.next(LONG_SECONDS)
                assert event is not None
                assert event.topic == "alarm"
                with pytest.raises(RefusedError):
                    await subscriber.connection.subscribe("smoke")
                with pytest.raises(RefusedError):
                    await subscriber.connection.publish("alarm", b"all is well", qos=1)

        asyncio.run(scene())
        for name in ("stranger", "crew-1~0", "ff-7~0"):
            client = SnClient(gateway_port, name)
            try:
                answer = client.ask(Connect(name, 60, clean_session=True), ConnAck)
                assert answer.return_code is not ReturnCode.ACCEPTED
            finally:
                client.end()
        running.signal(signal.SIGINT)
        code, output = running.result(LONG_SECONDS)
        assert code == 0, running.errors()
        assert json.loads(output)["deliveries"] > 0
    everything = running.errors() + output + "".join(path.read_text() for path in (state / "logs").iterdir())
    assert "triage_" not in everything
