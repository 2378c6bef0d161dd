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
from triagemq.plan import FlowKey, RemoveFlow, RemoveLimiter, SetFlow, SetLimiter, SetPort

pytestmark = pytest.mark.needs_root("it makes namespaces of the network")

Open = Callable[..., OpenFlowSwitches]
BROKER, CLIENT = "10.9.0.1", "10.9.0.2"
KEY = FlowKey(CLIENT, 2000)
PORT = SetPort("radio", 1e6, 100, 7)


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
    flows = {address: list(some.values()) for address, some in book.flows.items()}
    TableModel(book.network.links, book.wanted).check(all_probes(book.routes, flows, book.sources))


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


def lines(lab: Lab, *names: str) -> dict[str, list[str]]:
    """The rules of switches without their cookies, which tell only when they were put."""
    return {
        name: sorted(re.sub(r"cookie=\w+, ", "", line) for line in lab.switches.dump_flows(name))
        for name in names
    }


def test_three_switches_in_line(lab: Lab, open_plane: Open) -> None:
    plane = open_plane(1, 2, 3, sources=[BROKER, "fd09::1"])
    line_of_three(lab)
    plane.wait_until_ready()
    assert plane.network.links == {
        PortId(1, 2): PortId(2, 1),
        PortId(2, 1): PortId(1, 2),
        PortId(2, 2): PortId(3, 1),
        PortId(3, 1): PortId(2, 2),
    }
    # Before anybody is known, hosts find each other, and packets pass.
    four, six = (CLIENT, 2000), ("fd09::2", 2000)
    run, run_six = traffic(lab, four), traffic(lab, six, source="fd09::1")
    for each in (run, run_six):
        each.send(5, 100)
        eventually(each.all_came, "unmanaged packets")
    eventually(
        lambda: {BROKER, CLIENT, "fd09::1", "fd09::2"} <= plane.network.hosts.keys(), "hosts are learned"
    )
    assert [host.at for host in plane.network.hosts[CLIENT]] == [PortId(3, 2)]

    plane.apply([PORT, SetFlow(KEY, "radio", 0, 2, 0.0), SetFlow(FlowKey(*six), "radio", 1, 0, 0.0)])
    rules = lines(lab, "s1", "s2", "s3")
    for name, port in (("s1", 2), ("s2", 2), ("s3", 2)):
        marked = f"table=1, priority=300,udp,nw_dst={CLIENT},tp_dst=2000 actions=set_field:32->ip_dscp,output:{port}"
        assert marked in rules[name]
        assert f"table=1, priority=400,udp,nw_dst={CLIENT},nw_tos=192 actions=output:{port}" in rules[name]
        assert any(
            "udp6,ipv6_dst=fd09::2,tp_dst=2000 actions=set_field:46->ip_dscp" in line for line in rules[name]
        )

    marks = []
    for receiver, level, option in (
        (run.receivers[four], socket.IPPROTO_IP, socket.IP_RECVTOS),
        (run_six.receivers[six], socket.IPPROTO_IPV6, socket.IPV6_RECVTCLASS),
    ):
        receiver.setsockopt(level, option, 1)
    for each, key in ((run, four), (run_six, six)):
        for tos in (0, 48 << 2):
            if key == four:
                each.sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
            else:
                each.sender.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, tos)
            each.sender.sendto(b"mark", key)
            receiver = each.receivers[key]
            receiver.settimeout(30)
            _, ancillary, _, _ = receiver.recvmsg(100, 100)
            receiver.setblocking(False)
            marks.append(ancillary[0][2][0] >> 2)
    assert marks == [32, 48, 46, 48]

    assert plane.counters()[2].ports[2].sent_packets >= 10
    # The switch writes its counters down every half second or so.
    eventually(lambda: plane.counters()[2].flows[KEY].packets >= 1, "the flow is counted")

    before = plane.changes
    plane.apply([SetFlow(KEY, "radio", 0, 2, 0.5)])
    assert plane.changes == before, "a drop rate is no business of switches"
    plane.apply([RemoveFlow(KEY)])
    assert plane.changes["rules deleted"] - before["rules deleted"] == 6
    plane.close()
    assert lines(lab, "s1", "s2", "s3") == {"s1": [], "s2": [], "s3": []}


def test_reconnection_changes_only_what_differs(lab: Lab, open_plane: Open) -> None:
    one_switch(lab)
    lab.switches.change_rules("s1", "add-flow", "table=9,priority=5,udp,actions=drop")
    plane = open_plane(1)
    plane.wait_until_ready()
    run = traffic(lab, (CLIENT, 2000))
    run.send(3, 100)
    eventually(lambda: {BROKER, CLIENT} <= plane.network.hosts.keys(), "hosts are learned")
    flows = [SetFlow(FlowKey(CLIENT, 2000 + each), "radio", each, each, 0.0) for each in range(5)]
    plane.apply([PORT, *flows])
    good, before = lines(lab, "s1"), plane.changes

    # Without any controller Open vSwitch would forget all rules; with one that is not there it keeps them.
    lab.switches.configure("set-controller", "s1", f"unix:{lab.switches.directory}/nobody.sock")
    eventually(lambda: plane.connected == set(), "the switch has gone")
    udp = f"table=1,priority=300,udp,nw_dst={CLIENT}"
    lab.switches.change_rules("s1", "--strict", "del-flows", f"{udp},tp_dst=2001")
    lab.switches.change_rules("s1", "--strict", "mod-flows", f"{udp},tp_dst=2002,actions=drop")
    lab.switches.change_rules("s1", "add-flow", f"cookie=0x7154800000000000,{udp},tp_dst=2009,actions=drop")
    lab.switches.change_rules(
        "s1",
        "add-flow",
        "cookie=0x7154800000000001,table=1,priority=299,tcp,nw_dst=10.9.0.0/16,tp_dst=80,actions=drop",
    )
    # A plan that changes meanwhile arrives with the switch.
    plane.apply([SetFlow(FlowKey(CLIENT, 2003), "radio", 3, 0, 0.0)])
    lab.switches.configure("set-controller", "s1", lab.switches.controller)
    eventually(lambda: plane.changes["updates"] > before["updates"], "the switch was brought up to date")
    plane.apply([SetFlow(FlowKey(CLIENT, 2003), "radio", 3, 3, 0.0)])
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
    plane = open_plane(1, 2, 3, sources=[BROKER])
    plane.wait_until_ready()
    assert len(plane.network.links) == 6
    run = traffic(lab, (CLIENT, 2000))
    run.send(10, 100)
    eventually(run.all_came, "packets pass a ring without circling")
    assert run.arrived[CLIENT, 2000] == [*range(10)]
    eventually(lambda: {BROKER, CLIENT} <= plane.network.hosts.keys(), "hosts are learned")
    plane.apply([PORT, SetFlow(KEY, "radio", 0, 1, 0.0)])
    assert not any("tp_dst=2000" in line for line in lab.switches.dump_flows("s2"))

    lab.set_interface("l13", "down")
    eventually(lambda: len(plane.network.links) == 4, "the failure is noticed")
    eventually(lambda: any("tp_dst=2000" in line for line in lab.switches.dump_flows("s2")), "another way")
    plane.apply([])
    run.forget()
    run.send(50, 250, lossless=run.receivers)
    eventually(run.all_came, "packets on the new way")

    lab.set_interface("l13", "up")
    for _ in range(200):
        run.send(10, 200, lossless=run.receivers)
        if len(plane.network.links) == 6 and not any(
            "tp_dst=2000" in line for line in lab.switches.dump_flows("s2")
        ):
            break
    assert len(plane.network.links) == 6
    run.send(10, 200, lossless=run.receivers)
    eventually(run.all_came, "the way back loses nothing")
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


def test_limits_are_kept_by_meters_that_spare_control_packets(lab: Lab, open_plane: Open) -> None:
    plane = open_plane(1, sources=[BROKER])
    one_switch(lab)
    plane.wait_until_ready()
    run = traffic(lab, (CLIENT, 2000), (CLIENT, 2001))
    run.send(3, 100)
    eventually(lambda: {BROKER, CLIENT} <= plane.network.hosts.keys(), "hosts are learned")
    other = FlowKey(CLIENT, 2001)
    plane.apply([PORT, SetFlow(KEY, "radio", 0, 1, 0.0), SetFlow(other, "radio", 1, 1, 0.0)])
    eventually(run.all_came, "packets before there are limits")
    began = time.monotonic()
    plane.apply([SetLimiter(KEY, 250.0, 125.0)])
    came = len(run.arrived[CLIENT, 2000])
    run.send(200, 400, lossless=[(CLIENT, 2001)])
    eventually(lambda: not run.under_way([(CLIENT, 2001)]), "the flow without a limit loses nothing")
    # A burst, and what has been refilled for as long as they were sent: packets of 92 bytes, three in half a second.
    passed = len(run.arrived[CLIENT, 2000]) - came
    assert 92 * passed <= 250 + 125 * (time.monotonic() - began)
    eventually(lambda: plane.counters()[1].flows[KEY].limited == 200 - passed, "what was over the limit")
    assert plane.counters()[1].flows[other].limited == 0
    run.sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 48 << 2)
    before = len(run.arrived[CLIENT, 2000])
    run.send(50, 400)
    eventually(lambda: run.receive(0.05) or len(run.arrived[CLIENT, 2000]) == before + 50, "control packets")
    assert "meter=" in lab.switches.dump_meters("s1")
    limited = plane.counters()[1].flows[KEY].limited
    plane.apply([RemoveLimiter(KEY)])
    eventually(lambda: "meter=" not in lab.switches.dump_meters("s1"), "meters go with what they limit")
    assert plane.counters()[1].flows[KEY].limited == limited
    rule = f"table=1, priority=300,udp,nw_dst={CLIENT},tp_dst=2000 actions=set_field:40->ip_dscp,output:2"
    assert rule in lines(lab, "s1")["s1"]


def test_rules_of_others_are_not_overwritten(lab: Lab, open_plane: Open) -> None:
    one_switch(lab)
    theirs = f"table=1,priority=300,udp,nw_dst={CLIENT},tp_dst=2000,actions=drop"
    lab.switches.change_rules("s1", "add-flow", theirs)
    plane, queues = open_plane(1), RecordedDataPlane(7)
    both = SwitchesAndQueues(plane, queues)
    plane.wait_until_ready()
    run = traffic(lab, (CLIENT, 2001))
    run.send(3, 100)
    eventually(lambda: {BROKER, CLIENT} <= plane.network.hosts.keys(), "hosts are learned")
    both.apply([PORT])
    before = lines(lab, "s1")
    with pytest.raises(PlanError, match=r"switch 0000000000000001 .*tp_dst|udp_dst=2000\] that is not ours"):
        both.apply([SetFlow(FlowKey(CLIENT, 2001), "radio", 0, 0, 0.0), SetFlow(KEY, "radio", 0, 0, 0.0)])
    assert lines(lab, "s1") == before
    assert queues.instructions == (PORT,)
    both.apply([SetFlow(FlowKey(CLIENT, 2001), "radio", 0, 0, 0.0)])
    assert any("tp_dst=2001" in line for line in lines(lab, "s1")["s1"])


def test_a_plan_that_a_switch_refuses_is_taken_back_everywhere(lab: Lab, open_plane: Open) -> None:
    plane, queues = open_plane(1), RecordedDataPlane(7)
    both = SwitchesAndQueues(plane, queues)
    one_switch(lab)
    plane.wait_until_ready()
    run = traffic(lab, (CLIENT, 2000))
    run.send(3, 100)
    eventually(lambda: {BROKER, CLIENT} <= plane.network.hosts.keys(), "hosts are learned")
    both.apply([PORT, SetFlow(KEY, "radio", 0, 3, 0.0)])
    before = lines(lab, "s1")
    lab.switches.configure(
        *("--", "--id=@small", "create", "flow_table", "flow_limit=7", "overflow_policy=refuse"),
        *("--", "set", "bridge", "s1", "flow_tables:1=@small"),
    )
    flows = [SetFlow(FlowKey(CLIENT, 2000 + each), "radio", each, 0, 0.0) for each in range(20)]
    with pytest.raises(PlanError, match=r"refused the rule \[table 1 .* \(flow mod failed: table full\)"):
        both.apply(flows)
    assert lines(lab, "s1") == before
    assert queues.instructions == (PORT, SetFlow(KEY, "radio", 0, 3, 0.0))
    both.apply(flows[:2])
    assert any("tp_dst=2001" in line for line in lab.switches.dump_flows("s1"))


def test_a_silent_host_is_asked_and_a_host_that_moves_is_followed(lab: Lab, open_plane: Open) -> None:
    plane = open_plane(1)
    one_switch(lab)
    silent = FlowKey("fd09::2", 2000)
    plane.apply([PORT, SetFlow(KEY, "radio", 0, 0, 0.0), SetFlow(silent, "radio", 1, 0, 0.0)])
    eventually(lambda: plane.unplaced == [], "they answered")
    assert {CLIENT, "fd09::2"} <= plane.network.hosts.keys()
    assert any("tp_dst=2000" in line for line in lab.switches.dump_flows("s1"))
    lab.switches.remove_port("s1", "p-client")
    eventually(lambda: CLIENT not in plane.network.hosts, "its port has gone")
    # The switch is told after the host is forgotten, by another thread.
    eventually(
        lambda: not any("tp_dst=2000" in line for line in lab.switches.dump_flows("s1")),
        "its rules have gone",
    )
    lab.switches.add_port("s1", "p-client")
    eventually(lambda: plane.unplaced == [], "it is found at its new port")


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
