"""How the coordinator itself is doing: what works now, with since when and why not if not, and what it has counted.

What may work or not is writing, planning, the gateway, the broker and the plan.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import Histogram, disable_created_metrics

from triagemq.plan import Decision

# The time at which counting began is of no use: a restart shows in the counts.
disable_created_metrics()  # type: ignore[no-untyped-call]

PROMISE_DECISIONS = ("admitted", "refused", "released")

_PLAN_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)


@dataclass(slots=True)
class Check:
    """Whether something works, by the last attempt. `reason` is empty while it does.

    >>> writing = Check()
    >>> writing.failed("disk full", now=5.0); writing.failed("disk full", now=6.0)
    >>> writing.as_json(now=7.0)
    {'ok': False, 'reason': 'disk full', 'for_seconds': 2.0}
    >>> writing.worked(now=8.0); writing.ok
    True
    """

    reason: str = ""
    since: float = field(default_factory=time.monotonic)
    words: str = ""
    """What it means without the details that only operators should see."""
    is_implied: bool = False
    """Whether it fails only because of what another check says."""

    @property
    def ok(self) -> bool:
        return not self.reason

    def worked(self, now: float | None = None) -> None:
        self._is("", now)

    def failed(self, reason: str, now: float | None = None) -> None:
        self._is(reason or "it failed", now)

    def _is(self, reason: str, now: float | None) -> None:
        if (not reason) != self.ok:
            self.since = time.monotonic() if now is None else now
        self.reason = reason

    def as_json(self, now: float | None = None, *, in_detail: bool = True) -> dict[str, Any]:
        """For the REST interface; without details the reason is the general one."""
        shown = None if self.ok else self.reason if in_detail or not self.words else self.words
        now = time.monotonic() if now is None else now
        return {"ok": self.ok, "reason": shown, "for_seconds": max(0.0, now - self.since)}


def health_of(checks: dict[str, Check], *, in_detail: bool) -> dict[str, Any]:
    """`status` and `checks`: ok only if everything is.

    What is implied by another check is no news: while a gateway is away its broker is not known, for one.
    """
    failing = [each.words or each.reason for each in checks.values() if not each.ok and not each.is_implied]
    return {
        "status": "; ".join(failing) or "ok",
        "checks": {name: each.as_json(in_detail=in_detail) for name, each in checks.items()},
    }


@dataclass(slots=True)
class Metrics:
    """What the coordinator itself has counted since its start."""

    plan_seconds: Histogram = field(
        default_factory=lambda: Histogram(
            "triage_plan_seconds", "Time to make a plan.", buckets=_PLAN_SECONDS, registry=None
        )
    )
    plans: int = 0
    plans_unchanged: int = 0
    plans_refused: int = 0
    promises: Counter[str] = field(default_factory=Counter)
    """Decisions about promises by kind: admitted, refused, released."""
    gateway_connections: Counter[str] = field(default_factory=Counter)
    """By the name of the gateway."""

    def count_decisions(self, decisions: Iterable[Decision]) -> None:
        """Count those about promises."""
        self.promises.update(each.kind for each in decisions if each.kind in PROMISE_DECISIONS)
