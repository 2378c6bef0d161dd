"""Compiled eBPF programs: they are what their C says, and have the numbers of Python."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from triagemq.datagrams import CLASS_DSCP, CONTROL_DSCP
from triagemq.mqttsn.messages import MessageType
from triagemq.network.linux import queue_times, records
from triagemq.plan.dataplane import LIMITER_PACKETS
from triagemq.topic_codes.address import CODES

ROOT = Path(__file__).parents[3]
SOURCES = sorted(path for where in ("src", "tests") for path in (ROOT / where).rglob("*.c"))


@pytest.mark.skipif(shutil.which("clang-14") is None, reason="needs clang-14")
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_the_object_is_what_the_compiler_makes_of_its_source(source: Path, tmp_path: Path) -> None:
    target = source.with_suffix(".o").relative_to(ROOT)
    made = subprocess.run(
        ["make", "-nB", "--no-print-directory", str(target)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    (command,) = made.stdout.splitlines()
    again = tmp_path / target.name
    subprocess.run(command.replace(f"-o {target}", f"-o {again}"), shell=True, cwd=ROOT, check=True)
    assert again.read_bytes() == (ROOT / target).read_bytes(), "run `make programs`"


def test_programs_have_the_numbers_of_python() -> None:
    text = records.PROGRAMS.with_suffix(".c").read_text()
    numbers = {name: int(value, 0) for name, value in re.findall(r"^    (\w+) = (\w+),$", text, re.MULTILINE)}
    shared = {name: getattr(records, name) for name in numbers.keys() & vars(records).keys()}
    assert shared.keys() >= {"CONTROL", "UNMANAGED", "QUEUE_MINOR", "COPY_BITS", "STAMP_SHIFT"}
    assert numbers == shared | {
        "DISCARDED": numbers["DISCARDED"],
        "LIMITED": numbers["LIMITED"],
        "LIMITER_PACKETS": LIMITER_PACKETS,
        "CONTROL_DSCP": CONTROL_DSCP,
        "CODES": CODES,
        "BEGINNING_BYTES": queue_times.BEGINNING_BYTES,
    }
    marks = re.findall(r"case (\d+):\s+return (\d);", text)
    assert {int(mark): int(queue) for mark, queue in marks} == {
        dscp: n for n, dscp in enumerate(CLASS_DSCP, 1)
    }
    assert f"PUBLISH = {MessageType.PUBLISH:#04X}".replace("X", "x") in text
