"""Where something lies: a path or a URI, and what can be done there, on this machine or wherever Spark or Arrow can go.

Plain paths are on this machine, whatever a cluster's default is. What is published elsewhere goes through the session's
Hadoop file systems; what is read goes through Arrow's as long as these know the URI, without waiting for Spark.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from triagemq.atomic_files import flush_directory
from triagemq.errors import ParameterError, PipelineError

_AS_IN_PYTHON: dict[str, type[OSError]] = {
    "FileNotFoundException": FileNotFoundError,
    "FileAlreadyExistsException": FileExistsError,
    "ParentNotDirectoryException": NotADirectoryError,
}
_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+):/")


Facts = tuple[str, int, int, bool]
"""What a file system says of a file: its name, and what an InputFile has of it besides its URL."""


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

    Like all of the three: errors are OSError, and FileNotFoundError where nothing is. `write` makes a new file and the
    directories above it, `create` one that is there as a whole or not at all (FileExistsError if there is one already),
    `remove` takes one file away, if it is there, and `remove_empty` a directory that is empty. `footer` makes
    a Parquet file that Spark wrote survive a power cut, and reads its footer.
    """

    def entry(self, path: str) -> Facts:
        """Follows links: what a user names may be one."""
        stated = os.stat(path)
        return os.path.basename(path), stated.st_size, stated.st_mtime_ns, os.path.isdir(path)

    def entries(self, path: str) -> list[Facts]:
        """Links to directories are no directories here."""
        with os.scandir(path) as found:
            return [
                (each.name, stated.st_size, stated.st_mtime_ns, each.is_dir(follow_symlinks=False))
                for each in found
                for stated in [each.stat(follow_symlinks=each.is_file())]
            ]

    def read(self, path: str, most_bytes: int | None) -> bytes:
        with open(path, "rb") as file:
            return file.read(-1 if most_bytes is None else most_bytes)

    def write(self, path: str, content: bytes) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "xb") as file:
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
    """A file system of Arrow's, to read from."""

    def __init__(self, system: Any) -> None:
        self.system = system

    def entry(self, path: str) -> Facts:
        info = self.system.get_file_info(path)
        if info.type == fs.FileType.NotFound:
            raise FileNotFoundError(path)
        return _arrow_facts(info)

    def entries(self, path: str) -> list[Facts]:
        return [_arrow_facts(info) for info in self.system.get_file_info(fs.FileSelector(path))]

    def read(self, path: str, most_bytes: int | None) -> bytes:
        with self.system.open_input_stream(path) as stream:
            return bytes(stream.read(most_bytes))

    def _refused(self, path: str, *_: object) -> Any:
        raise OSError(f"{path}: can only be written with Spark")

    write = create = remove = remove_empty = footer = _refused


class HadoopFiles:
    """Whatever file system the Spark session has for a URI, by the settings of the cluster."""

    def __init__(self, spark: Any) -> None:
        self._java = spark.sparkContext._jvm
        self._conf = spark.sparkContext._jsc.hadoopConfiguration()

    def entry(self, path: str) -> Facts:
        return _hadoop_facts(self._call("getFileStatus", path))

    def entries(self, path: str) -> list[Facts]:
        return [_hadoop_facts(status) for status in self._call("listStatus", path)]

    def read(self, path: str, most_bytes: int | None) -> bytes:
        stream = self._call("open", path)
        try:
            return bytes(_call_java(stream.readNBytes, 2**31 - 1 if most_bytes is None else most_bytes))
        finally:
            stream.close()

    def write(self, path: str, content: bytes) -> None:
        stream = self._call("create", path, False)
        _call_java(stream.write, bytearray(content))
        _call_java(stream.close)

    def create(self, path: str, content: bytes, hidden: str) -> None:
        self.remove(hidden)
        self.write(hidden, content)
        # To rename a file is atomic wherever there are directories, and to copy one where there are none. That two look
        # at the same moment whether it exists is for the store's lease to prevent.
        if self._call("exists", path) or not self._call("rename", hidden, self._path(path)):
            self.remove(hidden)
            raise FileExistsError(path)

    def remove(self, path: str) -> None:
        # Not recursively: a directory that has taken the name of a file stays.
        self._call("delete", path, False)

    def remove_empty(self, path: str) -> None:
        with contextlib.suppress(OSError):
            self.remove(path)

    def footer(self, path: str) -> pq.FileMetaData:
        end, stream = int(self._call("getFileStatus", path).getLen()), self._call("open", path)
        try:
            # Its length stands before the last four octets of the file.
            _call_java(stream.seek, max(0, end - 8))
            length = int.from_bytes(bytes(_call_java(stream.readNBytes, 4)), "little") + 8
            _call_java(stream.seek, max(0, end - length))
            return pq.read_metadata(io.BytesIO(bytes(_call_java(stream.readNBytes, length))))
        finally:
            stream.close()

    def _path(self, path: str) -> Any:
        return _call_java(self._java.org.apache.hadoop.fs.Path, path)

    def _call(self, method: str, path: str, *arguments: object) -> Any:
        """What the file system of this path answers."""
        place = self._path(path)
        return _call_java(getattr(_call_java(place.getFileSystem, self._conf), method), place, *arguments)


class Location:
    """A path or URI. `published` is where results go: elsewhere than on this machine that needs a Spark session.

    `local` is the path on this machine, None elsewhere; `path` is what its file system calls it, `url` what Spark does.
    """

    def __init__(self, given: str | Path, *, published: bool = False) -> None:
        self.given = str(given)
        self.local: Path | None = None
        self._files: LocalFiles | ArrowFiles | HadoopFiles
        if self.shown is not None:
            self.local = self.shown.absolute()
            self.path, self._files = str(self.local), LocalFiles()
            self.url = f"file://{self.path}"
        else:
            self.url = self.path = self.given.rstrip("/")
            self._files = self._remote(published)

    def _remote(self, published: bool) -> ArrowFiles | HadoopFiles:
        spark = active_session()
        # Arrow would load a second Java into this process for Hadoop's own file systems.
        if spark is not None and (published or self.given.startswith(("hdfs:", "viewfs:"))):
            return HadoopFiles(spark)
        try:
            # Hadoop calls Amazon's storage s3a, Arrow s3.
            system, path = fs.FileSystem.from_uri(re.sub(r"^s3[an]://", "s3://", self.given))
        except (pa.ArrowException, OSError, ValueError) as error:
            if spark is not None:
                return HadoopFiles(spark)
            why = str(error).partition("\n")[0]
            raise PipelineError(f"{self.given}: cannot be opened without Spark: {why}") from error
        self.path = path
        return ArrowFiles(system)

    @staticmethod
    def needs_spark(given: str | Path, *, published: bool = False) -> bool:
        """Whether nothing can be done there without a session of Spark."""
        if published:
            return _on_this_machine(str(given)) is None
        try:
            Location(given)
        except PipelineError:
            return True
        return False

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
        if isinstance(self._files, HadoopFiles):
            raise PipelineError(f"{self.given}: Arrow cannot reach this file system; read it with Spark")
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
        """What is at this place; None if there is nothing."""
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
        """What is known about this file."""
        return self._entry() or InputFile(self.url, 0, 0)

    def entries(self) -> list[InputFile]:
        """What is in this directory, by name; FileNotFoundError if it is not there."""
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
        """Make this file, which must be new."""
        self._files.write(self.path, content)

    def create(self, content: bytes, *, hidden: str) -> None:
        """Make this file, as a whole or not at all, under the name `hidden` beside it at first."""
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


def active_session() -> Any:
    """The session of Spark in this process; None if there is none."""
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def _arrow_facts(info: Any) -> Facts:
    return info.base_name, int(info.size or 0), int(info.mtime_ns or 0), not info.is_file


def _hadoop_facts(status: Any) -> Facts:
    name, modified_ns = str(status.getPath().getName()), int(status.getModificationTime()) * 1_000_000
    return name, int(status.getLen()), modified_ns, bool(status.isDirectory())


def _call_java(method: Any, *arguments: object) -> Any:
    """What Java answers; its exceptions as Python has them."""
    from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]

    from triagemq.pipeline.causes import cause_of

    try:
        return method(*arguments)
    except Py4JJavaError as error:
        kind = str(error.java_exception.getClass().getName()).rpartition(".")[2]
        raise _AS_IN_PYTHON.get(kind, OSError)(cause_of(error)) from error
    except Py4JError as error:
        raise OSError(cause_of(error)) from error
