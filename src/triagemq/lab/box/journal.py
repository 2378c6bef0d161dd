"""A journal of what a run makes on this machine, so that `triage network restore` can undo what a killed run left.

Every entry is a small file that is there before the thing it names, and goes after the thing has gone. Nothing here is
synchronised to disk: what is journaled (namespaces, interfaces, queues, processes) does not survive a loss of power
either, and a written file survives the death of its writer.
"""

from __future__ import annotations

import itertools
import json
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from triagemq.errors import NetworkError

Kind = Literal["namespace", "process", "directory"]


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that was made or changed and is still to be undone, and the process that did it."""

    id: str
    kind: Kind
    facts: Mapping[str, Any]
    owner_pid: int
    owner_start: int
    """Clock ticks from the machine's start to that of the process: a process id alone is used again."""
    boot: str


class Journal:
    """The entries of this process, in a directory that other runs may use too.

    >>> with tempfile.TemporaryDirectory() as name:
    ...     journal = Journal(name)
    ...     entry = journal.note("namespace", name="tq-hall")
    ...     before = [(each.kind, dict(each.facts), owner_lives(each)) for each in open_entries(name)]
    ...     journal.done(entry)
    ...     before, open_entries(name)
    ([('namespace', {'name': 'tq-hall'}, True)], [])
    """

    _numbers = itertools.count()

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise NetworkError(
                f"no journal can be written in {self.directory} ({error.strerror}); give another directory"
            ) from None
        _require_own(self.directory)

    def note(self, kind: Kind, **facts: Any) -> str:
        """Write down what is about to be made; the answer names the entry for `done`."""
        pid = os.getpid()
        # Names sort by time: what was made last is undone first.
        name = f"{time.time_ns():020d}-{pid}-{next(self._numbers)}"
        content = {
            "kind": kind,
            "facts": facts,
            "owner_pid": pid,
            "owner_start": process_start(pid),
            "boot": this_boot(),
        }
        unfinished = self.directory / f".{name}"
        unfinished.write_text(json.dumps(content))
        unfinished.rename(self.directory / f"{name}.json")
        return name

    def done(self, entry: str | Entry) -> None:
        """What the entry names has gone, or was never made; idempotent."""
        name = entry if isinstance(entry, str) else entry.id
        (self.directory / f"{name}.json").unlink(missing_ok=True)


def open_entries(directory: str | os.PathLike[str]) -> list[Entry]:
    """Everything in a journal that is still to be undone, oldest first, of processes alive or not."""
    where = Path(directory)
    if not where.is_dir():
        return []
    _require_own(where)
    entries = []
    for file in sorted(where.glob("*.json")):
        try:
            content = json.loads(file.read_text())
            entries.append(Entry(id=file.stem, **content))
        except FileNotFoundError:
            continue  # Its owner was faster.
        except (ValueError, TypeError):
            raise NetworkError(f"{file} is not a journal entry; look at it and delete it") from None
    return entries


def owner_lives(entry: Entry) -> bool:
    """Whether the process that made the entry is still running."""
    return entry.boot == this_boot() and process_start(entry.owner_pid) == entry.owner_start


def process_start(pid: int) -> int | None:
    """When a process started, in clock ticks since the machine did; None if it is not there (or only its remains)."""
    try:
        # The name in parentheses may hold anything; the state and nineteen fields later the start follow it.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def default_journal_directory() -> Path:
    """Where journals are: for root below /run, for others in their own runtime directory."""
    if os.geteuid() == 0 and os.access("/run", os.W_OK):
        return Path("/run/triagemq")
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.access(runtime, os.W_OK):
        return Path(runtime) / "triagemq"
    return Path(tempfile.gettempdir()) / f"triagemq-{os.geteuid()}"


def this_boot() -> str:
    """Identifies the present boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _require_own(directory: Path) -> None:
    """Entries are undone with the user's rights: another user's journal would be foreign instructions."""
    status = directory.stat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise NetworkError(
            f"{directory} can be written by other users; keep the journal in a directory of your own"
        )
