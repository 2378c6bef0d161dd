"""`python -m triagemq.gateway.process CONFIG.json`: a managed gateway as a process of its own.

It prints one line of JSON when it is ready, ends cleanly on SIGTERM or SIGINT, and may be killed at any moment: started
again with the same state it goes on with the sessions, messages and orders that it had. config.py says what
the file holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triagemq.addresses import place
from triagemq.child import run_child, say_ready
from triagemq.files import PRIVATE_UMASK
from triagemq.gateway.config import GatewayConfig
from triagemq.waiting import end

if TYPE_CHECKING:
    from triagemq.gateway.managed import ManagedGateway
    from triagemq.gateway.policy import GrantSource

_BROKER_SECONDS = 3.0
_MOST_REMOVING_SECONDS = 600.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal ends it; the exit code."""
    return run_child("triagemq.gateway.process", GatewayConfig, serve, arguments)


def say_where(running: ManagedGateway, broker_reached: bool) -> None:
    """The ready line."""
    say_ready(
        listen=place(*running.gateway.address),
        front=None if running.front is None else place(*running.front.address),
        control=running.config.control,
        broker_reached=broker_reached,
        generation=running.rules.orders.generation,
        trace=None if running.trace_directory is None else str(running.trace_directory),
    )


async def serve(
    config: GatewayConfig,
    ended: asyncio.Event,
    ready: Callable[[ManagedGateway, bool], None] = say_where,
    grants: GrantSource | None = None,
    on_subscriptions: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Run a managed gateway until the event is set; what it has counted.

    `ready` gets whether its broker is reached, which is waited for some seconds.
    """
    # The file is checked before what takes a second to load is loaded.
    from triagemq.gateway.managed import ManagedGateway

    running = ManagedGateway(config, grants, on_subscriptions)
    gateway, loop = running.gateway, asyncio.get_running_loop()
    tasks: list[asyncio.Task[Any]] = []
    try:
        await running.start()
        # What was loaded until now stays: looking through it for garbage again and again would delay messages.
        gc.collect()
        gc.freeze()
        failing, ending = loop.create_task(running.wait()), loop.create_task(ended.wait())
        reaching = loop.create_task(gateway.wait_for_broker(_BROKER_SECONDS))
        tasks = [failing, ending, reaching, loop.create_task(_keep_removing(config))]
        await asyncio.wait({ending, reaching}, return_when=asyncio.FIRST_COMPLETED)
        ready(running, gateway.broker_is_connected)
        tasks.append(loop.create_task(gateway.report_broker_problems(_log)))
        await asyncio.wait({ending, failing}, return_when=asyncio.FIRST_COMPLETED)
        if failing.done():
            failing.result()
        await end(*tasks)
        await running.close()
        return gateway.core.counters.as_json()
    except BaseException as error:
        await end(*tasks)
        running.abort(f"{type(error).__name__}: {error}")
        raise


async def _keep_removing(config: GatewayConfig) -> None:
    """Remove earlier runs after their time; the present run removes its own files."""
    from triagemq.trace.reader import remove_old_runs

    if config.trace is None or config.keep_trace_seconds is None:
        return
    while True:
        try:
            for run in await asyncio.to_thread(
                remove_old_runs, Path(config.trace), config.keep_trace_seconds
            ):
                _log(f"{run} is older than its time and is removed")
        except OSError as error:
            _log(f"{config.trace}: what is old cannot be removed: {error.strerror or error}")
        await asyncio.sleep(min(_MOST_REMOVING_SECONDS, config.keep_trace_seconds / 4))


def _log(words: str) -> None:
    # The log may be on a disk that is full.
    with contextlib.suppress(OSError):
        print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {words}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    os.umask(PRIVATE_UMASK)
    sys.exit(main())
