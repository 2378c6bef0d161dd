"""Thresholds and times of balancing, with what PEER-WD prints where it prints something."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Parts of a capacity: below `low` a broker takes more, above `high` it has too much (PEER-WD 4.2.3).

    The uplink of an edge has no upper threshold. `full` is how far clients of others may fill it: predictions miss by
    hundredths, and beyond all of it queues would grow.
    """

    low: float = 0.9
    high: float = 0.95
    full: float = 0.98


@dataclass(frozen=True, slots=True)
class BalancingSettings:
    """How our balancing goes about.

    A balancing that is not completed after `timeout_seconds` is over; its broker begins no other for `rest_seconds`,
    in which queues may shrink; and who has moved stays for `stay_seconds`. Where two brokers serve a client that moves,
    the old one is relieved of it after `relief_seconds`, until balancings have shown how long that takes.
    """

    thresholds: Thresholds = field(default_factory=Thresholds)
    interval_seconds: float = 1.0
    timeout_seconds: float = 10.0
    rest_seconds: float = 5.0
    stay_seconds: float = 60.0
    relief_seconds: float = 0.0
