"""Where other people's programs are: servers live in places that an ordinary user's PATH does not name."""

from __future__ import annotations

import os
import shutil

_SERVERS = ("/usr/sbin", "/usr/local/sbin", "/sbin", "/opt/homebrew/sbin")


def search_path() -> str:
    """PATH, and where servers are."""
    return os.pathsep.join((os.environ.get("PATH", os.defpath), *_SERVERS))


def find_program(name: str) -> str | None:
    """Where a program is, if it is on this machine."""
    return shutil.which(name, path=search_path())
