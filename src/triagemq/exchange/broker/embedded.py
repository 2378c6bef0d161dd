"""A broker in pure Python (amqtt), for machines without another.

    python -m triagemq.exchange.broker.embedded CONFIG.json

The file is `{"listeners": [[HOST, PORT, CERTIFICATE, KEY], ...], "users": DIRECTORY}`. Without a certificate (null) it
speaks without TLS, and without a directory it lets everyone in; else users are those of users.py in there.

It is slow (a few thousand messages a second), forgets everything when it ends, and speaks MQTT 3.1.1. It acknowledges a
message before it passes it on: what it has acknowledged in its last milliseconds may be lost when it is killed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amqtt.contexts import Action  # type: ignore[import-untyped, unused-ignore]
from amqtt.plugins.base import (  # type: ignore[import-untyped, unused-ignore]
    BaseAuthPlugin,
    BaseTopicPlugin,
)

from triagemq.exchange.broker.users import BrokerUser, is_password, read_users
from triagemq.mqttsn.filters import within

_ANYBODY = "amqtt.plugins.authentication.AnonymousAuthPlugin"
_USERS_ONLY = "triagemq.exchange.broker.embedded.UsersPlugin"


async def serve(listeners: list[tuple[str, int, str | None, str | None]], users: str | None) -> None:
    """Run until SIGTERM or SIGINT."""
    # Loading it takes a second.
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


class UsersPlugin(BaseAuthPlugin, BaseTopicPlugin):  # type: ignore[misc, unused-ignore]
    """Decides whether a client is let in, a message is taken, or one is passed on.

    It follows the files of users.py: who is taken out of them gets nothing more, and nothing more is taken."""

    @dataclass
    class Config:
        """Where the files are."""

        directory: str = ""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self._directory = Path(self.config.directory)
        self._seen: tuple[object, ...] | None = None
        self._users: Mapping[str, BrokerUser] = {}

    async def authenticate(self, *, session: Any) -> bool:
        user = self._user(session)
        if user is None or session.password is None or not is_password(session.password, user.password):
            return False
        # It is published without another check.
        return not session.will_flag or within(session.will_topic or "", user.publish)

    async def topic_filtering(
        self, *, session: Any = None, topic: str | None = None, action: Action | None = None
    ) -> bool:
        user = self._user(session)
        if user is None or not topic:
            return False
        return within(topic, user.publish if action is Action.PUBLISH else user.subscribe)

    def _user(self, session: Any) -> BrokerUser | None:
        files = [(self._directory / name).stat() for name in ("passwords", "rights")]
        seen = tuple((each.st_ino, each.st_mtime_ns) for each in files)
        if seen != self._seen:
            self._users, self._seen = read_users(self._directory), seen
        return self._users.get(session.username or "") if session is not None else None


if __name__ == "__main__":
    asyncio.run(serve(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
