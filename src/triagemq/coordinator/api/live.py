"""/v1/live: a WebSocket that sends one object of figures a second. A listener that does not keep up is closed."""

from __future__ import annotations

import asyncio
import contextlib

from fastapi import APIRouter, WebSocket, WebSocketDisconnect

from triagemq.coordinator.api.callers import caller_of, coordinator_of
from triagemq.coordinator.refusals import RequestError

router = APIRouter()

_POLICY_VIOLATION = 1008
_TRY_AGAIN_LATER = 1013
_MOST_LISTENERS = 100
_SEND_SECONDS = 5.0


@router.websocket("/v1/live")
async def live(socket: WebSocket) -> None:
    """Figures per class, port and topic; the token goes into the Authorization header of the handshake."""
    coordinator = coordinator_of(socket)
    try:
        (await caller_of(socket)).require_look()
    except RequestError:
        # Before it is accepted, a closed WebSocket is answered with HTTP 403.
        await socket.close(_POLICY_VIOLATION)
        return
    if coordinator.live.listeners >= _MOST_LISTENERS:
        await socket.close(_TRY_AGAIN_LATER)
        return
    await socket.accept()
    figures = coordinator.live.listen()
    gone = asyncio.ensure_future(_until_gone(socket))
    try:
        while True:
            next_one = asyncio.ensure_future(figures.get())
            await asyncio.wait({gone, next_one}, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                next_one.cancel()
                return
            taken = next_one.result()
            if taken is None:
                await socket.close(_POLICY_VIOLATION, "too slow")
                return
            async with asyncio.timeout(_SEND_SECONDS):
                await socket.send_json(taken)
    except (WebSocketDisconnect, RuntimeError, TimeoutError, OSError):
        with contextlib.suppress(Exception):
            await socket.close(_POLICY_VIOLATION, "too slow")
    finally:
        coordinator.live.leave(figures)
        gone.cancel()


async def _until_gone(socket: WebSocket) -> None:
    """Nothing is expected of a listener; whatever it sends is left unread but for the end."""
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        while (await socket.receive())["type"] != "websocket.disconnect":
            pass
