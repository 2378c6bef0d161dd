"""The directory that an exchange remembers itself in: one exchange at a time, and with access control its own token.

It can be copied, also while it is in use: from the copy `triage up --state` goes on as from the original. The broker's
memory is copied first, then the gateway's and the coordinator's, so that a message that moves on meanwhile is in the
copy twice rather than not at all. Both databases are copied as they are at one moment; the gateway, which alone may
open its own, does that itself. Logs and traces are not copied.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import sqlite3
import time
from pathlib import Path

from triagemq.coordinator.access.tokens import Role, TokenBook, TokenRequest, new_token
from triagemq.coordinator.channel.link import GatewayLink
from triagemq.coordinator.channel.messages import ControlError
from triagemq.coordinator.refusals import UnauthorisedError
from triagemq.errors import OutputError, ParameterError
from triagemq.exchange.private_files import private_directory, private_file, write_private

TOKEN_FILE = "operator.token"
_NOT_COPIED = frozenset({"lock", "logs", "trace"})
_GATEWAY, _COORDINATOR = Path("gateway", "gateway.sqlite"), Path("coordinator.sqlite")
_SAVING_SECONDS = 1.0
_ANSWER_SECONDS = 60.0
_CONNECT_SECONDS = 10.0


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


def own_token(path: Path, database: str, request: TokenRequest | None = None) -> str:
    """A token of the exchange's own, kept in a file that only this user can read: an operator's, for its clients, if
    nothing else is requested."""
    # SQLAlchemy takes long to load, and an exchange without access needs none of it here.
    from triagemq.coordinator.store.changes import add_token
    from triagemq.coordinator.store.store import Store

    store = Store(database)
    try:
        known = TokenBook(store.tokens())
        try:
            secret = path.read_text(encoding="ascii").strip()
            known.caller(secret)
        except (OSError, ValueError, UnauthorisedError):
            secret, token = new_token(
                request or TokenRequest(label="the exchange's own clients", roles=(Role.OPERATOR,))
            )
            write_private(path, secret + "\n")
            store.write_now(add_token, token)
        return secret
    finally:
        store.close_now()


async def back_up(state: Path, target: Path) -> None:
    """Copy `state` to `target`, which must be new or empty; it is there as a whole or not at all."""
    if not (state / "lock").exists():
        raise ParameterError("state", f"{state} is not the state of an exchange; give the directory of one")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ParameterError("backup", f"{target} is not empty; give a new directory")
    unfinished = target.with_name(f".{target.name}.new")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        private_directory(unfinished, "backup")
        await _copy(state, unfinished)
        if target.exists():
            target.rmdir()
        unfinished.rename(target)
    except OSError as error:
        raise OutputError(f"{target}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


async def _copy(state: Path, copy: Path) -> None:
    try:
        lock: int | None = hold(state)
    except ParameterError:
        lock = None
    try:
        (copy / "gateway").mkdir(mode=0o700, exist_ok=True)
        if lock is None:
            link = GatewayLink(state / "gateway" / "control.sock")
            link.start()
            try:
                # It may just be started again.
                if not await link.wait_connected(_CONNECT_SECONDS):
                    raise TimeoutError
                await _saved(link, state / "broker" / "mosquitto.db")
                _copy_files(state, copy)
                async with asyncio.timeout(_ANSWER_SECONDS):
                    await link.back_up((copy / _GATEWAY).absolute())
            except (ControlError, TimeoutError) as error:
                raise OutputError(
                    f"the gateway of {state} does not copy its memory: {error or 'it does not answer'}"
                ) from None
            finally:
                await link.close()
        else:
            _copy_files(state, copy)
            _copy_database(state / _GATEWAY, copy / _GATEWAY)
        _copy_database(state / _COORDINATOR, copy / _COORDINATOR)
    finally:
        if lock is not None:
            os.close(lock)


async def _saved(link: GatewayLink, memory: Path) -> None:
    """Give the broker the time to write down what it holds; an older file will do if it does not."""
    before = _modified(memory)
    async with asyncio.timeout(_ANSWER_SECONDS):
        await link.save_broker()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_SAVING_SECONDS if before else 0):
            while _modified(memory) == before:
                await asyncio.sleep(0.02)


def _modified(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _copy_files(state: Path, copy: Path) -> None:
    """All plain files but the databases; each was put in its place as a whole."""
    for folder, folders, files in os.walk(state):
        here = Path(folder).relative_to(state)
        folders[:] = [name for name in folders if str(here / name) not in _NOT_COPIED]
        (copy / here).mkdir(mode=0o700, exist_ok=True)
        for name in files:
            path = state / here / name
            is_database = name.endswith((".sqlite", ".sqlite-wal", ".sqlite-shm"))
            if str(here / name) in _NOT_COPIED or is_database or not path.is_file() or path.is_symlink():
                continue
            # It may have been replaced or removed just now.
            with contextlib.suppress(FileNotFoundError):
                shutil.copy2(path, copy / here / name)
    # What marks a state directory, and lets the copy be copied.
    private_file(copy / "lock")


def _copy_database(path: Path, copy: Path) -> None:
    if not path.exists():
        return
    private_file(copy)
    try:
        with (
            contextlib.closing(sqlite3.connect(path, timeout=10)) as before,
            contextlib.closing(sqlite3.connect(copy)) as after,
        ):
            before.backup(after)
    except sqlite3.Error as error:
        raise OutputError(f"{path} cannot be copied: {error}") from None
