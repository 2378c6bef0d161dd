"""The coordinator gets bandwidths that it cannot find out; a refusal ends the run, a short absence does not."""

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
from triagemq.lab.emulate.conditions import RigActors
from triagemq.lab.generators import prototype


@contextmanager
def coordinator(*statuses: int) -> Iterator[tuple[str, list[str]]]:
    """Answers with these statuses, one after the other; its address, and the paths of requests."""
    requested: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            requested.append(self.path)
            self.send_response(statuses[len(requested) - 1])
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requested
    finally:
        server.shutdown()
        server.server_close()


def actors(rest: str) -> RigActors:
    scenario = prototype(subscribers=2)
    rig: Any = SimpleNamespace(scenario=scenario, rest=rest, set_bandwidth=lambda port, bandwidth_bps: None)
    return RigActors(rig)


def test_one_that_cannot_write_now_gets_it_again() -> None:
    with coordinator(503, 500, 200) as (rest, requested):
        changed = actors(rest)
        port = prototype(subscribers=2).ports.name[0]
        asyncio.run(changed.set_bandwidth(port, 5e4))
        assert requested == [f"/v1/ports/{port}"] * 3


def test_a_refusal_is_not_swallowed() -> None:
    with coordinator(404) as (rest, requested):
        changed = actors(rest)
        with pytest.raises(CoordinatorError, match=r"did not take {'bandwidth_bps': 50000.0} at .*404"):
            asyncio.run(changed.set_bandwidth(prototype(subscribers=2).ports.name[0], 5e4))
        assert len(requested) == 1
