"""`python -m triagemq.coordinator.gateway.process CONFIG.json`: a managed gateway as a process of its own.

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
from typing import Any

from triagemq.addresses import place
from triagemq.child import run_child, say_ready
from triagemq.coordinator.gateway.config import GatewayConfig
from triagemq.exchange.private_files import PRIVATE_UMASK
from triagemq.waiting import end

_BROKER_SECONDS = 3.0
_MOST_REMOVING_SECONDS = 600.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal ends it; the exit code."""
    return run_child("triagemq.coordinator.gateway.process", GatewayConfig, serve, arguments)


async def serve(
    config: GatewayConfig, ended: asyncio.Event, ready: Callable[..., None] = say_ready
) -> dict[str, Any]:
    """Run a managed gateway until the event is set; `ready` hears where it is. What it has counted."""
    # The file is checked before what takes a second to load is loaded.
    from triagemq.coordinator.gateway.managed import ManagedGateway

    loop = asyncio.get_running_loop()
    running = ManagedGateway(config)
    try:
        await running.start()
        # What was loaded until now stays: looking through it for garbage again and again would delay messages.
        gc.collect()
        gc.freeze()
        ending = loop.create_task(ended.wait())
        reaching = loop.create_task(running.gateway.wait_for_broker(_BROKER_SECONDS))
        await asyncio.wait({ending, reaching}, return_when=asyncio.FIRST_COMPLETED)
        reaching.cancel()
        ready(
            listen=place(*running.gateway.address),
            control=config.control,
            broker_reached=running.gateway.broker_is_connected,
            generation=running.rules.orders.generation,
            trace=None if running.trace_directory is None else str(running.trace_directory),
        )
        telling = loop.create_task(running.gateway.tell_broker_problems(_log))
        removing = loop.create_task(_keep_removing(config))
        failing = loop.create_task(running.wait())
        await asyncio.wait({ending, failing}, return_when=asyncio.FIRST_COMPLETED)
        if failing.done():
            failing.result()
        await end(ending, failing, reaching, telling, removing)
        await running.close()
        return running.gateway.core.counters.as_json()
    except BaseException as error:
        running.abort(f"{type(error).__name__}: {error}")
        raise


async def _keep_removing(config: GatewayConfig) -> None:
    """Runs of before that were kept for their time; the run that goes on sees to its own files."""
    from triagemq.trace.retention import remove_old_runs

    if config.trace is None or config.keep_trace_seconds is None:
        return
    while True:
        try:
            for run in await asyncio.to_thread(
                remove_old_runs, Path(config.trace), config.keep_trace_seconds
            ):
                _log(f"{run} was kept for its time and is removed")
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
