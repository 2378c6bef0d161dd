"""A broker of our own: Mosquitto if the machine has it, else the embedded one; started, watched, started again.

Children end with their parent, whatever ends that: a killed supervisor leaves nothing that holds its ports.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import getpass
import hashlib
import json
import os
import secrets
import signal
import ssl
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from pathlib import Path

from triagemq.certificates import LOOK_EVERY_SECONDS, RenewalWatch
from triagemq.errors import BrokerError
from triagemq.exchange.broker.address import BrokerAddress
from triagemq.exchange.broker.ports import FurtherListener, free_port, had_before, remember, to_be_had
from triagemq.exchange.broker.users import BrokerUser, hashed_password, write_users
from triagemq.exchange.private_files import PRIVATE_UMASK, private_directory, write_private
from triagemq.programs import find_program

_PR_SET_PDEATHSIG = 1
_START_SECONDS = 15.0
_ATTEMPTS = 3
_SAVE_AFTER_SECONDS = 0.2

_CONFIGURATION = """\
listener {port} {host}
{access}user {user}
persistence true
persistence_location {directory}/
autosave_interval 60
# The gateway reads everything at once and keeps it itself: nothing may wait or be dropped here.
max_inflight_messages 0
max_queued_messages 0
set_tcp_nodelay true
log_type error
log_type warning
{further}"""
_ANYBODY = "allow_anonymous true\n"
_USERS_ONLY = "allow_anonymous false\npassword_file {passwords}\nacl_file {rights}\n"
_OWN_SECRET = "gateway.secret"
_BOOT = "boot"


def find_mosquitto() -> str | None:
    """Where Mosquitto is, if it is."""
    return find_program("mosquitto")


def dying_with_parent() -> Callable[[], None]:
    """What a child does between fork and exec (`preexec_fn`); where the system has no such thing, nothing."""
    parent = os.getpid()
    # Looked up here: there is little that may be done after a fork.
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None

    def prepare() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # It has died in between.
                os.kill(os.getpid(), signal.SIGKILL)

    return prepare


class BrokerProcess:
    """A broker as a child process. It keeps its port, also when it is started anew: `directory` is what it remembers.

    With `guarded` it lets in nobody but the gateway, by a secret that is in `address`, and whom `let_in` names.
    `gateway_client_id` is nobody else's either: whoever came with the gateway's would have the broker drop the gateway.
    """

    def __init__(
        self,
        directory: Path,
        *,
        host: str = "127.0.0.1",
        port: int | None = None,
        mosquitto: str | None = None,
        embedded: bool = False,
        guarded: bool = False,
        further: FurtherListener | None = None,
    ) -> None:
        self._directory = private_directory(directory.absolute())
        before, _ = had_before(self._directory)
        self._mosquitto = None if embedded else mosquitto or find_mosquitto()
        secret = _own_secret(self._directory / _OWN_SECRET)
        self.gateway_client_id = f"triage-gateway-{hashlib.sha256(secret.encode()).hexdigest()[:16]}"
        self.address = BrokerAddress(
            host,
            port or before or free_port(host),
            user=self.gateway_client_id if guarded else None,
            password=secret if guarded else None,
            version=4 if self._mosquitto is None else 5,
        )
        self.further = further
        self._own_password = hashed_password(secret)
        self._users: Sequence[BrokerUser] | None = () if guarded else None
        self._attempts = _ATTEMPTS if port is None else 1
        self._had_before = before if port is None else None
        self._process: Process | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._saving: asyncio.TimerHandle | None = None
        self.restarts = 0
        self.said_aloud = ""
        """What people should know about where it listens now."""
        self.problem = ""
        """Why it does not run, if it could not be started again."""

    @property
    def kind(self) -> str:
        """`mosquitto` or `embedded`."""
        return "embedded" if self._mosquitto is None else "mosquitto"

    @property
    def pid(self) -> int:
        """The process, while it runs."""
        assert self._process is not None
        return self._process.pid

    @property
    def boot_file(self) -> Path:
        """A file whose content is another after every start: then the broker may have forgotten things."""
        return self._directory / _BOOT

    async def start(self) -> None:
        """Start it and wait until it answers; then see that it stays."""
        if self.further is not None:
            await to_be_had(self.further.host, self.further.port, "--mqtt")
        for left in reversed(range(self._attempts)):
            try:
                if self._had_before is not None:
                    await to_be_had(self.address.host, self.address.port, "--mqtt")
                await self._launch()
                break
            except BrokerError:
                # Somebody else may have taken the port that was free.
                if not left:
                    raise
                self.address = replace(self.address, port=free_port(self.address.host))
        if self._had_before not in (None, self.address.port):
            self.said_aloud = f"the broker is at port {self.address.port}: {self._had_before} is taken"
        remember(self._directory, self.address.port, self.further)
        self._watcher = asyncio.get_running_loop().create_task(self._watch())
        if self._mosquitto is not None and self.further is not None and self.further.certificate is not None:
            self._renewing = asyncio.get_running_loop().create_task(self._keep_renewing(self.further))

    async def stop(self) -> None:
        """End it."""
        if self._saving is not None:
            self._saving.cancel()
        for task in (self._renewing, self._watcher):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(5.0):
                await process.communicate()
        except TimeoutError:
            process.kill()
            await process.communicate()

    def save_soon(self) -> None:
        """Have subscriptions and retained messages written, so that they survive kill -9 of the broker.

        Otherwise what is published between its restart and the gateway's return would be acknowledged and lost.
        """
        if self._mosquitto is not None and self._saving is None:
            self._saving = asyncio.get_running_loop().call_later(_SAVE_AFTER_SECONDS, self._save)

    def _save(self) -> None:
        self._saving = None
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGUSR1)

    def let_in(self, users: Sequence[BrokerUser]) -> None:
        """From now on these, with what they may do, and nobody else but the gateway; others are disconnected."""
        self._users = tuple(users)
        self._write_users()
        self._reload()

    def _reload(self) -> None:
        """Have Mosquitto read its files again; the embedded one looks by itself."""
        if self._mosquitto is not None and self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGHUP)

    async def _keep_renewing(self, further: FurtherListener) -> None:
        files = [str(further.certificate), str(further.private_key)]

        def load() -> None:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(*files)
            self._reload()

        watch = RenewalWatch(
            files, load, lambda words: print(f"broker: {words}", file=sys.stderr, flush=True)
        )
        while True:
            await asyncio.sleep(LOOK_EVERY_SECONDS)
            watch.look()

    def _write_users(self) -> tuple[Path, Path]:
        users = self._users or ()
        # A wildcard in front takes in no topic that begins with $: what others may do, the gateway does for them.
        patterns = {pattern for user in users for pattern in (*user.publish, *user.subscribe)}
        special = {pattern.partition("/")[0] + "/#" for pattern in patterns if pattern.startswith("$")}
        everything = ("#", *sorted(special | {"$SYS/#"}))
        own = BrokerUser(self.gateway_client_id, self._own_password, everything, everything)
        return write_users(self._directory, (own, *users))

    def command(self) -> list[str]:
        """What runs it, with its configuration written; for those who start it themselves."""
        host, port = self.address.host, self.address.port
        files = None if self._users is None else self._write_users()
        if self._mosquitto is None:
            document = {
                "listeners": [
                    (host, port, None, None),
                    *([] if self.further is None else [astuple(self.further)]),
                ],
                "users": None if files is None else str(self._directory),
            }
            configuration = write_private(self._directory / "embedded.json", json.dumps(document))
            return [sys.executable, "-m", "triagemq.exchange.broker.embedded", str(configuration)]
        access = _ANYBODY if files is None else _USERS_ONLY.format(passwords=files[0], rights=files[1])
        configuration = write_private(
            self._directory / "mosquitto.conf",
            _CONFIGURATION.format(
                host=host,
                port=port,
                access=access,
                user=getpass.getuser(),
                directory=self._directory,
                further="" if self.further is None else _listener(self.further),
            ),
        )
        return [self._mosquitto, "-c", str(configuration)]

    async def _launch(self) -> None:
        command = self.command()
        write_private(self.boot_file, secrets.token_hex(8))
        # A session of its own: Ctrl-C ends the gateway first, and the gateway ends the broker.
        self._process = await asyncio.create_subprocess_exec(
            *command,
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=PIPE,
            start_new_session=True,
            preexec_fn=dying_with_parent(),
            umask=PRIVATE_UMASK,
        )
        await self._wait_until_it_answers(self._process)

    async def _wait_until_it_answers(self, process: Process) -> None:
        deadline = asyncio.get_running_loop().time() + _START_SECONDS
        while asyncio.get_running_loop().time() < deadline:
            if process.returncode is not None:
                _, said = await process.communicate()
                last = said.decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
                raise BrokerError(f"the {self.kind} broker ended at once: {last[0]}")
            try:
                _, writer = await asyncio.open_connection(self.address.host, self.address.port)
            except OSError:
                await asyncio.sleep(0.02)
                continue
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            return
        process.kill()
        await process.communicate()
        raise BrokerError(f"the {self.kind} broker does not answer on {self.address}")

    async def _watch(self) -> None:
        delay = 0.1
        while True:
            assert self._process is not None
            await self._process.communicate()
            self.restarts += 1
            await asyncio.sleep(delay)
            try:
                await self._launch()
                delay = 0.1
                self.problem = ""
            except (BrokerError, OSError) as error:
                self.problem = str(error)
                delay = min(2 * delay, 5.0)


def _listener(further: FurtherListener) -> str:
    lines = [f"listener {further.port} {further.host}"]
    if further.certificate is not None:
        lines += [f"certfile {further.certificate}", f"keyfile {further.private_key}"]
    return "".join(f"{line}\n" for line in lines)


def _own_secret(path: Path) -> str:
    """Kept, so that the broker knows the gateway's session again after a restart of both."""
    with contextlib.suppress(FileNotFoundError):
        if found := path.read_text(encoding="ascii").strip():
            return found
    secret = secrets.token_urlsafe(32)
    write_private(path, secret + "\n")
    return secret
