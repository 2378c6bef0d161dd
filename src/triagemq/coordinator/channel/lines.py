"""The control channel between coordinator and gateway: a Unix stream socket, one JSON object a line, both ways."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from triagemq.errors import TriageError

__all__ = ["LARGEST_LINE_BYTES", "ControlError", "decode_line", "encode_line", "reachable"]

LARGEST_LINE_BYTES = 256 << 20
"""Orders for a hundred thousand flows and a million subscriptions have room in it."""

# sun_path has 108 octets on Linux, fewer elsewhere.
_LONGEST_PATH = 100


class ControlError(TriageError):
    """The gateway cannot be reached over its control socket, or has refused what it was told."""


def encode_line(message: dict[str, Any]) -> bytes:
    """One object, with its end of line; records in it become objects, too."""
    return to_json(message, inf_nan_mode="strings") + b"\n"


def decode_line(line: bytes) -> dict[str, Any]:
    """The object of a line; ControlError if it holds none."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise ControlError("control channel: a line that is not JSON") from None
    if not isinstance(message, dict):
        raise ControlError("control channel: a line that is not a JSON object")
    return message


@contextlib.contextmanager
def reachable(path: Path) -> Iterator[str]:
    """A name for a socket by which the kernel can find it: paths of sockets must be short, those of files need not.

    A long one goes through a descriptor of its directory; it serves for bind and connect, inside the `with` only.
    """
    absolute = str(path.absolute())
    if len(os.fsencode(absolute)) <= _LONGEST_PATH:
        yield absolute
        return
    directory = os.open(path.absolute().parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
