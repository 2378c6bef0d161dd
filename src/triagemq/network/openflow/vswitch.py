"""Open vSwitch run by hand: its own database, sockets and processes in a directory of its own, no system service.

The datapath is the one in user space. What it can and cannot do was measured: hosts must send with checksums (offload
off), queues have no effect, and queues of the kernel on its ports break priorities; so OpenFlow marks packets, and a
kernel bridge behind the switch queues them.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from triagemq.errors import VirtualSwitchError
from triagemq.network.journal import Journal
from triagemq.network.launching import Launched, launch_noted
from triagemq.network.linux.namespaces import namespace_path
from triagemq.programs import find_program, search_path

__all__ = ["VirtualSwitches", "require_open_vswitch"]

_SCHEMA = Path("/usr/share/openvswitch/vswitch.ovsschema")
_PROGRAMS = ("ovsdb-tool", "ovsdb-server", "ovs-vswitchd", "ovs-vsctl", "ovs-ofctl")
_SECONDS = 20.0
_NICENESS = -10
"""A switch that waits for other programs loses packets."""


def require_open_vswitch() -> None:
    """VirtualSwitchError, with what to do, unless all of Open vSwitch is on this machine."""
    missing = [name for name in _PROGRAMS if find_program(name) is None]
    if missing or not _SCHEMA.exists():
        raise VirtualSwitchError(
            f"Open vSwitch is not complete ({', '.join(missing) or _SCHEMA} is missing); "
            "install it with: apt install openvswitch-switch"
        )


class VirtualSwitches:
    """One run of Open vSwitch with any number of switches, from `open` (or `with`) to `close`.

    `namespace` is that of the interfaces which become ports. Processes and the directory are noted in the journal, so
    that they can be removed after a crash; the processes end with this one.
    """

    def __init__(self, journal: Journal, *, namespace: str | None = None) -> None:
        self._journal = journal
        self._namespace = namespace_path("/proc/self/ns/net" if namespace is None else namespace)
        self.directory = Path()
        self._notes: list[str] = []
        self._running: list[Launched] = []
        # The kernel ends a child with the thread that started it: that thread must live as long.
        self._starter: ThreadPoolExecutor | None = None

    @property
    def controller(self) -> str:
        """Where switches look for their controller, unless they are told another place."""
        # Open vSwitch goes to no socket outside its own directory.
        return f"unix:{self.directory / 'controller.sock'}"

    def open(self) -> None:
        require_open_vswitch()
        # The path of a socket may have 107 characters.
        self.directory = Path(tempfile.gettempdir()) / f"triage-switch-{secrets.token_hex(6)}"
        self._notes.append(self._journal.note("directory", path=str(self.directory)))
        self.directory.mkdir(mode=0o700)
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="switch-starter")
        try:
            database, door = self.directory / "conf.db", self.directory / "db.sock"
            self._run("ovsdb-tool", "create", str(database), str(_SCHEMA))
            self._start("ovsdb-server", str(database), f"--remote=punix:{door}")
            self._await(lambda: _answers(door))
            self.configure("--no-wait", "init")
            self._start("ovs-vswitchd", f"unix:{door}")
            self._await((self.directory / "ovs-vswitchd.ctl").exists)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the processes and remove the directory; twice is once."""
        for process, _, _ in reversed(self._running):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        for process, _, note in reversed(self._running):
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self._journal.done(note)
        self._running.clear()
        if self._starter is not None:
            self._starter.shutdown()
            shutil.rmtree(self.directory, ignore_errors=True)
        for note in self._notes:
            self._journal.done(note)
        self._notes.clear()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add_switch(
        self, name: str, datapath_id: int, ports: Sequence[str], *, controller: str | None = None
    ) -> None:
        """A switch that keeps its rules without its controller, and does nothing without rules.

        `ports` are interfaces that exist; they get the numbers 1, 2, ... in this order.
        """
        words = ["add-br", name, "--", "set", "bridge", name, "datapath_type=netdev", "fail_mode=secure"]
        words += ["protocols=OpenFlow13", f"other-config:datapath-id={datapath_id:016x}"]
        words += ["other-config:disable-in-band=true"]
        for number, port in enumerate(ports, 1):
            words += ["--", "add-port", name, port]
            words += ["--", "set", "interface", port, f"ofport_request={number}"]
        words += ["--", "set-controller", name, controller or self.controller]
        words += ["--", "set", "controller", name, "connection-mode=out-of-band", "max_backoff=1000"]
        # Somebody whom the controller cannot learn to know must not keep it busy.
        words += ["controller_rate_limit=1000", "controller_burst_limit=250"]
        self.configure(*words)
        for port in ports:
            self._require_port(port)

    def add_port(self, switch: str, interface: str) -> None:
        self.configure("add-port", switch, interface)
        self._require_port(interface)

    def remove_port(self, switch: str, interface: str) -> None:
        self.configure("del-port", switch, interface)

    def configure(self, *words: str) -> str:
        """Run `ovs-vsctl`, and wait until the switches have followed."""
        return self._run(
            "ovs-vsctl", f"--db=unix:{self.directory / 'db.sock'}", f"--timeout={int(_SECONDS)}", *words
        )

    def dump_flows(self, switch: str) -> list[str]:
        """The rules of a switch, as `ovs-ofctl` shows them, without their counters."""
        text = self._run("ovs-ofctl", "-O", "OpenFlow13", "--no-stats", "dump-flows", self.management(switch))
        return [line.strip() for line in text.splitlines() if "actions=" in line]

    def dump_meters(self, switch: str) -> str:
        """The meters of a switch, as `ovs-ofctl` shows them."""
        return self._run("ovs-ofctl", "-O", "OpenFlow13", "dump-meters", self.management(switch))

    def change_rules(self, switch: str, *words: str) -> None:
        """Run `ovs-ofctl` with options and an order ("add-flow", a rule), as an administrator would."""
        *options, order, rule = words
        self._run("ovs-ofctl", "-O", "OpenFlow13", *options, order, self.management(switch), rule)

    def management(self, switch: str) -> str:
        """Where a switch itself listens for OpenFlow."""
        return f"unix:{self.directory / f'{switch}.mgmt'}"

    def _require_port(self, interface: str) -> None:
        """`ovs-vsctl` is content with a port that does not work."""
        number, problem = self.configure("get", "interface", interface, "ofport", "error").splitlines()
        if number == "-1":
            raise VirtualSwitchError(f"{interface} cannot be a port of a switch: {problem.strip()}")

    def _run(self, *command: str) -> str:
        try:
            done = subprocess.run(
                command,
                env=self._environment(),
                capture_output=True,
                text=True,
                timeout=2 * _SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise VirtualSwitchError(f"{command[0]} did not end in time") from None
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise VirtualSwitchError(f"{command[0]} failed: {said}")
        return done.stdout

    def _start(self, program: str, *words: str) -> None:
        assert self._starter is not None
        self._starter.submit(self._start_here, program, words).result()

    def _start_here(self, program: str, words: Sequence[str]) -> None:
        launched = launch_noted(
            self._journal,
            self._namespace,
            [
                *(program, *words, f"--unixctl={self.directory / program}.ctl"),
                *("-vconsole:off", "-vsyslog:off", f"--log-file={self.directory / program}.log"),
                *("--no-chdir", f"--pidfile={self.directory / program}.pid"),
            ],
            environment=self._environment(),
            niceness=_NICENESS,
        )
        self._running.append(launched)

    def _await(self, there: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _SECONDS
        while not there():
            process = self._running[-1].process
            if process.poll() is not None or time.monotonic() > deadline:
                raise VirtualSwitchError(f"Open vSwitch did not start: {self._last_words()}")
            time.sleep(0.01)

    def _last_words(self) -> str:
        logs = [file.read_text(errors="replace").splitlines() for file in self.directory.glob("*.log")]
        return next((lines[-1] for lines in logs if lines), "it said nothing")

    def _environment(self) -> dict[str, str]:
        own = dict.fromkeys(("OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR"), str(self.directory))
        return {**os.environ, "PATH": search_path(), **own}


def _answers(door: Path) -> bool:
    """Whether somebody listens at a socket: it is there a moment before that."""
    with socket.socket(socket.AF_UNIX) as visitor:
        try:
            visitor.connect(str(door))
        except OSError:
            return False
        return True
