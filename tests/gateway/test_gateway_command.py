"""`triage gateway`: wrong options are one line that says what to write instead."""

from __future__ import annotations

import json
import socket
import stat
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.client.loopback import QUICK
from tests.gateway.guarded import Guest
from tests.gateway.real import GatewayProcess, SnClient, ended
from typer.testing import CliRunner

from triagemq.broker.process import find_mosquitto
from triagemq.cli.gateway import gateway
from triagemq.cli.token import app as token_command
from triagemq.client import BlockingPublisher, BlockingSubscriber, RefusedError
from triagemq.errors import TriageError
from triagemq.mqttsn import ConnAck, Connect, Disconnect, ReturnCode

APP = typer.Typer()
APP.command()(gateway)


def _error(*options: str) -> TriageError:
    result = CliRunner().invoke(APP, options)
    assert isinstance(result.exception, TriageError), result.output
    return result.exception


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--broker", "localhost:1883"), "mqtt://HOST"),
        (("--listen", "10000"), "HOST:PORT"),
        (("--listen", "127.0.0.1:99999"), "HOST:PORT"),
        (("--predefined", "/nowhere.yaml"), "/nowhere.yaml"),
    ],
)
def test_wrong_options_are_named(options: tuple[str, ...], said: str) -> None:
    assert said in str(_error(*options))


@pytest.mark.parametrize(
    ("option", "text", "said"),
    [
        ("--predefined", "- list", "valid dictionary"),
        ("--predefined", "one: topic", "'one': Input should be a valid integer"),
        ("--predefined", "0: topic", "1 to 65534"),
        ("--predefined", "1: a/#", "no topic name"),
        ("--predefined", "{", "in line 1"),
        ("--priorities", "a/b#: 1", "no topic filter"),
        ("--priorities", "a: -1", "negative"),
    ],
)
def test_wrong_files_are_named(tmp_path: Path, option: str, text: str, said: str) -> None:
    file = tmp_path / "file.yaml"
    file.write_text(text)
    error = _error(option, str(file))
    assert said in str(error)
    assert error.exit_code == 2


def test_address_in_use_is_one_line() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        error = _error("--listen", f"127.0.0.1:{port}", "--broker", "mqtt://127.0.0.1:1")
    assert "in use" in str(error)


def test_state_that_is_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    error = _error(
        "--listen", "127.0.0.1:0", "--broker", "mqtt://127.0.0.1:1", "--state", str(tmp_path / "file")
    )
    assert "--state" in str(error)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "add --tokens FILE and --dtls, or --insecure"),
        (("--dtls",), "add --tokens FILE, or --insecure"),
        (("--tokens", "tokens.json"), "add --dtls, or --insecure"),
    ],
)
def test_beyond_this_machine_tokens_and_encryption_are_needed(options: tuple[str, ...], said: str) -> None:
    assert said in str(_error("--listen", "0.0.0.0:0", *options))


def test_a_file_that_is_none_of_tokens_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    for text in ("nothing", "[]", "{}", '{"tokens": [1]}', '{"tokens": [{"token_id": "x"}]}'):
        file.write_text(text)
        assert "triage token create --file" in str(_error("--listen", "127.0.0.1:0", "--tokens", str(file)))


def _token(file: Path, *rights: str) -> dict[str, Any]:
    result = CliRunner().invoke(token_command, ["create", "--file", str(file), "--json", *rights])
    return dict(json.loads(result.output))


@pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")
def test_a_gateway_with_tokens_lets_in_their_holders_until_they_are_revoked(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    pump = _token(file, "--role", "publisher", "--publish", "pump/#", "--name", "pump")
    crew = _token(file, "--role", "subscriber", "--subscribe", "pump/+")
    viewer = _token(file, "--role", "viewer")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not any(made["token"] in file.read_text() for made in (pump, crew, viewer))
    options = (
        "--tokens",
        str(file),
        "--listen",
        "0.0.0.0:0",
        "--insecure",
        "--trace",
        str(tmp_path / "trace"),
    )
    running = GatewayProcess(tmp_path / "gateway", *options)
    with ended(running):
        port = int(running.ready["listen"].rpartition(":")[2])
        said = (tmp_path / "gateway" / "gateway.log").read_text()
        assert said == "insecure: MQTT-SN at 0.0.0.0 is reached from other machines without encryption\n"
        for client_id in ("pump", f"tap.{pump['token']}", f"pump.triage_{43 * 'x'}", pump["token"]):
            assert not _is_let_in(port, client_id)
        where = f"127.0.0.1:{port}"
        with (
            BlockingSubscriber(gateway=where, name="ff-1", token=crew["token"], settings=QUICK) as subscriber,
            BlockingPublisher(gateway=where, name="pump", token=pump["token"], settings=QUICK) as publisher,
        ):
            subscriber.subscribe("pump/+", qos=1)
            with pytest.raises(RefusedError):
                subscriber.subscribe("#")
            publisher.publish("pump/1", b"pressure", qos=1)
            event = subscriber.next(30.0)
            assert event is not None
            assert event.payload == b"pressure"
            with pytest.raises(RefusedError):
                publisher.publish("tap/1", b"forged", qos=1)
            publisher.close()
            broker_port = int(running.ready["broker"].rpartition(":")[2])
            assert [_code(broker_port, pump["token_id"], word) for word in (pump["token"], "guessed")] == [
                0,
                5,
            ]
            session = SnClient(port, f"pump.{pump['token']}")
            session.connect()
            revoking = ["revoke", pump["token_id"], "--file", str(file)]
            assert CliRunner().invoke(token_command, revoking).exit_code == 0
            assert _is_sent_away(session)
            assert not _is_let_in(port, session.client_id)
            assert _code(broker_port, pump["token_id"], pump["token"]) == 5
    traced = b"".join(path.read_bytes() for path in (tmp_path / "trace").rglob("*") if path.is_file())
    logged = (tmp_path / "gateway" / "gateway.log").read_bytes()
    assert crew["token"].encode() not in traced + logged


def _is_let_in(port: int, client_id: str) -> bool:
    client = SnClient(port, client_id)
    answer = client.ask(Connect(client_id, 60, clean_session=True), ConnAck)
    client.end()
    assert answer.return_code in (ReturnCode.ACCEPTED, ReturnCode.REJECTED_NOT_SUPPORTED)
    return answer.return_code is ReturnCode.ACCEPTED


def _is_sent_away(client: SnClient) -> bool:
    with ended(client):
        return any(isinstance(client.receive(1.0), Disconnect) for _ in range(10))


def _code(port: int, user: str, password: str) -> int | None:
    guest = Guest(port, user, password)
    guest.end()
    return guest.code
