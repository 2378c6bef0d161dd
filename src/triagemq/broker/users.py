"""Who may use a broker of our own, and for what: the password file and the access list that Mosquitto reads.

A client without a user and password is not let in.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from triagemq.files import write_private
from triagemq.mqttsn import valid_topic_filter

# Mosquitto's own number; what is hashed is a random token, which no number of rounds makes harder to guess.
_ROUNDS = 101
_SALT_BYTES = 12
_PASSWORDS, _RIGHTS = "passwords", "rights"


@dataclass(frozen=True, slots=True)
class BrokerUser:
    """`password` is hashed; `publish` and `subscribe` are topic filters within which everything is allowed."""

    name: str
    password: str = field(repr=False)
    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()


def hashed_password(password: str) -> str:
    """As mosquitto_passwd writes it.

    >>> hashed_password("fire").split("$")[:3]
    ['', '7', '101']
    """
    salt = secrets.token_bytes(_SALT_BYTES)
    digest = hashlib.pbkdf2_hmac("sha512", password.encode("utf-8", "surrogatepass"), salt, _ROUNDS)
    return f"$7${_ROUNDS}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"


def write_users(directory: Path, users: Iterable[BrokerUser]) -> tuple[Path, Path]:
    """Both files, for these users and no others; passwords first: a user without one is out."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    users = [user for user in users if ":" not in user.name and user.name.isprintable()]
    passwords = write_private(
        directory / _PASSWORDS, "".join(f"{user.name}:{user.password}\n" for user in users)
    )
    lines = []
    for user in users:
        lines.append(f"user {user.name}")
        for access, patterns in (("write", user.publish), ("read", user.subscribe)):
            lines += [f"topic {access} {pattern}" for pattern in patterns if _is_plain(pattern)]
    return passwords, write_private(directory / _RIGHTS, "".join(f"{line}\n" for line in lines))


def _is_plain(pattern: str) -> bool:
    """Can it stand in a line of its own and mean itself? What cannot is not allowed."""
    return valid_topic_filter(pattern) and pattern == pattern.strip() and len(pattern.splitlines()) == 1
