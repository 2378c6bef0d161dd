"""The one thread that writes, and the queue before it: bounded in bytes, and never a place to hang."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping

from triagemq.errors import TraceError
from triagemq.trace.columns import RowBlock
from triagemq.trace.parts import PartFiles


class BackgroundWriter:
    """Hands blocks to the part files of their tables on its own thread.

    Every wait ends when the thread fails: `put` and `close` return False then, and `failure` says why. Only
    that thread touches the part files until it has ended.
    """

    def __init__(self, tables: Mapping[str, PartFiles], queue_bytes: int, *, pauses: bool = False) -> None:
        """With `pauses`, what the disk does not take is left out, and the thread goes on with the next rows."""
        self._tables = tables
        self._pauses = pauses
        self._queue_bytes = queue_bytes
        self._queue: deque[RowBlock] = deque()
        self._waiting_bytes = 0
        self._closing = False
        self._aborted = False
        self._failure: BaseException | None = None
        self._changed = threading.Condition()
        # A daemon: a program that dies without ending its run must not hang on a thread waiting for rows.
        self._thread = threading.Thread(target=self._run, name="trace-writer", daemon=True)
        self._thread.start()

    @property
    def waiting_bytes(self) -> int:
        """How much waits to be written: a live producer that must not block looks at this first."""
        with self._changed:
            return self._waiting_bytes

    @property
    def failure(self) -> BaseException | None:
        """What ended the writing thread before its time, if anything did."""
        with self._changed:
            return self._failure

    def put(self, block: RowBlock) -> bool:
        """Queue a block, waiting for room; False if the thread has failed, so nothing more is written."""
        with self._changed:
            while self._failure is None and not self._has_room(block) and not self._closing:
                self._changed.wait()
            if self._failure is not None:
                return False
            if self._closing:
                raise TraceError("the trace has been finished or given up; nothing can be added to it")
            self._queue.append(block)
            self._waiting_bytes += block.size_bytes
            self._changed.notify_all()
        return True

    def close(self) -> bool:
        """Write what is queued, finish all files and end the thread; False if that failed."""
        self._end(aborted=False)
        return self._failure is None

    def abort(self) -> None:
        """Forget what is queued, remove unfinished files and end the thread."""
        self._end(aborted=True)

    def _end(self, *, aborted: bool) -> None:
        with self._changed:
            self._closing = True
            self._aborted = self._aborted or aborted
            self._changed.notify_all()
        self._thread.join()

    def _has_room(self, block: RowBlock) -> bool:
        # One block larger than the whole queue must still pass, alone.
        return self._waiting_bytes == 0 or self._waiting_bytes + block.size_bytes <= self._queue_bytes

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                block = self._take()
                if block is not None:
                    parts = self._tables[block.table]
                    with self._skipping(parts):
                        parts.add(block)
                self._close_parts_that_are_due()
            if not self._aborted:
                for parts in self._tables.values():
                    parts.finish()
        except BaseException as failure:  # stored for the caller's thread, which raises it
            with self._changed:
                self._failure = failure
        finally:
            with self._changed:
                self._queue.clear()
                self._waiting_bytes = 0
                self._changed.notify_all()
            if self._aborted or self._failure is not None:
                for parts in self._tables.values():
                    parts.discard()

    def _wait_for_work(self) -> bool:
        """Sleep until there is a block to write or a part to close; False when the end has come."""
        with self._changed:
            while not self._queue and not self._closing:
                due = self._next_due()
                timeout = None if due is None else due - time.monotonic()
                if timeout is not None and timeout <= 0:
                    return True
                self._changed.wait(timeout)
            return bool(self._queue) and not self._aborted

    def _take(self) -> RowBlock | None:
        with self._changed:
            if not self._queue:
                return None
            block = self._queue.popleft()
            self._waiting_bytes -= block.size_bytes
            self._changed.notify_all()
            return block

    def _next_due(self) -> float | None:
        return min((parts.due for parts in self._tables.values() if parts.due is not None), default=None)

    def _close_parts_that_are_due(self) -> None:
        now = time.monotonic()
        for parts in self._tables.values():
            if parts.due is not None and parts.due <= now:
                with self._skipping(parts):
                    parts.close_part()

    @contextlib.contextmanager
    def _skipping(self, parts: PartFiles) -> Iterator[None]:
        try:
            yield
        except OSError:
            if not self._pauses:
                raise
            parts.skip()
