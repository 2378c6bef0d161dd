"""Undoes what killed runs left on this machine: everything their journal still lists, last things first."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from triagemq.errors import NetworkError
from triagemq.network.journal import (
    Entry,
    Journal,
    default_journal_directory,
    open_entries,
    owner_lives,
    this_boot,
)
from triagemq.network.linux.namespaces import in_namespace, namespace_path, remove_namespace
from triagemq.network.linux.netlink import Netlink, find_link, remove_link
from triagemq.network.linux.port import former_root, put_back
from triagemq.network.processes import end_session

Undo = Callable[[Entry], bool]
"""Undoes what an entry names; false if it was gone already. NetworkError or OSError if that is impossible now."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What was removed, what could not be and why, and how many entries were left to processes that still run."""

    removed: tuple[str, ...]
    failed: tuple[str, ...]
    in_use: int


def restore(directory: str | os.PathLike[str] | None = None, *, everything: bool = False) -> Restored:
    """Remove what the journal lists of processes that are gone, or with `everything` of all; twice is once.

    Interfaces that somebody has changed since stay as they are.
    """
    directory = default_journal_directory() if directory is None else directory
    entries = open_entries(directory)
    living = {entry.id for entry in entries if owner_lives(entry)}
    left_behind = [entry for entry in entries if everything or entry.id not in living]
    # What a new run has taken over from a dead one is the new run's to put back.
    taken_over = {_interface(entry) for entry in entries if entry.kind == "qdisc" and entry.id in living}
    removed, failed = [], []
    for entry in sorted(left_behind, key=lambda entry: _order(entry, entry.id in living), reverse=True):
        words = _in_words(entry, entry.id in living)
        undo = _leave_queues if entry.kind == "qdisc" and entry.id in living else _UNDO[entry.kind]
        try:
            # Nothing else of what is listed survives a restart of the machine, and numbers are used again.
            there = entry.kind == "directory" or entry.boot == this_boot()
            if undo is _put_queues_back and _interface(entry) in taken_over:
                there = False
            if there and undo(entry):
                removed.append(f"{words}: queues removed" if undo is _put_queues_back else words)
        except (NetworkError, OSError) as error:
            failed.append(f"{words}: {error}")
        except (KeyError, TypeError, ValueError):
            failed.append(f"{words}: the entry {entry.id} is damaged; look at it and delete it")
        else:
            Journal(directory).done(entry)
    return Restored(tuple(removed), tuple(failed), len(entries) - len(left_behind))


def _order(entry: Entry, lives: bool) -> tuple[bool, bool, bool, str]:
    """The queues of the dead are put back first, on interfaces that may be the machine's own.

    Then processes end before what they use goes, and the queues of the living may have gone with their namespaces; else
    the last made goes first.
    """
    queues = entry.kind == "qdisc"
    return queues and not lives, entry.kind == "process", not queues, entry.id


def _in_words(entry: Entry, lives: bool) -> str:
    facts = entry.facts
    kind = "interface" if entry.kind == "qdisc" and not lives else entry.kind
    name = next((facts[key] for key in ("name", "interface", "path", "pid") if key in facts), entry.id)
    command = f" ({facts['command']})" if "command" in facts else ""
    place = f" in {facts['namespace']}" if facts.get("namespace") else ""
    return f"{kind} {name}{command}{place}"


def _interface(entry: Entry) -> tuple[str | None, str]:
    return entry.facts["namespace"], entry.facts["interface"]


def _end_process(entry: Entry) -> bool:
    return end_session(int(entry.facts["pid"]), int(entry.facts["start"]))


def _remove_namespace(entry: Entry) -> bool:
    return remove_namespace(_plain_name(entry.facts["name"]))


def _remove_directory(entry: Entry) -> bool:
    path = Path(entry.facts["path"])
    if not path.is_dir() or path.is_symlink():
        return False
    shutil.rmtree(path)
    return True


def _remove_interface(entry: Entry) -> bool:
    """Interfaces inside a namespace of their own go with it; this is for one that was made elsewhere."""
    name, namespace = _plain_name(entry.facts["name"]), entry.facts.get("namespace") or None
    if namespace is not None:
        _plain_name(namespace)
    if name not in in_namespace(namespace, lambda: [other for _, other in socket.if_nameindex()]):
        return False
    with closing(Netlink(namespace)) as netlink:
        remove_link(netlink, name)
    return True


def _put_queues_back(entry: Entry) -> bool:
    """Namespaces and interfaces that have gone took their queues along."""
    namespace, name = _interface(entry)
    if namespace is not None and not namespace_path(namespace).exists():
        return False
    with closing(Netlink(namespace)) as netlink:
        try:
            link = find_link(netlink, name)
        except NetworkError:
            return False
        return link.index == entry.facts["index"] and put_back(netlink, link, former_root(entry.facts))


def _leave_queues(entry: Entry) -> bool:
    namespace, _ = _interface(entry)
    if namespace is None or namespace_path(namespace).exists():
        raise NetworkError("a running process uses them; end it, and restore again")
    return False


def _plain_name(name: object) -> str:
    if not isinstance(name, str) or not name or "/" in name or name in (".", ".."):
        raise ValueError(name)
    return name


_UNDO: Mapping[str, Undo] = {
    "process": _end_process,
    "namespace": _remove_namespace,
    "directory": _remove_directory,
    "interface": _remove_interface,
    "qdisc": _put_queues_back,
}
