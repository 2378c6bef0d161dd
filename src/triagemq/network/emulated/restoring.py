"""Undoes what killed runs left on this machine: everything their journal still lists, last things first."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triagemq.errors import NetworkError
from triagemq.network.emulated.namespaces import remove_namespace
from triagemq.network.emulated.processes import end_session
from triagemq.network.emulated.requests import open_netlink, remove_link, send_requests
from triagemq.network.journal import (
    Entry,
    Journal,
    default_journal_directory,
    open_entries,
    owner_lives,
    this_boot,
)
from triagemq.network.linux.namespaces import in_namespace, namespace_path

__all__ = ["Restored", "restore"]

Undo = Callable[[Mapping[str, Any]], bool]
"""Undoes what the facts of an entry name; false if it was gone already. NetworkError if that is impossible now."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What was removed, what could not be and why, and how many entries were left to processes that still run."""

    removed: tuple[str, ...]
    failed: tuple[str, ...]
    in_use: int


def restore(directory: str | os.PathLike[str] | None = None, *, everything: bool = False) -> Restored:
    """Remove what the journal lists of processes that are gone, or with `everything` of all; twice is once."""
    directory = default_journal_directory() if directory is None else directory
    removed, failed = _put_interfaces_back(directory)
    entries = open_entries(directory)
    left_behind = [entry for entry in entries if everything or not owner_lives(entry)]
    for entry in sorted(left_behind, key=_order, reverse=True):
        words = _in_words(entry)
        try:
            # Nothing else of what is listed survives a restart of the machine, and numbers are used again.
            there = entry.kind == "directory" or entry.boot == this_boot()
            if there and UNDO[entry.kind](entry.facts):
                removed.append(words)
        except (NetworkError, OSError) as error:
            failed.append(f"{words}: {error}")
        except (KeyError, TypeError, ValueError):
            failed.append(f"{words}: the entry {entry.id} is damaged; look at it and delete it")
        else:
            Journal(directory).done(entry)
    return Restored(tuple(removed), tuple(failed), len(entries) - len(left_behind))


def _put_interfaces_back(directory: str | os.PathLike[str]) -> tuple[list[str], list[str]]:
    """The queues of dead processes on interfaces, which may be the machine's own."""
    from triagemq.network.linux.restoring import restore as restore_queues

    try:
        return restore_queues(directory), []
    except NetworkError as error:
        return [], [str(error)]


def _order(entry: Entry) -> tuple[bool, bool, str]:
    """Processes end before what they use goes, queues go with their namespaces; else the last made goes first."""
    return entry.kind == "process", entry.kind != "qdisc", entry.id


def _in_words(entry: Entry) -> str:
    facts = entry.facts
    name = next((facts[key] for key in ("name", "interface", "path", "pid") if key in facts), entry.id)
    command = f" ({facts['command']})" if "command" in facts else ""
    place = f" in {facts['namespace']}" if facts.get("namespace") else ""
    return f"{entry.kind} {name}{command}{place}"


def _undo_process(facts: Mapping[str, Any]) -> bool:
    return end_session(int(facts["pid"]), int(facts["start"]))


def _undo_namespace(facts: Mapping[str, Any]) -> bool:
    return remove_namespace(_plain_name(facts["name"]))


def _undo_directory(facts: Mapping[str, Any]) -> bool:
    path = Path(facts["path"])
    if not path.is_dir() or path.is_symlink():
        return False
    shutil.rmtree(path)
    return True


def _undo_interface(facts: Mapping[str, Any]) -> bool:
    """Interfaces inside a namespace of their own go with it; this is for one that was made elsewhere."""
    name = _plain_name(facts["name"])

    def remove() -> bool:
        if name not in (other for _, other in socket.if_nameindex()):
            return False
        with open_netlink() as channel:
            send_requests(channel, [remove_link(name)])
        return True

    namespace = facts.get("namespace")
    return in_namespace(_plain_name(namespace), remove) if namespace else remove()


def _undo_queues(facts: Mapping[str, Any]) -> bool:
    namespace = facts["namespace"]
    if namespace is None or namespace_path(namespace).exists():
        raise NetworkError("a running process uses them; end it, and restore again")
    return False


def _plain_name(name: object) -> str:
    if not isinstance(name, str) or not name or "/" in name or name in (".", ".."):
        raise ValueError(name)
    return name


UNDO: dict[str, Undo] = {
    "process": _undo_process,
    "namespace": _undo_namespace,
    "directory": _undo_directory,
    "interface": _undo_interface,
    "qdisc": _undo_queues,
}
