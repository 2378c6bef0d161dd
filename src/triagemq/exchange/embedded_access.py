"""What the embedded broker asks before it lets somebody in, takes a message or passes one on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amqtt.contexts import Action  # type: ignore[import-untyped, unused-ignore]
from amqtt.plugins.base import (  # type: ignore[import-untyped, unused-ignore]
    BaseAuthPlugin,
    BaseTopicPlugin,
)

from triagemq.exchange.broker_users import BrokerUser, is_password, read_users
from triagemq.exchange.topic_patterns import within

__all__ = ["UsersPlugin"]


class UsersPlugin(BaseAuthPlugin, BaseTopicPlugin):  # type: ignore[misc, unused-ignore]
    """Follows the files of broker_users.py: who is taken out of them gets nothing more, and nothing more is taken."""

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
        # It is published without being asked about again.
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
