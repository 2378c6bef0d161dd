"""What every benchmark shares: the options --json and --quick, the machine, and how peers are named."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

__all__ = ["finish", "machine", "memory_bytes", "options", "peak_memory_bytes"]


def options(description: str | None) -> argparse.ArgumentParser:
    """A parser with the options that every benchmark takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, under a minute")
    return parser


def machine(*packages: str) -> dict[str, Any]:
    """The machine and the versions of the packages that took part."""
    return {
        "processors": os.cpu_count(),
        "architecture": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {package: version(package) for package in packages},
    }


def peak_memory_bytes() -> int:
    """The largest resident size this process has had (getrusage would count its parent's, from before exec)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024


def memory_bytes(process: int) -> int:
    """What a process has in memory now; of what several share, its part: all parts together are what is there."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0  # it has ended
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def finish(result: dict[str, Any], lines: list[str], *, as_json: bool) -> None:
    """Print the figures, as JSON or as lines that a person reads."""
    if as_json:
        json.dump(result, sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
    else:
        sys.stdout.write("\n".join(lines) + "\n")
