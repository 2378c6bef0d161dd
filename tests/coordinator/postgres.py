"""A real PostgreSQL server for tests: on loopback, with a password, in a directory of its own, killed at will."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.ports import own_port

PASSWORD = "pg-s3cret"

_FOUND = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
PROGRAMS = _FOUND[-1].parent if _FOUND else None
# It refuses to run as root; the package of the server brings this user along.
_USER = "postgres" if os.geteuid() == 0 else None


class Server:
    """`url` is for `--store`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._port = own_port()
        self.url = f"postgresql://postgres:{PASSWORD}@127.0.0.1:{self._port}/postgres"
        password = directory / "password"
        password.write_text(PASSWORD)
        if _USER is not None:
            shutil.chown(directory, _USER)
            shutil.chown(password, _USER)
        self._run("initdb", "-D", "data", "-U", "postgres", "--auth=scram-sha-256", "--pwfile=password", "-N")

    def start(self) -> None:
        """Start it, again and again while the last processes of a killed one still hold its memory."""
        assert PROGRAMS is not None
        options = ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "fsync=off"]
        deadline = time.monotonic() + 30
        while self._process is None or self._process.poll() is not None:
            assert time.monotonic() < deadline
            self._process = subprocess.Popen(
                [str(PROGRAMS / "postgres"), "-D", "data", "-p", str(self._port), *options],
                cwd=self._directory,
                user=_USER,
                stderr=subprocess.DEVNULL,
            )
            while self._process.poll() is None and not self._answers():
                assert time.monotonic() < deadline
                time.sleep(0.05)

    def kill(self) -> None:
        """As a crash would end it."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(30)

    def _answers(self) -> bool:
        assert PROGRAMS is not None
        command = [str(PROGRAMS / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self._port)]
        return subprocess.run(command, check=False).returncode == 0

    def _run(self, program: str, *arguments: str) -> None:
        assert PROGRAMS is not None
        subprocess.run(
            [str(PROGRAMS / program), *arguments],
            cwd=self._directory,
            user=_USER,
            check=True,
            capture_output=True,
        )


@contextmanager
def postgres() -> Iterator[Server]:
    """Not in pytest's own directory, which no other user may enter."""
    with tempfile.TemporaryDirectory(prefix="triage-postgres-") as directory:
        server = Server(Path(directory))
        server.start()
        try:
            yield server
        finally:
            server.stop()
