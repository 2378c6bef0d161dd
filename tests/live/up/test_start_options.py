"""A state directory remembers what it was started with: a restart needs no options, and gets no other broker."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

import triagemq.cli.up as up_module
from triagemq.cli.app import app
from triagemq.errors import ParameterError
from triagemq.live.up.exchange import ExchangeOptions
from triagemq.live.up.state import back_up, lock_state, remember_start

SITE = "mqtt://triage:hush@broker.example:1884"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[ExchangeOptions]:
    """What `triage up` would start; all it does is to remember that, as an exchange does."""
    found: list[ExchangeOptions] = []

    async def serve(options: ExchangeOptions, *_: object) -> None:
        options.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        assert options.started_with is not None
        remember_start(options.state, options.started_with)
        found.append(options)

    monkeypatch.setattr(up_module, "_serve", serve)
    monkeypatch.delenv("TRIAGE_BROKER", raising=False)
    return found


def up(state: Path, *more: str, broker: str | None = None) -> str:
    environment = {} if broker is None else {"TRIAGE_BROKER": broker}
    ended = CliRunner().invoke(app, ["up", "--state", str(state), *more], env=environment)
    if isinstance(ended.exception, ParameterError):
        return str(ended.exception)
    assert ended.exit_code == 0, ended.output
    return ""


def test_a_restart_without_options_is_as_the_start_was(
    tmp_path: Path, started: list[ExchangeOptions]
) -> None:
    given = [
        *(
            "--bandwidth",
            "250000",
            "--gateway",
            "127.0.0.1:10007",
            "--rest",
            "127.0.0.1:8087",
            "--access",
            "--dtls",
        ),
        *("--most-worth", "50", "--drops", "flat", "--keep-trace", "12h", "--advertise", "hall.example"),
        *("--store", "postgresql://hall.example/triage", "--balancing", "peer"),
    ]
    assert not up(tmp_path / "state", *given, broker=SITE)
    assert not up(tmp_path / "state")
    first, again = started
    assert again == first
    assert again.broker == SITE
    assert again.coordinator["bandwidth_bps"] == 250000
    assert again.coordinator["access"] is again.dtls is True
    assert again.planner["drops"] == "flat"
    assert again.keep_trace_seconds == 43200
    assert not up(tmp_path / "state", "--no-access")
    assert not up(tmp_path / "state")
    assert started[-1].coordinator["access"] is False
    assert not up(tmp_path / "state", "--bandwidth", "300000")
    assert started[-1].coordinator["bandwidth_bps"] == 300000
    assert (tmp_path / "state" / "started.json").stat().st_mode & 0o077 == 0
    # As is one from a copy.
    os.close(lock_state(tmp_path / "state"))
    asyncio.run(back_up(tmp_path / "state", tmp_path / "copy"))
    assert not up(tmp_path / "copy")
    assert started[-1].broker == SITE


@pytest.mark.parametrize(
    ("before", "now"),
    [(SITE, "mqtt://other.example"), (None, SITE), (SITE, "embedded"), ("embedded", SITE)],
)
def test_another_broker_for_a_state_is_refused_unless_that_is_said(
    tmp_path: Path, started: list[ExchangeOptions], before: str | None, now: str
) -> None:
    assert not up(tmp_path, broker=before)
    refusal = up(tmp_path, broker=now)
    assert "was started with" in refusal
    assert "--other-broker" in refusal
    assert "hush" not in refusal
    assert len(started) == 1
    assert not up(tmp_path, "--other-broker", broker=now)
    assert not up(tmp_path)
    assert started[-1].broker == started[-2].broker != started[0].broker


def test_a_new_password_is_no_new_broker(tmp_path: Path, started: list[ExchangeOptions]) -> None:
    assert not up(tmp_path, broker=SITE)
    renewed = SITE.replace("hush", "secret")
    assert not up(tmp_path, broker=renewed)
    assert not up(tmp_path)
    assert started[-1].broker == renewed


def test_a_broker_of_its_own_is_its_own_again(tmp_path: Path, started: list[ExchangeOptions]) -> None:
    assert not up(tmp_path)
    assert not up(tmp_path)
    assert started[-1].broker is None
    assert not up(tmp_path / "embedded", "--broker", "embedded")
    assert not up(tmp_path / "embedded")
    assert started[-1].broker == "embedded"


def test_brokers_of_other_gateways_are_remembered_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[ExchangeOptions] = []

    async def run(options: ExchangeOptions, *_: object) -> None:
        assert options.started_with is not None
        remember_start(options.state, options.started_with)
        ran.append(options)
        raise ParameterError("enough", "is enough")

    monkeypatch.setattr(up_module, "_run", run)
    campus = str(Path(__file__).parents[3] / "examples" / "campus.yaml")
    assert "enough" in up(tmp_path, campus, "--peer-broker", f"labs={SITE}")
    assert "enough" in up(tmp_path, campus)
    assert ran[-1].peer_brokers == ran[0].peer_brokers
    assert ran[-1].peer_brokers["labs"] == SITE
    assert "--other-broker" in up(tmp_path, campus, "--peer-broker", "labs=mqtt://other.example")
    # Names of the version before.
    options = json.loads((tmp_path / "started.json").read_text())
    options["beside"] = options.pop("peer_broker")
    (tmp_path / "started.json").write_text(json.dumps(options))
    assert "enough" in up(tmp_path, campus)
    assert "enough" in up(tmp_path, campus, "--beside", f"labs={SITE}")
    assert [each.peer_brokers["labs"] for each in ran] == [SITE] * 4


def test_a_state_of_before_options_were_remembered_has_its_broker(
    tmp_path: Path, started: list[ExchangeOptions]
) -> None:
    (tmp_path / "broker").mkdir()
    (tmp_path / "lock").touch()
    assert "--other-broker" in up(tmp_path, broker=SITE)
    assert not up(tmp_path)
    assert started[-1].broker is None
