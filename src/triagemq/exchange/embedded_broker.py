"""A broker in pure Python (amqtt), for machines without another.

    python -m triagemq.exchange.embedded_broker HOST PORT

It is slow (a few thousand messages a second), forgets everything when it ends, and speaks MQTT 3.1.1. It acknowledges a
message before it passes it on: what it has acknowledged in its last milliseconds may be lost when it is killed.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from typing import Any

__all__ = ["serve"]


async def serve(host: str, port: int) -> None:
    """Run until told to end."""
    # Loading it takes a second that nobody else should pay.
    from amqtt.broker import Broker  # type: ignore[import-untyped, unused-ignore]

    logging.disable(logging.CRITICAL)
    configuration: dict[str, Any] = {
        "listeners": {"default": {"type": "tcp", "bind": f"{host}:{port}"}},
        "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
    }
    broker = Broker(configuration)
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await broker.start()
    await ended.wait()
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
