"""The background tasks of one client, in one registry, and what the program hears of them.

A task that meets an unexpected exception runs again after a pause, and a longer one the next time. The exception is
logged (`triagemq.client`) and handed to the program's `on_problem`. A task that fails again and again is given up: then
the program gets the exception from its next call.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVarTuple

from triagemq.errors import ClientError
from triagemq.hiding import without_key
from triagemq.waiting import end

LOG = logging.getLogger("triagemq.client")
LOG.addHandler(logging.NullHandler())

PAUSES_SECONDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Before a failed task runs again; after the last one it is given up."""

_HEALTHY_SECONDS = 60.0
"""A task that ran for so long has recovered: its next failure counts as the first."""

_Arguments = TypeVarTuple("_Arguments")


class Background:
    """`owner` is the client as logs name it, without a key; `on_failure` hears of a task that is given up."""

    def __init__(
        self,
        owner: str,
        on_problem: Callable[[ClientError], None] | None = None,
        on_failure: Callable[[ClientError], None] | None = None,
    ) -> None:
        self._owner = owner
        self._on_problem = on_problem
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: ClientError | None = None

    def start(self, what: str, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Run `work` until it returns or is cancelled; after an exception once more."""
        task = asyncio.get_running_loop().create_task(self._run(what, work), name=what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run(self, what: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        loop, failures = asyncio.get_running_loop(), 0
        while True:
            began = loop.time()
            try:
                await work()
                return
            except Exception as error:
                failures = 1 if loop.time() - began > _HEALTHY_SECONDS else failures + 1
                problem = ClientError(f"{what} failed: {type(error).__name__}: {error}")
                problem.__cause__ = error
                LOG.error("%s: %s", without_key(self._owner), problem, exc_info=error)
                notify(self._on_problem, problem)
                if failures > len(PAUSES_SECONDS):
                    self._failure = problem
                    notify(self._on_failure, problem)
                    return
            await asyncio.sleep(PAUSES_SECONDS[failures - 1])

    async def close(self) -> None:
        """End all tasks that are left."""
        await end(*self._tasks)

    def report(self, problem: ClientError) -> None:
        """Something is wrong that the program should hear of."""
        self.log(logging.WARNING, str(problem))
        notify(self._on_problem, problem)

    def log(self, level: int, message: str) -> None:
        """What happens in the life of the client."""
        if LOG.isEnabledFor(level):
            LOG.log(level, "%s: %s", without_key(self._owner), message)

    def raise_failure(self) -> None:
        """For the calls of the program: raise the exception of a task that was given up."""
        if self._failure is not None:
            raise self._failure


def notify(callback: Callable[[*_Arguments], object] | None, *arguments: *_Arguments) -> None:
    """Call a function of the program; its mistakes are logged and stop nothing."""
    if callback is not None:
        try:
            callback(*arguments)
        except Exception:
            LOG.exception("a callback of the program failed")
