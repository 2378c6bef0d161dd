"""Tokens: who may do what. A token is shown once, when it is made; kept are a prefix to find it by and its hash.

A token is 32 random bytes, so a plain SHA-256 is as hard to turn back as a slow hash of a password would be.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field

from triagemq.coordinator.decide.orders import subscriber_of
from triagemq.coordinator.refusals import ForbiddenError, RequestError, UnauthorisedError
from triagemq.errors import ParameterError
from triagemq.exchange import Policy
from triagemq.exchange.broker.users import hashed_password
from triagemq.exchange.private_files import write_private
from triagemq.intents import TopicFilter
from triagemq.mqttsn.filters import within

_MARK = "triage_"
_FORM = re.compile(r"triage_[A-Za-z0-9_-]{43}", re.ASCII)
_PREFIX_LENGTH = len(_MARK) + 8
_EVERY_TOPIC = ("#", "$SYS/#")
_EVERYTHING: dict[str, Any] = {"names": ("*",), "publish": _EVERY_TOPIC, "subscribe": _EVERY_TOPIC}

NamePattern = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:@*-]{1,200}$", examples=["ff-*"])]


class Role(StrEnum):
    """What a token is for; one may have several."""

    PUBLISHER = "publisher"
    SUBSCRIBER = "subscriber"
    OPERATOR = "operator"
    VIEWER = "viewer"
    GATEWAY = "gateway"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRights:
    """What a token is for, which names and topics, and how much.

    `names` are the names that may be announced, with `*` for any characters; `publish` and `subscribe` are topic
    patterns. An operator may do everything with everything, a viewer reads what an operator reads and changes nothing,
    and with a gateway's token one may join under these names.
    Limits are over everything announced with it; None means no limit.
    """

    # For pydantic, which checks requests: keys that are not known are mistakes.
    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    label: Annotated[str, Field(pattern=r"^[\x20-\x7e]{0,200}$")] = ""
    roles: Annotated[tuple[Role, ...], Field(min_length=1, max_length=5)]
    names: Annotated[tuple[NamePattern, ...], Field(min_length=1, max_length=1_000)] = ("*",)
    publish: Annotated[tuple[TopicFilter, ...], Field(max_length=10_000)] = ()
    subscribe: Annotated[tuple[TopicFilter, ...], Field(max_length=10_000)] = ()
    most_subscriptions: Annotated[int, Field(ge=0, le=2**53, strict=True)] | None = None
    most_publications_per_second: (
        Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False, strict=True)] | None
    ) = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRequest(TokenRights):
    """A new token: what for, which names and topics, how much, and for how long."""

    expires_seconds: Annotated[float, Field(ge=1, le=1e9, allow_inf_nan=False, strict=True)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownToken(TokenRights):
    """A token as people may see it."""

    token_id: str
    prefix: str
    created_ns: int = 0
    expires_ns: int | None = None
    revoked_ns: int | None = None

    def valid(self, now_ns: int) -> bool:
        return self.revoked_ns is None and (self.expires_ns is None or now_ns < self.expires_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Token(ShownToken):
    """What is kept about a token.

    `mqtt_password` is the token as brokers keep passwords, for those who speak MQTT to the exchange's own.
    """

    sha256: str = field(repr=False)
    mqtt_password: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller(TokenRights):
    """The sender of a request: a token, or (access off) anyone at all, who may do everything.

    `reached` is the host by which the request came here.
    """

    owner: str
    reached: str = ""

    @classmethod
    def of(cls, token: Token) -> Caller:
        everything = _EVERYTHING if Role.OPERATOR in token.roles else {}
        return cls(**_fields(TokenRights, token) | everything, owner=token.token_id)

    @property
    def is_operator(self) -> bool:
        return Role.OPERATOR in self.roles

    def require(self, role: Role) -> None:
        """Refuse unless the caller has the role; an operator has them all."""
        if role not in self.roles and not self.is_operator:
            raise ForbiddenError(f"this token is not {'an' if role is Role.OPERATOR else 'a'} {role}'s")

    def require_look(self) -> None:
        """Refuse unless the caller may read the exchange as a whole."""
        if not self.may_look:
            raise ForbiddenError("this token is not an operator's or a viewer's")

    @property
    def may_look(self) -> bool:
        return self.is_operator or Role.VIEWER in self.roles

    def owns(self, owner: str) -> bool:
        """May the caller change what this owner announced, and know its keys?"""
        return self.is_operator or self.owner == owner

    def require_name(self, name: str) -> None:
        if not any(fnmatchcase(name, pattern) for pattern in self.names):
            raise ForbiddenError(
                f"this token does not allow the name {name!r}; it allows {', '.join(self.names)}"
            )

    def require_publish(self, topics: Iterable[str]) -> None:
        _require_topics(topics, self.publish, "publishing on")

    def require_subscribe(self, topic_filters: Iterable[str]) -> None:
        _require_topics(topic_filters, self.subscribe, "subscribing to")

    def may_see(self, topic: str) -> bool:
        return self.may_look or within(topic, self.publish) or within(topic, self.subscribe)


ANYONE = Caller(owner="", roles=tuple(Role), **_EVERYTHING)
"""The caller while access is off."""


class TokenBook:
    """All tokens, found by the prefix of what a request carries."""

    def __init__(self, tokens: Iterable[Token] = ()) -> None:
        self.by_id: dict[str, Token] = {}
        self._by_prefix: dict[str, list[Token]] = {}
        for token in tokens:
            self.by_id[token.token_id] = token
            self._by_prefix.setdefault(token.prefix, []).append(token)

    def caller(self, secret: str) -> Caller:
        """Who sent this token; the refusal is the same whatever is wrong with it."""
        sha256 = _sha256(secret)
        now_ns = time.time_ns()
        for token in self._by_prefix.get(prefix_of(secret), ()):
            if hmac.compare_digest(token.sha256, sha256) and token.valid(now_ns):
                return Caller.of(token)
        raise UnauthorisedError


def new_token(request: TokenRequest) -> tuple[str, Token]:
    """A fresh token: the secret to hand over, and what to keep.

    >>> secret, token = new_token(TokenRequest(label="crew", roles=(Role.SUBSCRIBER,), subscribe=("floor3/#",)))
    >>> TokenBook([token]).caller(secret).subscribe, secret in repr(token)
    (('floor3/#',), False)
    """
    secret = _MARK + secrets.token_urlsafe(32)
    now_ns, seconds = time.time_ns(), request.expires_seconds
    return secret, Token(
        **_fields(TokenRights, request) | {"roles": tuple(sorted(set(request.roles)))},
        token_id=secrets.token_hex(8),
        prefix=prefix_of(secret),
        sha256=_sha256(secret),
        created_ns=now_ns,
        expires_ns=None if seconds is None else now_ns + int(seconds * 1e9),
        mqtt_password=hashed_password(secret),
    )


def shown(token: Token) -> dict[str, Any]:
    """What people may see of a token."""
    return _fields(ShownToken, token)


def _fields(kind: type[TokenRights], token: TokenRights) -> dict[str, Any]:
    """The fields that a record has as one of another kind, too."""
    return {each.name: getattr(token, each.name) for each in fields(kind)}


def token_to_json(token: Token) -> dict[str, Any]:
    """What `token_from_json` reads; nothing in it lets anybody in."""
    return _fields(Token, token)


def token_from_json(value: Mapping[str, Any]) -> Token:
    """A token as it was kept.

    >>> import json
    >>> _, token = new_token(TokenRequest(label="pump", roles=(Role.PUBLISHER,), publish=("pump/#",)))
    >>> token_from_json(json.loads(json.dumps(token_to_json(token)))) == token
    True
    """
    lists = {name: tuple(one) for name, one in value.items() if isinstance(one, list | tuple)}
    return Token(**{**value, **lists, "roles": tuple(Role(role) for role in value["roles"])})


def prefix_of(secret: str) -> str:
    """The part of a token it is found by; UnauthorisedError if it does not look like one."""
    if not _FORM.fullmatch(secret):
        raise UnauthorisedError
    return secret[:_PREFIX_LENGTH]


def session_key(token: Token, kind: str, name: str) -> str:
    """What makes the client ids of an announced name unguessable: the same whenever this token announces it again."""
    digest = hmac.digest(token.sha256.encode(), f"{kind} {name}".encode(), "sha256")
    return base64.urlsafe_b64encode(digest[:16]).decode().rstrip("=")


def _sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _require_topics(wanted: Iterable[str], patterns: tuple[str, ...], doing: str) -> None:
    for topic in wanted:
        if not within(topic, patterns):
            allowed = ", ".join(patterns) or "none"
            raise ForbiddenError(f"this token does not allow {doing} {topic!r}; it allows {allowed}")


_MOST_REMEMBERED = 100_000


class TokenFile:
    """Read and written as a whole; one process at a time changes it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def tokens(self) -> list[Token]:
        """All of them; ParameterError if it cannot be read or is something else."""
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
            return [token_from_json(each) for each in document["tokens"]]
        except OSError as error:
            raise ParameterError(str(self._path), error.strerror or str(error)) from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ParameterError(
                str(self._path), "is not a file of tokens; `triage token create --file` makes one"
            ) from None

    def add(self, token: Token) -> None:
        self._change(lambda tokens: [*tokens, token])

    def revoke(self, token_id: str, revoked_ns: int) -> None:
        self._change(
            lambda tokens: [
                replace(token, revoked_ns=revoked_ns)
                if token.token_id == token_id and token.revoked_ns is None
                else token
                for token in tokens
            ]
        )

    def _change(self, how: Callable[[list[Token]], list[Token]]) -> None:
        try:
            with _alone_in(self._path.absolute().parent):
                tokens = how(self.tokens() if self._path.exists() else [])
                document = {"tokens": [token_to_json(token) for token in tokens]}
                write_private(self._path, json.dumps(document, indent=1) + "\n")
        except OSError as error:
            raise ParameterError(str(self._path), error.strerror or str(error)) from None


@contextlib.contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    held = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


class TokenRules:
    """What a file of tokens allows now; `look` now and then, because it changes and tokens expire."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._look()
        self.tokens: Sequence[Token] = TokenFile(path).tokens()
        self._valid: set[str] = set()
        self._book = TokenBook()
        self._callers: dict[str, Caller | None] = {}
        self._take_over()

    def look(self) -> bool:
        """Has anything changed? A file that cannot be read changes nothing."""
        seen = self._look()
        if seen != self._seen and seen is not None:
            self._seen = seen
            with contextlib.suppress(ParameterError):
                self.tokens = TokenFile(self._path).tokens()
        before = self._valid
        self._take_over()
        return self._valid != before

    def caller(self, client_id: str) -> Caller | None:
        """Who comes with this client id; None if that is not valid."""
        if client_id not in self._callers:
            # Strangers choose their ids: they must not fill the memory.
            if len(self._callers) > _MOST_REMEMBERED:
                self._callers.clear()
            self._callers[client_id] = self._find(client_id)
        return self._callers[client_id]

    def _find(self, client_id: str) -> Caller | None:
        name, _, secret = subscriber_of(client_id)[0].rpartition(".")
        try:
            caller = self._book.caller(secret)
            caller.require_name(name)
        except RequestError:
            return None
        return caller

    def _take_over(self) -> None:
        now_ns = time.time_ns()
        valid = [token for token in self.tokens if token.valid(now_ns)]
        if (ids := {token.token_id for token in valid}) != self._valid:
            self._valid, self._book, self._callers = ids, TokenBook(valid), {}

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size


@dataclass(frozen=True)
class TokenPolicy(Policy):
    """Refuses by the tokens of a file; ranks as any other."""

    rules: TokenRules = field(kw_only=True)

    def client_ids_are_secret(self) -> bool:
        return True

    def forbids_connection(self, client_id: str) -> bool:
        return self.rules.caller(client_id) is None

    def forbids_subscription(self, client_id: str, topic_filter: str) -> bool:
        caller = self._with_role(client_id, Role.SUBSCRIBER)
        return caller is None or not within(topic_filter, caller.subscribe)

    def forbids_publication(self, client_id: str, topic: str) -> bool:
        caller = self._with_role(client_id, Role.PUBLISHER)
        return caller is None or not within(topic, caller.publish)

    def _with_role(self, client_id: str, role: Role) -> Caller | None:
        caller = self.rules.caller(client_id)
        return caller if caller is not None and (caller.is_operator or role in caller.roles) else None
