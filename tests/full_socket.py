"""A kernel that has room for so many datagrams, and then for none until it is given more."""

from __future__ import annotations

import ctypes
import errno
from typing import Any

import pytest

from triagemq import datagrams


class Room:
    """In the place of sendmmsg: `left` datagrams are sent, the next is refused."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        self._send = datagrams.sendmmsg
        monkeypatch.setattr(datagrams, "sendmmsg", self)

    def __call__(self, descriptor: int, first: Any, count: int, flags: int) -> int:
        if self.left == 0:
            ctypes.set_errno(errno.EAGAIN)
            return -1
        sent: int = self._send(descriptor, first, min(count, self.left), flags)
        self.left -= max(sent, 0)
        return sent
