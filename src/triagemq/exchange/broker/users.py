"""Who may use a broker of our own, and for what: the password file and the access list that Mosquitto reads.

The embedded broker reads the same two files. Whatever has no user and password is not let in.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from triagemq.exchange.private_files import private_directory, write_private
from triagemq.mqttsn import valid_topic_filter

# Mosquitto's own number; what is hashed is a random token, which no number of rounds makes harder to guess.
_ROUNDS = 101
_SALT_BYTES = 12
_MOST_LEVELS = 200
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

    >>> is_password("fire", hashed_password("fire")), is_password("water", hashed_password("fire"))
    (True, False)
    """
    return _hashed(password, secrets.token_bytes(_SALT_BYTES), _ROUNDS)


def is_password(password: str, hashed: str) -> bool:
    """Was this password hashed to that?"""
    _, _, rounds, salt, _ = hashed.split("$")
    return hmac.compare_digest(_hashed(password, base64.b64decode(salt), int(rounds)), hashed)


def _hashed(password: str, salt: bytes, rounds: int) -> str:
    digest = hashlib.pbkdf2_hmac("sha512", password.encode("utf-8", "surrogatepass"), salt, rounds)
    return f"$7${rounds}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"


def write_users(directory: Path, users: Iterable[BrokerUser]) -> tuple[Path, Path]:
    """Both files, for these users and no others; passwords first: a user without one is out."""
    private_directory(directory)
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


def read_users(directory: Path) -> Mapping[str, BrokerUser]:
    """What was written, by name.

    >>> import tempfile
    >>> user = BrokerUser("pump", hashed_password("s3cret"), ("pump/#",), ("alarm", "pump/+"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write_users(Path(folder) / "broker", [user])
    ...     read_users(Path(folder) / "broker") == {"pump": user}
    True
    """
    rights: dict[str, dict[str, list[str]]] = {}
    patterns: dict[str, list[str]] = {}
    for line in (directory / _RIGHTS).read_text(encoding="utf-8").split("\n"):
        kind, _, rest = line.partition(" ")
        if kind == "user":
            patterns = rights.setdefault(rest, {"write": [], "read": []})
        elif kind == "topic":
            access, _, pattern = rest.partition(" ")
            patterns[access].append(pattern)
    found = {}
    for line in (directory / _PASSWORDS).read_text(encoding="utf-8").splitlines():
        name, _, password = line.partition(":")
        allowed = rights.get(name, {"write": [], "read": []})
        found[name] = BrokerUser(name, password, tuple(allowed["write"]), tuple(allowed["read"]))
    return found


def _is_plain(pattern: str) -> bool:
    """Can it stand in a line of its own and mean itself? What cannot is not allowed."""
    return (
        valid_topic_filter(pattern)
        and pattern == pattern.strip()
        and not any(ord(letter) < 0x20 or 0x7F <= ord(letter) < 0xA0 for letter in pattern)
        and len(pattern.splitlines()) == 1
        and pattern.count("/") < _MOST_LEVELS
    )
