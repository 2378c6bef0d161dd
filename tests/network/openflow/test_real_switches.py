"""Open vSwitch that follows instructions: discovery, marks, counters, limits, and what goes wrong."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.network.openflow.beside import SwitchesAndQueues
from tests.network.openflow.lab import Lab, Traffic, eventually
from tests.network.openflow.probes import all_probes
from tests.network.openflow.table_model import TableModel
from tests.network.recorded import RecordedDataPlane

from triagemq.errors import NetworkError, PlanError
from triagemq.network.openflow import OpenFlowSwitches, Timing
from triagemq.network.openflow.topology import PortId
from triagemq.plan.dataplane import FlowKey, RemoveFlow, RemoveLimiter, SetFlow, SetLimiter, SetPort

pytestmark = pytest.mark.needs_root("it makes namespaces of the network")

Open = Callable[..., OpenFlowSwitches]
BROKER, CLIENT = "10.9.0.1", "10.9.0.2"
GROUP = "239.1.2.3"
KEY = FlowKey(GROUP, 2000)
PORT = SetPort("radio", 1e6, 100, 7)
RADIO = {"radio": (1, "p-client")}


@pytest.fixture
def open_plane(lab: Lab) -> Iterator[Open]:
    planes: list[OpenFlowSwitches] = []

    def open_one(*switches: int, **options: Any) -> OpenFlowSwitches:
        options.setdefault("listen", [lab.switches.controller])
        planes.append(OpenFlowSwitches(switches, **options))
        return planes[-1]

    yield open_one
    for plane in planes:
        if not plane._closed:
            plane._call(pass_the_model(plane))
        plane.close()


async def pass_the_model(plane: OpenFlowSwitches) -> None:
    """The rules that a test has come to, looked at between two changes: in the thread that makes them."""
    book = plane._controller._book
    TableModel(book.network.links, book.wanted).check(all_probes(book.routes))


def one_switch(lab: Lab, *more: str) -> None:
    ports = [lab.host("broker", f"{BROKER}/24"), lab.host("client", f"{CLIENT}/24", "fd09::2/64"), *more]
    lab.switches.add_switch("s1", 1, ports)


def line_of_three(lab: Lab) -> None:
    broker, client = (
        lab.host("broker", f"{BROKER}/24", "fd09::1/64"),
        lab.host("client", f"{CLIENT}/24", "fd09::2/64"),
    )
    first, second = lab.link("l12", "l21"), lab.link("l23", "l32")
    lab.switches.add_switch("s1", 1, [broker, first[0]])
    lab.switches.add_switch("s2", 2, [first[1], second[0]])
    lab.switches.add_switch("s3", 3, [second[1], client])


def traffic(lab: Lab, *keys: tuple[str, int], source: str = BROKER) -> Traffic:
    sender = lab.udp("broker", source, 0)
    return Traffic(sender, {key: lab.udp("client", *key) for key in keys})


def events(lab: Lab, *keys: FlowKey) -> Traffic:
    """From the broker to a group of which the client is a member."""
    members = {
        (key.address, key.udp_port): lab.member("client", CLIENT, key.address, key.udp_port) for key in keys
    }
    return Traffic(lab.multicast_sender("broker", BROKER), members)


def greet(lab: Lab, plane: OpenFlowSwitches) -> None:
    """Both hosts speak, and are found."""
    run = traffic(lab, (CLIENT, 3000))
    run.send(3, 100)
    eventually(lambda: {BROKER, CLIENT} <= plane.network.hosts.keys(), "hosts are learned")


def lines(lab: Lab, *names: str) -> dict[str, list[str]]:
    """The rules of switches without their cookies, which tell only when they were put."""
    return {
        name: sorted(re.sub(r"cookie=\w+, ", "", line) for line in lab.switches.dump_flows(name))
        for name in names
    }


def test_three_switches_in_line(lab: Lab, open_plane: Open) -> None:
    places = {"onward": (1, "l12"), "last": (2, "l23"), "radio": (3, "p-client")}
    plane = open_plane(1, 2, 3, ports=places)
    line_of_three(lab)
    plane.wait_until_ready()
    assert plane.network.links == {
        PortId(1, 2): PortId(2, 1),
        PortId(2, 1): PortId(1, 2),
        PortId(2, 2): PortId(3, 1),
        PortId(3, 1): PortId(2, 2),
    }
    # Before anybody is known, hosts find each other, and packets pass.
    four, six = (CLIENT, 2001), ("fd09::2", 2001)
    run, run_six = traffic(lab, four), traffic(lab, six, source="fd09::1")
    for each in (run, run_six):
        each.send(5, 100)
        eventually(each.all_came, "unmanaged packets")
    eventually(
        lambda: {BROKER, CLIENT, "fd09::1", "fd09::2"} <= plane.network.hosts.keys(), "hosts are learned"
    )
    assert [host.at for host in plane.network.hosts[CLIENT]] == [PortId(3, 2)]

    flows = [SetFlow(KEY, name, 0, 2, 0.0) for name in places]
    plane.apply([*(SetPort(name, 1e6, 100, 7) for name in places), *flows])
    rules = lines(lab, "s1", "s2", "s3")
    for name in rules:
        marked = (
            f"table=1, priority=300,udp,nw_dst={GROUP},tp_dst=2000 actions=set_field:32->ip_dscp,output:2"
        )
        assert marked in rules[name]

    topic = events(lab, KEY)
    receivers = {four: run.receivers[four], (GROUP, 2000): topic.receivers[GROUP, 2000]}
    marks = []
    for key, receiver in receivers.items():
        receiver.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        receiver.settimeout(30)
        for dscp in (0, 46, 48):
            topic.sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)
            topic.sender.sendto(b"mark", key)
            _, ancillary, _, _ = receiver.recvmsg(100, 100)
            marks.append(ancillary[0][2][0] >> 2)
    # Packets to one host keep the mark that the gateway has given them.
    assert marks == [0, 46, 48, 32, 32, 32]

    # The switch writes its counters down every half second or so.
    eventually(lambda: plane.counters()[2].flows[KEY].packets >= 1, "the flow is counted")

    before = plane.changes
    plane.apply([SetFlow(KEY, "radio", 0, 2, 0.5)])
    assert plane.changes == before, "a drop rate is no business of switches"
    with pytest.raises(PlanError, match="switches go by the marks"):
        plane.apply([SetFlow(FlowKey(CLIENT, 2001), "radio", 0, 2, 0.0)])
    plane.apply([RemoveFlow(KEY)])
    assert plane.changes["rules deleted"] - before["rules deleted"] == 3
    plane.close()
    assert lines(lab, "s1", "s2", "s3") == {"s1": [], "s2": [], "s3": []}


def test_reconnection_changes_only_what_differs(lab: Lab, open_plane: Open) -> None:
    one_switch(lab)
    lab.switches.change_rules("s1", "add-flow", "table=9,priority=5,udp,actions=drop")
    plane = open_plane(1, ports=RADIO)
    plane.wait_until_ready()
    greet(lab, plane)
    flows = [SetFlow(FlowKey(GROUP, 2000 + each), "radio", each, each, 0.0) for each in range(5)]
    plane.apply([PORT, *flows])
    good, before = lines(lab, "s1"), plane.changes

    # Without any controller Open vSwitch would forget all rules; with one that is not there it keeps them.
    lab.switches.configure("set-controller", "s1", f"unix:{lab.switches.directory}/nobody.sock")
    eventually(lambda: plane.connected == set(), "the switch has gone")
    udp = f"table=1,priority=300,udp,nw_dst={GROUP}"
    lab.switches.change_rules("s1", "--strict", "del-flows", f"{udp},tp_dst=2001")
    lab.switches.change_rules("s1", "--strict", "mod-flows", f"{udp},tp_dst=2002,actions=drop")
    lab.switches.change_rules("s1", "add-flow", f"cookie=0x7154800000000000,{udp},tp_dst=2009,actions=drop")
    lab.switches.change_rules(
        "s1",
        "add-flow",
        "cookie=0x7154800000000001,table=1,priority=299,tcp,nw_dst=10.9.0.0/16,tp_dst=80,actions=drop",
    )
    # A plan that changes meanwhile arrives with the switch.
    plane.apply([SetFlow(FlowKey(GROUP, 2003), "radio", 3, 0, 0.0)])
    lab.switches.configure("set-controller", "s1", lab.switches.controller)
    eventually(lambda: plane.changes["updates"] > before["updates"], "the switch was brought up to date")
    plane.apply([SetFlow(FlowKey(GROUP, 2003), "radio", 3, 3, 0.0)])
    assert lines(lab, "s1") == good
    assert any("table=9" in line for line in good["s1"])
    made = {what: plane.changes[what] - before[what] for what in before}
    assert made == {"rules put": 4, "rules deleted": 2, "updates": 2}


def test_a_link_fails_and_traffic_takes_the_other_way(lab: Lab, open_plane: Open) -> None:
    broker, client = lab.host("broker", f"{BROKER}/24"), lab.host("client", f"{CLIENT}/24")
    short, left, right = lab.link("l13", "l31"), lab.link("l12", "l21"), lab.link("l23", "l32")
    lab.switches.add_switch("s1", 1, [broker, short[0], left[0]])
    lab.switches.add_switch("s2", 2, [left[1], right[0]])
    lab.switches.add_switch("s3", 3, [client, short[1], right[1]])
    plane = open_plane(1, 2, 3)
    plane.wait_until_ready()
    assert len(plane.network.links) == 6
    run = traffic(lab, (CLIENT, 2000))
    run.send(10, 100)
    eventually(run.all_came, "packets pass a ring without circling")
    assert run.arrived[CLIENT, 2000] == [*range(10)]
    eventually(lambda: {BROKER, CLIENT} <= plane.network.hosts.keys(), "hosts are learned")
    ethernet = plane.network.hosts[CLIENT][0].ethernet

    def leaves_by(port: int) -> bool:
        return any(
            f"dl_dst={ethernet}" in line and line.endswith(f"output:{port}")
            for line in lab.switches.dump_flows("s1")
        )

    eventually(lambda: leaves_by(2), "the short path")
    lab.set_interface("l13", "down")
    eventually(lambda: len(plane.network.links) == 4, "the failure is noticed")
    eventually(lambda: leaves_by(3), "another path")
    plane.apply([])
    run.forget()
    run.send(50, 250, lossless=run.receivers)
    eventually(run.all_came, "packets on the new path")

    lab.set_interface("l13", "up")
    for _ in range(200):
        run.send(10, 200, lossless=run.receivers)
        if len(plane.network.links) == 6 and leaves_by(2):
            break
    assert len(plane.network.links) == 6
    run.send(10, 200, lossless=run.receivers)
    eventually(run.all_came, "the path back loses nothing")
    assert len(set(run.arrived[CLIENT, 2000])) == len(run.arrived[CLIENT, 2000])


def test_links_stay_when_it_is_the_controller_that_does_not_work(lab: Lab, open_plane: Open) -> None:
    plane = open_plane(1, 2, 3, timing=Timing(link_seconds=0.5, link_lost_seconds=2.5))
    line_of_three(lab)
    plane.wait_until_ready()
    links, before = plane.network.links, plane.changes
    assert len(links) == 4
    plane._loop.call_soon_threadsafe(time.sleep, 3.0)
    # It looks at its links before this is answered.
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0.6), plane._loop).result()
    assert plane.network.links == links
    assert plane.changes["rules deleted"] == before["rules deleted"]


def test_limits_are_kept_by_meters(lab: Lab, open_plane: Open) -> None:
    plane = open_plane(1, ports=RADIO)
    one_switch(lab)
    plane.wait_until_ready()
    greet(lab, plane)
    other = FlowKey(GROUP, 2001)
    plane.apply([PORT, SetFlow(KEY, "radio", 0, 1, 0.0), SetFlow(other, "radio", 1, 1, 0.0)])
    run = events(lab, KEY, other)
    run.send(3, 100)
    eventually(run.all_came, "packets before there are limits")
    began = time.monotonic()
    plane.apply([SetLimiter(KEY, 250.0, 125.0)])
    came = len(run.arrived[GROUP, 2000])
    run.send(200, 400, lossless=[(GROUP, 2001)])
    eventually(lambda: not run.under_way([(GROUP, 2001)]), "the flow without a limit loses nothing")
    # A burst, and what has been refilled for as long as they were sent: packets of 92 bytes, three in half a second.
    passed = len(run.arrived[GROUP, 2000]) - came
    assert 92 * passed <= 250 + 125 * (time.monotonic() - began)
    eventually(lambda: plane.counters()[1].flows[KEY].limited == 200 - passed, "what was over the limit")
    assert plane.counters()[1].flows[other].limited == 0
    assert "meter=" in lab.switches.dump_meters("s1")
    limited = plane.counters()[1].flows[KEY].limited
    plane.apply([RemoveLimiter(KEY)])
    eventually(lambda: "meter=" not in lab.switches.dump_meters("s1"), "meters go with what they limit")
    assert plane.counters()[1].flows[KEY].limited == limited
    rule = f"table=1, priority=300,udp,nw_dst={GROUP},tp_dst=2000 actions=set_field:40->ip_dscp,output:2"
    assert rule in lines(lab, "s1")["s1"]


def test_rules_of_others_are_not_overwritten(lab: Lab, open_plane: Open) -> None:
    one_switch(lab)
    theirs = f"table=1,priority=300,udp,nw_dst={GROUP},tp_dst=2000,actions=drop"
    lab.switches.change_rules("s1", "add-flow", theirs)
    plane, queues = open_plane(1, ports=RADIO), RecordedDataPlane(7)
    both = SwitchesAndQueues(plane, queues)
    plane.wait_until_ready()
    greet(lab, plane)
    both.apply([PORT])
    other = SetFlow(FlowKey(GROUP, 2001), "radio", 0, 0, 0.0)
    before = lines(lab, "s1")
    with pytest.raises(PlanError, match=r"switch 0000000000000001 .*tp_dst|udp_dst=2000\] that is not ours"):
        both.apply([other, SetFlow(KEY, "radio", 0, 0, 0.0)])
    assert lines(lab, "s1") == before
    assert queues.instructions == (PORT,)
    both.apply([other])
    assert any("tp_dst=2001" in line for line in lines(lab, "s1")["s1"])


def test_a_plan_that_a_switch_refuses_is_taken_back_everywhere(lab: Lab, open_plane: Open) -> None:
    plane, queues = open_plane(1, ports=RADIO), RecordedDataPlane(7)
    both = SwitchesAndQueues(plane, queues)
    one_switch(lab)
    plane.wait_until_ready()
    greet(lab, plane)
    both.apply([PORT, SetFlow(KEY, "radio", 0, 3, 0.0)])
    before = lines(lab, "s1")
    lab.switches.configure(
        *("--", "--id=@small", "create", "flow_table", "flow_limit=7", "overflow_policy=refuse"),
        *("--", "set", "bridge", "s1", "flow_tables:1=@small"),
    )
    flows = [SetFlow(FlowKey(GROUP, 2000 + each), "radio", each, 0, 0.0) for each in range(20)]
    with pytest.raises(PlanError, match=r"refused the rule \[table 1 .* \(flow mod failed: table full\)"):
        both.apply(flows)
    assert lines(lab, "s1") == before
    assert queues.instructions == (PORT, SetFlow(KEY, "radio", 0, 3, 0.0))
    both.apply(flows[:2])
    assert any("tp_dst=2001" in line for line in lab.switches.dump_flows("s1"))


def test_a_silent_publisher_is_asked_and_one_that_moves_is_followed(lab: Lab, open_plane: Open) -> None:
    plane = open_plane(1, ports={"radio": (1, "p-broker")})
    one_switch(lab)
    six = FlowKey("ff15::7", 2000)
    plane.apply(
        [
            PORT,
            SetFlow(KEY, "radio", 0, 0, 0.0, CLIENT),
            SetFlow(six, "radio", 1, 0, 0.0, "fd09::2"),
        ]
    )
    eventually(lambda: {CLIENT, "fd09::2"} <= plane.network.hosts.keys(), "they answered")
    entry = f"udp,in_port=2,nw_src={CLIENT},nw_dst={GROUP},tp_dst=2000"
    eventually(lambda: any(entry in line for line in lab.switches.dump_flows("s1")), "where it enters")
    lab.switches.remove_port("s1", "p-client")
    eventually(lambda: CLIENT not in plane.network.hosts, "its port has gone")
    # The switch is told after the host is forgotten, by another thread.
    eventually(
        lambda: not any(entry in line for line in lab.switches.dump_flows("s1")), "it enters there no more"
    )
    lab.switches.add_port("s1", "p-client")
    eventually(lambda: CLIENT in plane.network.hosts, "it is found at its new port")


def test_strangers_at_the_door_are_counted(lab: Lab, open_plane: Open) -> None:
    plane = open_plane(1, listen=[lab.switches.controller, "tcp:127.0.0.1:0"])
    one_switch(lab)
    plane.wait_until_ready()
    place = plane.listening[1]
    assert isinstance(place, tuple)
    with socket.create_connection(place) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        stranger.settimeout(30)
        while stranger.recv(100):
            pass
    eventually(lambda: plane.error_counts.get("nonsense") == 1, "nonsense is counted")
    plane.apply([PORT])


def test_a_missing_switch_is_named(lab: Lab, open_plane: Open) -> None:
    plane = open_plane(1, 0xABC, ready_seconds=1.0)
    one_switch(lab)
    with pytest.raises(NetworkError, match="0000000000000abc has not connected; set its controller to"):
        plane.apply([PORT])


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    directory, journal = lab.switches.directory, lab.journal.directory
    assert len(list(journal.glob("*.json"))) == 4
    lab.close()
    lab.switches.close()
    assert not directory.exists()
    assert not list(journal.glob("*.json"))
