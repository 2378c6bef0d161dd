"""Tokens and what they allow. A token is shown once, when it is made; a prefix to find it by and its hash are stored.

A token is 32 random bytes, so a plain SHA-256 is as hard to invert as a slow hash of a password.
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
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, TypeAdapter

from triagemq.broker.users import hashed_password
from triagemq.channel.grants import Grant
from triagemq.coordinator.refusals import ForbiddenError, RequestError, UnauthorisedError
from triagemq.errors import ParameterError
from triagemq.files import write_private
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
    and with a gateway's token one may join under these names. `policy_role` is the role that the operator's policy
    gives its clients.
    Limits are over everything announced with it; None means no limit.
    """

    # For pydantic, which checks requests: keys that are not known are mistakes.
    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    label: Annotated[str, Field(pattern=r"^[\x20-\x7e]{0,200}$")] = ""
    roles: Annotated[tuple[Role, ...], Field(min_length=1, max_length=5)]
    names: Annotated[tuple[NamePattern, ...], Field(min_length=1, max_length=1_000)] = ("*",)
    publish: Annotated[tuple[TopicFilter, ...], Field(max_length=10_000)] = ()
    subscribe: Annotated[tuple[TopicFilter, ...], Field(max_length=10_000)] = ()
    policy_role: Annotated[str, Field(max_length=200)] = ""
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
    """What is stored of a token.

    `mqtt_password` is the token as brokers store passwords, for clients of the exchange's own broker.
    """

    sha256: str = field(repr=False)
    mqtt_password: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller(TokenRights):
    """The sender of a request: a token, or (access off) anyone at all, who may do everything.

    `reached` is the host by which the request came here, and `address` that of the client.
    """

    owner: str
    reached: str = ""
    address: str = ""

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
    """A fresh token: the secret to hand over, and what to store.

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


_STORED: TypeAdapter[Token] = TypeAdapter(Token)


def token_to_json(token: Token) -> dict[str, Any]:
    """What `token_from_json` reads; nothing in it lets anybody in."""
    found: dict[str, Any] = _STORED.dump_python(token, mode="json", warnings=False)
    return found


def token_from_json(value: Mapping[str, Any]) -> Token:
    """A token as it was stored; ValueError says what is wrong with it.

    >>> import json
    >>> _, token = new_token(TokenRequest(label="pump", roles=(Role.PUBLISHER,), publish=("pump/#",)))
    >>> token_from_json(json.loads(json.dumps(token_to_json(token)))) == token
    True
    """
    return _STORED.validate_python(value)


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


def _require_topics(topics: Iterable[str], patterns: tuple[str, ...], doing: str) -> None:
    for topic in topics:
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

    def tokens_version(self) -> tuple[int, int, int] | None:
        """Changes whenever the file does; None while it cannot be read."""
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def add(self, token: Token) -> None:
        self._change(lambda tokens: [*tokens, token])

    def revoke(self, token_id: str, revoked_ns: int) -> None:
        def revoked(token: Token) -> Token:
            is_meant = token.token_id == token_id and token.revoked_ns is None
            return replace(token, revoked_ns=revoked_ns) if is_meant else token

        self._change(lambda tokens: [revoked(token) for token in tokens])

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


class TokenGrants:
    """What a file of tokens allows now; `look` now and then, because it changes and tokens expire."""

    def __init__(self, path: Path) -> None:
        self._file = TokenFile(path)
        self._version = self._file.tokens_version()
        self._tokens: Sequence[Token] = self._file.tokens()
        self._valid: set[str] = set()
        self._book = TokenBook()
        # Strangers choose their ids: they must not fill the memory.
        self.find = lru_cache(_MOST_REMEMBERED)(self._find)
        self.look()

    def look(self) -> bool:
        """Has anything changed? A file that cannot be read changes nothing."""
        version = self._file.tokens_version()
        if version not in (None, self._version):
            self._version = version
            with contextlib.suppress(ParameterError):
                self._tokens = self._file.tokens()
        now_ns = time.time_ns()
        valid = [token for token in self._tokens if token.valid(now_ns)]
        before, self._valid = self._valid, {token.token_id for token in valid}
        if self._valid == before:
            return False
        self._book = TokenBook(valid)
        self.find.cache_clear()
        return True

    def _find(self, client_id: str) -> Grant | None:
        """What NAME.TOKEN may do; None if that is not valid."""
        name, _, secret = client_id.rpartition(".")
        try:
            caller = self._book.caller(secret)
            caller.require_name(name)
        except RequestError:
            return None
        roles = set(Role) if caller.is_operator else set(caller.roles)
        return Grant(
            caller.publish if Role.PUBLISHER in roles else (),
            caller.subscribe if Role.SUBSCRIBER in roles else (),
            name,
        )
