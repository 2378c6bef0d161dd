"""`triage pub --direct` and `triage sub --direct` as processes."""

from __future__ import annotations

import json
import secrets
import socket
import sys
from pathlib import Path

import pytest
from tests.client.test_commands import TRIAGE, run
from tests.gateway.real import Child, ended
from tests.ports import own_port

from triagemq.cli.main import run as run_command


def test_lines_go_from_process_to_process_without_a_broker(tmp_path: Path) -> None:
    topic, port = f"lines/{secrets.token_hex(4)}", own_port(kind=socket.SOCK_DGRAM)
    address = f"239.255.3.4:{port}"
    where = ("--direct", address, "--interface", "lo", "--topic", topic)
    child = Child(
        [sys.executable, "-c", TRIAGE, "sub", *where, "--json", "--count", "3"], tmp_path / "sub.log"
    )
    with ended(child):
        while f":{port:04X} " not in Path("/proc/net/udp").read_text():
            assert child.process.poll() is None
        done = run("pub", *where, "--json", "--min-separation", "0.001", text="one\ntwo\nthree\n")
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        assert (said["published"], said["not_sent"], said["host_delay"]["count"]) == (3, 0, 3)
        rows = [json.loads(child.line(60)) for _ in range(4)]
        assert [row["payload"] for row in rows[:3]] == ["one", "two", "three"]
        assert [row["number"] for row in rows[:3]] == [1, 2, 3]
        assert (rows[3]["summary"]["received"], rows[3]["summary"]["missing"]) == (3, 0)
        assert child.process.wait(60) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("sub", "--topic", "a", "--direct", "10.0.0.1:7400"), "must be a multicast GROUP:PORT"),
        (("sub", "--topic", "a", "--topic", "b", "--direct", "239.1.2.3:7400"), "must be one with --direct"),
        (("sub", "--topic", "a", "--direct", "239.1.2.3:7400", "--utility", "log:1"), "does not go with"),
        (("pub", "--topic", "a", "--direct", "239.1.2.3:7400", "--qos", "1"), "does not go with"),
        (("pub", "--topic", "a", "--dscp", "46", "--gateway", "127.0.0.1:9"), "is for --direct"),
        (
            (
                "pub",
                "-t",
                "a",
                "-m",
                "abc",
                "--direct",
                "239.1.2.3:7400",
                "--interface",
                "lo",
                "--max-size",
                "2",
            ),
            "has declared 2",
        ),
    ],
)
def test_what_does_not_go_with_direct_is_said(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command([*arguments]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
