"""Retention: removes whole runs that ended too long ago, and only files that a Trace wrote."""

from __future__ import annotations

import contextlib
import os
import time
from datetime import datetime
from pathlib import Path

from triagemq.errors import TraceError
from triagemq.trace.manifest import (
    INCOMPLETE_NAME,
    MANIFEST_NAME,
    PLAN_NAME,
    SCENARIO_NAME,
    read_manifest,
    read_progress,
)
from triagemq.trace.reader import runs
from triagemq.trace.schema import TABLES


def remove_old_runs(directory: Path, keep_seconds: float) -> list[Path]:
    """Remove the runs in a directory that ended longer ago; returns them.

    A reader of one of them gets an error that names a missing file: the manifest goes last. A run that was killed
    has none; it ended when its last file was written, and its process must be gone.
    """
    if not directory.is_dir():
        return []
    before = time.time() - keep_seconds
    found = runs(directory)
    removed = []
    for run in found.complete:
        with contextlib.suppress(TraceError):
            manifest = read_manifest(run)
            if manifest is not None and datetime.fromisoformat(manifest.finished).timestamp() < before:
                _remove(run, [run / part.name for parts in manifest.tables.values() for part in parts])
                removed.append(run)
    for run in found.incomplete:
        parts = [part for table in TABLES for part in (run / table).glob("part-*.parquet")]
        if _last_write(run, parts) < before and not _is_written(run):
            _remove(run, [*parts, *run.glob(".outcomes-*")])
            removed.append(run)
    return removed


def _last_write(run: Path, parts: list[Path]) -> float:
    times = [0.0]
    for path in (*parts, run / INCOMPLETE_NAME):
        with contextlib.suppress(OSError):
            times.append(path.stat().st_mtime)
    return max(times)


def _is_written(run: Path) -> bool:
    progress = read_progress(run)
    if progress is None or progress.ended is not None or progress.process_id is None:
        return False
    try:
        os.kill(progress.process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _remove(run: Path, parts: list[Path]) -> None:
    """Files first, what names them last; directories only if nothing else is in them."""
    for path in (*parts, run / SCENARIO_NAME, run / PLAN_NAME, run / INCOMPLETE_NAME, run / MANIFEST_NAME):
        path.unlink(missing_ok=True)
    for folder in (*(run / table for table in TABLES), run):
        with contextlib.suppress(OSError):
            folder.rmdir()
