"""Whatever listens beyond this machine asks for tokens and encrypts, or says aloud that it does not."""

from __future__ import annotations

import shutil
import ssl
import time
from pathlib import Path

import pytest
from tests.coordinator.coordinating import database_in, make_token
from tests.gateway.guarded import Guest
from tests.live.up.exchanging import LONG_SECONDS, Up, ask, children_of
from tests.ports import own_port
from typer.testing import CliRunner

from triagemq.broker.process import find_mosquitto
from triagemq.certificates import own_certificate
from triagemq.cli.app import app
from triagemq.client import BlockingPublisher
from triagemq.errors import ParameterError


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ["--gateway", "0.0.0.0:0"],
            "--gateway: 0.0.0.0 is reached from other machines: add --access and --dtls",
        ),
        (
            ["--gateway", "0.0.0.0:0", "--access"],
            "--gateway: 0.0.0.0 is reached from other machines: add --dtls",
        ),
        (
            ["--gateway", "0.0.0.0:0", "--dtls"],
            "--gateway: 0.0.0.0 is reached from other machines: add --access",
        ),
        (["--gateway", "[::]:0", "--dtls"], "--gateway: :: is reached from other machines: add --access"),
        (
            ["--rest", "192.0.2.1:0"],
            "--rest: 192.0.2.1 is reached from other machines: add --access and --tls-cert",
        ),
        (
            ["--mqtt", "0.0.0.0:8883", "--access"],
            "--mqtt: 0.0.0.0 is reached from other machines",
        ),
    ],
)
def test_an_exchange_that_others_could_use_or_overhear_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["up", *options])
    assert isinstance(result.exception, ParameterError)
    assert words in str(result.exception)
    assert not any(tmp_path.iterdir())


def test_an_open_exchange_says_so_and_tells_clients_an_address_that_they_reach(tmp_path: Path) -> None:
    with Up(tmp_path, "--gateway", "0.0.0.0:0", "--insecure") as running:
        ready = running.ready()
        assert ready["gateway"].startswith("0.0.0.0:")
        assert running.errors().strip() == (
            "insecure: MQTT-SN at 0.0.0.0 is reached from other machines without tokens or encryption"
        )
        with BlockingPublisher(ready["coordinator"], name="p") as publisher:
            publisher.publish("a", b"x", qos=1)
            url = ready["coordinator"].replace("127.0.0.1", "localhost")
            told = ask(url, "/v1/publishers/p")["connection"]["gateway"]
            assert told == ready["gateway"].replace("0.0.0.0", "localhost")


@pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")
def test_the_built_in_broker_is_reached_over_tls_with_a_token(tmp_path: Path) -> None:
    state, port = tmp_path / "state", own_port("0.0.0.0")
    certificate, key = own_certificate(tmp_path / "tls")
    state.mkdir(mode=0o700)
    token = make_token(database_in(state), "publisher", publish=("pump/#",), names=("pump",))
    options = ("--access", "--mqtt", f"0.0.0.0:{port}", "--advertise", "127.0.0.1")
    tls = ("--tls-certificate", str(certificate), "--tls-key", str(key))
    trust = ssl.create_default_context(cafile=str(certificate))
    with Up(tmp_path / "up", "--state", str(state), *options, *tls) as running:
        assert running.ready()["broker"] == f"mqtts://127.0.0.1:{port}"
        assert running.errors() == ""
        for password, code in ((token, 0), ("guessed", 5)):
            guest = Guest(port, "pump", password, trust=trust)
            guest.end()
            assert guest.code == code
        renewed = own_certificate(tmp_path / "renewed")
        for old, new in zip((certificate, key), renewed, strict=True):
            shutil.copyfile(new, old)
        later = ssl.create_default_context(cafile=str(renewed[0]))
        deadline = time.monotonic() + LONG_SECONDS
        while ssl.get_server_certificate(("127.0.0.1", port)) != renewed[0].read_text():
            assert time.monotonic() < deadline, "the renewed certificate is not used"
            time.sleep(0.1)
        guest = Guest(port, "pump", token, trust=later)
        guest.end()
        assert guest.code == 0
        plain = Guest(port, "pump", token)
        plain.end()
        assert plain.code is None
        secret = (state / "broker" / "gateway.secret").read_text().strip()
        pids = {running.process.pid, *children_of(running.process.pid)}
        lines = [Path(f"/proc/{pid}/cmdline").read_text() for pid in pids]
        logs = [path.read_text() for path in (state / "logs").iterdir()]
        assert not any(word in text for word in (secret, token) for text in (*lines, *logs, running.errors()))
    assert running.result(LONG_SECONDS)[0] == 0
