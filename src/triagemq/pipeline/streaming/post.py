"""Posts new windows to a REST address as JSON, best effort: a stream never waits for the receiver."""

from __future__ import annotations

import json
import math
import time
import urllib.error
import urllib.request
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from triagemq.errors import ParameterError
from triagemq.hiding import without_password
from triagemq.plain import plain

_MOST_WAITING = 8
_ATTEMPTS = 4
_FIRST_PAUSE_SECONDS = 0.25
_TIMEOUT_SECONDS = 5.0
_FINAL_SECONDS = 5.0


class Poster:
    """Posts `{table, batch, rows}` from a thread of its own; the rows have the columns of the table.

    An answer other than 2xx, or none, is tried again with growing pauses, except for 4xx, which would be refused
    again. What fails for good, and what has to make room for newer windows, is counted. A row may arrive more than
    once: run_id, topic_id, window_seconds and window_start_ns tell which it is. Who asks for a token, as a coordinator
    does, gets `token`.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc or "@" in parts.netloc:
            wanted = "must be an http or https URL without user and password"
            raise ParameterError("post", f"{wanted}, is {without_password(url)!r}")
        self._url = url
        self._token = token
        self._pool = ThreadPoolExecutor(1, "post")
        self._waiting: list[Future[None]] = []
        self._deadline = math.inf
        self.sent = 0
        self.failed = 0
        self.skipped_rows = 0
        self.last_failure: str | None = None

    def put(self, table: str, batch: int, rows: pa.Table, *, of: int) -> None:
        """Send these rows, the latest of so many, when there is time; returns at once."""
        self.skipped_rows += of - len(rows)
        records = [{name: plain(value) for name, value in row.items()} for row in rows.to_pylist()]
        body = json.dumps({"table": table, "batch": batch, "rows": records}, allow_nan=False).encode()
        self._waiting = [post for post in self._waiting if not post.done()]
        if len(self._waiting) > _MOST_WAITING and any(post.cancel() for post in self._waiting):
            # The oldest that is not being sent just now.
            self._fail("does not keep up")
        self._waiting.append(self._pool.submit(self._post, body))

    def close(self) -> None:
        """Send what waits, for some seconds at most."""
        self._deadline = time.monotonic() + _FINAL_SECONDS
        left = wait(self._waiting, _FINAL_SECONDS).not_done
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.failed += len(left)

    def _post(self, body: bytes) -> None:
        failure = self._send(body)
        if failure is None:
            self.sent += 1
        else:
            self._fail(failure)

    def _fail(self, why: str) -> None:
        self.failed += 1
        self.last_failure = f"{self._url}: {why}"

    def _send(self, body: bytes) -> str | None:
        """None, or why it failed for good."""
        failure: str | None = None
        for attempt in range(_ATTEMPTS):
            pause = _FIRST_PAUSE_SECONDS * 2 ** (attempt - 1) if attempt else 0.0
            if time.monotonic() + pause > self._deadline:
                return failure or "the stream ended"
            time.sleep(pause)
            request = urllib.request.Request(
                self._url, body, {"Content-Type": "application/json"}, method="POST"
            )
            if self._token is not None:
                # Not sent along with a redirect.
                request.add_unredirected_header("Authorization", f"Bearer {self._token}")
            try:
                with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS):
                    return None
            except urllib.error.HTTPError as error:
                failure = f"HTTP {error.code} {error.reason}"
                error.close()
                if 400 <= error.code < 500:
                    return failure
            except (OSError, ValueError) as error:
                failure = str(getattr(error, "reason", error)) or type(error).__name__
        return failure

    def as_json(self) -> dict[str, Any]:
        """What became of the posts."""
        return {
            "url": self._url,
            "sent": self.sent,
            "failed": self.failed,
            "skipped_rows": self.skipped_rows,
            "last_failure": self.last_failure,
        }
