"""A broker of our own: Mosquitto if the machine has it, else the embedded one; started, watched, started again."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import shutil
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from dataclasses import replace
from pathlib import Path

from triagemq.errors import BrokerError
from triagemq.exchange.broker_address import BrokerAddress
from triagemq.exchange.child_process import dying_with_parent
from triagemq.exchange.private_files import PRIVATE_UMASK, private_directory, write_private

__all__ = ["BrokerProcess", "find_mosquitto", "free_port"]

_PLACES = ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin", "/usr/bin")
_START_SECONDS = 15.0
_ATTEMPTS = 3
_SAVE_AFTER_SECONDS = 0.2

_CONFIGURATION = """\
listener {port} {host}
allow_anonymous true
user {user}
persistence true
persistence_location {directory}/
autosave_interval 60
# The gateway reads everything at once and keeps it itself: nothing may wait or be dropped here.
max_inflight_messages 0
max_queued_messages 0
set_tcp_nodelay true
log_type error
log_type warning
"""


def find_mosquitto() -> str | None:
    """Where Mosquitto is, if it is; Debian puts it where ordinary users do not look."""
    return shutil.which("mosquitto", path=os.pathsep.join((os.environ.get("PATH", ""), *_PLACES)))


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


class BrokerProcess:
    """A broker as a child process. It keeps its port when it is restarted; `directory` is what it remembers."""

    def __init__(
        self,
        directory: Path,
        *,
        host: str = "127.0.0.1",
        port: int | None = None,
        mosquitto: str | None = None,
        embedded: bool = False,
    ) -> None:
        self._directory = directory.absolute()
        self._mosquitto = None if embedded else mosquitto or find_mosquitto()
        self.address = BrokerAddress(
            host, free_port(host) if port is None else port, version=4 if self._mosquitto is None else 5
        )
        self._attempts = _ATTEMPTS if port is None else 1
        self._process: Process | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._saving: asyncio.TimerHandle | None = None
        self.restarts = 0

    @property
    def kind(self) -> str:
        """`mosquitto` or `embedded`."""
        return "embedded" if self._mosquitto is None else "mosquitto"

    @property
    def pid(self) -> int:
        """The process, while it runs."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Start it and wait until it answers; then see that it stays."""
        for left in reversed(range(self._attempts)):
            try:
                await self._launch()
                break
            except BrokerError:
                # Somebody else may have taken the port that was free.
                if not left:
                    raise
                self.address = replace(self.address, port=free_port(self.address.host))
        self._watcher = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> None:
        """End it."""
        if self._saving is not None:
            self._saving.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
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

    def command(self) -> list[str]:
        """What runs it, with its configuration written; for those who start it themselves."""
        host, port = self.address.host, self.address.port
        if self._mosquitto is None:
            return [sys.executable, "-m", "triagemq.exchange.embedded_broker", host, str(port)]
        private_directory(self._directory)
        configuration = write_private(
            self._directory / "mosquitto.conf",
            _CONFIGURATION.format(host=host, port=port, user=getpass.getuser(), directory=self._directory),
        )
        return [self._mosquitto, "-c", str(configuration)]

    async def _launch(self) -> None:
        command = self.command()
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
            except (BrokerError, OSError):
                delay = min(2 * delay, 5.0)
