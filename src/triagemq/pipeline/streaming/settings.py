"""What the windows of a stream are: how long, how often, and how long they wait for events that come late."""

from __future__ import annotations

import math
from dataclasses import dataclass

from triagemq.errors import ParameterError
from triagemq.pipeline.rate_windows import LONG_NS
from triagemq.pipeline.streaming.events import FOREVER_NS
from triagemq.trace.blocks import NEVER_NS


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """What the rows of a stream's table depend on, besides its events."""

    source: str
    window_seconds: float = 2.0
    slide_seconds: float = 1.0
    watermark_seconds: float = 2.0

    def __post_init__(self) -> None:
        for name in ("window_seconds", "slide_seconds", "watermark_seconds"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0 and (value > 0 or name == "watermark_seconds")):
                raise ParameterError(name, f"must be a positive number of seconds, is {value}")
            if abs(value * 1000 - round(value * 1000)) > 1e-6:
                raise ParameterError(name, f"must be whole milliseconds, is {value}")
        if self.window_ns % self.slide_ns:
            raise ParameterError("slide_seconds", "must go a whole number of times into window_seconds")

    @property
    def window_ns(self) -> int:
        """Length of the sliding windows."""
        return round(self.window_seconds * 1000) * 1_000_000

    @property
    def slide_ns(self) -> int:
        """From the beginning of one sliding window to that of the next."""
        return round(self.slide_seconds * 1000) * 1_000_000

    @property
    def delay_ns(self) -> int:
        """How far the watermark is behind the latest event."""
        return round(self.watermark_seconds * 1000) * 1_000_000

    @property
    def cell_ns(self) -> int:
        """Length of a cell.

        >>> StreamSettings("x", window_seconds=1.5, slide_seconds=0.3).cell_ns
        100000000
        """
        return math.gcd(self.slide_ns, LONG_NS)

    def closed_ns(self, watermark_ms: int) -> int:
        """The end of the last cell that the watermark has passed; FOREVER_NS if no event will come any more."""
        if watermark_ms <= 0:
            return NEVER_NS  # Spark has none yet
        passed = watermark_ms * 1_000_000
        if passed >= FOREVER_NS - self.delay_ns - 1_000_000:
            return FOREVER_NS
        return passed // self.cell_ns * self.cell_ns

    def needed_ns(self, closed_ns: int) -> int:
        """Cells from here on are part of windows that are not closed yet."""
        return min(closed_ns // LONG_NS * LONG_NS, closed_ns - self.window_ns)

    @property
    def open_ns(self) -> int:
        """For how long after an event windows with it may be open."""
        return max(self.window_ns, LONG_NS) + self.delay_ns + 2 * self.cell_ns
