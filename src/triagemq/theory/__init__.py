"""Queueing formulas as pure functions over NumPy arrays.

Rates are per second and service times in seconds, or any other consistent pair. Class 0 is the highest
priority. A wait ends when service starts; a sojourn ends when it is complete. No finite mean is `inf`.

- Arguments are checked by `validate`; `ladder` sums over the classes of many queues at once.
- Means: `waits`, and `fragments`, the packets of events that are cut; `variability` of arrivals that are not Poisson;
  `overload` and full buffers.
- Beyond means: `cumulants` add up along a path, `spread` has those of a queue, `percentiles` follow from them.
- Worst cases: `worst_case` bounds delays at a port and jitter along a path, by `busy_period`; `priority_assignment`
  finds classes that keep deadlines.
- `interval` is how sure a measured mean is.
"""

from __future__ import annotations

from triagemq.theory.cumulants import Cumulants
from triagemq.theory.fragments import FragmentSizes, fragment_sizes, fragment_sizes_from_values
from triagemq.theory.overload import finite_buffer_loss, finite_buffer_sojourn, served_share
from triagemq.theory.percentiles import LatencyDistribution, mixture_percentile, percentile, share_within
from triagemq.theory.priority_assignment import ClassAssignment, assign_classes
from triagemq.theory.spread import queue_times, sojourn_times
from triagemq.theory.thinning import held_back_seconds, thinned_rate
from triagemq.theory.variability import (
    chance_of_variability,
    gg1_factor,
    merged_ca2,
    on_off_ca2,
    pareto_ca2,
)
from triagemq.theory.waits import Work, check_batches, mean_waits, mm1_sojourn, priority_waits
from triagemq.theory.worst_case import PathArrivals, delay_bounds, path_arrivals

__all__ = [
    "ClassAssignment",
    "Cumulants",
    "FragmentSizes",
    "LatencyDistribution",
    "PathArrivals",
    "Work",
    "assign_classes",
    "chance_of_variability",
    "check_batches",
    "delay_bounds",
    "finite_buffer_loss",
    "finite_buffer_sojourn",
    "fragment_sizes",
    "fragment_sizes_from_values",
    "gg1_factor",
    "held_back_seconds",
    "mean_waits",
    "merged_ca2",
    "mixture_percentile",
    "mm1_sojourn",
    "on_off_ca2",
    "pareto_ca2",
    "path_arrivals",
    "percentile",
    "priority_waits",
    "queue_times",
    "served_share",
    "share_within",
    "sojourn_times",
    "thinned_rate",
]
