"""Network namespaces: doing something inside another without leaving one's own.

A namespace belongs to a thread, and a socket stays in the one it was opened in: a thread that enters, opens and ends is
all that is needed.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from triagemq.errors import NetworkError

NAMESPACE_DIRECTORY = Path("/run/netns")
"""Where `ip netns` keeps namespaces by name."""

CLONE_NEWNET = 0x40000000
Result = TypeVar("Result")
_libc = ctypes.CDLL(None, use_errno=True)


def namespace_path(namespace: str) -> Path:
    """The file of a namespace: as given if it is a path, else that of the name that `ip netns` uses.

    >>> str(namespace_path("tq-hall")), str(namespace_path("/proc/self/ns/net"))
    ('/run/netns/tq-hall', '/proc/self/ns/net')
    """
    return Path(namespace) if "/" in namespace else NAMESPACE_DIRECTORY / namespace


def in_namespace(namespace: str | None, function: Callable[[], Result]) -> Result:
    """What `function` gives inside a network namespace (None is the present one), in a thread that then ends."""
    if namespace is None:
        return function()
    path = namespace_path(namespace)
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise NetworkError(f"there is no network namespace {path} ({error.strerror})") from None
    try:
        return in_thread_after(lambda: _enter(file, path), function)
    finally:
        os.close(file)


def in_thread_after(enter: Callable[[], None], function: Callable[[], Result]) -> Result:
    """Run both in a thread of their own, so that what `enter` does to the thread ends with it."""
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            enter()
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="namespace")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def system_call_error() -> OSError:
    """The error of the last call through ctypes."""
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def unshare(flags: int) -> None:
    """Give the calling thread namespaces of its own."""
    if _libc.unshare(flags):
        raise system_call_error()


def _enter(file: int, path: Path) -> None:
    if _libc.setns(file, CLONE_NEWNET):
        raise NetworkError(
            f"the network namespace {path} cannot be entered ({system_call_error().strerror}); run this as root"
        )
