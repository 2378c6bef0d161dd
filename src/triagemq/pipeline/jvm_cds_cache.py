"""The classes of Spark as Java keeps them in memory, saved at the end of a command for all later ones.

Java then maps them instead of loading and checking some 20,000 class files, which takes half of the time that a short
command needs. A file of another Java or Spark would be refused by Java, so its name has both.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from triagemq.pipeline.java import Java, cache_directory, is_interrupted_write

_QUIET = ("-Xshare:auto", "-Xlog:disable", "-Xlog:all=off:stderr")
_BASE_SECONDS = 120


class CdsCache:
    """The archive of one kind of command: `kind` names commands that need about the same classes."""

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
        if any(place.is_dir() and any(place.iterdir()) for place in _settings()):
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


def _settings() -> list[Path]:
    """The directories of settings that Spark puts on the class path."""
    folders = [os.environ.get(name) for name in ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR")]
    if not folders[0] and (home := os.environ.get("SPARK_HOME")):
        folders[0] = os.path.join(home, "conf")
    return [Path(place) for place in folders if place]


def _unfinished(path: Path) -> Path:
    return path.with_name(f"{path.name}.{os.getpid()}")
