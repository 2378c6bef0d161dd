"""Folders for experiments with real packets."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def run_folder(name: str) -> Iterator[Path]:
    """For a run and no longer; in the journal, so that `triage network restore` removes it after a crash, too."""
    # Late: only experiments with packets need a network.
    from triagemq.lab.box.journal import Journal, default_journal_directory

    journal = Journal(default_journal_directory())
    folder = Path(tempfile.gettempdir()) / f"triage-{name}-{secrets.token_hex(6)}"
    note = journal.note("directory", path=str(folder))
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        journal.done(note)
