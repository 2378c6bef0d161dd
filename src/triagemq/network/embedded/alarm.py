"""An alarm clock for an event loop that is precise to some tens of microseconds.

Event loops round their own timers up to whole milliseconds; at 2 Mbit/s a small packet takes half of one. A timer
descriptor (timerfd) wakes the loop like data on a socket, some 30 microseconds after its time. It is therefore set to
a little earlier, and what is left then is waited for.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import Callable
from typing import Protocol

_CLOCK_MONOTONIC = 1
_NONBLOCK_CLOSE_ON_EXEC = 0o4000 | 0o2000000
_EARLIER_NS = 25_000


class Alarm(Protocol):
    """Calls the callback it was made with; one time at most is set."""

    def set(self, delay_ns: int) -> None:
        """Ring once in `delay_ns` from now instead of at the time set before; 0 or less is as soon as possible."""

    def close(self) -> None:
        """Never ring again."""


class _Seconds(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSetting(ctypes.Structure):
    _fields_ = (("interval", _Seconds), ("value", _Seconds))


class TimerAlarm:
    """A timer descriptor in the set of readers of the running event loop."""

    def __init__(self, callback: Callable[[], None]) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        self._settime = library.timerfd_settime
        self._loop, self._callback = asyncio.get_running_loop(), callback
        self._rings_ns = 0
        self._setting = _TimerSetting()
        self._value = self._setting.value
        self._pointer = ctypes.byref(self._setting)
        self._descriptor: int = library.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOSE_ON_EXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._loop.add_reader(self._descriptor, self._ring)

    def set(self, delay_ns: int) -> None:
        self._rings_ns = time.monotonic_ns() + delay_ns
        # A setting of 0 would stop the timer.
        self._value.seconds, self._value.nanoseconds = divmod(max(delay_ns - _EARLIER_NS, 1), 1_000_000_000)
        if self._settime(self._descriptor, 0, self._pointer, None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def close(self) -> None:
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _ring(self) -> None:
        try:
            os.read(self._descriptor, 8)
        except BlockingIOError:  # Set anew between the wake-up and now.
            return
        while time.monotonic_ns() < self._rings_ns:
            pass
        self._callback()
