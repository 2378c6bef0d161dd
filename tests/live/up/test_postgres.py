"""`triage up --store postgresql://...`: a real server holds what the coordinator remembers, also when it is killed."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.coordinator.postgres import PASSWORD, PROGRAMS, postgres
from tests.live.up.exchanging import LONG_SECONDS, Up, ask, children_of
from typer.testing import CliRunner

from triagemq.cli.token import app as token_command
from triagemq.client import BlockingSubscriber
from triagemq.coordinator.refusals import StoreError
from triagemq.coordinator.store import open_database
from triagemq.errors import MissingDependencyError, TriageError

needs_server = pytest.mark.skipif(PROGRAMS is None, reason="needs PostgreSQL (apt install postgresql)")


def _wait(what: Any) -> None:
    deadline = time.monotonic() + LONG_SECONDS
    while not what():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def _token(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(token_command, [*words, "--json"])
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout))


@needs_server
def test_an_exchange_on_postgresql_goes_on_when_the_server_is_killed_and_comes_back(tmp_path: Path) -> None:
    with postgres() as server:
        operator = _token("create", "--role", "operator", "--store", server.url)
        with Up(tmp_path, "--state", str(tmp_path / "state"), "--access", TRIAGE_STORE=server.url) as running:
            ready = running.ready()
            url, token = ready["coordinator"], operator["token"]
            with BlockingSubscriber(url, name="one", token=token, lease_seconds=60) as one:
                one.subscribe("floor/+", utility="log:3")
                server.kill()
                with pytest.raises(TriageError):
                    one.subscribe("roof/+", utility="log:3")
                assert "database" in json.dumps(ask(url, "/v1/health", token=token)["checks"])
                server.start()
                _wait(lambda: ask(url, "/v1/health", token=token)["status"] == "ok")
                one.subscribe("roof/+", utility="log:3")
                os.kill(ready["pids"]["coordinator"], signal.SIGKILL)
                _wait(lambda: _topics(url, token) == {"floor/+", "roof/+"})
                for process in (running.process.pid, *children_of(running.process.pid)):
                    assert PASSWORD not in Path(f"/proc/{process}/cmdline").read_text()
        assert PASSWORD not in running.errors()
        for log in (tmp_path / "state" / "logs").iterdir():
            assert PASSWORD not in log.read_text()
        assert not (tmp_path / "state" / "coordinator.sqlite").exists()
        _token("revoke", operator["token_id"], "--store", server.url)
        (row,) = _token("list", "--store", server.url)["tokens"]
        assert row["revoked_ns"] is not None


def _topics(url: str, token: str) -> set[str]:
    try:
        return {row["topic"] for row in ask(url, "/v1/subscribers/one", token=token)["subscriptions"]}
    except OSError:
        return set()


def test_a_server_that_is_not_there_is_one_line_without_the_password() -> None:
    with pytest.raises(StoreError) as caught:
        open_database(f"postgresql://me:{PASSWORD}@127.0.0.1:9/triage")
    assert PASSWORD not in str(caught.value)
    assert "127.0.0.1" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_driver_is_named_with_its_install_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingDependencyError, match=r"psycopg.*triagemq\[postgres\]"):
        open_database("postgresql://127.0.0.1/triage")
