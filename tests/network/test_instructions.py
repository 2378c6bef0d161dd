"""Instructions: the difference of two states, and the data plane that remembers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.network.recorded import RecordedDataPlane

from triagemq.errors import PlanError
from triagemq.network.state import PlanState
from triagemq.plan.dataplane import (
    FlowKey,
    RemoveFlow,
    RemoveLimiter,
    RemovePort,
    SetFlow,
    SetLimiter,
    SetPort,
    applied,
    difference,
)

KEYS = [FlowKey("10.0.0.1", 20000 + number) for number in range(5)]
TOPIC = FlowKey("239.1.2.3", 5000)
PORTS = (SetPort("a", 1e6, 10, 4), SetPort("b", 1e6, 10, 4))


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


def test_a_multicast_key_has_a_flow_per_port_and_any_other_key_one() -> None:
    plane = RecordedDataPlane()
    copies = (SetFlow(TOPIC, "a", 7, 0, 0.0), SetFlow(TOPIC, "b", 7, 2, 0.0))
    moved = (SetFlow(KEYS[0], "a", 1, 0, 0.0), SetFlow(KEYS[0], "b", 1, 2, 0.0))
    plane.apply([*PORTS, *copies, *moved])
    assert plane.instructions == (*PORTS, *copies, moved[1])
    with pytest.raises(PlanError, match="port 'a' cannot be removed: 1 flows use it"):
        plane.apply([RemovePort("a")])
    with pytest.raises(PlanError, match="is of class 2"):
        plane.apply([SetPort("b", 1e6, 10, 2), RemoveFlow(KEYS[0])])
    plane.apply([RemoveFlow(TOPIC, "a"), RemovePort("a")])
    assert plane.instructions == (PORTS[1], copies[1], moved[1])
    plane.apply([RemoveFlow(TOPIC), RemoveFlow(KEYS[0]), RemovePort("b")])
    assert plane.instructions == ()


def test_limiters_need_their_flow_and_go_with_it() -> None:
    plane = RecordedDataPlane()
    copies = [SetFlow(TOPIC, name, 7, 0, 0.0) for name in "ab"]
    everywhere, at_a = SetLimiter(TOPIC, 1e3, 1e4), SetLimiter(TOPIC, 2e3, 1e4, "a")
    plane.apply([*PORTS, everywhere, at_a, *copies])
    assert plane.instructions == (*PORTS, *copies, everywhere, at_a)
    with pytest.raises(PlanError, match=r"239.1.2.3:5000 is to be limited at port 'c', and there is no such"):
        plane.apply([SetLimiter(TOPIC, 1e3, 1e4, "c")])
    with pytest.raises(PlanError, match="a burst of 0 bytes; it must be positive"):
        plane.apply([SetLimiter(TOPIC, 0, 1e4)])
    plane.apply([RemoveFlow(TOPIC, "a")])
    assert plane.instructions == (*PORTS, copies[1], everywhere)
    plane.apply([RemoveLimiter(TOPIC), RemoveLimiter(KEYS[0])])
    assert plane.instructions == (*PORTS, copies[1])
    plane.apply([everywhere])
    plane.apply([RemoveFlow(TOPIC)])
    plane.apply(copies)
    assert plane.instructions == (*PORTS, *copies)
    with pytest.raises(PlanError, match=r"10.0.0.1:20000 is to be limited, and there is no such flow"):
        plane.apply([SetLimiter(KEYS[0], 1e3, 1e4)])
    with pytest.raises(PlanError, match="use --dataplane linux or openflow"):
        PlanState(8).change([PORTS[0], SetFlow(KEYS[0], "a", 0, 0, 0.0), SetLimiter(KEYS[0], 1e3, 1e4)])


def test_a_prefix_needs_its_port_and_a_network_that_makes_copies() -> None:
    state = PlanState(4, replicated=True)

    def flow(port: str, address: str = "ff1e:a000::/20", source: str = "") -> SetFlow[FlowKey]:
        return SetFlow(FlowKey(address, 7400), port, 7, 0, 0.0, source)

    key = flow("a").key
    for wrong, why in (
        ([flow("a")], r"flow \[ff1e:a000::/20\]:7400 goes to the port 'a', which is not there"),
        ([PORTS[0], flow("a", "ff1e:a100::/20")], "has host bits set"),
        ([PORTS[0], flow("a", "ff15::/20")], "those begin with ff1e::/16"),
        ([PORTS[0], flow("a", "FF1E:A000::/20")], "to be written with the prefix ff1e:a000::/20"),
        ([PORTS[0], flow("a", source="fd00::1")], "of many topics, and has no source"),
        ([PORTS[0], flow("a"), SetLimiter(key, 1e3, 1e4)], "of many topics, and has no limiter"),
    ):
        with pytest.raises(PlanError, match=why):
            state.change(wrong)
    with pytest.raises(PlanError, match="use --dataplane linux or openflow"):
        PlanState(4).change([PORTS[0], flow("a")])
    state.commit(state.change([*PORTS, flow("a"), flow("b"), flow("a")]))
    assert set(state.flows) == {(key, "a"), (key, "b")}
    with pytest.raises(PlanError, match="cannot be removed: 1 flows use it"):
        state.change([RemovePort("a")])
    state.commit(state.change([RemoveFlow(key, "a"), RemoveFlow(key, "never"), RemovePort("a")]))
    assert (set(state.flows), set(state.ports)) == ({(key, "b")}, {"b"})
