"""The coordinator is told of bandwidths that it cannot find out; a refusal ends the run, a short absence does not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from triagemq.errors import CoordinatorError
from triagemq.lab.emulate.conditions import _Actors
from triagemq.lab.generators import prototype
from triagemq.scenario.conditions import Conditions


@contextmanager
def coordinator(*statuses: int) -> Iterator[tuple[str, list[str]]]:
    """Answers with these statuses, one after the other; its address, and what it was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            asked.append(self.path)
            self.send_response(statuses[len(asked) - 1])
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


def actors(rest: str) -> _Actors:
    scenario = prototype(subscribers=2)
    rig: Any = SimpleNamespace(scenario=scenario, rest=rest, set_bandwidth=lambda port, bandwidth_bps: None)
    return _Actors(rig, Conditions())


def test_one_that_cannot_write_now_is_told_again() -> None:
    with coordinator(503, 500, 200) as (rest, asked):
        told = actors(rest)
        port = told._rig.scenario.ports.name[0]
        asyncio.run(told.set_bandwidth(port, 5e4))
        assert asked == [f"/v1/ports/{port}"] * 3
        assert told._told[0] == 5e4


def test_a_refusal_is_not_swallowed() -> None:
    with coordinator(404) as (rest, asked):
        told = actors(rest)
        with pytest.raises(CoordinatorError, match=r"was not told that port .* has 50000 bit/s.*404"):
            asyncio.run(told.set_bandwidth(told._rig.scenario.ports.name[0], 5e4))
        assert len(asked) == 1
