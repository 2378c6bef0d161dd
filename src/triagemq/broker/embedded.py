"""A broker in pure Python (amqtt), for machines without another.

    python -m triagemq.broker.embedded CONFIG.json

The file is `[[HOST, PORT, CERTIFICATE, KEY], ...]`: where it listens. Without a certificate (null) it speaks without
TLS. It lets everyone in.

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


async def serve(listeners: list[tuple[str, int, str | None, str | None]]) -> None:
    """Run until SIGTERM or SIGINT."""
    # Loading it takes a second.
    from amqtt.broker import Broker  # type: ignore[import-untyped, unused-ignore]

    logging.disable(logging.CRITICAL)
    configuration: dict[str, Any] = {
        "listeners": {
            "default" if number == 0 else f"listener {number}": _listener(*each)
            for number, each in enumerate(listeners)
        },
        "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
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
    asyncio.run(serve(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
