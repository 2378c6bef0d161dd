"""The directory that an exchange remembers itself in: one exchange at a time, and with access control its own token.

It can be copied, also while it is in use: from the copy `triage up --state` goes on as from the original. The broker's
memory is copied first, then the gateway's and the coordinator's, so that a message that moves on meanwhile is in the
copy twice rather than not at all; of several gateways likewise, all brokers first. Databases are copied as they are at
one moment. Logs and traces are not copied.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import os
import shutil
import sqlite3
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from pydantic_core import from_json, to_json

from triagemq.addresses import place
from triagemq.broker.address import BrokerAddress
from triagemq.channel.link import GatewayLink
from triagemq.channel.messages import ControlError
from triagemq.coordinator.access.tokens import Role, TokenBook, TokenRequest, new_token
from triagemq.coordinator.refusals import UnauthorisedError
from triagemq.errors import OutputError, ParameterError
from triagemq.files import private_directory, private_file, write_private

TOKEN_FILE = "operator.token"
OWN_BROKER = "own"
_STARTED = "started.json"
_NOT_COPIED = frozenset({"lock", "logs", "trace"})
_STORE, _COORDINATOR = "gateway.sqlite", Path("coordinator.sqlite")
_SAVING_SECONDS = 1.0
_ANSWER_SECONDS = 60.0
_CONNECT_SECONDS = 10.0


def fresh_directory(parent: Path) -> Path:
    """A new directory named after the time; two that are made in one second differ."""
    name = time.strftime("%Y%m%d-%H%M%S")
    for number in itertools.count(1):
        path = parent / (name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700, parents=True)
            break
    return path


def lock_state(state: Path) -> int:
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


def started_with(state: Path) -> dict[str, Any]:
    """The options of `triage up` that a state directory was started with, by the names of its parameters.

    `broker` is a URL, "embedded", or OWN_BROKER for one of the exchange's own.
    """
    try:
        found = from_json((state / _STARTED).read_bytes())
    except FileNotFoundError:
        # A state of before options were remembered: a broker of its own has left its directory.
        own = (state / "lock").exists() and (state / "broker").exists()
        return {"broker": OWN_BROKER} if own else {}
    except (OSError, ValueError) as error:
        raise ParameterError("state", f"{state / _STARTED} is not readable: {type(error).__name__}") from None
    return dict(found)


def remember_start(state: Path, options: Mapping[str, Any]) -> None:
    """Keep what an exchange is started with; a broker's password is in its gateway's configuration, too."""
    write_private(state / _STARTED, to_json(options).decode())


def check_same_broker(state: Path, option: str, before: str | None, now: str | None) -> None:
    """ParameterError if a state had another broker.

    Retained messages and sessions are the broker's: with another one they would be gone without a word.
    """
    if before is None or now is None or _place_of(before) == _place_of(now):
        return
    raise ParameterError(
        option,
        f"{state} was started with {_place_of(before)}, which has its retained messages and sessions; leave "
        f"{option} away to go on with that, give another --state, or add --other-broker to go on without them",
    )


def _place_of(broker: str) -> str:
    """The identity of a broker; a password may change."""
    if "://" not in broker:
        return f"the broker {broker!r}" if broker != OWN_BROKER else "a broker of its own"
    address = BrokerAddress.parse(broker)
    return f"{'mqtts' if address.tls else 'mqtt'}://{place(address.host, address.port)}"


def own_token(path: Path, database: str, request: TokenRequest | None = None) -> str:
    """A token of the exchange's own, in a file that only this user can read: an operator's, for its clients, if
    nothing else is requested."""
    # SQLAlchemy takes long to load, and an exchange without access needs none of it here.
    from triagemq.coordinator.store import Store, add_token

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
        lock: int | None = lock_state(state)
    except ParameterError:
        lock = None
    try:
        # By its directory below that of the exchange, each gateway's control socket.
        controls = {Path(): state / "gateway" / "control.sock"}
        for site in sorted((state / "sites").glob("*")):
            controls[Path("sites", site.name)] = site / "control.sock"
        async with contextlib.AsyncExitStack() as stack:
            links: dict[Path, GatewayLink] = {}
            for home, control in controls.items():
                # A site of before that the exchange does not have any more has no gateway that could answer.
                if lock is None and control.exists():
                    links[home] = await stack.enter_async_context(_connected(control))
            for home, link in links.items():
                async with _answering(controls[home]):
                    await link.save_broker()
            # Brokers write down what they hold; older files will do if they do not.
            await asyncio.sleep(_SAVING_SECONDS if links else 0)
            _copy_files(state, copy)
            for home in controls:
                database = home / "gateway" / _STORE
                _copy_database(state / database, copy / database)
        _copy_database(state / _COORDINATOR, copy / _COORDINATOR)
    finally:
        if lock is not None:
            os.close(lock)


@contextlib.asynccontextmanager
async def _answering(control: Path) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            yield
    except (ControlError, TimeoutError) as error:
        why = error if str(error) else "it does not answer"
        raise OutputError(f"the gateway at {control} does not copy its memory: {why}") from None


@contextlib.asynccontextmanager
async def _connected(control: Path) -> AsyncIterator[GatewayLink]:
    link = GatewayLink(control)
    link.start()
    try:
        async with _answering(control):
            # It may just be started again.
            if not await link.wait_connected(_CONNECT_SECONDS):
                raise TimeoutError
        yield link
    finally:
        await link.close()


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
