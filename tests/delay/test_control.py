"""Controllers: widths keep floors and add up whatever comes, needs are kept, constraints cross borders."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from triagemq.delay.administrator import (
    Administered,
    Administrator,
    ClusterConstraints,
    ClusterController,
    ClusterDelays,
    ClusterJoined,
    PlaceSeconds,
)
from triagemq.delay.constraints import LEAST, LEAST_STEP, Pace, Requirement
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
    widths=st.lists(st.integers(100, 10**8), min_size=1, max_size=5),
    floor=st.floats(0.01, 1.0),
    constraint=st.sampled_from([None, 0.001, 0.05]),
    data=st.data(),
)
def test_over_random_loads_widths_stay_above_floors_and_add_up(
    widths: list[int], floor: float, constraint: float | None, data: st.DataObject
) -> None:
    port = ControlledPort("p", tuple(widths), tuple(max(1, int(floor * width)) for width in widths))
    controller = PortController(port, _idm)
    fluid = _Fluid(controller)
    load = st.lists(st.floats(0, 3e8), min_size=len(widths), max_size=len(widths))
    for _ in range(data.draw(st.integers(1, 12))):
        controller.constrain({} if constraint is None else {0: constraint})
        fluid.period(data.draw(load))
        assert sum(controller.width_bps) == sum(widths)
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
    widths = list(fluid.controller.width_bps)
    for _ in range(25):
        fluid.period([30e6, 25e6, 30e6])
    assert list(fluid.controller.width_bps) == widths


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


def _told(answer: Administered) -> dict[str, list[float]]:
    return {each.cluster: [place.seconds for place in each.allowed] for each in answer.constraints}


def _two_clusters() -> Administrator:
    administrator = Administrator(reserve=0.0)
    administrator.joined(ClusterJoined("north", (("n1", 0.001), ("n2", 0.001))))
    administrator.joined(ClusterJoined("south", (("s1", 0.001),)))
    return administrator


def test_a_requirement_across_a_border_constrains_both_clusters() -> None:
    administrator = _two_clusters()
    answer = administrator.require([Requirement("hut", ("n1", "n2", "s1"), 0, 0.030)])
    assert _told(answer) == {"north": [0.01, 0.01], "south": [0.01]}
    assert _told(administrator.measured(_delays("north", n1=0.02, n2=0.01))) == {}
    adjusted = _told(administrator.measured(_delays("south", s1=0.03)))
    assert adjusted["north"] == pytest.approx([0.005, 0.005])
    assert adjusted["south"] == pytest.approx([0.005])


def test_a_cluster_that_reports_again_does_not_wait_for_one_that_is_silent() -> None:
    administrator = _two_clusters()
    administrator.require([Requirement("hut", ("n1", "s1"), 0, 0.020)])
    assert not administrator.measured(_delays("north", n1=0.08)).constraints
    assert _told(administrator.measured(_delays("north", n1=0.08)))["north"] == pytest.approx([0.0025])


def test_an_impossible_requirement_is_refused_once_and_an_unreachable_one_waits() -> None:
    administrator = _two_clusters()
    impossible = Requirement("a", ("n1", "s1"), 0, 0.0015)
    later = Requirement("b", ("n1", "w1"), 0, 0.010)
    answer = administrator.require([impossible, later])
    assert [refusal.offer_seconds for refusal in answer.refused] == [0.002]
    assert not answer.constraints
    joined = administrator.joined(ClusterJoined("west", (("w1", 0.001),)))
    assert not joined.refused
    assert _told(joined) == {"north": [0.005], "west": [0.005]}


def test_publishers_are_asked_to_slow_down_while_a_switch_would_have_to_be_quicker_than_it_can() -> None:
    administrator = _two_clusters()
    administrator.require([Requirement("hut", ("n1", "s1"), 0, 0.004, topic="fire")])
    administrator.measured(_delays("north", n1=0.039))
    asked = administrator.measured(_delays("south", s1=0.001)).slow_down
    assert {(each.requirement.topic, each.switch) for each in asked} == {("fire", "n1"), ("fire", "s1")}
    administrator.measured(_delays("north", n1=0.001))
    assert not administrator.measured(_delays("south", s1=0.001)).slow_down


def _delays(cluster: str, **seconds: float) -> ClusterDelays:
    return ClusterDelays(
        cluster, tuple(PlaceSeconds(switch, 0, each) for switch, each in seconds.items()), ()
    )


def test_a_cluster_reports_every_second_and_takes_constraints_for_its_own_ports_only() -> None:
    cluster = ClusterController("north", [PortController(PAPER, _idm)])
    reports = []
    for n in range(11):
        cluster.feed({"sw1": [Sample(200_000_000 * n, 0, 0, 0, 0, 0, width) for width in PAPER.width_bps]})
        reports.append(cluster.report())
    assert [n for n, report in enumerate(reports, 1) if report] == [5, 10]
    with pytest.raises(ParameterError, match="cluster north has no port sw9"):
        cluster.constrain(ClusterConstraints("north", (PlaceSeconds("sw9", 0, 0.1),)))
    assert dict(cluster.joined(1100).smallest_seconds)["sw1"] == pytest.approx(8 * 1100 / 88e6)


def test_messages_survive_json() -> None:
    administrator = _two_clusters()
    for message in (
        _delays("north", n1=0.25),
        ClusterJoined("north", (("n1", 0.001),)),
        administrator.require(
            [Requirement("hut", ("n1",), 0, 0.01), Requirement("hill", ("n2",), 0, 0.0001)]
        ),
    ):
        adapter = TypeAdapter(type(message))
        assert adapter.validate_json(adapter.dump_json(message)) == message


@given(requests=st.lists(st.tuples(st.floats(0.0, 20.0), st.floats(0.0, 1.5)), max_size=12))
def test_a_publisher_slows_down_by_half_at_most_and_comes_back(requests: list[tuple[float, float]]) -> None:
    pace, now = Pace(), 0.0
    for pause, share in requests:
        now += pause
        before = pace.share(now)
        pace.requested(share, now)
        assert max(LEAST, LEAST_STEP * before) <= pace.share(now) <= before
    assert pace.share(now + 90.0) == 1.0
