"""Ports for servers that are told theirs, and that are killed and started again: nobody else gets them meanwhile."""

from __future__ import annotations

import contextlib
import os
import random
import socket

# The kernel hands out those from 32768 on. Every process of the suite has its own share of those below.
_FIRST, _EACH = 20_000, 1_500
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw7").removeprefix("gw")) % 8
_given: set[int] = set()


def own_port(host: str = "127.0.0.1", kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """A port that is free, that the kernel gives to nobody, and that was not asked for before."""
    first = _FIRST + _EACH * _WORKER
    for port in random.SystemRandom().sample(range(first, first + _EACH), _EACH):
        if port not in _given:
            with contextlib.suppress(OSError), socket.socket(socket.AF_INET, kind) as probe:
                probe.bind((host, port))
                _given.add(port)
                return port
    raise AssertionError("all ports are in use")
