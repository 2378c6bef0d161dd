"""The directory that an exchange remembers itself in: one exchange at a time, and with access control its own token."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from triagemq.coordinator.access.tokens import Role, TokenBook, new_token
from triagemq.coordinator.refusals import UnauthorisedError
from triagemq.coordinator.store.changes import adding_token
from triagemq.coordinator.store.store import Store
from triagemq.errors import ParameterError
from triagemq.exchange.private_files import private_directory, write_private

__all__ = ["fresh_directory", "hold", "own_token"]

_TOKEN_FILE = "operator.token"


def fresh_directory(parent: Path) -> Path:
    """A new directory named after the time; two that are made in one second differ."""
    name = time.strftime("%Y%m%d-%H%M%S")
    number = 1
    while True:
        path = parent / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir(mode=0o700, parents=True)
        except FileExistsError:
            number += 1
        else:
            return path


def hold(state: Path) -> int:
    """Lock it for this process, as long as that lives; close the descriptor to give it back."""
    private_directory(state)
    try:
        lock = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ParameterError("state", f"{state}: {error.strerror or error}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise ParameterError(
            "state", f"{state} is in use by another `triage up`; give another directory"
        ) from None
    return lock


def own_token(state: Path, database: str) -> str:
    """An operator's token for the exchange's own clients, kept where only this user can read it."""
    path = state / _TOKEN_FILE
    store = Store(database)
    try:
        known = TokenBook(store.tokens())
        try:
            secret = path.read_text(encoding="ascii").strip()
            known.caller(secret)
        except (OSError, ValueError, UnauthorisedError):
            secret, token = new_token(label="the exchange's own clients", roles=[Role.OPERATOR])
            write_private(path, secret + "\n")
            store.write_now(adding_token(token))
        return secret
    finally:
        store.close_now()
