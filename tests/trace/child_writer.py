"""A run in a process of its own, to be killed: child_writer.py DIRECTORY MILLISECONDS [FILE_SIZE_LIMIT]."""

from __future__ import annotations

import resource
import sys
import time

import numpy as np

from triagemq.errors import OutputError
from triagemq.trace import TABLES, TraceWriter

ROWS_PER_CALL = 2000


def main(directory: str, milliseconds: int, file_size_limit: int | None) -> None:
    """Write publications with ids 0, 1, 2, ... for some time, then finish."""
    if file_size_limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_size_limit, resource.RLIM_INFINITY))
    random = np.random.default_rng(1)
    print("ready", flush=True)
    with TraceWriter(
        directory, scenario_text="s", plan_text="p", producer="child", row_group_rows=5000, rotate_rows=20_000
    ) as writer:
        end = time.monotonic() + milliseconds / 1000
        first = 0
        while time.monotonic() < end:
            columns = {
                name: random.integers(0, 2**31 - 1, ROWS_PER_CALL) for name in TABLES["publications"].names
            }
            writer.publications(columns | {"publication_id": np.arange(first, first + ROWS_PER_CALL)})
            first += ROWS_PER_CALL
        writer.finish(measured_from_ns=0, extra={"rows": first})
    print("finished", flush=True)


if __name__ == "__main__":
    try:
        main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
    except OutputError as error:
        sys.exit(str(error))
