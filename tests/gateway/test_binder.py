"""From orders and sessions to flows: whatever the order of events, the data plane ends up with what they say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.coordinator.promising import planned_for, publisher, subscriber
from tests.network.recorded import RecordedDataPlane

from triagemq.channel.messages import (
    DesiredState,
    decode_line,
    encode_line,
    parse_state,
    shallow,
    state_message,
)
from triagemq.channel.orders import Orders, dump_orders, parse_orders
from triagemq.coordinator.decide.decide import Question, decide
from triagemq.errors import PlanError
from triagemq.gateway.binder import FlowBinder
from triagemq.plan.dataplane import FlowKey, RemoveFlow, RemovePort, SetFlow, SetPort

RADIO = SetPort("radio", 1e6, 100, 4)
CABLE = SetPort("cable", 1e7, float("inf"), 2)


def at(number: int) -> tuple[str, int]:
    return ("10.0.0.1", 2000 + number)


def key(number: int) -> FlowKey:
    return FlowKey(*at(number))


def orders(generation: int = 1, **flows: SetFlow[str]) -> Orders:
    return Orders(generation, {"radio": RADIO, "cable": CABLE}, named(flows))


def flow(port: str, flow_id: int, priority_class: int, drop_rate: float) -> SetFlow[str]:
    """One that has its client id still to come."""
    return SetFlow("", port, flow_id, priority_class, drop_rate)


def named(flows: Mapping[str, SetFlow[str]]) -> dict[str, SetFlow[str]]:
    return {key: replace(one, key=key) for name, one in flows.items() for key in [name.replace("_", "~")]}


def bound(plane: RecordedDataPlane) -> dict[FlowKey, tuple[str, int, int, float]]:
    return {
        one.key: (one.port, one.flow_id, one.priority_class, one.drop_rate)
        for one in plane.state.flows.values()
    }


def test_a_flow_follows_its_client_and_its_order() -> None:
    plane = RecordedDataPlane()
    binder = FlowBinder(plane)
    binder.connected("s~1", at(1))
    assert plane.applied == []
    binder.order(orders(s_1=flow("radio", 7, 2, 0.5)))
    assert plane.applied == [(RADIO, CABLE, SetFlow(key(1), "radio", 7, 2, 0.5))]
    binder.connected("s~1", at(1))
    binder.order(orders(2, s_1=flow("radio", 7, 2, 0.5)))
    assert len(plane.applied) == 1
    binder.connected("s~1", at(2))
    assert bound(plane) == {key(2): ("radio", 7, 2, 0.5)}
    binder.gone("s~1")
    binder.gone("s~1")
    assert bound(plane) == {}


def test_a_subscriber_without_an_order_has_the_lowest_class_of_the_first_port() -> None:
    plane = RecordedDataPlane()
    binder = FlowBinder(plane)
    binder.order(orders())
    binder.connected("pump", at(1), subscribes=False)
    assert bound(plane) == {}
    binder.connected("pump", at(1), subscribes=True)
    assert bound(plane) == {key(1): ("radio", -1, 3, 0.0)}
    binder.order(orders(2, pump_0=flow("cable", 0, 1, 0.1)))
    assert bound(plane) == {key(1): ("cable", 0, 1, 0.1)}


def test_a_port_goes_when_no_flow_is_left_on_it() -> None:
    plane = RecordedDataPlane()
    binder = FlowBinder(plane)
    binder.connected("s~0", at(1))
    binder.order(orders(s_0=flow("radio", 0, 0, 0.0)))
    binder.order(Orders(2, {"cable": CABLE}, named({"s~0": flow("cable", 0, 0, 0.0)})))
    assert plane.state.ports == {"cable": CABLE}
    assert bound(plane) == {key(1): ("cable", 0, 0, 0.0)}
    binder.order(Orders(3))
    assert plane.instructions == ()


def test_clients_behind_one_address_share_the_flow_of_the_first() -> None:
    plane = RecordedDataPlane()
    binder = FlowBinder(plane)
    binder.order(orders(a_0=flow("radio", 1, 0, 0.0), b_0=flow("radio", 2, 1, 0.0)))
    binder.connected("a~0", at(1))
    binder.connected("b~0", at(1))
    assert bound(plane)[key(1)][1] == 1
    binder.gone("a~0")
    assert bound(plane)[key(1)][1] == 2


@pytest.mark.parametrize(
    "one",
    [
        flow("nowhere", 0, 0, 0.0),
        flow("radio", 0, 4, 0.0),
        flow("radio", 0, -1, 0.0),
        flow("radio", 0, 0, 1.5),
        flow("radio", 0, 0, float("nan")),
    ],
)
def test_impossible_orders_change_nothing_even_if_their_client_is_away(one: SetFlow[str]) -> None:
    plane = RecordedDataPlane()
    binder = FlowBinder(plane)
    binder.order(orders(s_0=flow("radio", 0, 0, 0.0)))
    before = plane.instructions
    with pytest.raises(PlanError):
        binder.order(orders(2, away_0=one))
    assert plane.instructions == before
    assert binder.orders.generation == 1


def test_what_the_data_plane_refuses_changes_nothing() -> None:
    plane = RecordedDataPlane(priority_classes=2)
    binder = FlowBinder(plane)
    with pytest.raises(PlanError):
        binder.order(orders())
    assert binder.orders == Orders()
    binder.order(Orders(1, {"cable": CABLE}))
    with pytest.raises(PlanError):
        binder.connected("odd", ("10.0.0.1", 0))
    binder.connected("s~0", at(1))
    binder.order(Orders(2, {"cable": replace(CABLE, bandwidth_bps=5.0)}))
    assert bound(plane) == {key(1): ("cable", -1, 1, 0.0)}


_CLIENTS = [f"{name}~{slot}" for name in "ab" for slot in range(2)] + ["plain"]
_FLOWS = st.builds(
    flow, st.sampled_from(["radio", "cable"]), st.integers(0, 9), st.integers(0, 1), st.floats(0, 1)
)
_ORDERS = st.builds(
    lambda generation, flows, cable: Orders(
        generation, {"radio": RADIO, "cable": replace(CABLE, bandwidth_bps=cable)}, named(flows)
    ),
    st.integers(0, 99),
    st.dictionaries(st.sampled_from(_CLIENTS), _FLOWS),
    st.floats(1, 1e9),
)
_EVENTS = st.lists(
    st.one_of(
        _ORDERS,
        st.tuples(st.sampled_from(_CLIENTS), st.integers(0, 5), st.booleans()),
        st.sampled_from(_CLIENTS),
    ),
    max_size=30,
)


@settings(max_examples=150, deadline=None)
@given(_EVENTS)
def test_any_history_ends_in_the_state_of_its_last_orders_and_clients(events: list[object]) -> None:
    plane = RecordedDataPlane()
    binder = FlowBinder(plane)
    last = Orders()
    where: dict[str, tuple[int, bool]] = {}
    for event in events:
        match event:
            case Orders():
                binder.order(event)
                last = event
            case (str(client_id), int(place), bool(subscribes)):
                if any(taken == place and who != client_id for who, (taken, _) in where.items()):
                    continue
                binder.connected(client_id, at(place), subscribes=subscribes)
                where[client_id] = (place, subscribes)
            case str():
                binder.gone(event)
                where.pop(event, None)
    wanted = {}
    for client_id, (place, subscribes) in where.items():
        name = client_id if "~" in client_id else f"{client_id}~0"
        one = last.flows.get(name)
        if one is not None:
            wanted[key(place)] = (one.port, one.flow_id, one.priority_class, one.drop_rate)
        elif subscribes and last.ports:
            wanted[key(place)] = ("radio", -1, 3, 0.0)
    assert bound(plane) == wanted
    assert plane.state.ports == dict(last.ports)


@settings(deadline=None)
@given(st.lists(_ORDERS, max_size=6), st.lists(st.sampled_from(_CLIENTS), unique=True))
def test_every_step_of_a_change_finds_its_port(history: list[Orders], clients: list[str]) -> None:
    """Data planes that carry a change out step by step never have a flow without a port."""
    plane = RecordedDataPlane()
    binder = FlowBinder(plane)
    for number, client_id in enumerate(clients):
        binder.connected(client_id, at(number))
    for some in history:
        used = {one.port for one in some.flows.values()}
        binder.order(replace(some, ports={name: port for name, port in some.ports.items() if name in used}))
    ports: set[str] = set()
    where: dict[FlowKey, str] = {}
    for change in plane.applied:
        for step in change:
            match step:
                case SetPort():
                    ports.add(step.port)
                case SetFlow():
                    where[step.key] = step.port
                case RemoveFlow():
                    del where[step.key]
                case RemovePort():
                    ports.remove(step.port)
            assert set(where.values()) <= ports


@settings(deadline=None)
@given(st.lists(_ORDERS, min_size=2, max_size=6), st.lists(st.sampled_from(_CLIENTS), unique=True))
def test_changes_lead_where_whole_orders_lead(history: list[Orders], clients: list[str]) -> None:
    plane, whole = RecordedDataPlane(), RecordedDataPlane()
    binder, other = FlowBinder(plane), FlowBinder(whole)
    for number, client_id in enumerate(clients):
        binder.connected(client_id, at(number))
        other.connected(client_id, at(number))
    before = Orders()
    for some in history:
        # Filled up with flows that stay, or nothing would count as a small change.
        stay = named({f"x~{number}": flow("cable", number, 0, 0.0) for number in range(20)})
        now = replace(some, flows={**some.flows, **stay})
        told = state_message(DesiredState("me", 1, before), DesiredState("me", 2, now))
        heard = parse_state(decode_line(encode_line(shallow(told))))
        after = heard.after(DesiredState("me", 1, before)).orders
        assert after == now
        assert heard.orders is not None
        binder.order(after, None if heard.base is None else heard.orders)
        other.order(now)
        before = now
        assert bound(plane) == bound(whole)
        assert plane.state.ports == whole.state.ports


_TREATMENTS = st.tuples(st.integers(0, 7), st.floats(0, 1))


@given(_ORDERS, st.dictionaries(st.text(), st.dictionaries(st.text(), _TREATMENTS)))
def test_orders_survive_json(some: Orders, topics: dict[str, dict[str, tuple[int, float]]]) -> None:
    whole = replace(some, topics=topics)
    assert parse_orders(dump_orders(whole)) == whole


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"generation": "1"},
        {"generation": True},
        {"generation": 1, "ports": []},
        {"generation": 1, "ports": {"radio": {"bandwidth_bps": "much", "classes": 1}}},
        {"generation": 1, "ports": {"radio": {"bandwidth_bps": 1.0, "buffer_packets": 1}}},
        {"generation": 1, "flows": {"s~0": ["radio", 0, 0]}},
        {"generation": 1, "flows": {"s~0": {"port": "radio"}}},
        {"generation": 1, "topics": {"s": {"a": [-1, 0.0]}}},
        {"generation": 1, "topics": {"s": {"a": ["1", 0.0]}}},
        {"generation": 1, "topics": {"s": {"a": [1, 1.5]}}},
        {"generation": 1, "topics": {"s": {"a": [1, "NaN"]}}},
        {"generation": 1, "topics": {"s": ["a"]}},
        {"generation": 1, "slots": {"s": ["a"]}},
        {"generation": 1, "slots": {"s": {"a": 0}}, "flows": {"s~0": ["radio", 0, 0]}},
    ],
)
def test_what_is_no_orders_is_refused_in_words(value: object) -> None:
    with pytest.raises(PlanError, match="orders"):
        parse_orders(value)


def test_orders_that_the_version_before_stored_are_read_with_a_treatment_for_each_topic() -> None:
    flows = {f"s~{slot}": SetFlow(f"s~{slot}", "radio", slot, slot, slot / 4) for slot in range(2)}
    stored = json.loads(dump_orders(Orders(7, {"radio": RADIO}, flows)))
    del stored["topics"]
    read = parse_orders(json.dumps(stored | {"slots": {"s": {"a": 1, "b": 0}}}))
    assert read.topics == {"s": {"a": (1, 0.25), "b": (0, 0.0)}}
    assert read.flows == {"s~0": flows["s~0"]}


def test_queue_rates_that_the_version_before_stored_are_read() -> None:
    port = SetPort("radio", 1e6, 100, 2, (6e5, 4e5))
    stored = dump_orders(Orders(7, {"radio": port})).replace("queue_rates_bps", "widths_bps")
    assert "widths_bps" in stored
    assert parse_orders(stored).ports == {"radio": port}


def test_a_topic_of_a_class_that_no_port_has_is_refused() -> None:
    binder = FlowBinder(RecordedDataPlane())
    with pytest.raises(PlanError, match="'a' of 's' is of class 4"):
        binder.order(replace(orders(), topics={"s": {"a": (4, 0.0)}}))
    assert binder.orders == Orders()


def test_promised_flows_follow_every_stage_of_a_decision() -> None:
    plane = RecordedDataPlane()
    binder = FlowBinder(plane)
    pulse = (publisher("ecg", "pulse"), subscriber("nurse", "pulse", 0.02))
    fire = (publisher("alarm", "fire"), subscriber("doctor", "fire", 0.0064))
    first = decide(Question(planned_for(*pulse)))
    second = decide(Question(planned_for(*pulse, *fire)), first)
    third = decide(Question(planned_for(*fire)), second)
    gateway = DesiredState("a1")
    for number, stage in enumerate((*first.stages, *second.stages, *third.stages), start=1):
        # As it is told: by the difference, in JSON.
        wanted = DesiredState("a1", number, stage)
        line = encode_line(shallow(state_message(gateway, wanted)))
        gateway = parse_state(decode_line(line)).after(gateway)
        assert gateway.orders is not None
        binder.order(gateway.orders)
        assert {f"{one} {port}": flow for (one, port), flow in plane.state.flows.items()} == stage.copies
        limiters = [each for some in plane.state.limiters.values() for each in some.values()]
        assert sorted(limiters, key=repr) == sorted(stage.limiters.values(), key=repr)
    assert {flow.key for flow in plane.state.flows.values()} == {
        third.orders.promised.addresses["alarm fire"]
    }


def test_where_packets_are_sent_once_each_promises_do_not_pass() -> None:
    plane = RecordedDataPlane()
    found = decide(Question(planned_for(publisher("ecg", "pulse"), subscriber("nurse", "pulse", 0.02))))
    FlowBinder(plane, replicates=False).order(found.orders)
    assert not plane.state.flows
    assert not plane.state.limiters
    assert set(plane.state.ports) == set(found.orders.ports)


def test_a_promised_flow_of_a_class_that_its_port_lacks_is_refused() -> None:
    one = FlowKey("239.192.0.0", 17_000)
    wrong = replace(orders(), copies={f"{one} cable": SetFlow(one, "cable", 0, 3, 0.0)})
    with pytest.raises(PlanError, match="has the classes 0 to 1"):
        FlowBinder(RecordedDataPlane()).order(wrong)
