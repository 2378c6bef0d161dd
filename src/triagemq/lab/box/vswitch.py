"""Open vSwitch run by hand: its own database, sockets and processes in a directory of its own, no system service.

The datapath is the one in user space. What it can and cannot do was measured: hosts must send with checksums (offload
off), queues have no effect, and queues of the kernel on its ports break priorities; so OpenFlow marks packets, and a
kernel bridge behind the switch queues them.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from triagemq.errors import VirtualSwitchError
from triagemq.lab.box.journal import Journal
from triagemq.lab.box.layout import Layout
from triagemq.lab.box.processes import Processes, Running
from triagemq.programs import find_program, search_path

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
        self._namespace = "/proc/self/ns/net" if namespace is None else namespace
        self.directory = Path()
        self._note: str | None = None
        self._processes = Processes(journal)

    @property
    def controller(self) -> str:
        """Where switches look for their controller."""
        # Open vSwitch goes to no socket outside its own directory.
        return f"unix:{self.directory / 'controller.sock'}"

    def open(self) -> None:
        require_open_vswitch()
        # The path of a socket may have 107 characters.
        self.directory = Path(tempfile.gettempdir()) / f"triage-switch-{secrets.token_hex(6)}"
        self._note = self._journal.note("directory", path=str(self.directory))
        self.directory.mkdir(mode=0o700)
        try:
            database, door = self.directory / "conf.db", self.directory / "db.sock"
            self._run("ovsdb-tool", "create", str(database), str(_SCHEMA))
            server = self._start("ovsdb-server", str(database), f"--remote=punix:{door}")
            self._await(server, lambda: _answers(door))
            self.configure("--no-wait", "init")
            switch = self._start("ovs-vswitchd", f"unix:{door}")
            self._await(switch, (self.directory / "ovs-vswitchd.ctl").exists)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the processes and remove the directory; idempotent."""
        self._processes.close()
        if self._note is not None:
            shutil.rmtree(self.directory, ignore_errors=True)
            self._journal.done(self._note)
            self._note = None

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def add_switch(self, name: str, datapath_id: int, ports: Sequence[str]) -> None:
        """A switch that keeps its rules without its controller, and does nothing without rules.

        `ports` are interfaces that exist; they get the numbers 1, 2, ... in this order.
        """
        words = ["add-br", name, "--", "set", "bridge", name, "datapath_type=netdev", "fail_mode=secure"]
        words += ["protocols=OpenFlow13", f"other-config:datapath-id={datapath_id:016x}"]
        words += ["other-config:disable-in-band=true"]
        for number, port in enumerate(ports, 1):
            words += ["--", "add-port", name, port]
            words += ["--", "set", "interface", port, f"ofport_request={number}"]
        words += ["--", "set-controller", name, self.controller]
        words += ["--", "set", "controller", name, "connection-mode=out-of-band", "max_backoff=1000"]
        # A host that the controller cannot learn must not keep it busy.
        words += ["controller_rate_limit=1000", "controller_burst_limit=250"]
        self.configure(*words)
        for port in ports:
            self._require_port(port)

    def configure(self, *words: str) -> str:
        """Run `ovs-vsctl`, and wait until the switches have followed."""
        return self._run(
            "ovs-vsctl", f"--db=unix:{self.directory / 'db.sock'}", f"--timeout={int(_SECONDS)}", *words
        )

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
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise VirtualSwitchError(f"{command[0]} failed: {reason}")
        return done.stdout

    def _start(self, program: str, *words: str) -> Running:
        return self._processes.start(
            self._namespace,
            [
                *(program, *words, f"--unixctl={self.directory / program}.ctl"),
                *("-vconsole:off", "-vsyslog:off", f"--log-file={self.directory / program}.log"),
                *("--no-chdir", f"--pidfile={self.directory / program}.pid"),
            ],
            environment=self._environment(),
            niceness=_NICENESS,
        )

    def _await(self, process: Running, there: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _SECONDS
        while not there():
            if process.exit_code() is not None or time.monotonic() > deadline:
                raise VirtualSwitchError(f"Open vSwitch did not start: {self._last_words()}")
            time.sleep(0.01)

    def _last_words(self) -> str:
        logs = [file.read_text(errors="replace").splitlines() for file in self.directory.glob("*.log")]
        return next((lines[-1] for lines in logs if lines), "its log is empty")

    def _environment(self) -> dict[str, str]:
        own = dict.fromkeys(("OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR"), str(self.directory))
        return {**os.environ, "PATH": search_path(), **own}


def _answers(door: Path) -> bool:
    """Whether a process listens at a socket: the file is there a moment before."""
    with socket.socket(socket.AF_UNIX) as visitor:
        try:
            visitor.connect(str(door))
        except OSError:
            return False
        return True


def datapath_id(layout: Layout, switch: str) -> int:
    """The number by which a controller knows a switch of the scenario: 1, 2, ... in the order of their names."""
    return 1 + list(layout.switches).index(switch)


def start_virtual_switches(layout: Layout, journal: Journal) -> VirtualSwitches:
    """One Open vSwitch for the whole box."""
    running = VirtualSwitches(journal, namespace=layout.switch_namespace)
    running.open()
    try:
        for name, bridge in layout.switches.items():
            members = [end.interface for end in layout.members(bridge.name)]
            running.add_switch(bridge.name, datapath_id(layout, name), members)
    except BaseException:
        running.close()
        raise
    return running
