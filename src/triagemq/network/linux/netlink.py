"""Routing netlink by hand: requests with acknowledgement, dumps, attributes, and what is needed of links.

Libraries decode every attribute of every answer: too slow for the counters of 100 ports. The few messages that are
needed are small enough to write down.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
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


REPLACE, EXCLUSIVE, CREATE = 0x100, 0x200, 0x400
GET_LINK = 18
LINK_MESSAGE = struct.Struct("=BxHiII")
"""struct ifinfomsg: family, type, index, flags, change."""

_REQUEST, _ACKNOWLEDGE, _DUMP = 0x1, 0x4, 0x300
_ERROR, _DONE = 2, 3
_CAPPED, _WITH_ATTRIBUTES = 0x100, 0x200
_LINK_NAME = 3

_SOL_NETLINK, _EXTENDED_ACKNOWLEDGE = 270, 11
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_ANSWER_BYTES = 1 << 16


def attribute(kind: int, content: bytes) -> bytes:
    """One attribute with its header and padding."""
    return _ATTRIBUTE.pack(4 + len(content), kind) + content + bytes(-len(content) % 4)


def text_attribute(kind: int, text: str) -> bytes:
    return attribute(kind, text.encode() + b"\0")


def attributes(message: bytes, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(kind, begin, end) of each attribute's content between two places of a message."""
    while begin + 4 <= end:
        length, kind = _ATTRIBUTE.unpack_from(message, begin)
        if length < 4:
            return
        yield kind & 0x3FFF, begin + 4, begin + length
        begin += (length + 3) & ~3


class Netlink:
    """A routing netlink socket in a network namespace (None is the present one)."""

    def __init__(self, namespace: str | None = None) -> None:
        self._socket = in_namespace(
            namespace, lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
        )
        self._socket.bind((0, 0))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self._socket.setsockopt(_SOL_NETLINK, _EXTENDED_ACKNOWLEDGE, 1)
        self._sequence = 0

    def close(self) -> None:
        self._socket.close()

    def request(self, kind: int, flags: int, body: bytes) -> None:
        """Ask for a change and wait until it is made; OSError says what the kernel has against it."""
        self._send(kind, _REQUEST | _ACKNOWLEDGE | flags, body)
        message, begin, end, _ = next(each for each in self._answers() if each[3] == _ERROR)
        if (error := _error(message, begin, end)) is not None:
            raise error

    def ask(self, kind: int, body: bytes) -> bytes:
        """The one message that answers a question, without its header."""
        self._send(kind, _REQUEST, body)
        message, begin, end, answer = next(self._answers())
        if answer == _ERROR and (error := _error(message, begin, end)) is not None:
            raise error
        return message[begin:end]

    def dump(self, kind: int, body: bytes) -> Iterator[tuple[bytes, int, int]]:
        """All objects of a kind, each as a buffer and where in it the message without its header begins and ends."""
        self._send(kind, _REQUEST | _DUMP, body)
        for message, begin, end, answer in self._answers():
            if answer == _DONE:
                return
            if answer == _ERROR and (error := _error(message, begin, end)) is not None:
                raise error
            yield message, begin, end

    def _send(self, kind: int, flags: int, body: bytes) -> None:
        self._sequence += 1
        self._socket.send(_HEADER.pack(16 + len(body), kind, flags, self._sequence, 0) + body)

    def _answers(self) -> Iterator[tuple[bytes, int, int, int]]:
        """Answers to what was sent last; what is left of an earlier one that was given up is passed over."""
        while True:
            received = self._socket.recv(_ANSWER_BYTES)
            at = 0
            while at + 16 <= len(received):
                length, kind, _, sequence, _ = _HEADER.unpack_from(received, at)
                if sequence == self._sequence:
                    yield received, at + 16, at + length, kind
                at += (length + 3) & ~3


def _error(message: bytes, begin: int, end: int) -> OSError | None:
    """What an error message says; number 0 is an acknowledgement."""
    (number,) = struct.unpack_from("=i", message, begin)
    if number == 0:
        return None
    text = os.strerror(-number)
    _, _, flags, _, _ = _HEADER.unpack_from(message, begin - 16)
    if flags & _WITH_ATTRIBUTES:
        (echoed,) = struct.unpack_from("=I", message, begin + 4)
        after = begin + 4 + (16 if flags & _CAPPED else (echoed + 3) & ~3)
        for kind, first, last in attributes(message, after, end):
            if kind == 1:
                text = message[first:last].rstrip(b"\0").decode(errors="replace")
    return OSError(-number, text)


def interface_index(netlink: Netlink, name: str) -> int:
    """The number of the interface of that name in the socket's namespace."""
    try:
        answer = netlink.ask(GET_LINK, LINK_MESSAGE.pack(0, 0, 0, 0, 0) + text_attribute(_LINK_NAME, name))
    except OSError as error:
        if error.errno in (errno.ENODEV, errno.EINVAL, errno.ERANGE):
            raise NetworkError(f"there is no network interface {name!r}; `ip link` lists them") from None
        raise
    return int(LINK_MESSAGE.unpack_from(answer)[2])
