"""Controllers: queue rates keep floors and add up whatever comes, needs are kept, constraints hold along paths."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triagemq.delay.constraints import Administrator, Requirement
from triagemq.delay.control import ControlledPort, PortController
from triagemq.delay.estimators import Estimator, make_estimator
from triagemq.delay.samples import Sample
from triagemq.errors import ParameterError

PAPER = ControlledPort("sw1", (60_000_000, 30_000_000, 10_000_000), (30_000_000, 10_000_000, 2_000_000))
BUFFER_BYTES = 920_000


def _idm() -> Estimator:
    return make_estimator("idm", "openflow")


class _Fluid:
    """Queues into which bytes flow evenly, each drained at its width: what a switch would show of them."""

    def __init__(self, controller: PortController) -> None:
        self.controller = controller
        self.held = [0.0] * len(controller.width_bps)
        self._totals = [[0.0, 0.0, 0.0] for _ in self.held]
        self._now_ns = 0

    def period(self, offered_bps: list[float]) -> None:
        self._now_ns += 200_000_000
        samples = []
        for queue, offered in enumerate(offered_bps):
            came, width = offered * 0.2 / 8, self.controller.width_bps[queue]
            went = min(self.held[queue] + came, width * 0.2 / 8)
            left = self.held[queue] + came - went
            lost = max(0.0, left - BUFFER_BYTES)
            self.held[queue] = left - lost
            totals = self._totals[queue]
            for place, more in enumerate((came, went, lost)):
                totals[place] += more
            came, went, lost = (int(total) for total in totals)
            samples.append(
                Sample(self._now_ns, came, came // 1000, went, went // 1000, lost // 1000, float(width))
            )
        self.controller.feed(samples)


@settings(max_examples=60, deadline=None)
@given(
    queue_rates=st.lists(st.integers(100, 10**8), min_size=1, max_size=5),
    floor=st.floats(0.01, 1.0),
    constraint=st.sampled_from([None, 0.001, 0.05]),
    data=st.data(),
)
def test_over_random_loads_queue_rates_stay_above_floors_and_add_up(
    queue_rates: list[int], floor: float, constraint: float | None, data: st.DataObject
) -> None:
    port = ControlledPort("p", tuple(queue_rates), tuple(max(1, int(floor * width)) for width in queue_rates))
    controller = PortController(port, _idm)
    fluid = _Fluid(controller)
    load = st.lists(st.floats(0, 3e8), min_size=len(queue_rates), max_size=len(queue_rates))
    for _ in range(data.draw(st.integers(1, 12))):
        controller.constrain({} if constraint is None else {0: constraint})
        fluid.period(data.draw(load))
        assert sum(controller.width_bps) == sum(queue_rates)
        assert all(width >= least for width, least in zip(controller.width_bps, port.floor_bps, strict=True))


def test_a_queue_that_keeps_up_with_what_comes_does_not_lose_its_width_to_full_ones() -> None:
    fluid = _Fluid(PortController(PAPER, _idm))
    for _ in range(50):
        fluid.period([56e6, 56e6, 56e6])
        assert fluid.controller.width_bps[0] >= 56e6
    assert fluid.held[0] == 0.0
    assert fluid.controller.width_bps[1] > 30e6


def test_a_load_that_fits_the_port_fits_its_queues_soon() -> None:
    fluid = _Fluid(PortController(PAPER, _idm))
    for _ in range(25):
        fluid.period([30e6, 25e6, 30e6])
    assert fluid.held == [0.0, 0.0, 0.0]
    queue_rates = list(fluid.controller.width_bps)
    for _ in range(25):
        fluid.period([30e6, 25e6, 30e6])
    assert list(fluid.controller.width_bps) == queue_rates


def test_a_port_is_fed_a_sample_of_each_queue() -> None:
    with pytest.raises(ParameterError, match="samples: of sw1 are 1 for 3 queues"):
        PortController(PAPER, _idm).feed([Sample(0, 0, 0, 0, 0, 0, 1e6)])


def test_a_constraint_is_held_as_long_as_it_fits_and_named_when_it_does_not() -> None:
    controller = PortController(PAPER, lambda: make_estimator("backlog", "linux"))
    held_bytes, instants = 50_000, itertools.count(0, 200_000_000)

    def cannot_hold() -> tuple[int, ...]:
        now_ns, width_bps = next(instants), controller.width_bps
        held = [
            Sample(now_ns, 0, 0, 0, 0, 0, width, held_bytes * (queue == 1), 0)
            for queue, width in enumerate(width_bps)
        ]
        return controller.feed(held).cannot_hold

    controller.constrain({1: 0.01})
    assert [cannot_hold() for _ in range(20)] == [()] * 20
    assert controller.width_bps[1] >= 8 * held_bytes / 0.01 * (1 - 1e-9)
    controller.constrain({1: 0.001})
    assert cannot_hold() == (1,)


SMALLEST = {"n1": 0.001, "n2": 0.001, "s1": 0.001}


def test_a_requirement_constrains_all_switches_of_its_path() -> None:
    administrator = Administrator(reserve=0.0)
    administrator.require([Requirement("hut", ("n1", "n2", "s1"), 0, 0.030)], SMALLEST)
    assert list(administrator.seconds.values()) == [0.01, 0.01, 0.01]
    administrator.adjust({("n1", 0): 0.02, ("n2", 0): 0.01, ("s1", 0): 0.03})
    assert list(administrator.seconds.values()) == pytest.approx([0.005] * 3)


def test_the_last_delays_of_a_switch_count_where_it_does_not_report() -> None:
    administrator = Administrator(reserve=0.0)
    administrator.require([Requirement("hut", ("n1", "s1"), 0, 0.020)], SMALLEST)
    administrator.adjust({("n1", 0): 0.08})
    assert administrator.seconds["n1", 0] == pytest.approx(0.0025)


def test_an_impossible_requirement_is_refused_once_and_an_unreachable_one_waits() -> None:
    administrator = Administrator(reserve=0.0)
    wanted = [Requirement("a", ("n1", "s1"), 0, 0.0015), Requirement("b", ("n1", "w1"), 0, 0.010)]
    assert [each.offer_seconds for each in administrator.require(wanted, SMALLEST)] == [0.002]
    assert not administrator.seconds
    assert not administrator.require(wanted, SMALLEST | {"w1": 0.001})
    assert administrator.seconds == {("n1", 0): 0.005, ("w1", 0): 0.005}


def test_publishers_are_asked_to_slow_down_while_a_switch_would_have_to_be_quicker_than_it_can() -> None:
    administrator = Administrator(reserve=0.0)
    administrator.require([Requirement("hut", ("n1", "s1"), 0, 0.004, topic="fire")], SMALLEST)
    asked = administrator.adjust({("n1", 0): 0.039, ("s1", 0): 0.001})
    assert {(each.requirement.topic, each.switch) for each in asked} == {("fire", "n1"), ("fire", "s1")}
    assert not administrator.adjust({("n1", 0): 0.001, ("s1", 0): 0.001})
