"""Runs of experiments with real packets: a scenario file and a state directory, for the run and no longer."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from triagemq.lab.papers.experiment import Progress
from triagemq.scenario import Scenario, save
from triagemq.scenario.conditions import Conditions

if TYPE_CHECKING:
    from triagemq.lab.emulate.run import EmulationResult

Result = TypeVar("Result")


def in_box(
    scenario: Scenario | str,
    run: Callable[[Path, Path], Coroutine[Any, Any, Result]],
    conditions: Conditions | None = None,
) -> Result:
    """What `run` gives for the file of a scenario, or of its text, and a directory for its state.

    Their folder is in the journal, so that `triage network restore` removes it after a crash, too.
    """
    # Late: only experiments with packets need a network.
    from triagemq.lab.box.journal import Journal, default_journal_directory

    journal = Journal(default_journal_directory())
    folder = Path(tempfile.gettempdir()) / f"triage-paper-{secrets.token_hex(6)}"
    note = journal.note("directory", path=str(folder))
    folder.mkdir(mode=0o700)
    try:
        file = folder / "scenario.yaml"
        if isinstance(scenario, str):
            file.write_text(scenario, encoding="utf-8")
        else:
            save(scenario, file, conditions=conditions)
        return asyncio.run(run(file, folder / "state"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        journal.done(note)


def emulated(
    scenario: Scenario | str,
    see: Callable[[EmulationResult], Result],
    *,
    seconds: float,
    progress: Progress,
    compared: bool = False,
    **options: Any,
) -> Result:
    """What is seen of a run, as long as its files are there; `options` are those of `triage emulate`."""
    from triagemq.lab.emulate.boxed import BoxedOptions
    from triagemq.lab.emulate.run import run_emulation

    async def run(file: Path, state: Path) -> Result:
        return see(
            await run_emulation(
                BoxedOptions(scenario=file, state=state, **options),
                seconds=seconds,
                ended=asyncio.Event(),
                on_tick=lambda rig, elapsed: share_done(progress, seconds)(elapsed),
                compared=compared,
            )
        )

    return in_box(scenario, run)


def share_done(progress: Progress, seconds: float) -> Callable[[float], None]:
    """Reports how much of a run has passed; it is negative while clients start."""
    return lambda elapsed: progress(min(1.0, max(0.0, elapsed) / seconds))
