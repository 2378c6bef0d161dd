"""Who may do what, from intents and tokens: at the gateways, and at the exchange's own broker."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from triagemq.coordinator.access.grants import Grant, Grants
from triagemq.coordinator.access.tokens import Caller, Role, Token, TokenBook
from triagemq.coordinator.intents.registry import Record, Registry
from triagemq.coordinator.refusals import StoreError, UnauthorisedError
from triagemq.coordinator.store.store import Store
from triagemq.coordinator.store.tables import add_token, revoke_token
from triagemq.errors import TriageError
from triagemq.exchange import BrokerProcess
from triagemq.exchange.broker.users import BrokerUser
from triagemq.intents import SubscriberIntent
from triagemq.waiting import end


@dataclass(frozen=True, slots=True)
class Rights:
    """Subscribers may have what they announced, publishers may publish what their token allows.

    Publishers need not declare every topic. With `required` off, everyone may do everything.
    """

    registry: Registry
    tokens: TokenWatch
    required: bool

    def client_id_base(self, record: Record) -> str:
        """What a client's ids begin with: its name, and with access on the key that only it knows."""
        name = record.intent.name
        return f"{name}.{record.session_key}" if self.required else name

    def grants(self) -> Grants:
        """The rights of everyone who is announced now."""
        if not self.required:
            return Grants()
        return Grants(True, {self.client_id_base(record): self._grant(record) for record in self.registry})

    def _grant(self, record: Record) -> Grant:
        intent = record.intent
        if isinstance(intent, SubscriberIntent):
            return Grant(name=intent.name, subscribe=tuple(each.topic for each in intent.subscriptions))
        token = self.tokens.by_id.get(record.owner)
        return Grant(name=intent.name, publish=() if token is None else Caller.of(token).publish)


_OLD_SECONDS = 0.2
_APART_SECONDS = 0.05
"""However many bring tokens that are not known, the store is not looked at oftener than that."""


class StoredTokens:
    """The tokens of a store, outside of an event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def tokens(self) -> list[Token]:
        return self._store.tokens()

    def add(self, token: Token) -> None:
        self._store.write_now(add_token, token)

    def revoke(self, token_id: str, revoked_ns: int) -> None:
        self._store.write_now(revoke_token, token_id, revoked_ns)


class TokenWatch:
    """Looks at the store again and again, as often as requests come but no oftener than is sensible."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._book = TokenBook()
        self._version = -1
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
        """Come back when the store has been looked at since a moment: all who ask meanwhile share one look."""
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
            except StoreError:
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
    """Keeps a guarded broker in step with the tokens of a database, which other processes make and revoke, too."""

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
        """The broker goes on with the last users it got."""
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
                # A revoked token must be out as soon as that can be written: it is tried until it can.
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
