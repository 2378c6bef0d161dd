"""One Ctrl-C at random moments: how long each command takes to end, with which exit code, and what it leaves behind.

    python benchmarks/control_c.py                     every command, 20 moments each (about half an hour)
    python benchmarks/control_c.py up simulate -n 4    some of them, fewer moments

As many moments fall into a command's first second as between the first and its last: most happens when it starts.
Half of the moments find an empty compile cache. Every other press goes to the process alone, as `kill -INT` does, and
every other one to its group, as a terminal does. A moment later no process may be left that the command has started.
Everything is on loopback; `emulate` needs root and builds its network in namespaces of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SCENARIO = Path(__file__).parents[1] / "examples" / "building-fire.yaml"
TRIAGE = [sys.executable, "-c", "from triagemq.cli import main; main()"]
PORTS = ("--gateway", "127.0.0.1:0", "--rest", "127.0.0.1:0")
MOST_SECONDS = 2.0
FIRST_SECONDS, LATEST_SECONDS = 0.05, 20.0
MARK = "TRIAGE_CONTROL_C"


@dataclass(frozen=True)
class Command:
    """`ends_well`: 0 is the exit code at any moment; `may_end_well`: from some moment on (traffic flows)."""

    words: tuple[str, ...]
    ends_well: bool = False
    may_end_well: bool = False
    latest_seconds: float = LATEST_SECONDS


def commands(folder: Path, gateway: str) -> dict[str, Command]:
    """Those that last long enough to be interrupted; `{}` in a word is a number of its own for each run."""
    file, trace = str(SCENARIO), str(folder / "trace")
    return {
        "up": Command(("up", file, *PORTS, "--state", "{}"), ends_well=True),
        "up-plain": Command(("up", *PORTS, "--state", "{}"), ends_well=True, latest_seconds=8),
        "gateway": Command(("gateway", "--listen", "127.0.0.1:0"), ends_well=True, latest_seconds=4),
        "sub": Command(("sub", "--topic", "a", "--gateway", gateway), ends_well=True, latest_seconds=4),
        "stream": Command(("pipeline", "stream", trace, "-o", "{}"), ends_well=True),
        "emulate": Command(("emulate", file, "--state", "{}", "--for", "600"), may_end_well=True),
        "pub": Command(("pub", "--topic", "a", "--rate", "1", "--gateway", gateway), latest_seconds=4),
        "simulate": Command(("simulate", file, "--publications", "2000000000")),
        "plan": Command(("plan", file), latest_seconds=3),
        "forecast": Command(("forecast", file), latest_seconds=3),
        "sweep": Command(("sweep", file, "--out", "{}", "--vary", "rho=0.5:0.99:0.01", "--seeds", "20")),
        "pipeline": Command(("pipeline", "run", trace, "-o", "{}"), latest_seconds=8),
        "reproduce": Command(("reproduce", "priodex", "9a", "-o", "{}")),
        "demo": Command(("demo", "--for", "60", "-o", "{}")),
        "check": Command(("check", file), latest_seconds=1),
        "generate": Command(("generate", "table2"), latest_seconds=1),
        "doctor": Command(("doctor",), latest_seconds=2),
        "token": Command(("token", "list", "--file", "{}"), latest_seconds=1),
        "restore": Command(("network", "restore"), latest_seconds=1),
    }


@dataclass(frozen=True)
class Press:
    """What became of one: None where the command had ended by itself before."""

    moment: float
    seconds: float | None
    code: int
    left: int
    words: str


def press(command: Command, folder: Path, number: int, chance: random.Random) -> Press:
    """Start the command, press once, and look what is left."""
    here = folder / f"run-{number}-{chance.getrandbits(32):x}"
    here.mkdir()
    environment = os.environ | {MARK: here.name}
    if number % 2 == 0:
        environment["NUMBA_CACHE_DIR"] = str(here / "compiled")
    moment = FIRST_SECONDS * (command.latest_seconds / FIRST_SECONDS) ** chance.random()
    with subprocess.Popen(
        [*TRIAGE, *(word.format(here / "out") for word in command.words)],
        cwd=here,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            _wait_until_it_listens(process)
            _, errors = process.communicate(timeout=moment)
            return Press(moment, None, process.returncode, len(_left(here.name)), errors)
        except subprocess.TimeoutExpired:
            pass
        had_ended = _signals(process, "SigIgn") >> (signal.SIGINT - 1) & 1
        began = time.monotonic()
        (os.killpg if number % 4 >= 2 else os.kill)(process.pid, signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
        seconds = time.monotonic() - began
        left = _left(here.name)
        for each in left:
            os.kill(each, signal.SIGKILL)
        _, errors = process.communicate()
    if had_ended:
        # It had done its work, heard no signals any more, and Python was taking itself apart.
        return Press(moment, None, process.returncode, len(left), errors)
    return Press(moment, seconds, process.returncode, len(left), errors)


def _wait_until_it_listens(process: subprocess.Popen[str]) -> None:
    """Until then Python itself is being loaded, and ends by the signal as any program does; it leaves SIGTERM alone."""
    while not _signals(process, "SigCgt") >> (signal.SIGTERM - 1) & 1:
        time.sleep(0.002)


def _signals(process: subprocess.Popen[str], kind: str) -> int:
    """The signals that a process catches, or ignores, as bits."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition(f"{kind}:")[2].split()[0], 16)


def _left(mark: str) -> list[int]:
    """Processes that live and have inherited the mark of a run."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            state = (each / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
            if state not in "ZX" and wanted in (each / "environ").read_bytes().split(b"\0"):
                found.append(int(each.name))
        except OSError:
            continue
    return found


def report(name: str, command: Command, presses: Sequence[Press]) -> bool:
    """One line; whether all is as it should be."""
    pressed = [each for each in presses if each.seconds is not None]
    expected = {0} if command.ends_well else {0, 130} if command.may_end_well else {130}
    codes = {each.code: sum(other.code == each.code for other in pressed) for each in pressed}
    slowest = max((each.seconds or 0.0 for each in pressed), default=0.0)
    left = sum(each.left for each in presses)
    traces = sum("Traceback" in each.words for each in presses)
    good = set(codes) <= expected and slowest < MOST_SECONDS and not left and not traces
    print(
        f"{name:10} {len(pressed):3} pressed  slowest {slowest:5.2f} s  exit codes {codes}  "
        f"processes left {left}  tracebacks {traces}  {'' if good else 'NOT AS IT SHOULD BE'}",
        flush=True,
    )
    for each in pressed:
        is_traced = "Traceback" in each.words
        if each.code not in expected or (each.seconds or 0) >= MOST_SECONDS or each.left or is_traced:
            print(f"    at {each.moment:.2f} s: {each.seconds:.2f} s, {each.code}, left {each.left}")
            if is_traced:
                print(each.words)
    return good


def main() -> int:
    """Run; 1 if something was not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help="commands (default: all)")
    parser.add_argument("-n", "--moments", type=int, default=20)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().getrandbits(32)
    chance = random.Random(seed)
    print(f"seed {seed}")
    with tempfile.TemporaryDirectory(prefix="triage-control-c-") as directory:
        folder = Path(directory)
        gateway = subprocess.Popen(
            [*TRIAGE, "gateway", "--listen", "127.0.0.1:0", "--json"], stdout=subprocess.PIPE, text=True
        )
        assert gateway.stdout is not None
        known = commands(folder, json.loads(gateway.stdout.readline())["listen"])
        if unknown := set(options.names) - set(known):
            parser.error(f"no such command: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
        trace = ["simulate", str(SCENARIO), "--for", "20", "--trace", str(folder / "trace"), "--json"]
        subprocess.run([*TRIAGE, *trace], check=True, stdout=subprocess.DEVNULL)
        good = True
        for name, command in known.items():
            if not options.names or name in options.names:
                presses = [press(command, folder, number, chance) for number in range(options.moments)]
                good &= report(name, command, presses)
        gateway.terminate()
        gateway.communicate()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
