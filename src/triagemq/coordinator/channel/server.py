"""The gateway's end of the control channel: a Unix socket that any number of coordinators and tools may open.

Each client's requests are answered one after the other. One that does not read its answers waits for itself; one that
does not read its news is disconnected when too much has gathered. Bad requests are answered, and the connection stays.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from triagemq.coordinator.channel.messages import (
    LARGEST_LINE_BYTES,
    ControlError,
    SessionEvent,
    decode_line,
    encode_line,
    listening_at,
    shallow,
)
from triagemq.errors import TriageError
from triagemq.waiting import end

Answer = Callable[[str, dict[str, Any], bytes], Awaitable[dict[str, Any]]]
"""What is to be done, the whole request, and the line it came in; the answer, or a TriageError that says why not."""

_MOST_UNREAD_BYTES = 32 << 20


class ControlServer:
    """Listens from `start` to `close`. `watch` is answered here, everything else by whoever made it."""

    def __init__(self, path: Path, answer: Answer) -> None:
        self._path = path
        self._answer = answer
        self._server: asyncio.Server | None = None
        self._clients: dict[asyncio.StreamWriter, asyncio.Task[Any] | None] = {}
        self._watchers: set[asyncio.StreamWriter] = set()
        self.bad_requests = 0

    async def start(self) -> None:
        """Take the place of whatever an earlier process left there; only this user may connect."""
        try:
            listening = listening_at(self._path)
            listening.setblocking(False)
            self._server = await asyncio.start_unix_server(
                self._serve, sock=listening, limit=LARGEST_LINE_BYTES, backlog=64
            )
        except OSError as error:
            raise ControlError(f"control socket {self._path}: {error.strerror or error}") from error

    async def close(self) -> None:
        """Stop, and leave nothing behind."""
        if self._server is None:
            return
        self._server.close()
        await end(*self._clients.values())
        with contextlib.suppress(OSError):
            self._path.unlink()

    def tell(self, event: SessionEvent) -> None:
        """News for everyone who watches."""
        if not self._watchers:
            return
        line = encode_line(shallow(event))
        for writer in list(self._watchers):
            if writer.transport.get_write_buffer_size() > _MOST_UNREAD_BYTES:
                self._watchers.discard(writer)
                writer.transport.abort()
            else:
                writer.write(line)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients[writer] = asyncio.current_task()
        try:
            while line := await reader.readline():
                writer.write(encode_line(await self.answered(line, writer)))
                await writer.drain()
        except ValueError:
            # Longer than any request: there is no telling where the next one begins.
            self.bad_requests += 1
            writer.write(encode_line({"id": None, "ok": False, "error": "the line is too long"}))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._watchers.discard(writer)
            self._clients.pop(writer, None)
            writer.close()

    async def answered(self, line: bytes, writer: asyncio.StreamWriter | None = None) -> dict[str, Any]:
        """The answer to a request, whoever brought it; news go to those with a `writer`."""
        number: object = None
        try:
            request = decode_line(line)
            number = request.get("id")
            what = request.get("do")
            if not isinstance(what, str):
                raise ControlError("a request needs `do`")
            if what == "watch":
                if writer is None:
                    raise ControlError("news are for who connects to the control socket")
                self._watchers.add(writer)
                return {"id": number, "ok": True}
            return {"id": number, "ok": True, **await self._answer(what, request, line)}
        except TriageError as error:
            self.bad_requests += 1
            return {"id": number, "ok": False, "error": str(error)}
