"""The SHA-256 of every file of a trace beside the one in its manifest."""

from __future__ import annotations

import hashlib

from triagemq.trace import Trace


def verify(trace: Trace) -> None:
    """Every file holds what was written."""
    assert trace.manifest is not None
    for part in (part for parts in trace.manifest.tables.values() for part in parts):
        assert hashlib.sha256((trace.path / part.name).read_bytes()).hexdigest() == part.sha256
