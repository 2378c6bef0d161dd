"""A broker of our own: Mosquitto if the machine has it, else the embedded one; started, watched, started again.

It is at the same address as long as this process lives, and where others reach it, its directory remembers.
"""

from __future__ import annotations

import asyncio
import contextlib
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
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from triagemq.broker.address import BrokerAddress
from triagemq.broker.users import BrokerUser, hashed_password, write_users
from triagemq.certificates import LOOK_EVERY_SECONDS, RenewalWatch, file_identity
from triagemq.errors import BrokerError
from triagemq.files import private_directory, write_durably, write_private
from triagemq.processes import Supervised
from triagemq.programs import find_program

_START_SECONDS = 15.0
_ATTEMPTS = 3
_SAVE_AFTER_SECONDS = 0.2
# A snapshot is of everything: it may take this share of the broker's time.
_SAVING_SHARE = 0.05
_SAVE_EVERY_SECONDS = (1.0, 60.0)
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


class BrokerProcess(Supervised):
    """A broker as a child process. `directory` is what it remembers.

    With `guarded` it lets in the gateway, by a secret that is in `address`, the users of `let_in`, and no others.
    `gateway_client_id` is a secret, too: another client with it would have the broker drop the gateway.
    """

    most_log_bytes = 1 << 20

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
        self._mosquitto = None if embedded else mosquitto or find_mosquitto()
        kind = "embedded" if self._mosquitto is None else "mosquitto"
        super().__init__(f"{kind} broker", self._directory / "broker.log")
        if guarded and self._mosquitto is None:
            raise BrokerError("access control needs Mosquitto (apt install mosquitto), or your own --broker")
        secret = _own_secret(self._directory / _OWN_SECRET)
        self.gateway_client_id = f"triage-gateway-{hashlib.sha256(secret.encode()).hexdigest()[:16]}"
        self.address = BrokerAddress(
            host,
            port or free_port(host),
            user=self.gateway_client_id if guarded else None,
            password=secret if guarded else None,
            version=4 if self._mosquitto is None else 5,
        )
        self.further = further
        self._own_password = hashed_password(secret)
        self._users: Sequence[BrokerUser] | None = () if guarded else None
        self._attempts = _ATTEMPTS if port is None else 1
        self._is_urgent = False
        self._account = self._unprivileged_account()

    @property
    def boot_file(self) -> Path:
        """A file whose content is another after every start: then the broker may have forgotten things."""
        return self._directory / _BOOT

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
                await self._launch()
                break
            except BrokerError:
                # Another program may have taken the port that was free.
                if not left:
                    raise
                self.address = replace(self.address, port=free_port(self.address.host))
        remember_listener(self._directory, self.further)
        self.watch()
        if self._mosquitto is not None:
            self._tasks.start(self._keep_saving())
            if self.further is not None and self.further.certificate is not None:
                self._tasks.start(self._keep_renewing(self.further))

    def save_soon(self) -> None:
        """Have subscriptions and retained messages written, so that they survive kill -9 of the broker.

        Otherwise what is published between its restart and the gateway's return would be acknowledged and lost.
        """
        self._is_urgent = True

    async def _keep_saving(self) -> None:
        """Mosquitto stores snapshots only: have one written as often as it can afford it, if something has come.

        What it has acknowledged since the last one is lost when it is killed.
        """
        shortest, longest = _SAVE_EVERY_SECONDS
        due, received, has_changed = 0.0, 0, False
        while True:
            await asyncio.sleep(_SAVE_AFTER_SECONDS)
            self.bound_log()
            before, received = received, 0 if self.pid is None else _received(self.pid)
            has_changed |= received > before
            begun = time.monotonic()
            if not self._is_urgent and (not has_changed or begun < due):
                continue
            self._is_urgent, has_changed, former = False, False, file_identity(self._database)
            self.send(signal.SIGUSR1)
            while (
                file_identity(self._database) == former and time.monotonic() - begun < longest * _SAVING_SHARE
            ):
                await asyncio.sleep(0.01)
            now = time.monotonic()
            due = now + min(max((now - begun) / _SAVING_SHARE, shortest), longest)

    def let_in(self, users: Sequence[BrokerUser]) -> None:
        """From now on these, with what they may do, and the gateway; others are disconnected."""
        self._users = tuple(users)
        self._write_users()
        self._reload()

    def _reload(self) -> None:
        """Have Mosquitto read its files again."""
        if self._mosquitto is not None:
            self.send(signal.SIGHUP)

    async def _keep_renewing(self, further: FurtherListener) -> None:
        files = [str(further.certificate), str(further.private_key)]

        def load() -> None:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(*files)
            self._readable(further)
            self._reload()

        watch = RenewalWatch(files, load, _log)
        while True:
            await asyncio.sleep(LOOK_EVERY_SECONDS)
            watch.look()

    def _write_users(self) -> list[str]:
        """The names of the files with users and rights; none if everyone is let in."""
        if self._users is None:
            return []
        # A wildcard in front takes in no topic that begins with $: what others may do, the gateway does for them.
        patterns = {pattern for user in self._users for pattern in (*user.publish, *user.subscribe)}
        special = {pattern.partition("/")[0] + "/#" for pattern in patterns if pattern.startswith("$")}
        everything = ("#", *sorted(special | {"$SYS/#"}))
        own = BrokerUser(self.gateway_client_id, self._own_password, everything, everything)
        files = write_users(self._own_directory, (own, *self._users))
        self._hand_over()
        return [self._name(file) for file in files]

    @property
    def _own_directory(self) -> Path:
        """What the broker itself reads and writes: where it is another user, a directory of that user."""
        return self._directory if self._account is None else self._directory / "mosquitto"

    @property
    def _database(self) -> Path:
        return self._own_directory / "mosquitto.db"

    def _name(self, file: Path) -> str:
        """How the broker names a file: the path to it may be closed to the user that it runs as."""
        return str(file) if self._account is None else file.name

    def _hand_over(self) -> None:
        """Let the user that Mosquitto runs as have its files. Links in a directory of another user are not followed."""
        if self._account is not None:
            for path in (self._own_directory, *self._own_directory.iterdir()):
                os.chown(path, self._account.pw_uid, self._account.pw_gid, follow_symlinks=False)

    def _readable(self, further: FurtherListener) -> FurtherListener:
        """The listener with a certificate and key that the user that Mosquitto runs as can read."""
        if self._account is None or further.certificate is None or further.private_key is None:
            return further
        for name, file in zip(_TLS_FILES, (further.certificate, further.private_key), strict=True):
            write_durably(self._own_directory / name, Path(file).read_bytes(), 0o600)
        self._hand_over()
        return replace(further, certificate=_TLS_FILES[0], private_key=_TLS_FILES[1])

    def command(self) -> list[str]:
        """What runs it as the present user, with its configuration written; for those who start it themselves."""
        self._account = None
        return self._configured()

    def _configured(self) -> list[str]:
        host, port, further, own = self.address.host, self.address.port, self.further, self._own_directory
        own.mkdir(mode=0o700, exist_ok=True)
        files = self._write_users()
        if self._mosquitto is None:
            listeners = [(host, port, None, None), *([] if further is None else [astuple(further)])]
            configuration = write_private(own / "embedded.json", json.dumps(listeners))
            return [sys.executable, "-m", "triagemq.broker.embedded", str(configuration)]
        former = self._directory / "mosquitto.db"
        if former.exists() and not self._database.exists():
            former.replace(self._database)
        configuration = write_private(
            own / "mosquitto.conf",
            _CONFIGURATION.format(
                host=host,
                port=port,
                access=_USERS_ONLY.format(passwords=files[0], rights=files[1]) if files else _ANYBODY,
                user=getpass.getuser(),
                directory="." if self._account is not None else own,
                further="" if further is None else _listener(self._readable(further)),
            ),
        )
        self._hand_over()
        return [self._mosquitto, "-c", self._name(configuration)]

    async def _launch(self) -> None:
        command = self._configured()
        account = self._account
        write_private(self.boot_file, secrets.token_hex(8))
        # Where it is another user, that user's group and no other.
        unprivileged = (
            {} if account is None else {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": ()}
        )
        process = await self._spawn(command, stdout=DEVNULL, cwd=self._own_directory, **unprivileged)
        await self._wait_until_it_answers(process)

    async def _wait_until_it_answers(self, process: Process) -> None:
        deadline = asyncio.get_running_loop().time() + _START_SECONDS
        while asyncio.get_running_loop().time() < deadline:
            if process.returncode is not None:
                raise BrokerError(f"the {self.name} ended at once: {self.last_words()}")
            try:
                _, writer = await asyncio.open_connection(self.address.host, self.address.port)
            except OSError:
                await asyncio.sleep(0.02)
                continue
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            return
        await self._end_now(process)
        raise BrokerError(f"the {self.name} does not answer on {self.address}")

    def _has_ended(self, code: int) -> None:
        self.problem = f"the {self.name} ended ({code}): {self.last_words()}; see {self.log}"
        _log(self.problem)


def _log(words: str) -> None:
    print(f"broker: {words}", file=sys.stderr, flush=True)


def _received(pid: int) -> int:
    """Grows when packets come that are more than pings and acknowledgements; 0 if it is not known.

    These are octets beyond one for each read: Mosquitto reads the first two of a packet one by one.
    """
    with contextlib.suppress(OSError, ValueError, KeyError):
        lines = Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines()
        counts = {name: int(count) for name, _, count in (line.partition(": ") for line in lines)}
        return counts["rchar"] - counts["syscr"]
    return 0


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


def previous_listener(directory: Path) -> tuple[str, int] | None:
    """Where others reached the broker with this directory, if they did.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     remember_listener(Path(folder), FurtherListener("127.0.0.1", 1883))
    ...     previous_listener(Path(folder)), previous_listener(Path(folder) / "new")
    (('127.0.0.1', 1883), None)
    """
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        host, port = json.loads((directory / _FILE).read_text(encoding="utf-8"))["others"]
        return str(host), int(port)
    return None


def remember_listener(directory: Path, further: FurtherListener | None) -> None:
    """For the next start."""
    others = None if further is None else (further.host, further.port)
    write_private(directory / _FILE, json.dumps({"others": others}))


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
