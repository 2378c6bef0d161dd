"""Every impossible argument raises a ParameterError that names it and shows the first offender."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from triagemq.errors import ParameterError
from triagemq.theory import (
    finite_buffer_loss,
    finite_buffer_sojourn,
    fragment_sizes,
    fragment_sizes_from_values,
    gg1_factor,
    merged_ca2,
    mm1_sojourn,
    on_off_ca2,
    pareto_ca2,
    priority_waits,
    served_share,
)

NAN, INF = np.nan, np.inf


def waits(**changes: object) -> object:
    arguments: dict[str, object] = {
        "arrival_rates": [0.1, 0.2],
        "mean_service": 1.0,
        "scv": 1.0,
        "classes": [0, 1],
    }
    return priority_waits(**(arguments | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "parameter", "problem"),
    [
        (lambda: mm1_sojourn(-1.0, 1.0), "arrival_rate", "is -1.0"),
        (lambda: mm1_sojourn([0.5, NAN], 1.0), "arrival_rate", "element 1 is nan"),
        (lambda: mm1_sojourn(INF, 1.0), "arrival_rate", "is inf"),
        (lambda: mm1_sojourn(1.0, [1.0, 0.0]), "service_rate", "element 1 is 0.0"),
        (lambda: mm1_sojourn(1.0, 5e-324), "service_rate", "is 5e-324"),
        (lambda: mm1_sojourn([1.0, 2.0], [1.0, 2.0, 3.0]), "service_rate", "shape (3,)"),
        (lambda: mm1_sojourn("fast", 1.0), "arrival_rate", "must hold numbers"),
        (lambda: mm1_sojourn(None, 1.0), "arrival_rate", "must hold numbers"),
        (lambda: mm1_sojourn(1j, 1.0), "arrival_rate", "must hold numbers"),
        (lambda: mm1_sojourn([[1.0], [1.0, 2.0]], 1.0), "arrival_rate", "not a regular array"),
        (lambda: waits(arrival_rates=[0.1, -0.2]), "arrival_rates", "element 1 is -0.2"),
        (lambda: waits(arrival_rates=[[0.1, 0.2]]), "arrival_rates", "shape (1, 2)"),
        (lambda: waits(mean_service=[1.0, 0.0]), "mean_service", "element 1 is 0.0"),
        (lambda: waits(mean_service=[1.0, 1e300]), "mean_service", "element 1 is 1e+300"),
        (lambda: waits(scv=[1.0, INF]), "scv", "element 1 is inf"),
        (lambda: waits(scv=[1.0]), "scv", "shape (1,)"),
        (lambda: waits(classes=[0, 0.5]), "classes", "element 1 is 0.5"),
        (lambda: waits(classes=[0, NAN]), "classes", "element 1 is nan"),
        (lambda: waits(classes=[-1, 0]), "classes", "element 0 is -1"),
        (lambda: waits(classes=[2**62, 0]), "classes", "element 0 is 4611686018427387904"),
        (lambda: waits(classes=["high", "low"]), "classes", "must hold numbers"),
        (lambda: waits(classes=0), "classes", "shape ()"),
        (lambda: waits(classes=[0]), "classes", "shape (1,)"),
        (lambda: waits(batch_topics=[1, -1]), "batch_topics", "element 1 is -1"),
        (lambda: waits(batch_topics=[1, 2, 3]), "batch_topics", "shape (3,)"),
        (lambda: waits(keep=[0.5, 1.5]), "keep", "element 1 is 1.5"),
        (lambda: waits(keep=-0.1), "keep", "is -0.1"),
        (lambda: waits(keep=[0.5, NAN]), "keep", "element 1 is nan"),
        (lambda: waits(queues=[0, -1]), "queues", "element 1 is -1"),
        (lambda: waits(queues=[0.0, 0.25]), "queues", "element 1 is 0.25"),
        (lambda: served_share([0.5, -0.1]), "loads_by_class", "element 1 is -0.1"),
        (lambda: served_share(0.5), "loads_by_class", "scalar"),
        (lambda: served_share([[0.5, NAN]]), "loads_by_class", "element (0, 1) is nan"),
        (lambda: finite_buffer_loss([0.5, NAN], 5), "loads_by_class", "element 1 is nan"),
        (lambda: finite_buffer_loss([0.5], 0), "buffer_packets", "is 0"),
        (lambda: finite_buffer_loss([0.5], 0.5), "buffer_packets", "is 0.5"),
        (lambda: finite_buffer_loss([0.5], NAN), "buffer_packets", "is nan"),
        (lambda: finite_buffer_loss([0.5], -INF), "buffer_packets", "is -inf"),
        (lambda: finite_buffer_loss(np.ones((3, 2)), [1, 2]), "buffer_packets", "shape (2,)"),
        (lambda: finite_buffer_sojourn(-0.5, 5, 1.0), "load", "is -0.5"),
        (lambda: finite_buffer_sojourn(0.5, 0, 1.0), "buffer_packets", "is 0"),
        (lambda: finite_buffer_sojourn(0.5, 5, 0.0), "mean_service", "is 0.0"),
        (lambda: finite_buffer_sojourn([0.5, 0.6], 5, [1.0, 1.0, 1.0]), "mean_service", "shape (3,)"),
        (lambda: gg1_factor(-1.0, 1.0), "ca2", "is -1.0"),
        (lambda: gg1_factor(1.0, INF), "cs2", "is inf"),
        (lambda: merged_ca2([1.0, -1.0], 1.0, [0.5], [0, 0]), "arrival_rates", "element 1 is -1.0"),
        (lambda: merged_ca2([1.0], [NAN], [0.5], [0]), "ca2", "element 0 is nan"),
        (lambda: merged_ca2([1.0], 1.0, [[0.5]], queues=[0]), "load", "one-dimensional"),
        (lambda: merged_ca2([1.0, 1.0], 1.0, [0.5], queues=[0, 3]), "queues", "element 1 is 3"),
        (lambda: merged_ca2([1.0], 1.0, [0.5], queues=[0, 0]), "queues", "shape (2,)"),
        (lambda: pareto_ca2(0.0), "shape", "is 0.0"),
        (lambda: on_off_ca2(-1.0, 1.0, 1.0), "rate_per_second", "is -1.0"),
        (lambda: on_off_ca2(1.0, 0.0, 1.0), "on_seconds", "is 0.0"),
        (lambda: on_off_ca2(1.0, 1.0, -1.0), "off_seconds", "is -1.0"),
        (lambda: fragment_sizes(100.0, "uniform", 1500, 40), "kind", "'uniform'"),  # type: ignore[arg-type]
        (lambda: fragment_sizes(0.0, "exponential", 1500, 40), "mean_bytes", "is 0.0"),
        (lambda: fragment_sizes([1.0, -1.0], "constant", 1500, 40), "mean_bytes", "element 1 is -1.0"),
        (lambda: fragment_sizes(100.0, "constant", 40, 40), "mtu_bytes", "no room"),
        (lambda: fragment_sizes(100.0, "constant", [50, 30], 40), "mtu_bytes", "is 30.0"),
        (lambda: fragment_sizes(100.0, "constant", 1500, -1), "overhead_bytes", "is -1"),
        (lambda: fragment_sizes_from_values([1.0, NAN], 1.0, 100, 0), "values_bytes", "element 1 is nan"),
        (lambda: fragment_sizes_from_values([1.0, 2.0], [1.0], 100, 0), "weights", "shape (1,)"),
        (lambda: fragment_sizes_from_values([1.0], [0.0], 100, 0), "weights", "sum to 0"),
        (lambda: fragment_sizes_from_values([], [], 100, 0), "weights", "sum to 0"),
        (lambda: fragment_sizes_from_values([1.0], [1.0], [100], 0), "mtu_bytes", "must be a scalar"),  # type: ignore[arg-type]
    ],
)
def test_impossible_argument_is_named_with_its_first_offender(
    call: Callable[[], object], parameter: str, problem: str
) -> None:
    with pytest.raises(ParameterError) as caught:
        call()
    assert caught.value.parameter == parameter
    assert problem in caught.value.problem


def test_whole_numbers_in_a_float_array_are_classes() -> None:
    assert priority_waits([0.25, 0.5], 1.0, 1.0, np.array([0.0, 1.0])).tolist() == [1.0, 4.0]


def test_extreme_but_legal_arguments_give_numbers_and_no_warning() -> None:
    for rate, service in ((1e50, 1e50), (1e-50, 1e50), (1e50, 1e-50), (0.0, 1e50)):
        for scv in (0.0, 1e50):
            result = priority_waits(
                [rate, rate, 0.1],
                [service, service, 1.0],
                scv,
                [0, 1, 1],
                batch_topics=[0, 0, 1],
            )
            assert not np.isnan(result).any()
    assert not np.isnan(finite_buffer_loss([1e50, 0.0, 1e-50], [1, 1e50, INF])).any()
    assert not np.isnan(finite_buffer_sojourn([[0.0], [1e-50], [1.0], [1e50]], [1, 1e50, INF], 1.0)).any()
    assert not np.isnan(
        fragment_sizes([1e-50, 1e50], "exponential", [[1e-50], [1e50]], 0).wire_bytes_scv
    ).any()


def test_arguments_are_not_changed() -> None:
    rates, classes = np.array([0.25, 0.5]), np.array([0, 1])
    priority_waits(rates, 1.0, 1.0, classes, batch_topics=classes, queues=classes)
    merged_ca2(rates, rates, [0.5, 0.5], classes)
    finite_buffer_loss(rates, 3)
    assert rates.tolist() == [0.25, 0.5]
    assert classes.tolist() == [0, 1]
