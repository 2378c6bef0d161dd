"""A broker of our own: Mosquitto if the machine has it, else the embedded one; started, watched, started again.

It listens at the same address after every start, which its directory remembers. Children end with their parent,
whatever ends that: a killed supervisor leaves nothing that holds its ports.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import getpass
import hashlib
import json
import os
import pwd
import secrets
import signal
import socket
import ssl
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

from triagemq.certificates import LOOK_EVERY_SECONDS, RenewalWatch
from triagemq.errors import BrokerError
from triagemq.exchange.broker.address import BrokerAddress
from triagemq.exchange.broker.users import BrokerUser, hashed_password, write_users
from triagemq.exchange.private_files import PRIVATE_UMASK, private_directory, private_file, write_private
from triagemq.programs import find_program, send_signal

_PR_SET_PDEATHSIG = 1
_START_SECONDS = 15.0
_ATTEMPTS = 3
_SAVE_AFTER_SECONDS = 0.2
# A snapshot is of everything: it may take this share of the broker's time.
_SAVING_SHARE = 0.05
_SAVE_EVERY_SECONDS = (1.0, 60.0)
_MOST_LOG_BYTES = 1 << 20
_LAST_WORDS_BYTES = 2_000
_LAST_LINES = 3
_UNPRIVILEGED_USERS = ("mosquitto", "nobody")
_FIRST_FREE_PORT = 1024
_FILE = "listens.json"
# One that was killed a moment ago may still have it.
_PATIENCE_SECONDS = 2.0
_PAUSE_SECONDS = 0.05

_CONFIGURATION = """\
listener {port} {host}
{access}user {user}
persistence true
persistence_location {directory}/
autosave_interval 60
# The gateway reads everything at once; this is what waits for it while it is started again, and for every other client
# that does not read.
max_inflight_messages 0
max_inflight_bytes 33554432
max_queued_messages 100000
max_queued_bytes 134217728
set_tcp_nodelay true
log_type error
log_type warning
{further}"""
_ANYBODY = "allow_anonymous true\n"
_USERS_ONLY = "allow_anonymous false\npassword_file {passwords}\nacl_file {rights}\n"
_OWN_SECRET = "gateway.secret"
_BOOT = "boot"
_TLS_FILES = ("certificate.pem", "key.pem")


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


@dataclass(frozen=True, slots=True)
class FurtherListener:
    """Where a broker of ours is reached by others; with a certificate (PEM files) it speaks TLS there.

    Mosquitto takes a renewed certificate into use at once, the embedded broker when it is started again.
    """

    host: str
    port: int
    certificate: str | None = None
    private_key: str | None = None

    @property
    def address(self) -> BrokerAddress:
        """For those others."""
        return BrokerAddress(self.host, self.port, tls=self.certificate is not None)


class BrokerProcess:
    """A broker as a child process. It keeps its port, also when it is started anew: `directory` is what it remembers.

    With `guarded` it lets in the gateway, by a secret that is in `address`, the users of `let_in`, and no others.
    `gateway_client_id` is a secret, too: another client with it would have the broker drop the gateway.
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
        before, _ = previous_ports(self._directory)
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
        self._previous_port = before if port is None else None
        self._process: Process | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._saving: asyncio.TimerHandle | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._account = self._unprivileged_account()
        self._last_words = b""
        self._reading: asyncio.Task[None] | None = None
        self.restarts = 0
        self.warning = ""
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

    @property
    def log(self) -> Path:
        """What it writes to its standard error."""
        return self._directory / "broker.log"

    def _unprivileged_account(self) -> pwd.struct_passwd | None:
        """Whom Mosquitto runs as where we are root; None: as we do, which ports below 1024 need."""
        if self._mosquitto is None or os.geteuid() != 0:
            return None
        if self.further is not None and self.further.port < _FIRST_FREE_PORT:
            return None
        for name in _UNPRIVILEGED_USERS:
            with contextlib.suppress(KeyError):
                return pwd.getpwnam(name)
        return None

    async def start(self) -> None:
        """Start it and wait until it answers; then see that it stays."""
        if self.further is not None:
            await wait_until_free(self.further.host, self.further.port, "--mqtt")
        for left in reversed(range(self._attempts)):
            try:
                if self._previous_port is not None:
                    await wait_until_free(self.address.host, self.address.port, "--mqtt")
                await self._launch()
                break
            except BrokerError:
                # Another program may have taken the port that was free.
                if not left:
                    raise
                self.address = replace(self.address, port=free_port(self.address.host))
        if self._previous_port not in (None, self.address.port):
            self.warning = f"the broker is at port {self.address.port}: {self._previous_port} is taken"
        remember(self._directory, self.address.port, self.further)
        self._watcher = asyncio.get_running_loop().create_task(self._watch())
        if self._mosquitto is not None:
            self._keeping = asyncio.get_running_loop().create_task(self._keep_saving())
        if self._mosquitto is not None and self.further is not None and self.further.certificate is not None:
            self._renewing = asyncio.get_running_loop().create_task(self._keep_renewing(self.further))

    async def stop(self, seconds: float = 5.0) -> None:
        """End it, and kill it if it has not ended after so long."""
        if self._saving is not None:
            self._saving.cancel()
        for task in (self._renewing, self._keeping, self._watcher):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        process = self._process
        if process is None or process.returncode is not None:
            return
        send_signal(process, signal.SIGTERM)
        try:
            async with asyncio.timeout(seconds):
                await process.wait()
        except TimeoutError:
            send_signal(process, signal.SIGKILL)
            await process.wait()
        await self._read_all()

    def save_soon(self) -> None:
        """Have subscriptions and retained messages written, so that they survive kill -9 of the broker.

        Otherwise what is published between its restart and the gateway's return would be acknowledged and lost.
        """
        if self._mosquitto is not None and self._saving is None:
            self._saving = asyncio.get_running_loop().call_later(_SAVE_AFTER_SECONDS, self._save)

    def _save(self) -> None:
        self._saving = None
        if self._process is not None:
            send_signal(self._process, signal.SIGUSR1)

    async def _keep_saving(self) -> None:
        """Mosquitto stores snapshots only: have one written as often as it can afford it, if something has come.

        What it has acknowledged since the last one is lost when it is killed.
        """
        shortest, longest = _SAVE_EVERY_SECONDS
        due, received, has_changed = 0.0, 0, False
        while True:
            await asyncio.sleep(_SAVE_AFTER_SECONDS)
            before, received = received, _received(self.pid)
            has_changed |= received > before
            begun = time.monotonic()
            if not has_changed or begun < due:
                continue
            has_changed, former = False, _identity(self._database)
            self._save()
            while _identity(self._database) == former and time.monotonic() - begun < longest * _SAVING_SHARE:
                await asyncio.sleep(0.01)
            now = time.monotonic()
            due = now + min(max((now - begun) / _SAVING_SHARE, shortest), longest)

    def let_in(self, users: Sequence[BrokerUser]) -> None:
        """From now on these, with what they may do, and the gateway; others are disconnected."""
        self._users = tuple(users)
        self._hand_over({file.name: file for file in self._write_users()})
        self._reload()

    def _reload(self) -> None:
        """Have Mosquitto read its files again; the embedded one looks by itself."""
        if self._mosquitto is not None and self._process is not None:
            send_signal(self._process, signal.SIGHUP)

    async def _keep_renewing(self, further: FurtherListener) -> None:
        files = [str(further.certificate), str(further.private_key)]

        def load() -> None:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(*files)
            self._hand_over(dict(zip(_TLS_FILES, map(Path, files), strict=True)))
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

    @property
    def _own_directory(self) -> Path:
        """What Mosquitto itself reads and writes: where it is another user, a directory of that user."""
        return self._directory if self._account is None else self._directory / "mosquitto"

    @property
    def _database(self) -> Path:
        return self._own_directory / "mosquitto.db"

    def _hand_over(self, files: Mapping[str, Path]) -> None:
        """Copy files to where the user that Mosquitto runs as can read them, under these names."""
        if self._account is None:
            return
        own, owner = self._own_directory, (self._account.pw_uid, self._account.pw_gid)
        own.mkdir(mode=0o700, exist_ok=True)
        former = self._directory / "mosquitto.db"
        if former.exists() and not self._database.exists():
            former.replace(self._database)
        # A restored backup belongs to root. Links in a directory of another user are not followed.
        for path in (own, *own.iterdir()):
            os.chown(path, *owner, follow_symlinks=False)
        for name, file in files.items():
            unfinished = own / f"{name}.new"
            unfinished.unlink(missing_ok=True)
            with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as copy:
                copy.write(file.read_bytes())
                os.fchown(copy.fileno(), *owner)
            unfinished.replace(own / name)

    def command(self, *, handed_over: bool = False) -> list[str]:
        """What runs it, with its configuration written; for those who start it themselves.

        `handed_over`: it runs in its own directory, whose files it names without a path. The path to it may be
        closed to the user that it runs as.
        """
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
        names = [str(file) for file in files or ()]
        further, directory = self.further, str(self._directory)
        if handed_over and self._account is not None:
            names, directory = [file.name for file in files or ()], "."
            if further is not None and further.certificate is not None and further.private_key is not None:
                pair = Path(further.certificate), Path(further.private_key)
                self._hand_over(dict(zip(_TLS_FILES, pair, strict=True)))
                further = replace(further, certificate=_TLS_FILES[0], private_key=_TLS_FILES[1])
        access = _USERS_ONLY.format(passwords=names[0], rights=names[1]) if names else _ANYBODY
        configuration = write_private(
            self._directory / "mosquitto.conf",
            _CONFIGURATION.format(
                host=host,
                port=port,
                access=access,
                user=getpass.getuser(),
                directory=directory,
                further="" if further is None else _listener(further),
            ),
        )
        if handed_over:
            self._hand_over({file.name: file for file in (configuration, *(files or ()))})
        return [self._mosquitto, "-c", configuration.name if handed_over else str(configuration)]

    async def _launch(self) -> None:
        command = self.command(handed_over=True)
        account = self._account
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
            cwd=self._own_directory,
            user=None if account is None else account.pw_uid,
            group=None if account is None else account.pw_gid,
            extra_groups=None if account is None else (),
        )
        self._last_words = b""
        self._reading = asyncio.get_running_loop().create_task(self._keep_reading(self._process))
        await self._wait_until_it_answers(self._process)

    async def _wait_until_it_answers(self, process: Process) -> None:
        deadline = asyncio.get_running_loop().time() + _START_SECONDS
        while asyncio.get_running_loop().time() < deadline:
            if process.returncode is not None:
                await self._read_all()
                raise BrokerError(f"the {self.kind} broker ended at once: {self._said()}")
            try:
                _, writer = await asyncio.open_connection(self.address.host, self.address.port)
            except OSError:
                await asyncio.sleep(0.02)
                continue
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            return
        send_signal(process, signal.SIGKILL)
        await process.wait()
        raise BrokerError(f"the {self.kind} broker does not answer on {self.address}")

    async def _keep_reading(self, process: Process) -> None:
        """Its standard error goes to a file of a bounded size; the last of it is remembered."""
        assert process.stderr is not None
        while data := await process.stderr.read(4096):
            self._last_words = (self._last_words + data)[-_LAST_WORDS_BYTES:]
            with contextlib.suppress(OSError):
                private_file(self.log)
                if self.log.stat().st_size > _MOST_LOG_BYTES:
                    self.log.replace(self.log.with_name("broker.log.1"))
                    private_file(self.log)
                with self.log.open("ab") as log:
                    log.write(data)

    async def _read_all(self) -> None:
        if self._reading is not None:
            await asyncio.wait([self._reading], timeout=1.0)

    def _said(self) -> str:
        lines = self._last_words.decode(errors="replace").strip().splitlines()[-_LAST_LINES:]
        return " | ".join(lines) or "it said nothing"

    async def _watch(self) -> None:
        delay = 0.1
        while True:
            assert self._process is not None
            code = await self._process.wait()
            await self._read_all()
            self.problem = f"the {self.kind} broker ended ({code}): {self._said()}; see {self.log}"
            print(f"broker: {self.problem}", file=sys.stderr, flush=True)
            self.restarts += 1
            await asyncio.sleep(delay)
            try:
                await self._launch()
                delay = 0.1
                self.problem = ""
            except (BrokerError, OSError) as error:
                self.problem = str(error)
                delay = min(2 * delay, 5.0)


def _received(pid: int) -> int:
    """Grows when packets come that are more than pings and acknowledgements; 0 if it is not known.

    These are octets beyond one for each read: Mosquitto reads the first two of a packet one by one.
    """
    with contextlib.suppress(OSError, ValueError, KeyError):
        lines = Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines()
        counts = {name: int(count) for name, _, count in (line.partition(": ") for line in lines)}
        return counts["rchar"] - counts["syscr"]
    return 0


def _identity(path: Path) -> tuple[int, int] | None:
    with contextlib.suppress(OSError):
        found = path.stat()
        return found.st_ino, found.st_mtime_ns
    return None


def _listener(further: FurtherListener) -> str:
    lines = [f"listener {further.port} {further.host}"]
    if further.certificate is not None:
        lines += [f"certfile {further.certificate}", f"keyfile {further.private_key}"]
    return "".join(f"{line}\n" for line in lines)


def _own_secret(path: Path) -> str:
    """Stored, so that the broker knows the gateway's session again after a restart of both."""
    with contextlib.suppress(FileNotFoundError):
        if found := path.read_text(encoding="ascii").strip():
            return found
    secret = secrets.token_urlsafe(32)
    write_private(path, secret + "\n")
    return secret


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port that is free at the moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def previous_ports(directory: Path) -> tuple[int | None, tuple[str, int] | None]:
    """The gateway's own port and where others reached it, of the broker with this directory; None for what is unknown.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     remember(Path(folder), 40123, FurtherListener("127.0.0.1", 1883))
    ...     previous_ports(Path(folder)), previous_ports(Path(folder) / "new")
    ((40123, ('127.0.0.1', 1883)), (None, None))
    """
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        known: dict[str, Any] = json.loads((directory / _FILE).read_text(encoding="utf-8"))
        others = known["others"]
        return int(known["port"]), None if others is None else (str(others[0]), int(others[1]))
    return None, None


def remember(directory: Path, port: int, further: FurtherListener | None) -> None:
    """For the next start."""
    others = None if further is None else (further.host, further.port)
    write_private(directory / _FILE, json.dumps({"port": port, "others": others}))


async def wait_until_free(host: str, port: int, given_by: str) -> None:
    """BrokerError if something else listens there and stays; `given_by` is the option that says where."""
    deadline = asyncio.get_running_loop().time() + _PATIENCE_SECONDS
    while True:
        try:
            family, kind, protocol, _, place = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            with socket.socket(family, kind, protocol) as probe:
                # As brokers do: connections of before that are ending do not matter.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(place)
            return
        except OSError as error:
            if asyncio.get_running_loop().time() > deadline:
                raise BrokerError(
                    f"cannot listen on {host}:{port}: {error.strerror or error}; "
                    f"choose another {given_by} HOST:PORT"
                ) from None
        await asyncio.sleep(_PAUSE_SECONDS)
