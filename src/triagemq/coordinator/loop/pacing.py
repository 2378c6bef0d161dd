"""When to plan: requests are gathered, so that a storm of changes makes few plans and a single change waits little.

Pure: the caller tells the time, in seconds of any clock that does not go back.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Pacing"]

MOST_REASONS = 20
"""Reasons kept of one gathering; the others are counted."""


@dataclass(slots=True)
class Pacing:
    """Gathers requests to plan. The first after a quiet time waits `gather_seconds`; plans are `apart_seconds` apart.

    >>> pacing = Pacing(gather_seconds=0.05, apart_seconds=0.5)
    >>> pacing.request(10.0, "ff-7 joins"); pacing.request(10.01, "ff-8 joins")
    >>> pacing.due(10.0), pacing.due(10.05), pacing.wait_seconds(10.0)
    (False, True, 0.05...)
    >>> pacing.take(10.05)
    ('ff-7 joins', 'ff-8 joins')
    >>> pacing.request(10.1, "ff-9 joins"); pacing.due(10.2), pacing.due(10.55)
    (False, True)
    """

    gather_seconds: float = 0.05
    apart_seconds: float = 0.5
    _due_at: float | None = None
    _last_taken: float | None = None
    _reasons: dict[str, None] = field(default_factory=dict)
    _unnamed: int = 0

    def request(self, now: float, reason: str) -> None:
        """Ask for a plan; a reason that is known already is not kept twice."""
        if self._due_at is None:
            earliest = now if self._last_taken is None else self._last_taken + self.apart_seconds
            self._due_at = max(now + self.gather_seconds, earliest)
        if reason in self._reasons:
            return
        if len(self._reasons) < MOST_REASONS:
            self._reasons[reason] = None
        else:
            self._unnamed += 1

    def due(self, now: float) -> bool:
        """Whether a plan should be made now."""
        return self._due_at is not None and now >= self._due_at

    def wait_seconds(self, now: float) -> float | None:
        """How long until a plan is due; None while nobody has asked for one."""
        return None if self._due_at is None else max(self._due_at - now, 0.0)

    def take(self, now: float) -> tuple[str, ...]:
        """The reasons gathered, for the plan that is made now; the gathering starts anew."""
        reasons = [*self._reasons, *([f"{self._unnamed} more changes"] if self._unnamed else [])]
        self._reasons, self._unnamed = {}, 0
        self._due_at, self._last_taken = None, now
        return tuple(reasons)
