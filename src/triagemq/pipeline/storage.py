"""Where input lies: a path or a URL, on this machine or on any file system that Arrow and Spark both know."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triagemq.errors import ParameterError, PipelineError

__all__ = ["InputFile", "Location", "local_inputs", "local_path", "spark_url"]

_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file as it was when it was looked at."""

    url: str
    size_bytes: int
    modified_ns: int

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return self.url.rstrip("/").rpartition("/")[2]

    @property
    def spark_path(self) -> str:
        """The URL as Spark must be given it to read."""
        return _as_it_is(self.url)


class Location:
    """A path or URL of an input. Plain paths are on this machine, whatever a cluster's default is."""

    def __init__(self, given: str | Path) -> None:
        import pyarrow as pa
        from pyarrow import fs

        self.given = str(given)
        try:
            if _SCHEME.match(self.given):
                self._system, self._path = fs.FileSystem.from_uri(_arrow_url(self.given))
            else:
                self._system, self._path = fs.LocalFileSystem(), str(Path(given).absolute())
        except (pa.ArrowException, OSError, ValueError) as error:
            raise PipelineError(f"{self.given}: cannot be opened: {error}") from error
        is_local = isinstance(self._system, fs.LocalFileSystem)
        self.url = f"file://{self._path}" if is_local else self.given.rstrip("/")
        self.local = Path(self._path) if is_local else None

    def __truediv__(self, name: str) -> Location:
        return Location(self.local / name if self.local else f"{self.url}/{name}")

    @property
    def name(self) -> str:
        """The last part of the path."""
        return str(self._path).rstrip("/").rpartition("/")[2]

    def is_directory(self) -> bool:
        """Whether it is a directory; an error if there is nothing."""
        from pyarrow import fs

        kind = self._info(self._path).type
        if kind == fs.FileType.NotFound:
            raise ParameterError(str(self.given), "there is no such file or directory")
        return bool(kind == fs.FileType.Directory)

    def exists(self) -> bool:
        """Whether there is anything at this place."""
        from pyarrow import fs

        return bool(self._info(self._path).type != fs.FileType.NotFound)

    def file(self) -> InputFile:
        """What is known about this file."""
        return self._input_file(self._info(self._path))

    def files(self, *, recursive: bool = False) -> list[InputFile]:
        """The files directly in this directory, or also in those below, by name, without hidden ones."""
        below = len(str(self._path).rstrip("/")) + 1
        shown = [
            info
            for info in self._listing(recursive)
            if info.is_file and not any(part[0] in "._" for part in info.path[below:].split("/"))
        ]
        return [self._input_file(info) for info in sorted(shown, key=lambda info: info.path)]

    def directories(self) -> list[str]:
        """Names of the directories directly in this one."""
        return sorted(info.base_name for info in self._listing() if not info.is_file)

    def read(self, most_bytes: int | None = None) -> bytes:
        """The content of this file, or its beginning."""
        import pyarrow as pa

        try:
            with self._system.open_input_stream(self._path) as stream:
                return bytes(stream.read(most_bytes))
        except (pa.ArrowException, OSError) as error:
            raise PipelineError(f"{self.given}: cannot be read: {error}") from error

    def _listing(self, recursive: bool = False) -> list[Any]:
        import pyarrow as pa
        from pyarrow import fs

        try:
            return list(self._system.get_file_info(fs.FileSelector(self._path, recursive=recursive)))
        except (pa.ArrowException, OSError) as error:
            raise PipelineError(f"{self.given}: cannot be read: {error}") from error

    def _info(self, path: str) -> Any:
        import pyarrow as pa

        try:
            return self._system.get_file_info(path)
        except (pa.ArrowException, OSError) as error:
            raise PipelineError(f"{self.given}: cannot be read: {error}") from error

    def _input_file(self, info: Any) -> InputFile:
        url = f"file://{info.path}" if self.local else f"{self._url_root()}{info.path}"
        return InputFile(url, int(info.size or 0), int(info.mtime_ns or 0))

    def _url_root(self) -> str:
        """What stands before a path of this file system in a URL."""
        return (
            self.url[: len(self.url) - len(self._path.rstrip("/"))] if self.url.endswith(self._path) else ""
        )


def spark_url(place: Path, *, to_read: bool = False) -> str:
    """A path of this machine as Spark must be given it: with a scheme, else it lies where a cluster's default is.

    Spark does not know percent signs for anything but themselves, and takes what it reads for a pattern.

    >>> spark_url(Path("/a b/run=0")), spark_url(Path("/x[1]"), to_read=True)
    ('file:///a b/run=0', 'file:///x\\\\[1\\\\]')
    """
    url = f"file://{place.absolute()}"
    return _as_it_is(url) if to_read else url


def _as_it_is(url: str) -> str:
    return re.sub(r"([\\{}\[\]*?])", r"\\\1", url)


def local_inputs(given: Iterable[str | Path]) -> list[Path]:
    """Those of some inputs that lie on this machine."""
    return [place for place in (Location(each).local for each in given) if place is not None]


def local_path(given: str | Path) -> Path:
    """The path of a directory on this machine or mounted on it, given as a path or a file: URL."""
    text = str(given)
    if text.startswith("file://"):
        return Path(text.removeprefix("file://"))
    if _SCHEME.match(text):
        raise PipelineError(
            f"{text}: tables are published on a file system of this machine, because only that can replace a "
            "manifest atomically; give a path, or mount it"
        )
    return Path(text)


def _arrow_url(url: str) -> str:
    # Hadoop calls Amazon's storage s3a, Arrow s3.
    return re.sub(r"^s3[an]://", "s3://", url)
