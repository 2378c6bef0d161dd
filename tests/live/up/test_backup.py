"""A state directory is copied while it is in use, and the copy goes on as the original; old traces are removed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.client.loopback import QUICK
from tests.live.up.exchanging import (
    CAMPUS,
    CAMPUS_SITES,
    LONG_SECONDS,
    TRIAGE,
    Up,
    ask,
    exchange,
    rest,
    until,
)
from typer.testing import CliRunner

from triagemq.cli.token import app as token_command
from triagemq.client import (
    BlockingPublisher,
    BlockingSubscriber,
    ConnectionSettings,
    Publisher,
    Subscriber,
)
from triagemq.gateway.trace import next_run
from triagemq.live.up.state import back_up
from triagemq.trace import Trace, TraceWriter, runs
from triagemq.trace.reader import remove_old_runs

VANISHING = """
import os, sys
from triagemq.client import BlockingSubscriber
keeper = BlockingSubscriber(sys.argv[1], name="keeper", token=sys.argv[2], keep_session=True, lease_seconds=600)
keeper.__enter__()
keeper.subscribe("floor/+", utility="log:3", qos=1)
os._exit(0)
"""


def test_a_copy_made_while_running_has_clients_tokens_intents_and_undelivered_messages(
    tmp_path: Path,
) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy"
    made = CliRunner().invoke(
        token_command, ["create", "--role", "operator", "--state", str(_made(state)), "--json"]
    )
    token = json.loads(made.stdout)
    who: dict[str, Any] = {
        "token": token["token"],
        "keep_session": True,
        "lease_seconds": 600,
        "settings": ConnectionSettings(retry_seconds=0.5),
    }
    with Up(tmp_path, "--state", str(state), "--access") as running:
        url = running.ready()["coordinator"]
        # It goes without a word, and what comes then waits for it.
        subprocess.run([sys.executable, "-c", VANISHING, url, token["token"]], check=True)
        with BlockingPublisher(url, name="steady", **who) as publisher:
            publisher.publish("floor/1", b"undelivered", qos=1)
            done = _back_up(state, copy)
            assert done.returncode == 0, done.stderr
            assert str(copy) in done.stdout
            publisher.publish("floor/2", b"later", qos=1)
        assert running.process.poll() is None
        assert _back_up(state, copy).returncode == 2
        running.signal(signal.SIGINT)
        assert running.result(LONG_SECONDS)[0] == 0
    assert oct(copy.stat().st_mode & 0o777) == "0o700"
    with Up(tmp_path / "again", "--state", str(copy), "--access") as again:
        url = again.ready()["coordinator"]
        intent = ask(url, "/v1/subscribers/keeper", token=token["token"])
        assert [row["topic"] for row in intent["subscriptions"]] == ["floor/+"]
        listed = ask(url, "/v1/tokens", token=token["token"])
        assert token["token_id"] in json.dumps(listed)
        with BlockingSubscriber(url, name="keeper", **who) as subscriber:
            subscriber.subscribe("floor/+", utility="log:3", qos=1)
            event = subscriber.next(LONG_SECONDS)
            assert event is not None
            assert event.payload == b"undelivered"
            assert subscriber.next(0.5) is None


def _made(state: Path) -> Path:
    state.mkdir(mode=0o700)
    return state


def _back_up(state: Path, copy: Path) -> subprocess.CompletedProcess[str]:
    command = [*TRIAGE, "up", "--state", str(state), "--backup", str(copy)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONG_SECONDS)


def _run(path: Path, *, finish: bool = True, **options: Any) -> TraceWriter:
    trace = TraceWriter(path, scenario_text="", plan_text=None, producer="test", **options)
    _publish(trace, 0)
    if finish:
        trace.finish(measured_from_ns=0)
    return trace


def _publish(trace: TraceWriter, number: int) -> None:
    trace.publications(
        {
            "publication_id": [number],
            "topic_id": [0],
            "publisher_id": [0],
            "published_ns": [number],
            "size_bytes": [9],
        }
    )


def test_runs_older_than_they_are_to_be_kept_are_removed_and_nothing_else(tmp_path: Path) -> None:
    _run(tmp_path / "run-0")
    (tmp_path / "run-0" / "notes.txt").write_text("mine")
    _run(tmp_path / "run-1")
    live = _run(tmp_path / "run-2", finish=False)
    (tmp_path / "other").mkdir()
    time.sleep(0.1)
    between = time.time()
    time.sleep(0.3)
    _run(tmp_path / "run-3")
    assert remove_old_runs(tmp_path, time.time() - between) == [tmp_path / "run-0", tmp_path / "run-1"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "run-0", "run-2", "run-3"]
    assert [path.name for path in (tmp_path / "run-0").iterdir()] == ["notes.txt"]
    assert next_run(tmp_path).name == "run-4"
    live.finish(measured_from_ns=0)
    assert len(runs(tmp_path).complete) == 2


def test_a_run_that_goes_on_removes_its_old_parts_and_says_so(tmp_path: Path) -> None:
    trace = _run(tmp_path / "run", finish=False, rotate_seconds=0.02, keep_seconds=0.3)
    _wait(lambda: trace.shown("publications") == 1)
    time.sleep(0.35)
    _publish(trace, 1)
    _wait(lambda: trace.shown("publications") == 2)
    manifest = trace.finish(measured_from_ns=0)
    (removed,) = manifest.extra["removed"]
    assert (removed["table"], removed["parts"], removed["rows"]) == ("publications", 1, 1)
    assert manifest.measured_from_ns == removed["until_ns"] > 0
    found = Trace.open(tmp_path / "run")
    assert found.table("publications").column("publication_id").to_pylist() == [1]
    assert [part.name for part in found.parts["publications"]] == ["part-00001.parquet"]


def _wait(what: Callable[[], Any]) -> None:
    deadline = time.monotonic() + LONG_SECONDS
    while not what():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


@pytest.mark.parametrize("text", ["7", "d", "0d", "-1h", "1y"])
def test_a_time_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    command = [*TRIAGE, "up", "--keep-trace", text, "--state", str(tmp_path / "state")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 2
    assert "--keep-trace" in done.stderr


def test_a_copy_has_the_undelivered_messages_of_all_gateways_and_clients_find_them_there(
    tmp_path: Path,
) -> None:
    """Clients are at home at the edges; the copy is started while they wait for it."""

    async def scene() -> None:
        names = ("hall-crew-1", "labs-crew-1")

        def keepers(url: str, got: dict[str, list[bytes]]) -> list[Subscriber]:
            return [
                Subscriber(
                    url,
                    name=name,
                    keep_session=True,
                    lease_seconds=600,
                    settings=QUICK,
                    on_event=lambda event, name=name: got[name].append(event.payload),  # type: ignore[misc]
                )
                for name in names
            ]

        sent = [b"%d" % number for number in range(20)]
        async with exchange(tmp_path, scenario=CAMPUS, **CAMPUS_SITES) as running:
            await until(lambda: _are_there(running.rest, 3))
            for keeper in keepers(running.rest, {name: [] for name in names}):
                await keeper.open()
                await keeper.subscribe("campus/alarm", qos=1)
                await keeper.close()
            async with Publisher(running.rest, name="alarm-panel", settings=QUICK) as publisher:
                for payload in sent:
                    await publisher.publish("campus/alarm", payload, qos=1)
            await back_up(tmp_path / "state", tmp_path / "again" / "state")
        got: dict[str, list[bytes]] = {name: [] for name in names}
        async with exchange(tmp_path / "again", scenario=CAMPUS, **CAMPUS_SITES) as running:
            subscribers = keepers(running.rest, got)
            for keeper in subscribers:
                await keeper.open()
            await until(lambda: all(sorted(each, key=int) == sent for each in got.values()))
            for keeper in subscribers:
                await keeper.close()

    asyncio.run(scene())


async def _are_there(url: str, count: int) -> bool:
    found = await rest(url, "/v1/gateways")
    return len(found) == count and all(each["broker_connected"] for each in found)
