"""A path of this machine, or a URI of a file system that Arrow knows, and what can be done there. No Spark.

Plain paths are on this machine, whatever a cluster's default is.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from triagemq.errors import ParameterError, PipelineError
from triagemq.files import flush_directory

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+):/")


Facts = tuple[str, int, int, bool]
"""Facts about a file: its name, and the fields of an InputFile but its URL."""


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file or directory as it was when it was looked at.

    Other kinds, and links, count as a file: they are not entered.
    """

    url: str
    size_bytes: int
    modified_ns: int
    is_directory: bool = False

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return self.url.rstrip("/").rpartition("/")[2]

    @property
    def spark_path(self) -> str:
        """The URL as Spark must be given it to read."""
        return _as_it_is(self.url)


class LocalFiles:
    """The disks of this machine, and what is mounted on it.

    Like both: errors are OSError, and FileNotFoundError where nothing is. `write` makes a file and the directories
    above it, `create` one that is there as a whole or not at all (FileExistsError if there is one already), `remove`
    takes one file away, if it is there, and `remove_empty` a directory that is empty. `footer` makes a Parquet file
    that Spark wrote survive a power cut, and reads its footer.
    """

    def entry(self, path: str) -> Facts:
        """Follows links: what a user names may be one."""
        found = os.stat(path)
        return os.path.basename(path), found.st_size, found.st_mtime_ns, os.path.isdir(path)

    def entries(self, path: str) -> list[Facts]:
        """Links to directories are no directories here."""
        with os.scandir(path) as found:
            return [
                (each.name, found.st_size, found.st_mtime_ns, each.is_dir(follow_symlinks=False))
                for each in found
                for found in [each.stat(follow_symlinks=each.is_file())]
            ]

    def read(self, path: str, most_bytes: int | None) -> bytes:
        with open(path, "rb") as file:
            return file.read(-1 if most_bytes is None else most_bytes)

    def write(self, path: str, content: bytes) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    def create(self, path: str, content: bytes, hidden: str) -> None:
        self.remove(hidden)
        self.write(hidden, content)
        try:
            os.link(hidden, path)
        finally:
            os.unlink(hidden)
        flush_directory(Path(path).parent)

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_empty(self, path: str) -> None:
        with contextlib.suppress(OSError):
            os.rmdir(path)

    def footer(self, path: str) -> pq.FileMetaData:
        with open(path, "rb") as written:
            os.fsync(written.fileno())
        return pq.read_metadata(path)


class ArrowFiles:
    """A file system of Arrow's: `hdfs:` (with its libhdfs), `s3:`, `gs:`, `abfss:`."""

    def __init__(self, system: fs.FileSystem) -> None:
        self.system = system

    def entry(self, path: str) -> Facts:
        info = self.system.get_file_info(path)
        if info.type == fs.FileType.NotFound:
            raise FileNotFoundError(path)
        return _facts(info)

    def entries(self, path: str) -> list[Facts]:
        return [_facts(info) for info in self.system.get_file_info(fs.FileSelector(path))]

    def read(self, path: str, most_bytes: int | None) -> bytes:
        with self.system.open_input_stream(path) as stream:
            return bytes(stream.read(most_bytes))

    def write(self, path: str, content: bytes) -> None:
        self.system.create_dir(path.rpartition("/")[0], recursive=True)
        with self.system.open_output_stream(path) as stream:
            stream.write(content)

    def create(self, path: str, content: bytes, hidden: str) -> None:
        self.write(hidden, content)
        # To rename a file is atomic wherever there are directories, and to copy one where there are none. That two look
        # at the same moment whether it exists is for the store's lease to prevent.
        if self.system.get_file_info(path).type != fs.FileType.NotFound:
            self.remove(hidden)
            raise FileExistsError(path)
        self.system.move(hidden, path)

    def remove(self, path: str) -> None:
        if self.system.get_file_info(path).is_file:
            self.system.delete_file(path)

    def remove_empty(self, path: str) -> None:
        """Nothing: object stores have no directories, and Arrow removes one only with all that is in it."""

    def footer(self, path: str) -> pq.FileMetaData:
        return pq.read_metadata(path, filesystem=self.system)


class Location:
    """A path or URI.

    `local` is the path on this machine, None elsewhere; `path` is what its file system calls it, `url` what Spark does.
    """

    def __init__(self, given: str | Path) -> None:
        self.given = str(given)
        self.local: Path | None = None
        self._files: LocalFiles | ArrowFiles
        if self.shown is not None:
            self.local = self.shown.absolute()
            self.path, self._files = str(self.local), LocalFiles()
            self.url = f"file://{self.path}"
        else:
            self.url = self.given.rstrip("/")
            system, self.path = open_file_system(self.given)
            self._files = ArrowFiles(system)

    def __truediv__(self, name: str) -> Location:
        below = object.__new__(Location)
        below.given, below.url = f"{self.given.rstrip('/')}/{name}", f"{self.url}/{name}"
        below.local = None if self.local is None else self.local / name
        below.path, below._files = f"{self.path.rstrip('/')}/{name}", self._files
        return below

    @property
    def shown(self) -> Path | None:
        """The path on this machine as the user gave it; None elsewhere."""
        return _on_this_machine(self.given)

    @property
    def arrow(self) -> Any:
        """The file system as Arrow's readers take it; None for this machine's disks."""
        return self._files.system if isinstance(self._files, ArrowFiles) else None

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rstrip("/").rpartition("/")[2]

    @property
    def spark_path(self) -> str:
        """The URI as Spark must be given it to read: it takes what it reads for a pattern."""
        return _as_it_is(self.url)

    def _entry(self) -> InputFile | None:
        """The file or directory at this place; None if there is nothing."""
        try:
            return InputFile(self.url, *self._query("entry")[1:])
        except (FileNotFoundError, NotADirectoryError):
            return None

    def is_directory(self) -> bool:
        """Whether it is a directory; an error if there is nothing."""
        found = self._entry()
        if found is None:
            raise ParameterError(self.given, "there is no such file or directory")
        return found.is_directory

    def exists(self) -> bool:
        """Whether there is anything at this place."""
        return self._entry() is not None

    def file(self) -> InputFile:
        """The facts about this file."""
        return self._entry() or InputFile(self.url, 0, 0)

    def entries(self) -> list[InputFile]:
        """The entries of this directory, by name; FileNotFoundError if it is not there."""
        return [InputFile(f"{self.url}/{name}", *facts) for name, *facts in sorted(self._query("entries"))]

    def files(self, *, recursive: bool = False) -> list[InputFile]:
        """The files directly in this directory, or also in those below, by name, without hidden ones."""
        found: list[InputFile] = []
        for entry in self.entries():
            if entry.name[0] in "._":
                continue
            if not entry.is_directory:
                found.append(entry)
            elif recursive:
                found += (self / entry.name).files(recursive=True)
        return sorted(found, key=lambda file: file.url)

    def directories(self) -> list[str]:
        """Names of the directories directly in this one."""
        return [entry.name for entry in self.entries() if entry.is_directory]

    def read(self, most_bytes: int | None = None) -> bytes:
        """The content of this file, or its beginning."""
        try:
            return self._query("read", most_bytes)  # type: ignore[no-any-return]
        except FileNotFoundError as error:
            raise PipelineError(f"{self.given}: cannot be read: it is not there") from error

    def write(self, content: bytes) -> None:
        """Make this file, or put it in the place of the one that is there."""
        self._files.write(self.path, content)

    def create(self, content: bytes, *, hidden: str) -> None:
        """Make this file, as a whole or not at all, under the name `hidden` at first."""
        self._files.create(self.path, content, f"{self.path.rpartition('/')[0]}/{hidden}")

    def remove(self) -> None:
        """Remove this one file, if it is there."""
        self._files.remove(self.path)

    def remove_empty(self) -> None:
        """Remove this one directory, if nothing is in it."""
        self._files.remove_empty(self.path)

    def footer(self) -> pq.FileMetaData:
        """The footer of a Parquet file that has been written here."""
        return self._files.footer(self.path)

    def _query(self, question: str, *arguments: object) -> Any:
        try:
            return getattr(self._files, question)(self.path, *arguments)
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError as error:
            raise PipelineError(f"{self.given}: cannot be read: {error.strerror or error}") from error


def _on_this_machine(given: str) -> Path | None:
    scheme = _SCHEME.match(given)
    if scheme is None:
        return Path(given)
    return Path("/" + given[scheme.end() :].lstrip("/")) if scheme[1].lower() == "file" else None


def _as_it_is(url: str) -> str:
    return re.sub(r"([\\{}\[\]*?])", r"\\\1", url)


def open_file_system(uri: str) -> tuple[fs.FileSystem, str]:
    """Arrow's file system for a URI, and what it calls the place."""
    try:
        # Hadoop calls Amazon's storage s3a, Arrow s3.
        system, path = fs.FileSystem.from_uri(re.sub(r"^s3[an]://", "s3://", uri))
    except (pa.ArrowException, OSError, ValueError) as error:
        why = str(error).partition("\n")[0]
        raise PipelineError(f"{uri}: cannot be opened: {why}") from error
    return system, str(path).rstrip("/")


def _facts(info: fs.FileInfo) -> Facts:
    return info.base_name, int(info.size or 0), int(info.mtime_ns or 0), not info.is_file
