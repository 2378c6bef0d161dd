"""Instructions: the difference of two states, and the data plane that remembers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.network.recorded import RecordedDataPlane

from triagemq.errors import PlanError
from triagemq.plan import FlowKey, RemoveFlow, RemovePort, SetFlow, SetPort
from triagemq.plan.instructions import applied, difference

KEYS = [FlowKey("10.0.0.1", 20000 + number) for number in range(5)]


STATES = st.dictionaries(st.sampled_from("abcde"), st.integers(0, 2))


@given(STATES, STATES)
def test_the_difference_leads_from_one_state_to_the_other(
    before: dict[str, int], after: dict[str, int]
) -> None:
    change = difference(before, after)
    assert applied(before, change) == after
    assert not change.items() & before.items()
    assert difference(after, after) == {}


def test_the_recorded_data_plane_remembers_and_refuses() -> None:
    plane = RecordedDataPlane()
    first = (SetPort("radio", 1e6, 10, 2), SetFlow(KEYS[0], "radio", 7, 1, 0.25))
    plane.apply(first)
    with pytest.raises(PlanError, match="which is not there"):
        plane.apply([SetFlow(KEYS[1], "nowhere", 0, 0, 0.0)])
    plane.apply([RemoveFlow(KEYS[0])])
    assert plane.applied == [first, (RemoveFlow(KEYS[0]),)]
    assert plane.instructions == first[:1]
    assert plane.counters().ports["radio"].queues[1].packets_in == 0
    plane.close()
    assert plane.closed


def test_a_port_is_free_again_when_its_flows_have_gone() -> None:
    """Flows are counted rightly over several changes of the same flow in one list."""
    plane = RecordedDataPlane()
    ports = [SetPort("a", 1e6, 10, 1), SetPort("b", 1e6, 10, 1)]
    plane.apply([*ports, SetFlow(KEYS[0], "a", 0, 0, 0.0), SetFlow(KEYS[0], "b", 0, 0, 0.0)])
    plane.apply([RemovePort("a")])
    with pytest.raises(PlanError, match="1 flows use it"):
        plane.apply([RemovePort("b")])
    plane.apply([RemoveFlow(KEYS[0]), RemovePort("b")])
    assert plane.instructions == ()
