"""`triage pub` and `triage sub` as processes: what they print, how they end, what they say when something is wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.gateway.real import Child, GatewayProcess, Mosquitto, ended

from triagemq.broker.process import find_mosquitto
from triagemq.cli.main import run as run_command

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")

TRIAGE = "from triagemq.cli import main; main()"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("exchange")
    broker = Mosquitto(directory / "broker")
    with ended(broker):
        process = GatewayProcess(directory, "--broker", broker.url)
        with ended(process):
            yield f"127.0.0.1:{process.port}"


def run(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", TRIAGE, *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"NO_COLOR": "1"},
    )


def listening(directory: Path, *arguments: str) -> Child:
    """A `triage sub` that has surely subscribed: a retained message comes at once."""
    child = Child([sys.executable, "-c", TRIAGE, "sub", *arguments], directory / "sub.log")
    assert line(child).endswith("ready")
    return child


def line(child: Child) -> str:
    assert child.process.stdout is not None
    return child.process.stdout.readline().decode().strip()


def test_lines_from_standard_input_arrive_one_a_line(gateway: str, tmp_path: Path) -> None:
    mark = ("--topic", "lines/mark", "--message", "ready", "--retain", "--qos", "1")
    assert run("pub", "--gateway", gateway, *mark).returncode == 0
    child = listening(tmp_path, "--gateway", gateway, "--topic", "lines/#", "--qos", "1", "--count", "4")
    done = run(
        "pub", "--gateway", gateway, "--topic", "lines/1", "--qos", "2", "--json", text="one\ntwo\r\nthree"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "topic": "lines/1",
        "qos": 2,
        "published": 3,
        "acknowledged": 3,
        "not_acknowledged": 0,
        "refused": 0,
        "not_sent": 0,
        "sent_directly": 0,
        "skipped": 0,
        "retransmissions": json.loads(done.stdout)["retransmissions"],
    }
    lines = [line(child) for _ in range(3)]
    assert child.process.wait(30) == 0
    assert lines == ["lines/1 one", "lines/1 two", "lines/1 three"]
    child.end()


def test_generated_events_as_json_lines_and_ctrl_c_is_a_clean_end(gateway: str, tmp_path: Path) -> None:
    mark = ("--topic", "made/mark", "--message", "ready", "--retain")
    assert run("pub", "--gateway", gateway, *mark).returncode == 0
    child = Child(
        [sys.executable, "-c", TRIAGE, "sub", "--gateway", gateway, "--topic", "made/+", "--json"],
        tmp_path / "sub.log",
    )
    with ended(child):
        first = json.loads(line(child))
        assert (first["payload"], first["retained"], first["published_ns"]) == ("ready", True, None)
        made = ("--topic", "made/1", "--rate", "200", "--size", "64", "--count", "20", "--stamp")
        done = run("pub", "--gateway", gateway, *made)
        assert done.returncode == 0, done.stderr
        rows = [json.loads(line(child)) for _ in range(20)]
        assert {row["topic"] for row in rows} == {"made/1"}
        assert all(0 <= row["latency_seconds"] < 60 for row in rows)
        assert all(row["published_ns"] <= row["received_ns"] for row in rows)
        assert any("payload_base64" in row for row in rows)
        child.process.send_signal(signal.SIGINT)
        assert child.process.wait(30) == 0
    assert (tmp_path / "sub.log").read_text() == ""


def test_a_publisher_that_waits_for_input_ends_by_ctrl_c(gateway: str, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-c",
        TRIAGE,
        "pub",
        "--gateway",
        gateway,
        "--topic",
        "slow/1",
        "--qos",
        "1",
        "--retain",
        "--json",
    ]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        child.stdin.write(b"first\n")
        child.stdin.flush()
        listener = run("sub", "--gateway", gateway, "--topic", "slow/1", "--count", "1")
        assert (listener.returncode, listener.stderr) == (0, "")
        assert "first" in listener.stdout
        child.send_signal(signal.SIGINT)
        # Before its input is closed, which would end it, too.
        child.wait(timeout=30)
        output, errors = child.communicate(timeout=30)
        assert child.returncode == 130, errors
        assert json.loads(output)["acknowledged"] == 1
        assert errors == b""


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("sub", "--topic", "a/#/b", "--gateway", "127.0.0.1:9"), 2, "not an MQTT topic filter"),
        (("sub", "--topic", "a", "--gateway", "nowhere"), 2, "must be HOST:PORT"),
        (("sub", "--topic", "a", "--gateway", "127.0.0.1:9", "--utility", "log:1"), 2, "needs a coordinator"),
        (("sub", "--topic", "a", "--gateway", "127.0.0.1:9", "--newest-only"), 2, "needs a coordinator"),
        (("sub", "--topic", "a", "--min-share", "2"), 2, "min_share: must be above 0"),
        (("sub", "--topic", "a", "--deadline-share", "0.9"), 2, "give --max-latency, too"),
        (("sub", "--topic", "a", "--guaranteed"), 2, "give --max-latency, too"),
        (
            ("pub", "--topic", "a", "--message", "b", "--min-separation", "0"),
            2,
            "min_separation_seconds: must be",
        ),
        (
            ("pub", "--topic", "a", "--rate", "9", "--min-separation", "1"),
            2,
            "rate_per_second: must be at most 1",
        ),
        (("pub", "--topic", "a", "--rate", "9", "--max-size", "9"), 2, "max_size_bytes: must be at least"),
        (("pub", "--topic", "a", "--gateway", "127.0.0.1:9", "--max-size", "9"), 2, "needs a coordinator"),
        (("sub", "--topic", "a", "--deadline", "1", "--deadline-share", "9"), 2, "at most 1"),
        (("sub", "--topic", "a", "--gateway", "127.0.0.1:9"), 1, "does not answer"),
        (("sub", "--topic", "a", "--coordinator", "127.0.0.1:9"), 2, "must be http://HOST:PORT"),
        (("sub", "--topic", "a", "--coordinator", "http://127.0.0.1:9"), 1, "connection refused"),
        (("sub", "--topic", "a", "--coordinator", "http://a", "--gateway", "b:1"), 2, "give one of them"),
        (("sub", "--topic", "a", "--ca", "no-such-file"), 2, "No such file"),
        (("pub", "--topic", "a/+", "--message", "m", "--gateway", "127.0.0.1:9"), 2, "no topic name"),
        (("pub", "--topic", "abc", "--message", "m", "--qos", "-1"), 2, "two octets"),
        (("pub", "--topic", "a", "--rate", "0"), 2, "must be above 0"),
        (("pub", "--topic", "a", "--rate", "1", "--message", "m"), 2, "goes without --rate"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    arguments: tuple[str, ...],
    code: int,
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ended_with = run_command([*arguments, "--timeout", "0.3"])
    said = capsys.readouterr().err
    assert ended_with == code, said
    assert words in said
    assert said.count("\n") == 1


def test_events_that_do_not_come_are_an_error(gateway: str) -> None:
    done = run("sub", "--gateway", gateway, "--topic", "never", "--count", "3", "--for", "0.3")
    assert done.returncode == 1
    assert done.stderr == "triage: 0 of 3 events came\n"
