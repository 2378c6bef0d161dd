"""What the client programs of peers share. Each is `python -m peer_programs.with_X TOLD.json`: it prints a line when it
is connected, publishes the events of a schedule from when a file says, or notes what arrives, and ends on SIGTERM.

Events are the same for all: as long as the scenario has them, with the time of publishing in front.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from triagemq.lab.emulate.receipts import Receipts
from triagemq.mqttsn.timestamps import PREFIX_BYTES, published_ns_of, stamp_payload

SCHEDULE = np.dtype(
    [("due_ns", np.int64), ("publisher", np.int64), ("topic", np.int64), ("size_bytes", np.int64)]
)
"""What is published, in order of time: ns from the beginning, and rows of the scenario."""

_LOOK_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Told:
    """`role` is "publishers", "subscriber" or "server". `topics` are the rows of those that it publishes or wants, and
    `level` the class of each, 0 first; `notes` is the file of what it sent or got. Publishers find their events in
    `schedule`, and in `begin` the time of the first as soon as there is one."""

    role: str
    server: str
    interface: str
    topics: dict[str, int]
    level: dict[str, int]
    notes: str
    settings: dict[str, Any]
    subscriber: int = -1
    schedule: str = ""
    begin: str = ""


def told() -> Told:
    """By the file that the command line names."""
    return Told(**json.loads(Path(sys.argv[1]).read_text()))


def ended() -> asyncio.Event:
    """What SIGTERM sets."""
    event = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, event.set)
    return event


def say_connected() -> None:
    """The parent waits for this line."""
    print(json.dumps({"ready": True}), flush=True)


class Noted:
    """What a subscriber got. Programs call `got` from whatever thread they have."""

    def __init__(self, its: Told) -> None:
        self._receipts, self._subscriber, self._topics = Receipts(Path(its.notes)), its.subscriber, its.topics
        self._turn = threading.Lock()

    def got(self, topic: str, payload: bytes) -> None:
        """An event, at the moment when the program has it."""
        received_ns = time.time_ns()
        row = (self._subscriber, self._topics[topic], published_ns_of(payload) or 0, received_ns)
        with self._turn:
            self._receipts.add(*row)

    def close(self) -> None:
        """What comes from now on is not noted."""
        self._turn.acquire()
        self._receipts.close()


async def publish_schedule(its: Told, send: Callable[[str, bytes], Awaitable[None]]) -> None:
    """Send every event when it is due, and note it; until all are sent or SIGTERM."""
    stopped, sent = ended(), Receipts(Path(its.notes))
    name = {row: topic for topic, row in its.topics.items()}
    say_connected()
    while not Path(its.begin).exists() and not stopped.is_set():
        await asyncio.sleep(_LOOK_SECONDS)
    begins_ns = int(Path(its.begin).read_text()) if not stopped.is_set() else 0
    for due_ns, publisher, topic, size_bytes in np.load(its.schedule).tolist():
        if stopped.is_set():
            break
        pause = (begins_ns + due_ns - time.time_ns()) * 1e-9
        if pause > 0:
            await asyncio.sleep(pause)
        published_ns = time.time_ns()
        payload = stamp_payload(bytes(size_bytes - PREFIX_BYTES), published_ns)
        await send(name[topic], payload)
        sent.add(publisher, topic, published_ns, len(payload))
    sent.flush()
    await stopped.wait()
    sent.close()


async def note_until_ended(noted: Noted) -> None:
    """Say that everything is subscribed, and wait for SIGTERM."""
    stopped = ended()
    say_connected()
    await stopped.wait()
    noted.close()


def program(
    its: Told,
    publish: Callable[[Told], Awaitable[None]],
    subscribe: Callable[[Told], Awaitable[None]],
    serve: Callable[[Told], Awaitable[None]] | None = None,
) -> None:
    """Do what the role has to do."""
    roles = {"publishers": publish, "subscriber": subscribe, "server": serve}
    work = roles[its.role]
    assert work is not None

    async def run() -> None:
        await work(its)

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run())
