"""Undoes what killed runs left on this machine: everything their journal still lists, last things first."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from triagemq.errors import NetworkError
from triagemq.lab.box.journal import (
    Entry,
    Journal,
    default_journal_directory,
    open_entries,
    owner_lives,
    this_boot,
)
from triagemq.lab.box.namespaces import remove_namespace
from triagemq.lab.box.processes import end_session
from triagemq.processes import wait_for_killed

Undo = Callable[[Entry], bool]
"""Undoes what an entry names; false if it was gone already. NetworkError or OSError if that is impossible now."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What was removed, what could not be and why, and how many entries were left to processes that still run."""

    removed: tuple[str, ...]
    failed: tuple[str, ...]
    in_use: int


def restore(directory: str | os.PathLike[str] | None = None, *, everything: bool = False) -> Restored:
    """Remove what the journal lists of processes that are gone, or with `everything` of all; idempotent."""
    directory = default_journal_directory() if directory is None else directory
    entries = open_entries(directory)
    left_behind = [entry for entry in entries if everything or not owner_lives(entry)]
    if left_behind:
        wait_for_killed()
    removed, failed = [], []
    # Processes end before what they use goes; else the last made goes first.
    for entry in sorted(left_behind, key=lambda entry: (entry.kind == "process", entry.id), reverse=True):
        words = _in_words(entry)
        try:
            # Nothing else of what is listed survives a restart of the machine, and numbers are used again.
            there = entry.kind == "directory" or entry.boot == this_boot()
            if there and _UNDO[entry.kind](entry):
                removed.append(words)
        except (NetworkError, OSError) as error:
            failed.append(f"{words}: {error}")
        except (KeyError, TypeError, ValueError):
            failed.append(f"{words}: the entry {entry.id} is damaged; look at it and delete it")
        else:
            Journal(directory).done(entry)
    return Restored(tuple(removed), tuple(failed), len(entries) - len(left_behind))


def _in_words(entry: Entry) -> str:
    facts = entry.facts
    name = next((facts[key] for key in ("name", "path", "pid") if key in facts), entry.id)
    return f"{entry.kind} {name} ({facts['command']})" if "command" in facts else f"{entry.kind} {name}"


def _end_process(entry: Entry) -> bool:
    return end_session(int(entry.facts["pid"]), int(entry.facts["start"]))


def _remove_namespace(entry: Entry) -> bool:
    name = entry.facts["name"]
    if not isinstance(name, str) or not name or "/" in name or name in (".", ".."):
        raise ValueError(name)
    return remove_namespace(name)


def _remove_directory(entry: Entry) -> bool:
    path = Path(entry.facts["path"])
    if not path.is_dir() or path.is_symlink():
        return False
    shutil.rmtree(path)
    return True


_UNDO: Mapping[str, Undo] = {
    "process": _end_process,
    "namespace": _remove_namespace,
    "directory": _remove_directory,
}
