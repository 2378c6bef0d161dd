"""The coordinator's process with its page: `python -m triagemq.dashboard.serve CONFIG.json`."""

from __future__ import annotations

import logging
import os
from importlib.util import find_spec

from fastapi import FastAPI

from triagemq.coordinator.serve import main as serve
from triagemq.coordinator.settings import Settings
from triagemq.dashboard.mounting import Dashboard
from triagemq.errors import MissingDependencyError
from triagemq.exchange.private_files import PRIVATE_UMASK

_LOG = logging.getLogger(__name__)


def mount(app: FastAPI, settings: Settings) -> Dashboard | None:
    """The page as a part of the application, if it can be shown."""
    if find_spec("nicegui") is None:
        _LOG.warning("no page: %s", MissingDependencyError("nicegui", "dashboard"))
        return None
    return Dashboard(app, settings)


def main() -> None:
    """Run with the configuration file named on the command line."""
    serve(mount)


if __name__ == "__main__":
    os.umask(PRIVATE_UMASK)
    main()
