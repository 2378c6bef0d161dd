"""The built-in broker of an exchange with access control: tokens open it, and nothing else does."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.client.loopback import QUICK
from tests.coordinator.coordinating import database_in, make_token
from tests.gateway.guarded import Guest
from tests.gateway.real import ended
from tests.live.up.exchanging import LONG_SECONDS, Up, ask

from triagemq.broker.process import find_mosquitto
from triagemq.client import BlockingSubscriber
from triagemq.coordinator.store import Store, revoke_token


def _wait(what: Callable[[], Any]) -> None:
    deadline = time.monotonic() + LONG_SECONDS
    while not what():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def _token(state: Path, *roles: str, **rights: Any) -> tuple[str, str]:
    """The secret and the id of a new one, made as `triage token create` does."""
    secret = make_token(database_in(state), *roles, **rights)
    store = Store(database_in(state))
    try:
        return secret, store.tokens()[-1].token_id
    finally:
        store.close_now()


def _revoke(state: Path, token_id: str) -> None:
    store = Store(database_in(state))
    store.write_now(revoke_token, token_id, time.time_ns())
    store.close_now()


def _code(port: int, user: str | None, password: str | None) -> int | None:
    guest = Guest(port, user, password, client_id="another")
    guest.end()
    return guest.code


@pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")
def test_tokens_open_the_built_in_broker_until_they_are_revoked(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    pump, pump_id = _token(state, "publisher", publish=("pump/#",), names=("pump",))
    crew, _ = _token(state, "subscriber", subscribe=("pump/#",))
    with Up(tmp_path, "--access", "--state", str(state)) as running:
        ready = running.ready()
        port = int(ready["broker"].rpartition(":")[2])
        for user, password in ((None, None), ("pump", "guessed"), ("pump", crew), ("triage-gateway-1", crew)):
            assert _code(port, user, password) != 0
        guest = Guest(port, "pump", pump)
        with (
            ended(guest),
            BlockingSubscriber(
                ready["coordinator"], name="ff-1", token=crew, settings=QUICK, lease_seconds=60
            ) as subscriber,
        ):
            assert guest.code == 0
            assert _code(port, pump_id, pump) == 0
            subscriber.subscribe("pump/+")
            guest.publish("pump/1", b"pressure")
            event = subscriber.next(LONG_SECONDS)
            assert event is not None
            assert (event.topic, event.payload) == ("pump/1", b"pressure")
            late, late_id = _token(state, "publisher", publish=("tap/#",))
            _wait(lambda: _code(port, late_id, late) == 0)
            _revoke(state, pump_id)
            _wait(lambda: _code(port, "pump", pump) != 0)
            assert guest.collect(5.0) == []
            assert guest.closed
            assert ask(ready["coordinator"], "/v1/health")["broker_connected"]
