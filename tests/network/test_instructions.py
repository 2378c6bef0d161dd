"""Instructions: what a plan comes to, the difference of two states, and the data plane that remembers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triagemq.errors import PlanError
from triagemq.network import RecordedDataPlane
from triagemq.plan import (
    FlowKey,
    Instruction,
    RemoveFlow,
    SetFlow,
    SetPort,
    instructions_for,
    make_plan,
)
from triagemq.plan.instructions import difference
from triagemq.scenario.generators import table2

KEYS = [FlowKey("10.0.0.1", 20000 + number) for number in range(5)]


@st.composite
def states(draw: st.DrawFn) -> list[Instruction]:
    classes = draw(st.dictionaries(st.sampled_from("abc"), st.integers(1, 8)))
    ports = [SetPort(name, draw(st.sampled_from([1e6, 2e6])), 10, count) for name, count in classes.items()]
    flows = []
    for key in draw(st.lists(st.sampled_from(KEYS), unique=True)) if ports else []:
        port = draw(st.sampled_from(sorted(classes)))
        flows.append(
            SetFlow(key, port, draw(st.integers(0, 2)), draw(st.integers(0, classes[port] - 1)), 0.5)
        )
    return [*ports, *flows]


def as_set(plane: RecordedDataPlane) -> set[Instruction]:
    return set(plane.instructions)


@given(states(), states())
def test_the_difference_leads_from_one_state_to_the_other(
    before: list[Instruction], after: list[Instruction]
) -> None:
    plane = RecordedDataPlane()
    plane.apply(before)
    change = difference(before, after)
    plane.apply(change)
    assert as_set(plane) == set(after)
    assert not set(change) & set(before)
    assert difference(after, after) == ()


@given(states(), states())
def test_every_step_of_a_difference_finds_its_port(
    before: list[Instruction], after: list[Instruction]
) -> None:
    """Data planes that carry a change out step by step never have a flow without a port."""
    ports = {each.port for each in before if isinstance(each, SetPort)}
    flows = {each.key: each.port for each in before if isinstance(each, SetFlow)}
    for step in difference(before, after):
        match step:
            case SetPort():
                ports.add(step.port)
            case SetFlow():
                flows[step.key] = step.port
            case RemoveFlow():
                del flows[step.key]
            case _:
                ports.remove(step.port)
        assert set(flows.values()) <= ports


def test_a_plan_becomes_its_ports_and_flows() -> None:
    scenario = table2(seed=1)
    plan = make_plan(scenario)
    keys = [FlowKey("10.0.0.1", 20000 + flow) for flow in range(len(plan.flows))]
    state = instructions_for(scenario, plan, keys)
    ports = [each for each in state if isinstance(each, SetPort)]
    flows = [each for each in state if isinstance(each, SetFlow)]
    assert [port.port for port in ports] == list(scenario.ports.name)
    assert [port.bandwidth_bps for port in ports] == scenario.ports.bandwidth_bps.tolist()
    assert [flow.key for flow in flows] == keys
    assert [flow.flow_id for flow in flows] == list(range(len(plan.flows)))
    assert [flow.priority_class for flow in flows] == plan.flows.priority_class.tolist()
    assert [flow.drop_rate for flow in flows] == plan.flows.drop_rate.tolist()
    assert all(type(flow.drop_rate) is float and type(flow.priority_class) is int for flow in flows)
    assert {port.classes for port in ports} == {max(flow.priority_class for flow in flows) + 1}


def test_keys_must_fit_the_plan() -> None:
    scenario = table2(seed=1)
    plan = make_plan(scenario)
    keys = [FlowKey("10.0.0.1", 20000 + flow) for flow in range(len(plan.flows))]
    with pytest.raises(PlanError, match="flow keys were given"):
        instructions_for(scenario, plan, keys[1:])
    with pytest.raises(PlanError, match=r"two flows have the key 10\.0\.0\.1:20000"):
        instructions_for(scenario, plan, [keys[0], *keys[:-1]])
    with pytest.raises(PlanError, match="another scenario"):
        instructions_for(replace(scenario, mtu_bytes=500.0), plan, keys)


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
    assert [each.port for each in difference(plane.instructions, ports[:1])[1:]] == ["b"]
    plane.apply(difference(plane.instructions, [ports[1], SetFlow(KEYS[0], "b", 0, 0, 0.0)]))
    with pytest.raises(PlanError, match="1 flows use it"):
        plane.apply(difference([ports[1]], []))
    plane.apply([RemoveFlow(KEYS[0]), *difference([ports[1]], [])])
    assert plane.instructions == ()
