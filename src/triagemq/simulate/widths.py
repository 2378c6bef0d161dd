"""The bandwidths of queues in the course of a run, checked: they add up to their port's and stay above their floors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from triagemq.errors import ParameterError
from triagemq.scenario import Discipline, Floats, Scenario
from triagemq.scenario.model import WIDTH_ROUNDING


def width_course(
    scenario: Scenario, classes: int, bandwidth_bps: Floats, changed_bps: Sequence[Floats | None]
) -> Floats:
    """The width of every queue, epoch by epoch and port by port: that of its class, or its port's bandwidth.

    `classes` is how many the plans use, `bandwidth_bps` has a row per epoch, and `changed_bps` are the widths that
    each later epoch begins with, None where it keeps the shares of the one before.
    """
    ports = scenario.ports
    rows = np.flatnonzero(ports.discipline == Discipline.WIDTHS)
    counts = {len(ports.widths_bps[row]) for row in rows.tolist()}
    if len(counts) > 1 or (counts and min(counts) < classes):
        name, count = min((ports.name[row], len(ports.widths_bps[row])) for row in rows.tolist())
        raise ParameterError("plan", f"has {classes} priority classes, and port {name!r} {count} widths")
    columns = max(counts, default=classes)
    now, floors = np.full((len(ports), columns), np.nan), np.zeros((len(ports), columns))
    for row in rows.tolist():
        now[row], floors[row] = ports.widths_bps[row], ports.floors_bps[row]
    course, before = [], ports.bandwidth_bps
    for bandwidth, changed in zip(bandwidth_bps, [None, *changed_bps], strict=True):
        factor = np.ones((len(ports), 1))
        factor[rows, 0] = bandwidth[rows] / before[rows]
        now, floors, before = now * factor, floors * factor, bandwidth
        if changed is not None:
            now = np.asarray(changed, dtype=np.float64)
            _check(scenario, now, floors, bandwidth)
        course.append(np.where(np.isnan(now), bandwidth[:, None], now))
    return np.array(course)


def _check(scenario: Scenario, widths: Floats, floors: Floats, bandwidth: Floats) -> None:
    ports = scenario.ports
    if widths.shape != floors.shape:
        raise ParameterError("changes.width_bps", f"has shape {widths.shape}; must be {floors.shape}")
    for row, name in enumerate(ports.name):
        own, least = widths[row], floors[row]
        if ports.discipline[row] != Discipline.WIDTHS:
            if not np.isnan(own).all():
                raise ParameterError("changes.width_bps", f"port {name!r} has no widths; its row must be NaN")
            continue
        if not (np.isfinite(own).all() and (own > 0).all()):
            raise ParameterError("changes.width_bps", f"port {name!r} must have finite, positive widths")
        if not abs(own.sum() - bandwidth[row]) <= WIDTH_ROUNDING * bandwidth[row]:
            what = f"those of port {name!r} add up to {own.sum():g} of its {bandwidth[row]:g} bit/s"
            raise ParameterError("changes.width_bps", what)
        if (own < least * (1 - WIDTH_ROUNDING)).any():
            queue = int(np.argmax(least - own))
            what = f"queue {queue} of port {name!r} gets {own[queue]:g} bit/s, below its floor of {least[queue]:g}"
            raise ParameterError("changes.width_bps", what)
