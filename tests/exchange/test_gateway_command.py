"""`triage gateway`: wrong options are one line that says what to write instead."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from triagemq.cli.gateway import gateway
from triagemq.errors import TriageError

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
        (("--mode", "magic"), "aggregating or transparent"),
        (("--broker-loss", "panic"), "disconnect or keep"),
        (("--predefined", "/nowhere.yaml"), "/nowhere.yaml"),
    ],
)
def test_wrong_options_are_named(options: tuple[str, ...], said: str) -> None:
    assert said in str(_error(*options))


@pytest.mark.parametrize(
    ("option", "text", "said"),
    [
        ("--predefined", "- list", "mapping"),
        ("--predefined", "one: topic", "int: str"),
        ("--predefined", "0: topic", "1 to 65534"),
        ("--predefined", "1: a/#", "no topic name"),
        ("--predefined", "{", "while parsing"),
        ("--priorities", "a/b#: 1", "no topic filter"),
        ("--priorities", "a: -1", "negative"),
        ("--credentials", "client: secret", "str: dict"),
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
