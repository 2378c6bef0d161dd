"""`triage up --dtls --access`: everyone needs a token and an association; a scenario's own clients have both."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.client.loopback import QUICK
from tests.live.up.exchanging import LONG_SECONDS, TWO_PORTS, Up, ask

from triagemq.client import BlockingPublisher, BlockingSubscriber, ClientSecurity
from triagemq.mqttsn import Connect, encode


def wait_for(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + LONG_SECONDS
    while not what():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def test_a_scenarios_clients_and_others_meet_in_an_exchange_with_dtls_and_tokens(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with Up(tmp_path, "--dtls", "--access", "--state", str(state), file=TWO_PORTS) as running:
        ready = running.ready()
        assert ready["gateway"].startswith("mqttsns://127.0.0.1:")
        wait_for(lambda: (state / "operator.token").exists() and (state / "operator.token").read_text())
        token = (state / "operator.token").read_text().strip()
        trust = replace(QUICK, security=ClientSecurity(authority=ready["gateway_certificate"]))
        given = {"token": token, "settings": trust}
        with (
            BlockingSubscriber(ready["coordinator"], name="watcher", **given) as subscriber,
            BlockingPublisher(ready["coordinator"], name="smoke", **given) as publisher,
        ):
            subscriber.subscribe("floor/+", utility="log:1", qos=1)
            publisher.publish("floor/1", b"inside", qos=1)
            event = subscriber.next(LONG_SECONDS)
            assert event is not None
            assert event.payload == b"inside"
        host, port = ready["gateway"].removeprefix("mqttsns://").split(":")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.settimeout(0.3)
            stranger.sendto(encode(Connect("smoke", 60)), (host, int(port)))
            try:
                raise AssertionError(f"answered in clear: {stranger.recv(100)!r}")
            except TimeoutError:
                pass
        wait_for(
            lambda: any(
                row["measured"]
                for row in ask(ready["coordinator"], "/v1/topics", token=token)
                if row["topic"] == "alarm"
            )
        )
