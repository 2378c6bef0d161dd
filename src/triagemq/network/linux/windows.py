"""Which limiter of the classifiers' table is whose: taken, changed and given back, with the steps that undo it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from triagemq.errors import PlanError
from triagemq.network.linux.flow_table import FlowTable, window_settings
from triagemq.plan import SetLimiter


class LimiterWindows:
    """Numbers from 1 on. What was given back longest ago is used again first: a packet may just be counted there."""

    def __init__(self, table: FlowTable, most: int) -> None:
        self._table, self._most = table, most
        self._free: deque[int] = deque()
        self._used = 0

    def number(self, limiter: SetLimiter | None, before: int, undo: list[Callable[[], None]]) -> int:
        """The window for a flow whose window was `before`: that one with new terms, or another one; 0 for none."""
        if limiter is None:
            return 0
        settings = window_settings(limiter)
        if before:
            undo.append(partial(self._table.set_window, before, self._table.window(before)))
            self._table.set_window(before, settings)
            return before
        if self._used < self._most:
            self._used += 1
            number = self._used
        elif self._free:
            number = self._free.popleft()
        else:
            raise PlanError(f"this data plane has room for {self._most} limiters, and all are in use")
        undo.append(partial(self.give_back, number))
        self._table.open_window(number, settings)
        return number

    def give_back(self, number: int) -> None:
        """A window is no longer needed."""
        self._free.append(number)
