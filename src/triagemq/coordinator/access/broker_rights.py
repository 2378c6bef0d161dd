"""The exchange's own broker follows the tokens: who holds one may speak MQTT to it, within what the token allows."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable

from triagemq.coordinator.access.token_watch import TokenWatch
from triagemq.coordinator.access.tokens import Caller, Role, Token
from triagemq.coordinator.store.store import Store
from triagemq.errors import TriageError
from triagemq.exchange import BrokerProcess
from triagemq.exchange.broker.users import BrokerUser
from triagemq.waiting import end

_LOOK_SECONDS = 0.25


def broker_users(tokens: Iterable[Token], now_ns: int) -> list[BrokerUser]:
    """One for the id of each valid token, and one for each name that it writes out; the password is the token.

    A name that several tokens write out is the oldest one's.

    >>> from triagemq.coordinator.access.tokens import TokenRequest, new_token
    >>> request = TokenRequest(roles=(Role.PUBLISHER,), names=("pump", "tap-*"), publish=("pump/#",))
    >>> _, token = new_token(request)
    >>> [user.name == token.token_id or user.name for user in broker_users([token], token.created_ns)]
    [True, 'pump']
    """
    found: dict[str, BrokerUser] = {}
    for token in sorted(tokens, key=lambda token: token.created_ns):
        caller = Caller.of(token)
        publishes = Role.PUBLISHER in token.roles or caller.is_operator
        subscribes = Role.SUBSCRIBER in token.roles or caller.is_operator
        if not token.valid(now_ns) or not token.mqtt_password or not (publishes or subscribes):
            continue
        for name in (token.token_id, *(name for name in token.names if "*" not in name)):
            user = BrokerUser(
                name,
                token.mqtt_password,
                caller.publish if publishes else (),
                caller.subscribe if subscribes else (),
            )
            found.setdefault(name, user)
    return list(found.values())


class BrokerRights:
    """Keeps a guarded broker in step with the tokens of a database, whoever makes and revokes them."""

    def __init__(self, broker: BrokerProcess, database: str) -> None:
        self._broker = broker
        self._store = Store(database)
        self._tokens = TokenWatch(self._store)
        self._in_force: list[BrokerUser] | None = None
        self._keeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Before the broker is: it begins with the tokens there are."""
        await self._look()
        self._keeping = asyncio.get_running_loop().create_task(self._keep())

    async def close(self) -> None:
        """The broker goes on with what it was told last."""
        await end(self._keeping)
        await self._store.close()

    async def _keep(self) -> None:
        said = ""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                await self._look()
                said = ""
            except (OSError, TriageError) as error:
                # Whoever was revoked must be out as soon as that can be written: it is tried until it can.
                if str(error) != said:
                    said = str(error)
                    words = f"the broker does not know the latest tokens yet: {said}; trying again"
                    print(words, file=sys.stderr, flush=True)

    async def _look(self) -> None:
        await self._tokens.look(0.0)
        wanted = broker_users(self._tokens.by_id.values(), time.time_ns())
        if wanted != self._in_force:
            self._broker.let_in(wanted)
            self._in_force = wanted
