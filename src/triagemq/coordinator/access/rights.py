"""Who may do what, from intents and tokens: at the gateways, and at the exchange's own broker."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable, Mapping

from triagemq.broker import BrokerProcess
from triagemq.broker.users import BrokerUser
from triagemq.channel.grants import Grant, Grants
from triagemq.coordinator.access.tokens import Caller, Role, Token, TokenBook, TokenFile
from triagemq.coordinator.intents.registry import Record, Registry
from triagemq.coordinator.refusals import UnauthorisedError
from triagemq.coordinator.store import Store
from triagemq.errors import TriageError
from triagemq.intents import SubscriberIntent
from triagemq.waiting import end


def announced_grants(registry: Registry, tokens: TokenWatch) -> Grants:
    """The rights of announced clients: subscribers may have what they announced, publishers may publish what
    their token allows, and need not declare every topic."""
    return Grants(True, {record.client_id_base(True): _grant(record, tokens) for record in registry})


def _grant(record: Record, tokens: TokenWatch) -> Grant:
    intent = record.intent
    if isinstance(intent, SubscriberIntent):
        return Grant(name=intent.name, subscribe=tuple(each.topic for each in intent.subscriptions))
    token = tokens.by_id.get(record.owner)
    return Grant(name=intent.name, publish=() if token is None else Caller.of(token).publish)


_OLD_SECONDS = 0.2
_APART_SECONDS = 0.05
"""Unknown tokens make it read the store no more often than that."""


class TokenWatch:
    """Looks at the store again and again, as often as requests come but no oftener than is sensible."""

    def __init__(self, store: Store | TokenFile) -> None:
        self._store = store
        self._book = TokenBook()
        self._version: object = -1
        self._looked_at = -1.0
        self._looking = asyncio.Lock()

    @property
    def by_id(self) -> Mapping[str, Token]:
        return self._book.by_id

    async def caller(self, secret: str) -> Caller:
        """Who sent a token; one that is not known may have been made a moment ago."""
        await self.look(_OLD_SECONDS)
        try:
            return self._book.caller(secret)
        except UnauthorisedError:
            await self._look_since(time.monotonic(), _APART_SECONDS)
            return self._book.caller(secret)

    async def look(self, older_than_seconds: float = _OLD_SECONDS) -> None:
        """Take over what has changed; while the store cannot be read, what is known holds."""
        await self._look_since(time.monotonic() - older_than_seconds, 0.0)

    async def _look_since(self, moment: float, apart_seconds: float) -> None:
        """Return when the store has been read since a moment; concurrent callers share one read."""
        if self._looked_at > moment:
            return
        async with self._looking:
            if self._looked_at > moment:
                return
            await asyncio.sleep(max(0.0, self._looked_at + apart_seconds - time.monotonic()))
            begun = time.monotonic()
            try:
                version = await asyncio.to_thread(self._store.tokens_version)
                if version != self._version:
                    self._book = TokenBook(await asyncio.to_thread(self._store.tokens))
                    self._version = version
            except TriageError:
                pass
            self._looked_at = begun

    def ended(self) -> list[str]:
        """The ids of tokens that were revoked or have expired."""
        now_ns = time.time_ns()
        return [token.token_id for token in self.by_id.values() if not token.valid(now_ns)]


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
    """Keeps a guarded broker in step with stored tokens, which other processes make and revoke, too."""

    def __init__(self, broker: BrokerProcess, store: Store | TokenFile) -> None:
        self._broker = broker
        self._store = store
        self._tokens = TokenWatch(store)
        self._in_force: list[BrokerUser] | None = None
        self._keeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Before the broker is: it begins with the tokens there are."""
        await self._look()
        self._keeping = asyncio.get_running_loop().create_task(self._keep())

    async def close(self) -> None:
        """The broker goes on with the last users it got."""
        await end(self._keeping)
        if isinstance(self._store, Store):
            await self._store.close()

    async def _keep(self) -> None:
        problem = ""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                await self._look()
                problem = ""
            except (OSError, TriageError) as error:
                # A revoked token must be out as soon as that can be written: it is tried until it can.
                if str(error) != problem:
                    problem = str(error)
                    words = f"the broker does not know the latest tokens yet: {problem}; trying again"
                    print(words, file=sys.stderr, flush=True)

    async def _look(self) -> None:
        await self._tokens.look(0.0)
        users = broker_users(self._tokens.by_id.values(), time.time_ns())
        if users != self._in_force:
            self._broker.let_in(users)
            self._in_force = users
