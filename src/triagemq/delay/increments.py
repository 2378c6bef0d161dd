"""What the counters of a queue gained between two samples, whatever happened to samples and switch in between."""

from __future__ import annotations

from dataclasses import dataclass, replace

from triagemq.delay.samples import Sample


@dataclass(frozen=True, slots=True)
class Increment:
    """What was counted since the sample before. `restarted`: the switch was, and its queue began empty."""

    seconds: float
    bytes_in: int
    packets_in: int
    bytes_out: int
    packets_out: int
    drops: int
    dropped_bytes: float
    restarted: bool

    @property
    def silent(self) -> bool:
        """Nothing came and nothing went: a queue that can count on its width holds nothing then."""
        return self.packets_in == 0 and self.packets_out == 0


class Increments:
    """Turns samples into increments. A sample that is not later than the one before is none.

    What came in never falls but for a restart: then all counters show what they have gained. What went out may fall
    alone, since it may be read a little earlier than the last time: then it has gained nothing.

    >>> increments = Increments()
    >>> increments.after(Sample(0, 500, 5, 400, 4, 0, 8e6)) is None
    True
    >>> gained = increments.after(Sample(200_000_000, 1500, 15, 1000, 10, 2, 8e6))
    >>> gained.bytes_in, gained.bytes_out, gained.dropped_bytes
    (1000, 600, 200.0)
    >>> increments.after(Sample(400_000_000, 300, 3, 100, 1, 0, 8e6)).bytes_in
    300
    """

    def __init__(self) -> None:
        self._last: Sample | None = None
        self._packet_bytes = 0.0

    def after(self, sample: Sample) -> Increment | None:
        """What was gained with this sample; None for the first one."""
        last = self._last
        if last is None:
            self._last = sample
            return None
        if sample.sampled_ns <= last.sampled_ns:
            return None
        restarted = sample.bytes_in < last.bytes_in or sample.packets_in < last.packets_in
        base = Sample(last.sampled_ns, 0, 0, 0, 0, 0, last.width_bps) if restarted else last
        # The highest seen is what the next gains on: else it would gain once more what was there already.
        self._last = replace(
            sample,
            bytes_out=max(sample.bytes_out, base.bytes_out),
            packets_out=max(sample.packets_out, base.packets_out),
            drops=max(sample.drops, base.drops),
        )
        bytes_in, packets_in = sample.bytes_in - base.bytes_in, sample.packets_in - base.packets_in
        if packets_in:
            self._packet_bytes = bytes_in / packets_in
        drops = self._last.drops - base.drops
        return Increment(
            seconds=(sample.sampled_ns - last.sampled_ns) * 1e-9,
            bytes_in=bytes_in,
            packets_in=packets_in,
            bytes_out=self._last.bytes_out - base.bytes_out,
            packets_out=self._last.packets_out - base.packets_out,
            drops=drops,
            dropped_bytes=drops * self._packet_bytes,
            restarted=restarted,
        )
