"""Network namespaces that are made and removed, with names in /run/netns as `ip netns` keeps them."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from triagemq.errors import NetworkError
from triagemq.network.linux.netlink import (
    CLONE_NEWNET,
    NAMESPACE_DIRECTORY,
    in_thread_after,
    namespace_path,
    unshare,
)

_BIND, _SHARED, _RECURSIVE, _DETACH = 0x1000, 1 << 20, 0x4000, 2
_QUIET = {
    "accept_ra": 0,
    "accept_dad": 0,
    "autoconf": 0,
    "addr_gen_mode": 1,
    "router_solicitations": 0,
    "mldv1_unsolicited_report_interval": 1,
    "mldv2_unsolicited_report_interval": 1,
}
"""Of what remains, reports of multicast groups, there is one (the next setting), at once and not seconds later."""

_MULTICAST_REPORTS = Path("/proc/sys/net/ipv6/mld_qrv")

_libc = ctypes.CDLL(None, use_errno=True)


def create_namespace(name: str, *, ipv6: bool = False) -> None:
    """Make a namespace in which nothing speaks by itself: without IPv6, or with addresses given by hand only."""
    _prepare_directory()
    path = namespace_path(name)
    try:
        path.touch(mode=0o444, exist_ok=False)
    except FileExistsError:
        raise NetworkError(f"a namespace {name} exists already; run triage network restore") from None
    except OSError as error:
        raise NetworkError(f"the namespace {name} cannot be made: {error.strerror}") from None
    in_thread_after(lambda: _leave_network(name), lambda: _mount(path, ipv6))


def remove_namespace(name: str) -> bool:
    """Remove a namespace and all its interfaces; whether there was one. What still runs in it keeps it, nameless."""
    path = namespace_path(name)
    # Not mounted, or not there: it was never finished, or another process was faster.
    while _libc.umount2(os.fsencode(path), _DETACH) == 0:
        pass
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise NetworkError(f"the namespace {name} cannot be removed: {error.strerror}") from None
    return True


def _leave_network(name: str) -> None:
    try:
        unshare(CLONE_NEWNET)
    except OSError as error:
        why = "it needs root" if error.errno == errno.EPERM else error.strerror
        raise NetworkError(f"the namespace {name} cannot be made: {why}") from None


def _mount(path: Path, ipv6: bool) -> None:
    here = b"/proc/thread-self/ns/net"
    _checked(_libc.mount(here, os.fsencode(path), None, _BIND, None), f"{path} cannot be mounted")
    _settle_ipv6(ipv6)


def _settle_ipv6(ipv6: bool) -> None:
    """Before there is an interface: duplicate address detection and router discovery would be traffic of their own."""
    settings = _QUIET if ipv6 else {"disable_ipv6": 1}
    for which in ("all", "default"):
        for name, value in settings.items():
            # A kernel without IPv6 has no such file, and nothing to switch off.
            with contextlib.suppress(FileNotFoundError):
                Path(f"/proc/sys/net/ipv6/conf/{which}/{name}").write_text(str(value))
    with contextlib.suppress(FileNotFoundError):
        _MULTICAST_REPORTS.write_text("1")


def _prepare_directory() -> None:
    """As `ip netns` does it: /run/netns is a shared mount, in which other mount namespaces see names come and go."""
    try:
        NAMESPACE_DIRECTORY.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise NetworkError(f"{NAMESPACE_DIRECTORY} cannot be made ({error.strerror}); run as root") from None
    with _locked(NAMESPACE_DIRECTORY):
        where = os.fsencode(NAMESPACE_DIRECTORY)
        if _libc.mount(b"", where, b"none", _SHARED | _RECURSIVE, None) == 0:
            return
        _checked(_libc.mount(where, where, b"none", _BIND | _RECURSIVE, None), f"{where!r} cannot be mounted")
        _checked(
            _libc.mount(b"", where, b"none", _SHARED | _RECURSIVE, None), f"{where!r} cannot be made shared"
        )


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Two runs that start at once must not mount over each other."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _checked(answer: int, what: str) -> None:
    if answer == 0:
        return
    code = ctypes.get_errno()
    why = "it needs root" if code in (errno.EPERM, errno.EACCES) else os.strerror(code)
    raise NetworkError(f"{what}: {why}")
