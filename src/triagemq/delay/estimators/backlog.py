"""backlog: what the queue holds, where the switch shows it, over the width."""

from __future__ import annotations

from triagemq.delay.estimators.contract import drained_seconds
from triagemq.delay.samples import Sample
from triagemq.errors import ParameterError


class Backlog:
    """The time in which what is there has left.

    In the window that ended, the mean of what its two ends hold; in the next, what the last one holds. It sees nothing
    between two samples, and takes the width as what the queue gets: where queues borrow from others it says too much.

    >>> backlog = Backlog()
    >>> backlog.feed(Sample(0, 9000, 9, 5000, 5, 0, 8e6, backlog_bytes=4000, backlog_packets=4))
    >>> backlog.feed(Sample(200_000_000, 9000, 9, 9000, 9, 0, 8e6, backlog_bytes=0, backlog_packets=0))
    >>> backlog.now_seconds, backlog.next_seconds
    (0.002, 0.0)
    """

    def __init__(self) -> None:
        self._before_seconds = 0.0
        self._seconds = 0.0

    def feed(self, sample: Sample) -> None:
        if sample.backlog_bytes is None:
            raise ParameterError(
                "backlog", "this switch does not show what its queues hold; take idm or learned"
            )
        self._before_seconds = self._seconds
        self._seconds = drained_seconds(sample.backlog_bytes, sample.width_bps)

    @property
    def now_seconds(self) -> float:
        return 0.5 * (self._before_seconds + self._seconds)

    @property
    def next_seconds(self) -> float:
        return self._seconds
