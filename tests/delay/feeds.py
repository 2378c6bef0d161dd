"""Samples of queues of which everything is known: packets of 1000 bytes that come in at each window's begin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triagemq.delay.estimators import Estimator
from triagemq.delay.samples import INTERVAL_SECONDS, Samples

PACKET_BYTES = 1000
WIDTH_BPS = 8e6
"""A window of 200 ms sends 200 packets."""

SENT_PER_WINDOW = 200


def queue_feed(
    packets: ArrayLike,
    counters: str = "linux",
    *,
    width_bps: ArrayLike = WIDTH_BPS,
    buffer_packets: int = 10**9,
) -> Samples:
    """A queue that sends its width, holds so many packets after each window, and drops the rest; it starts empty."""
    arrivals = np.asarray(packets, np.int64)
    queue_rates = np.broadcast_to(np.asarray(width_bps, np.float64), len(arrivals) + 1)
    can_send = (np.minimum(queue_rates[1:], 1e15) * INTERVAL_SECONDS / 8 / PACKET_BYTES).astype(np.int64)
    backlog, sent, dropped = (np.zeros(len(arrivals), np.int64) for _ in range(3))
    held = 0
    for window, came in enumerate(arrivals):
        sent[window] = min(held + came, can_send[window])
        left = held + came - sent[window]
        held = backlog[window] = min(left, buffer_packets)
        dropped[window] = left - held
    return Samples.of(
        {
            "sampled_ns": np.arange(len(arrivals) + 1) * 200_000_000,
            "width_bps": queue_rates,
            "packets_in": _total(arrivals),
            "bytes_in": PACKET_BYTES * _total(arrivals),
            "packets_out": _total(sent),
            "bytes_out": PACKET_BYTES * _total(sent),
            "drops": _total(dropped),
            "backlog_packets": np.append(0, backlog),
            "backlog_bytes": PACKET_BYTES * np.append(0, backlog),
        },
        counters,
    )


def constant_backlog(packets: int, windows: int) -> NDArray[np.int64]:
    """What comes to a queue of WIDTH_BPS that then holds so many packets for all windows but the first."""
    return np.append(packets + SENT_PER_WINDOW, np.full(windows - 1, SENT_PER_WINDOW))


def restarted(*parts: Samples) -> Samples:
    """One feed after another: the switch begins to count anew."""
    columns: dict[str, Any] = {}
    for name in Samples.__dataclass_fields__:
        values = [getattr(part, name) for part in parts]
        if values[0] is not None:
            columns[name] = np.concatenate(values)
    lengths = [len(part) for part in parts]
    columns["sampled_ns"] = np.arange(sum(lengths)) * 200_000_000
    return Samples.of(columns, parts[0].counters)


def fed(estimator: Estimator, samples: Samples) -> list[tuple[float, float]]:
    """What it says after each sample, of now and of what is next."""
    said = []
    for sample in samples:
        estimator.feed(sample)
        said.append((estimator.now_seconds, estimator.next_seconds))
    return said


def _total(increments: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    return np.append(0, np.cumsum(increments))
