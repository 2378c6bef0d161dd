"""Switches with queues of their own: what stands in their database, and which queue rules choose.

The datapath of these tests is the one in user space, which cannot queue: a real ovsdb-server and ovs-vswitchd check
what is set, and traffic runs through the linux queues behind the switch elsewhere (test_openflow_contract.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.network.openflow.lab import Lab, Traffic, eventually

from triagemq.errors import PlanError
from triagemq.network.openflow import OpenFlowSwitches
from triagemq.plan import FlowKey, RemoveFlow, RemovePort, SetFlow, SetPort

pytestmark = pytest.mark.needs_root("it makes namespaces of the network")

BROKER, CLIENT = "10.9.0.1", "10.9.0.2"
KEY, TOPIC = FlowKey(CLIENT, 2000), FlowKey("239.1.2.3", 5000)
PORT, OTHER = SetPort("radio", 4e6, 100, 7), SetPort("cable", 8e6, 100, 7)
Open = Callable[..., OpenFlowSwitches]


@pytest.fixture
def open_plane(lab: Lab) -> Iterator[Open]:
    """One switch with queues and two hosts; the ports of both have a name in the plan."""
    lab.switches.add_switch("s1", 1, [lab.host("broker", f"{BROKER}/24"), lab.host("client", f"{CLIENT}/24")])
    planes: list[OpenFlowSwitches] = []

    def open_one(**options: Any) -> OpenFlowSwitches:
        plane = OpenFlowSwitches(
            [1],
            listen=[lab.switches.controller],
            ports={"radio": (1, "p-client"), "cable": (1, "p-broker")},
            databases={1: f"unix:{lab.switches.directory / 'db.sock'}"},
            **options,
        )
        planes.append(plane)
        plane.wait_until_ready()
        return plane

    yield open_one
    for plane in planes:
        plane.close()


def queues(lab: Lab, interface: str) -> dict[int, tuple[int, ...]]:
    """Of an interface's QoS, by number of the queue: priority and bits per second."""
    qos = lab.switches.configure("get", "Port", interface, "qos").strip()
    if qos == "[]":
        return {}
    assert lab.switches.configure("get", "QoS", qos, "type").strip() == "linux-htb"
    named = lab.switches.configure("get", "QoS", qos, "queues").strip(" {}\n")
    found = {}
    for each in named.split(", "):
        number, row = each.split("=")
        said = lab.switches.configure(
            "get", "Queue", row, "other_config:priority", "other_config:max-rate"
        ).replace('"', "")
        found[int(number)] = tuple(map(int, said.split()))
    return found


def count(lab: Lab, table: str) -> int:
    return len(lab.switches.configure("--bare", "--columns=_uuid", "list", table).split())


def expected(bandwidth_bps: int) -> dict[int, tuple[int, ...]]:
    return {
        0: (7, bandwidth_bps),
        1: (0, bandwidth_bps // 4),
        **{2 + each: (1 + each, bandwidth_bps) for each in range(7)},
    }


def test_queues_follow_the_ports_of_a_plan_and_rules_choose_among_them(lab: Lab, open_plane: Open) -> None:
    plane = open_plane(sources=[BROKER])
    run = Traffic(lab.udp("broker", BROKER, 0), {(CLIENT, 2000): lab.udp("client", CLIENT, 2000)})
    run.send(3, 100)
    eventually(lambda: {BROKER, CLIENT} <= plane.network.hosts.keys(), "hosts are learned")
    plane.apply([PORT, SetFlow(KEY, "radio", 0, 2, 0.0)])
    assert queues(lab, "p-client") == expected(4_000_000)
    assert queues(lab, "p-broker") == {}
    rules = [line.partition("table=1, ")[2] for line in lab.switches.dump_flows("s1")]
    flow = f"priority=300,udp,nw_dst={CLIENT},tp_dst=2000"
    assert f"{flow} actions=set_field:32->ip_dscp,set_queue:4,output:2" in rules
    assert f"priority=400,udp,nw_dst={CLIENT},nw_tos=192 actions=set_queue:1,output:2" in rules
    # Of what nobody has ranked no rule chooses the queue: it comes to the one that is served last.
    assert len([line for line in rules if "set_queue" in line]) == 2
    run.send(20, 200)
    eventually(run.all_came, "packets pass")

    copies = [SetFlow(TOPIC, name, 7, 1, 0.0) for name in ("radio", "cable")]
    plane.apply([SetPort("radio", 2e6, 100, 7), OTHER, *copies])
    assert queues(lab, "p-client") == expected(2_000_000)
    assert queues(lab, "p-broker") == expected(8_000_000)
    (topic,) = [line for line in lab.switches.dump_flows("s1") if "239.1.2.3" in line]
    assert topic.endswith("actions=set_field:40->ip_dscp,set_queue:3,output:1,output:2")

    plane.apply([RemoveFlow(TOPIC), RemovePort("cable")])
    assert queues(lab, "p-broker") == {}
    assert (count(lab, "QoS"), count(lab, "Queue")) == (1, 9)
    plane.close()
    assert (count(lab, "QoS"), count(lab, "Queue")) == (0, 0)


def test_a_new_process_changes_the_queues_of_the_last_in_their_place(lab: Lab, open_plane: Open) -> None:
    first = open_plane(keep_rules=True)
    first.apply([PORT])
    before = lab.switches.configure("get", "Port", "p-client", "qos")
    first.close()
    second = open_plane()
    second.apply([SetPort("radio", 1e6, 100, 7)])
    assert lab.switches.configure("get", "Port", "p-client", "qos") == before
    assert queues(lab, "p-client") == expected(1_000_000)


def test_queues_of_others_are_left_alone_and_a_plan_that_fails_changes_nothing(
    lab: Lab, open_plane: Open
) -> None:
    plane = open_plane()
    plane.apply([PORT])
    theirs = ("--", "--id=@theirs", "create", "QoS", "type=linux-htb")
    lab.switches.configure("set", "Port", "p-broker", "qos=@theirs", *theirs)
    with pytest.raises(PlanError, match="p-broker has a QoS that is not ours"):
        plane.apply([SetPort("radio", 1e6, 100, 7), OTHER])
    assert queues(lab, "p-client") == expected(4_000_000)
    assert count(lab, "QoS") == 2
    plane.close()
    assert (count(lab, "QoS"), count(lab, "Queue")) == (1, 0)


@pytest.mark.parametrize("borrowing", [False, True])
def test_widths_are_in_the_database_and_change_there(borrowing: bool, lab: Lab, open_plane: Open) -> None:
    plane = open_plane()
    plane.apply([SetPort("radio", 4e6, 100, 2, (3e6, 1e6), borrowing)])
    before = lab.switches.configure("get", "Port", "p-client", "qos")
    owned = {0: (7, 4_000_000), 1: (0, 1_000_000)}
    narrow = {2: (1, 3_000_000), 3: (1, 1_000_000)}
    found = queues(lab, "p-client")
    assert found == expected(4_000_000) | owned | (
        {2: (1, 4_000_000), 3: (1, 4_000_000)} if borrowing else narrow
    )
    assert [least_rate(lab, number) for number in (0, 2, 3, 4)] == [0, 3_000_000, 1_000_000, 0]
    plane.apply([SetPort("radio", 4e6, 100, 2, (1e6, 3e6), borrowing)])
    assert [least_rate(lab, number) for number in (2, 3)] == [1_000_000, 3_000_000]
    assert lab.switches.configure("get", "Port", "p-client", "qos") == before


def least_rate(lab: Lab, number: int) -> int:
    qos = lab.switches.configure("get", "Port", "p-client", "qos").strip()
    row = lab.switches.configure("get", "QoS", qos, f"queues:{number}").strip()
    return int(lab.switches.configure("get", "Queue", row, "other_config:min-rate").strip(' "\n'))
