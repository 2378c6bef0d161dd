"""Tokens: who may do what. A token is shown once, when it is made; kept are a prefix to find it by and its hash.

A token is 32 random bytes, so a plain SHA-256 is as hard to turn back as a slow hash of a password would be.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from triagemq.coordinator.refusals import ForbiddenError, UnauthorisedError
from triagemq.exchange.broker.users import hashed_password
from triagemq.mqttsn.filters import within

__all__ = [
    "ANYONE",
    "Caller",
    "Role",
    "Token",
    "TokenBook",
    "new_token",
    "prefix_of",
    "session_key",
    "token_from_json",
    "token_to_json",
]

_MARK = "triage_"
_FORM = re.compile(r"triage_[A-Za-z0-9_-]{43}", re.ASCII)
_PREFIX_LENGTH = len(_MARK) + 8
EVERY_TOPIC = ("#", "$SYS/#")


class Role(StrEnum):
    """What a token is for; one may have several."""

    PUBLISHER = "publisher"
    SUBSCRIBER = "subscriber"
    OPERATOR = "operator"
    VIEWER = "viewer"


@dataclass(frozen=True, slots=True)
class Token:
    """What is kept about a token. Limits are over everything announced with it; None means no limit.

    `names` are the names that may be announced, with `*` for any characters; `publish` and `subscribe` are topic
    patterns. An operator may do everything with everything, a viewer reads what an operator reads and changes nothing.
    `mqtt_password` is the token as brokers keep passwords, for those who speak MQTT to the exchange's own.
    """

    token_id: str
    prefix: str
    sha256: str = field(repr=False)
    label: str = ""
    roles: frozenset[Role] = frozenset()
    names: tuple[str, ...] = ("*",)
    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    most_subscriptions: int | None = None
    most_publications_per_second: float | None = None
    created_ns: int = 0
    expires_ns: int | None = None
    revoked_ns: int | None = None
    mqtt_password: str = field(default="", repr=False)

    def valid(self, now_ns: int) -> bool:
        return self.revoked_ns is None and (self.expires_ns is None or now_ns < self.expires_ns)


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever sent a request: a token, or (access off) anyone at all, who may do everything.

    `reached` is the host by which the request came here.
    """

    owner: str
    roles: frozenset[Role]
    names: tuple[str, ...] = ("*",)
    publish: tuple[str, ...] = EVERY_TOPIC
    subscribe: tuple[str, ...] = EVERY_TOPIC
    most_subscriptions: int | None = None
    most_publications_per_second: float | None = None
    reached: str = ""

    @classmethod
    def of(cls, token: Token) -> Caller:
        operator = Role.OPERATOR in token.roles
        return cls(
            owner=token.token_id,
            roles=token.roles,
            names=("*",) if operator else token.names,
            publish=EVERY_TOPIC if operator else token.publish,
            subscribe=EVERY_TOPIC if operator else token.subscribe,
            most_subscriptions=token.most_subscriptions,
            most_publications_per_second=token.most_publications_per_second,
        )

    @property
    def is_operator(self) -> bool:
        return Role.OPERATOR in self.roles

    def require(self, role: Role) -> None:
        """Refuse unless the caller has the role; an operator has them all."""
        if role not in self.roles and not self.is_operator:
            raise ForbiddenError(f"this token is not a {role}'s")

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


ANYONE = Caller(owner="", roles=frozenset(Role))
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


def new_token(
    *,
    label: str,
    roles: Iterable[Role],
    names: tuple[str, ...] = ("*",),
    publish: tuple[str, ...] = (),
    subscribe: tuple[str, ...] = (),
    most_subscriptions: int | None = None,
    most_publications_per_second: float | None = None,
    expires_seconds: float | None = None,
) -> tuple[str, Token]:
    """A fresh token: the secret to hand over, and what to keep.

    >>> secret, token = new_token(label="crew", roles=[Role.SUBSCRIBER], subscribe=("floor3/#",))
    >>> TokenBook([token]).caller(secret).subscribe, secret in repr(token)
    (('floor3/#',), False)
    """
    secret = _MARK + secrets.token_urlsafe(32)
    now_ns = time.time_ns()
    return secret, Token(
        token_id=secrets.token_hex(8),
        prefix=prefix_of(secret),
        sha256=_sha256(secret),
        label=label,
        roles=frozenset(roles),
        names=names,
        publish=publish,
        subscribe=subscribe,
        most_subscriptions=most_subscriptions,
        most_publications_per_second=most_publications_per_second,
        created_ns=now_ns,
        expires_ns=None if expires_seconds is None else now_ns + int(expires_seconds * 1e9),
        mqtt_password=hashed_password(secret),
    )


def token_to_json(token: Token) -> dict[str, Any]:
    """What `token_from_json` reads; nothing in it lets anybody in."""
    return asdict(token) | {"roles": sorted(token.roles)}


def token_from_json(value: Mapping[str, Any]) -> Token:
    """A token as it was kept.

    >>> _, token = new_token(label="pump", roles=[Role.PUBLISHER], publish=("pump/#",))
    >>> token_from_json(token_to_json(token)) == token
    True
    """
    lists = {name: tuple(value[name]) for name in ("names", "publish", "subscribe") if name in value}
    roles = frozenset(Role(role) for role in value.get("roles", ()))
    return Token(**{**value, **lists, "roles": roles})


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
