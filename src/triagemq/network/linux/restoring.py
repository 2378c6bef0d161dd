"""Undoing what killed runs left on network interfaces."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from triagemq.errors import NetworkError
from triagemq.network.journal import Entry, Journal, default_journal_directory, open_entries, owner_lives
from triagemq.network.linux.namespaces import namespace_path
from triagemq.network.linux.netlink import Netlink, find_link
from triagemq.network.linux.port import former_root, put_back

__all__ = ["restore"]


def restore(journal_directory: str | PathLike[str] | None = None) -> list[str]:
    """Put interfaces back that processes now dead had taken; what was done, one line each. Twice is once.

    Interfaces of running processes stay as they are, and so do those that somebody has changed since.
    """
    directory = Path(default_journal_directory() if journal_directory is None else journal_directory)
    entries = [entry for entry in open_entries(directory) if entry.kind == "qdisc"]
    kept = {_place(entry) for entry in entries if owner_lives(entry)}
    done, failed = [], []
    for entry in reversed(entries):
        if owner_lives(entry):
            continue
        try:
            # What a new run has taken over from a dead one is the new run's to put back.
            if _place(entry) not in kept and _put_back(entry):
                done.append(f"interface {_described(entry)}: queues removed")
        except (OSError, NetworkError) as error:
            failed.append(f"interface {_described(entry)}: {error}")
            continue
        Journal(directory).done(entry)
    if failed:
        raise NetworkError("; ".join(failed))
    return done


def _put_back(entry: Entry) -> bool:
    """Whether there was anything to put back: namespaces and interfaces that have gone took their queues along."""
    namespace = entry.facts["namespace"]
    if namespace is not None and not namespace_path(namespace).exists():
        return False
    netlink = Netlink(namespace)
    try:
        try:
            link = find_link(netlink, entry.facts["interface"])
        except NetworkError:
            return False
        return link.index == entry.facts["index"] and put_back(netlink, link, former_root(entry))
    finally:
        netlink.close()


def _place(entry: Entry) -> tuple[str | None, str]:
    return entry.facts["namespace"], entry.facts["interface"]


def _described(entry: Entry) -> str:
    namespace, name = _place(entry)
    return name if namespace is None else f"{name} in {namespace}"
