"""A broker in pure Python (amqtt), for machines without another.

    python -m triagemq.exchange.embedded_broker CONFIG.json

The file is `{"listeners": [[HOST, PORT, CERTIFICATE, KEY], ...], "users": DIRECTORY}`. Without a certificate (null) it
speaks without TLS, and without a directory it lets everyone in; else users are those of broker_users.py in there.

It is slow (a few thousand messages a second), forgets everything when it ends, and speaks MQTT 3.1.1. It acknowledges a
message before it passes it on: what it has acknowledged in its last milliseconds may be lost when it is killed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from pathlib import Path
from typing import Any

__all__ = ["serve"]

_ANYBODY = "amqtt.plugins.authentication.AnonymousAuthPlugin"
_USERS_ONLY = "triagemq.exchange.embedded_access.UsersPlugin"


async def serve(listeners: list[tuple[str, int, str | None, str | None]], users: str | None) -> None:
    """Run until told to end."""
    # Loading it takes a second that nobody else should pay.
    from amqtt.broker import Broker  # type: ignore[import-untyped, unused-ignore]

    logging.disable(logging.CRITICAL)
    configuration: dict[str, Any] = {
        "listeners": {
            "default" if number == 0 else f"listener {number}": _listener(*each)
            for number, each in enumerate(listeners)
        },
        "plugins": {_ANYBODY: {"allow_anonymous": True}}
        if users is None
        else {_USERS_ONLY: {"directory": users}},
    }
    broker = Broker(configuration)
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await broker.start()
    await ended.wait()
    await broker.shutdown()


def _listener(host: str, port: int, certificate: str | None, key: str | None) -> dict[str, Any]:
    bound: dict[str, Any] = {"type": "tcp", "bind": f"{host}:{port}"}
    return bound if certificate is None else bound | {"ssl": True, "certfile": certificate, "keyfile": key}


if __name__ == "__main__":
    asyncio.run(serve(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
