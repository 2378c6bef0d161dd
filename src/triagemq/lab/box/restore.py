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
from triagemq.network.linux.netlink import LINK_MESSAGE, Netlink, in_namespace, text_attribute

_DELETE_LINK, _LINK_NAME = 17, 3

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
    name = next((facts[key] for key in ("name", "interface", "path", "pid") if key in facts), entry.id)
    command = f" ({facts['command']})" if "command" in facts else ""
    place = f" in {facts['namespace']}" if facts.get("namespace") else ""
    return f"{entry.kind} {name}{command}{place}"


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
        netlink.request(_DELETE_LINK, 0, LINK_MESSAGE.pack(0, 0, 0, 0, 0) + text_attribute(_LINK_NAME, name))
    return True


def _plain_name(name: object) -> str:
    if not isinstance(name, str) or not name or "/" in name or name in (".", ".."):
        raise ValueError(name)
    return name


_UNDO: Mapping[str, Undo] = {
    "process": _end_process,
    "namespace": _remove_namespace,
    "directory": _remove_directory,
    "interface": _remove_interface,
    # Of versions before; queues are known by their handle (network/linux/port.py).
    "qdisc": lambda entry: False,
}
