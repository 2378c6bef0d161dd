"""A token bucket, without a clock: how much of a flow may still pass."""

from __future__ import annotations

from triagemq.plan import SetLimiter

# Sums of rounded numbers may lack so much of what is exactly enough.
_ROUNDED_BYTES = 1e-6


class Bucket:
    """Full at first. Tokens are bytes; those of the time between two packets are counted when the second comes.

    >>> from triagemq.plan import FlowKey
    >>> bucket = Bucket(SetLimiter(FlowKey("10.0.0.1", 1), 200.0, 1000.0), 0)
    >>> [bucket.take(100, 0) for _ in range(3)], bucket.take(100, 100_000_000)
    ([True, True, False], True)
    """

    __slots__ = ("_burst_bytes", "_bytes_per_ns", "_seen_ns", "_tokens")

    def __init__(self, limiter: SetLimiter, now_ns: int) -> None:
        self._seen_ns = now_ns
        self._tokens = self._burst_bytes = limiter.burst_bytes
        self._bytes_per_ns = limiter.rate_bytes_per_second * 1e-9

    def configure(self, limiter: SetLimiter, now_ns: int) -> None:
        """What is in the bucket stays, up to the new burst."""
        self.take(0, now_ns)
        self._burst_bytes = limiter.burst_bytes
        self._bytes_per_ns = limiter.rate_bytes_per_second * 1e-9
        self._tokens = min(self._tokens, self._burst_bytes)

    def take(self, wire_bytes: int, now_ns: int) -> bool:
        """Whether a packet passes."""
        tokens = min(self._tokens + (now_ns - self._seen_ns) * self._bytes_per_ns, self._burst_bytes)
        self._seen_ns = now_ns
        if passes := wire_bytes <= tokens + _ROUNDED_BYTES:
            tokens -= wire_bytes
        self._tokens = tokens
        return passes
