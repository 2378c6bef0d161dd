"""Delay constraints of switches: within every requirement, as large as can be, and adjusted to what is measured."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triagemq.delay.constraints import (
    Constraints,
    Requirement,
    adjusted_constraints,
    first_constraints,
)
from triagemq.errors import ParameterError

SWITCHES = ("s1", "s2", "s3", "s4", "s5")


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[Requirement], dict[str, float]]:
    smallest = {switch: draw(st.floats(1e-5, 1e-2)) for switch in SWITCHES}
    count = draw(st.integers(1, 6))
    return [
        Requirement(
            f"subscriber-{number}",
            tuple(draw(st.lists(st.sampled_from(SWITCHES), min_size=1, max_size=5, unique=True))),
            draw(st.integers(0, 1)),
            draw(st.floats(1e-4, 1.0)),
        )
        for number in range(count)
    ], smallest


def _admitted(requirements: list[Requirement], constraints: Constraints) -> list[Requirement]:
    refused = [refusal.requirement for refusal in constraints.refused]
    return [requirement for requirement in requirements if requirement not in refused]


def _sum(requirement: Requirement, constraints: Constraints) -> float:
    return math.fsum(constraints.seconds[place] for place in requirement.places)


@given(network=networks(), reserve=st.sampled_from([0.0, 0.1, 0.5]))
def test_constraints_are_within_every_requirement_and_not_below_what_switches_take(
    network: tuple[list[Requirement], dict[str, float]], reserve: float
) -> None:
    requirements, smallest = network
    found = first_constraints(requirements, smallest, reserve=reserve)
    for requirement in _admitted(requirements, found):
        assert _sum(requirement, found) <= requirement.delay_seconds * (1 + 1e-9)
    assert all(seconds >= smallest[switch] for (switch, _), seconds in found.seconds.items())


@given(networks())
def test_no_constraint_could_be_larger(network: tuple[list[Requirement], dict[str, float]]) -> None:
    requirements, smallest = network
    found = first_constraints(requirements, smallest, reserve=0.0)
    full = [
        requirement
        for requirement in _admitted(requirements, found)
        if _sum(requirement, found) >= requirement.delay_seconds * (1 - 1e-9)
    ]
    on_full_paths = {place for requirement in full for place in requirement.places}
    assert on_full_paths == set(found.seconds)


@given(networks())
def test_a_requirement_is_refused_if_and_only_if_it_is_below_what_its_switches_take(
    network: tuple[list[Requirement], dict[str, float]],
) -> None:
    requirements, smallest = network
    found = first_constraints(requirements, smallest)
    for requirement in requirements:
        least = math.fsum(smallest[switch] for switch in requirement.path)
        offers = [refusal.offer_seconds for refusal in found.refused if refusal.requirement == requirement]
        assert bool(offers) == (requirement.delay_seconds < least)
        if offers:
            would_do = Requirement("again", requirement.path, requirement.priority, offers[0])
            assert not first_constraints([would_do], smallest).refused


def test_a_path_alone_is_divided_as_in_algorithm_2() -> None:
    wish = Requirement("a", ("s1", "s2", "s3"), 2, 0.010)
    found = first_constraints([wish], dict.fromkeys(SWITCHES, 0.0005), reserve=0.1)
    assert found.seconds == {place: pytest.approx(0.010 / 3 * 0.9) for place in wish.places}


def test_the_smallest_counts_where_paths_cross_and_priorities_do_not_meet() -> None:
    wishes = [
        Requirement("a", ("s1", "s2"), 0, 0.010),
        Requirement("b", ("s2", "s3"), 0, 0.004),
        Requirement("c", ("s2",), 1, 0.5),
    ]
    found = first_constraints(wishes, dict.fromkeys(SWITCHES, 0.0005), reserve=0.0)
    assert found.seconds["s2", 0] == pytest.approx(0.002)
    assert found.seconds["s2", 1] == pytest.approx(0.5)
    assert found.seconds["s1", 0] == pytest.approx(0.008)


@given(network=networks(), data=st.data())
def test_adjusted_constraints_stay_within_requirements_whatever_is_measured(
    network: tuple[list[Requirement], dict[str, float]], data: st.DataObject
) -> None:
    requirements, smallest = network
    found = first_constraints(requirements, smallest)
    for _ in range(4):
        measured = {place: data.draw(st.sampled_from([0.0, 1e-4, 0.01, 5.0])) for place in found.seconds}
        before, found = found, adjusted_constraints(requirements, found, measured, smallest)
        assert set(found.seconds) == set(before.seconds)
        for requirement in _admitted(requirements, found):
            assert _sum(requirement, found) <= requirement.delay_seconds * (1 + 1e-9)
        for place, seconds in found.seconds.items():
            assert seconds >= smallest[place[0]]
        for asked in found.slow_down:
            assert found.seconds[asked.switch, asked.requirement.priority] == smallest[asked.switch]
            assert asked.share < 1


@given(network=networks(), share=st.floats(0.1, 0.99))
def test_delays_just_as_allowed_change_nothing_and_larger_ones_shrink_constraints_in_proportion(
    network: tuple[list[Requirement], dict[str, float]], share: float
) -> None:
    wish = network[0][0]
    smallest = dict.fromkeys(SWITCHES, 1e-7)
    found = first_constraints([wish], smallest, reserve=0.0)
    same = adjusted_constraints([wish], found, found.seconds, smallest, reserve=0.0)
    assert same.seconds == {place: pytest.approx(seconds) for place, seconds in found.seconds.items()}
    larger = {place: seconds / share for place, seconds in found.seconds.items()}
    smaller = adjusted_constraints([wish], found, larger, smallest, reserve=0.0)
    assert smaller.seconds == {
        place: pytest.approx(share * seconds) for place, seconds in found.seconds.items()
    }


def test_a_publisher_is_asked_to_slow_down_where_a_switch_cannot_be_quick_enough() -> None:
    wish = Requirement("a", ("s1", "s2"), 0, 0.010)
    smallest = {"s1": 0.001, "s2": 0.004}
    found = first_constraints([wish], smallest, reserve=0.0)
    late = adjusted_constraints([wish], found, {("s1", 0): 0.010, ("s2", 0): 0.010}, smallest, reserve=0.0)
    assert [(asked.requirement, asked.switch) for asked in late.slow_down] == [(wish, "s2")]
    assert late.slow_down[0].share == pytest.approx(0.005 / 2 / 0.004)
    assert late.seconds["s1", 0] == pytest.approx(0.0025)


def test_the_path_that_is_late_decides_where_paths_cross() -> None:
    on_time, late = Requirement("a", ("s1", "s2"), 0, 0.010), Requirement("b", ("s1", "s3"), 0, 0.010)
    smallest = dict.fromkeys(SWITCHES, 1e-4)
    found = first_constraints([on_time, late], smallest, reserve=0.0)
    measured = {("s1", 0): 0.002, ("s2", 0): 0.001, ("s3", 0): 0.018}
    adjusted = adjusted_constraints([on_time, late], found, measured, smallest, reserve=0.0)
    assert adjusted.seconds["s1", 0] == pytest.approx(0.0025)
    assert adjusted.seconds["s3", 0] == pytest.approx(0.0025)
    assert adjusted.seconds["s2", 0] == pytest.approx(0.005)


def test_what_cannot_be_is_refused_by_name() -> None:
    with pytest.raises(ParameterError, match="path: of a must name switches"):
        Requirement("a", ("s1", "s1"), 0, 0.01)
    with pytest.raises(ParameterError, match="delay_seconds: of a is 0"):
        Requirement("a", ("s1",), 0, 0.0)
    with pytest.raises(ParameterError, match="lack s9 on the path of a"):
        first_constraints([Requirement("a", ("s9",), 0, 0.01)], {})


def test_who_is_late_at_a_switch_that_has_given_all_it_can_is_asked_to_slow_down() -> None:
    wish, smallest = Requirement("a", ("s1", "s2"), 0, 0.010), {"s1": 0.001, "s2": 0.001}
    first = first_constraints([wish], smallest)
    late = {("s1", 0): 0.012, ("s2", 0): 0.001}
    assert not adjusted_constraints([wish], first, late, smallest).slow_down
    (asked,) = adjusted_constraints([wish], first, late, smallest, cannot_hold=[("s1", 0)]).slow_down
    assert (asked.switch, asked.share) == ("s1", pytest.approx(10 / 13))
    in_time = {("s1", 0): 0.008, ("s2", 0): 0.001}
    assert not adjusted_constraints([wish], first, in_time, smallest, cannot_hold=[("s1", 0)]).slow_down
