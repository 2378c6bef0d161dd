"""Ctrl-C and SIGTERM, as an event that a command in an event loop waits for."""

from __future__ import annotations

import asyncio
import signal

__all__ = ["stop_on_signals"]


def stop_on_signals() -> asyncio.Event:
    """Set when the user wants the command to end; belongs to the running loop."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop
