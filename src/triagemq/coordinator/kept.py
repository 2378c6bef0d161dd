"""What a gateway was told last, kept in its state directory: it starts with that, with or without a coordinator.

A file is replaced as a whole. The grants hold keys, so only this user may read them.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from triagemq.coordinator.control_lines import decode_line
from triagemq.coordinator.grants import Grants, grants_from_json
from triagemq.coordinator.orders import Orders
from triagemq.coordinator.orders_change import changed_orders
from triagemq.coordinator.orders_json import orders_from_json
from triagemq.errors import OutputError, TriageError

__all__ = ["keep_change", "keep_grants", "keep_orders", "kept_grants", "kept_orders"]

Kind = TypeVar("Kind")


def keep_change(directory: Path, line: bytes) -> None:
    """Keep a change of the orders that are kept, behind them."""
    path = directory / "orders.json"
    try:
        with path.open("ab") as file:
            file.write(line)
    except OSError as error:
        raise _unkept(path, error) from error


def keep_orders(directory: Path, line: bytes) -> None:
    """Keep a request for orders as it came: to write megabytes anew would hold up packets."""
    _replace(directory / "orders.json", line)


def keep_grants(directory: Path, line: bytes) -> None:
    """Keep grants as they came."""
    _replace(directory / "grants.json", line)


def kept_orders(directory: Path) -> Orders:
    """The last orders, or none."""
    return _read(directory / "orders.json", _orders) or Orders()


def kept_grants(directory: Path) -> Grants:
    """The last grants; if there were any that cannot be read, nobody is let in until there are new ones."""
    path = directory / "grants.json"
    found = _read(path, lambda line: grants_from_json(decode_line(line)))
    return found or Grants(required=path.exists())


def _orders(lines: bytes) -> Orders:
    first, *changes = lines.splitlines(keepends=True)
    orders = orders_from_json(decode_line(first).get("orders"))
    for line in changes:
        if line.endswith(b"\n"):  # or it was being written when the gateway was killed
            orders = changed_orders(orders, decode_line(line).get("change"))[0]
    return orders


def _read(path: Path, parse: Callable[[bytes], Kind]) -> Kind | None:
    try:
        return parse(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, TriageError) as error:
        # Starting without it is better than not starting: the coordinator sends everything again.
        print(f"{path}: cannot be used, going on without it: {error}", file=sys.stderr, flush=True)
        return None


def _replace(path: Path, line: bytes) -> None:
    new = path.with_suffix(".new")
    try:
        with contextlib.closing(
            os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
        ) as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError as error:
        raise _unkept(path, error) from error


def _unkept(path: Path, error: OSError) -> OutputError:
    return OutputError(f"{path}: {error.strerror or error}; make room, or choose another directory")
