"""How fast deliveries are written, and at which cost: run it by hand, nothing is asserted.

python tests/trace/write_speed.py [MILLIONS_OF_ROWS]
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from triagemq.trace import Trace, TraceWriter

ROWS_PER_CALL = 1_000_000
COPIES = 10


def deliveries(seed: int) -> dict[str, np.ndarray]:
    """Deliveries as a simulator makes them: ten copies per publication, random delays, a third lost."""
    random = np.random.default_rng(seed)
    publications = ROWS_PER_CALL // COPIES
    published = np.repeat(np.cumsum(random.exponential(1e6, publications)).astype(np.int64), COPIES)
    topic = np.repeat(random.integers(0, 500, publications, dtype=np.int32), COPIES)
    subscriber = np.tile(np.arange(COPIES, dtype=np.int32), publications)
    outcome = random.choice(8, ROWS_PER_CALL, p=[0.7, 0.2, 0.06, 0.01, 0.01, 0.01, 0.005, 0.005]).astype(
        np.int8
    )
    enqueued = published + random.exponential(2e6, ROWS_PER_CALL).astype(np.int64)
    dequeued = enqueued + random.exponential(5e7, ROWS_PER_CALL).astype(np.int64)
    return {
        "publication_id": np.repeat(np.arange(publications), COPIES),
        "subscription_id": topic * COPIES + subscriber,
        "subscriber_id": subscriber,
        "topic_id": topic,
        "flow_id": subscriber * 20 + topic % 20,
        "priority_class": topic % 9,
        "published_ns": published,
        "enqueued_ns": np.where(outcome == 1, -1, enqueued),
        "dequeued_ns": np.where(outcome == 0, dequeued, -1),
        "delivered_ns": np.where(outcome == 0, dequeued + 1_000_000, -1),
        "size_bytes": np.repeat(random.integers(50, 1000, publications, dtype=np.int32), COPIES),
        "outcome": outcome,
    }


def main(millions: int) -> None:
    """Write, then read, and print what each took."""
    columns = deliveries(seed=1)
    with tempfile.TemporaryDirectory() as directory:
        wall, processor = time.perf_counter(), time.process_time()
        caller = 0.0
        with TraceWriter(
            Path(directory) / "run", scenario_text="", plan_text=None, producer="speed"
        ) as writer:
            for _ in range(millions):
                before = time.thread_time()
                writer.deliveries(columns)
                caller += time.thread_time() - before
            manifest = writer.finish(measured_from_ns=0)
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        size_bytes = sum(part.size_bytes for part in manifest.tables["deliveries"])
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        rows = millions * ROWS_PER_CALL
        print(
            f"written   {rows / wall / 1e6:.2f} million rows/s, {rows / processor / 1e6:.2f} per CPU second"
        )
        print(f"          caller's thread {caller / millions * 1e3:.1f} ms per million rows")
        print(f"          {size_bytes / 1e6:.0f} MB, {size_bytes / rows:.1f} bytes/row; peak {peak:.0f} MiB")
        start = time.perf_counter()
        total = sum(Trace.open(Path(directory) / "run").counts().values())
        print(f"counted   {total / (time.perf_counter() - start) / 1e6:.1f} million rows/s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
