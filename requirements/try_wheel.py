"""Installs a wheel into a clean environment, alone and with each of its extras, and tries what each is for.

python requirements/try_wheel.py UV WHEEL
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PINNED = Path(__file__).with_name("lab.txt")
READINGS = "time,room,temperature\n2026-01-05 08:00:00,12,21.5\n2026-01-05 08:00:10,12,21.6\n"
MAPPING = """
time: {column: time, format: "yyyy-MM-dd HH:mm:ss"}
topic: "room-{room}/temperature"
value: temperature
publisher: "room-{room}"
"""
# One line, no traceback.
MISSING_CLI = (
    "test $? = 1 && grep -q \"pip install 'triagemq.cli.'\" refusal.txt && test $(wc -l < refusal.txt) = 1"
)
TRIES = {
    "": [
        "python -c 'from triagemq import BlockingPublisher, Publisher, Subscriber; import triagemq.mqttsn'",
        "python -c 'from importlib.metadata import distributions as all; print(*(each.name for each in all()))' > all",
        'test "$(cat all)" = triagemq',
        f"triage sub --topic a 2> refusal.txt; {MISSING_CLI}",
    ],
    "cli": [
        'test "$(triage --version)" = "triage $VERSION"',
        "triage doctor > doctor.txt",
        "triage sub --help > help.txt",
        "triage plan fire.yaml 2> refusal.txt || grep -q \"pip install 'triagemq.coordinator.'\" refusal.txt",
    ],
    "coordinator": [
        "triage generate building -o fire.yaml",
        "triage plan fire.yaml > plan.txt",
        "triage up --for 1 --gateway 127.0.0.1:0 --rest 127.0.0.1:0 > up.txt",
    ],
    "network": ["python -c 'from triagemq.network import linux, openflow; linux.capabilities()'"],
    "pipeline": [
        "triage pipeline run readings.csv --mapping mapping.yaml --out tables > run.txt",
        "triage pipeline show tables publications > rows.txt",
    ],
    "page": ["python -c 'from triagemq.page.pages import build'"],
    "dashboard": ["python -c 'from triagemq.page.pages import build'"],
    "dtls": [
        "python -c 'from triagemq.client import ClientSecurity; import OpenSSL.SSL'",
        f"triage --version 2> refusal.txt; {MISSING_CLI}",
    ],
    "postgres": ["python -c 'import psycopg; assert psycopg.pq.__impl__ == \"binary\"'"],
    "lab": [
        "triage doctor --json > doctor.json",
        "triage reproduce priodex > figures.txt",
        "python -c 'import matplotlib.pyplot, plotly'",
    ],
}
"""The commands of each extra; they end well, in an environment that has nothing but the wheel with this extra."""


def main(uv: Path, wheel: Path) -> None:
    version, extras = metadata(wheel)
    if extras != TRIES.keys() - {""}:
        sys.exit(f"{wheel.name} has the extras {sorted(extras)}, and {sorted(TRIES)} are tried")
    for extra in TRIES:
        with tempfile.TemporaryDirectory() as folder:
            try_extra(uv, wheel.resolve(), version, extra, Path(folder))
        print(f"{wheel.name}{extra and f' with [{extra}]'}: fine", flush=True)


def metadata(wheel: Path) -> tuple[str, set[str]]:
    with zipfile.ZipFile(wheel) as packed:
        (name,) = (each for each in packed.namelist() if each.endswith(".dist-info/METADATA"))
        text = packed.read(name).decode()
    return re.findall(r"^Version: (.+)$", text, re.M)[0], {*re.findall(r"^Provides-Extra: (.+)$", text, re.M)}


def try_extra(uv: Path, wheel: Path, version: str, extra: str, folder: Path) -> None:
    environment = os.environ | {
        "PATH": f"{folder / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "UV_COMPILE_BYTECODE": "0",
        "UV_LINK_MODE": "hardlink",
        "VERSION": version,
    }
    (folder / "readings.csv").write_text(READINGS)
    (folder / "mapping.yaml").write_text(MAPPING)

    def run(command: list[str]) -> None:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"with [{extra}]: {command[-1]}\n{done.stdout}{done.stderr}")

    run([str(uv), "venv", "--quiet", "--python", sys.executable, "venv"])
    name = f"triagemq[{extra}]" if extra else "triagemq"
    install = [
        str(uv),
        "pip",
        "install",
        "--quiet",
        "--python",
        "venv/bin/python",
        "--constraint",
        str(PINNED),
    ]
    run([*install, f"{name} @ {wheel.as_uri()}"])
    for command in TRIES[extra]:
        run(["sh", "-c", command])


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), Path(sys.argv[2]))
