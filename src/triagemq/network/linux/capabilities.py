"""What this machine's kernel lets this user do, found by doing it in a network namespace that nobody sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from triagemq.errors import NetworkError
from triagemq.network.linux.flow_table import FlowTable
from triagemq.network.linux.namespaces import CLONE_NEWNET, in_thread_after, unshare
from triagemq.network.linux.netlink import Netlink, find_link
from triagemq.network.linux.queues import build_queues


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Each is None if it works, else what stands in the way."""

    namespaces: str | None
    """Making network namespaces."""
    queues: str | None
    """HTB with FIFO queues."""
    classifier: str | None
    """eBPF maps and programs, attached to the queues."""


def capabilities() -> Capabilities:
    """Try everything; nothing is left behind."""
    namespaces = _problem_in_namespace(lambda: None)
    return Capabilities(
        namespaces=namespaces,
        queues=namespaces or _problem_in_namespace(_try_queues),
        classifier=namespaces or _problem_in_namespace(_try_classifier),
    )


def problem_of(attempt: Callable[[], None]) -> str | None:
    """What an attempt failed of, in one line; None if it did not."""
    try:
        attempt()
    except NetworkError as error:
        return str(error)
    except OSError as error:
        return error.strerror or str(error)
    return None


def _problem_in_namespace(attempt: Callable[[], None]) -> str | None:
    return problem_of(lambda: in_thread_after(lambda: unshare(CLONE_NEWNET), attempt))


def _try_queues() -> None:
    netlink = Netlink()
    try:
        build_queues(netlink, find_link(netlink, "lo").index, 1e6, 10)
    finally:
        netlink.close()


def _try_classifier() -> None:
    table = FlowTable(1, 1, 1)
    netlink = Netlink()
    try:
        classifier = table.open_port(1)
        link = find_link(netlink, "lo")
        build_queues(netlink, link.index, 1e6, 10)
        classifier.attach(netlink, link)
    finally:
        netlink.close()
        table.close()
