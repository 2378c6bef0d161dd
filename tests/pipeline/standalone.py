"""A standalone Spark cluster from the pip package, on loopback, whose workers may have disks of their own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyspark
from tests.ports import own_port

import triagemq
from triagemq.pipeline.session import find_java

__all__ = ["HOME", "PACKAGE", "Standalone", "quick_java", "standalone"]

HOME = Path(pyspark.__file__).parent
PACKAGE = Path(triagemq.__file__).parents[1]
HIDDEN = """
set -e
shared="$1" python="$2" hidden="$3" package="$4"
exec 8< "$python" 9< "$shared"
mount -t tmpfs none "$package"
mount -t tmpfs none "$hidden"
mkdir -p "$shared" "$python"
mount --no-canonicalize --bind /proc/self/fd/8 "$python"
mount --no-canonicalize --bind /proc/self/fd/9 "$shared"
exec 8<&- 9<&-
shift 4
cd /
exec "$@"
"""
"""In a mount namespace: neither the package nor any temporary file, but for the one shared folder, and Python."""


def quick_java() -> str:
    """What makes a Java that lives for seconds start sooner."""
    return "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


class Standalone:
    """A master and its workers of one core each. Use `standalone`."""

    def __init__(self, folder: Path, shared: Path | None) -> None:
        self._folder, self._shared = folder, shared
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        port, self._web = own_port(), own_port()
        self.address = f"spark://127.0.0.1:{port}"
        self.environment = os.environ | {
            "JAVA_HOME": str(find_java().wrapped()),
            "SPARK_HOME": str(HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_JAVA_OPTS": quick_java(),
        }
        listens = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", str(self._web))
        self._start("master", [], "org.apache.spark.deploy.master.Master", *listens)
        for each in (port, self._web):
            self._wait_until(partial(_listens, each))

    def start_worker(self, number: int) -> None:
        """Start a worker, for the first time or again."""
        inside: list[str] = []
        if self._shared is not None:
            places = (self._shared, sys.prefix, tempfile.gettempdir(), PACKAGE)
            inside = ["unshare", "--mount", "sh", "-c", HIDDEN, "sh", *map(str, places)]
        # Executors of one host would read each other's files, without asking the other.
        host = f"127.0.0.{number + 2}"
        inside = ["env", f"SPARK_LOCAL_IP={host}", *inside]
        offers = ("--host", host, "--cores", "1", "--memory", "1g", "--webui-port", "0")
        work = ("--work-dir", str(self._folder / f"worker-{number}"))
        main = "org.apache.spark.deploy.worker.Worker"
        self._start(f"worker-{number}", inside, main, *offers, *work, self.address)

    def kill_worker(self, number: int) -> None:
        """End a worker without a word, and what it started stays behind."""
        process = self._processes[f"worker-{number}"]
        process.kill()
        process.wait()

    def executors(self) -> list[int]:
        """The processes that do the work for applications now."""
        workers = {process.pid for name, process in self._processes.items() if name != "master"}
        found = []
        for stated in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError, IndexError):
                if int(stated.read_text().rpartition(")")[2].split()[1]) in workers:
                    found.append(int(stated.parent.name))
        return found

    def applications(self) -> list[str]:
        """The names of all applications that the master lists, now at work or not any more."""
        listed = self._listed()
        return [each["name"] for each in (*listed["activeapps"], *listed["completedapps"])]

    def wait_for_workers(self, number: int) -> None:
        """Until so many can be given work, however busy this machine is."""
        self._wait_until(lambda: self._alive_workers() >= number)

    def _alive_workers(self) -> int:
        # The master listens before it has this page: first it has none, then another in its place.
        try:
            return int(self._listed()["aliveworkers"])
        except urllib.error.HTTPError as none:
            none.close()
        except json.JSONDecodeError:
            pass
        return 0

    def _wait_until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            for name, process in self._processes.items():
                if process.poll() is not None:
                    raise RuntimeError(f"the {name} has ended; see {self._folder / name}.log")
            time.sleep(0.1)

    def _listed(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._web}/json/", timeout=30) as answer:
            return dict(json.load(answer))

    def close(self) -> None:
        """End everything."""
        for process in reversed(self._processes.values()):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _start(self, name: str, inside: Sequence[str], *arguments: str) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            # What is killed with its tests leaves no cluster behind.
            self._processes[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *inside, HOME / "bin" / "spark-class", *arguments],
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


@contextlib.contextmanager
def standalone(folder: Path, *, workers: int = 2, shared: Path | None = None) -> Iterator[Standalone]:
    """A cluster that logs to a folder. With `shared` the workers have disks of their own, but for that folder."""
    folder.mkdir(exist_ok=True)
    cluster = Standalone(folder, shared)
    try:
        for number in range(workers):
            cluster.start_worker(number)
        cluster.wait_for_workers(workers)
        yield cluster
    finally:
        cluster.close()


def _listens(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0
