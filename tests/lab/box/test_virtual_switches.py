"""Boxes whose switches are a real Open vSwitch, with the queues in kernel bridges behind it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.lab.box.campuses import TWO_SWITCHES
from tests.lab.box.traffic import arrives, lives, traces_of

from triagemq.lab.box import Box, Layout, lay_out, new_run
from triagemq.lab.box.box import forwarding
from triagemq.lab.box.journal import Journal, open_entries
from triagemq.lab.box.restore import restore
from triagemq.lab.box.vswitch import VirtualSwitches, datapath_id
from triagemq.network.linux.netlink import in_namespace
from triagemq.scenario import loads

pytestmark = pytest.mark.needs_root("it makes namespaces of the network")


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    layout = lay_out(loads(TWO_SWITCHES), new_run(), switches="openvswitch")
    journal = Journal(tmp_path_factory.mktemp("journal"))
    with Box(layout, journal=journal) as made:
        add_rules(made)
        yield made
    assert traces_of(layout.run) == []
    assert open_entries(journal.directory) == []


def add_rules(box: Box) -> None:
    """The layout's forwarding tables as OpenFlow rules."""
    assert isinstance(box.switches, VirtualSwitches)
    for bridge in box.layout.switches.values():
        numbers = {end.interface: number for number, end in enumerate(box.layout.members(bridge.name), 1)}
        rules = [
            f"dl_dst={entry.mac},actions=output:{numbers[entry.interface]}"
            for entry in forwarding(box.layout, box.layout.feeding)
            if entry.bridge == bridge.name
        ]
        subprocess.run(
            ["ovs-ofctl", "-O", "OpenFlow13", "add-flows", box.switches.management(bridge.name), "-"],
            input="\n".join(rules),
            text=True,
            check=True,
        )


def test_datagrams_pass_two_switches_and_the_queues_behind_them(box: Box) -> None:
    layout = box.layout
    (broker,) = layout.brokers.values()
    before = sent(layout)
    for host in layout.subscribers.values():
        assert arrives(broker, host)
        assert arrives(host, broker)
    counted = {name: count - before[name] for name, count in sent(layout).items()}
    assert counted == {"trunk": 4, "radio": 3, "desk": 1, "office": 1}


def test_a_failed_link_is_seen_by_the_switch_and_by_the_subscribers(box: Box) -> None:
    assert isinstance(box.switches, VirtualSwitches)
    (broker,) = box.layout.brokers.values()
    commander = box.layout.subscribers["commander"]
    member = box.layout.port["desk"].switch_interface
    box.set_link("desk", up=False)
    try:
        assert not arrives(broker, commander, wait=0.3)
        assert box.switches.configure("wait-until", "interface", member, "link_state=down") == ""
    finally:
        box.set_link("desk", up=True)
    assert box.switches.configure("wait-until", "interface", member, "link_state=up") == ""
    assert arrives(broker, commander)


def test_switches_have_the_numbers_of_their_names(box: Box) -> None:
    assert isinstance(box.switches, VirtualSwitches)
    for name, bridge in box.layout.switches.items():
        shown = box.switches.configure("get", "bridge", bridge.name, "datapath_id")
        assert int(shown.strip().strip('"'), 16) == datapath_id(box.layout, name)


def test_a_switch_that_cannot_be_started_removes_the_box(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = lay_out(loads(TWO_SWITCHES), new_run(), switches="openvswitch")

    def fail(layout: Layout, journal: Journal) -> VirtualSwitches:
        raise ZeroDivisionError

    monkeypatch.setattr("triagemq.lab.box.box.start_virtual_switches", fail)
    with pytest.raises(ZeroDivisionError), Box(layout, journal=Journal(tmp_path)):
        pass
    assert traces_of(layout.run) == []
    assert open_entries(tmp_path) == []


def test_restoring_ends_the_switches_and_removes_their_directory(tmp_path: Path) -> None:
    layout = lay_out(loads(TWO_SWITCHES), new_run(), switches="openvswitch")
    with Box(layout, journal=Journal(tmp_path)) as box:
        assert isinstance(box.switches, VirtualSwitches)
        pids = [entry.facts["pid"] for entry in open_entries(tmp_path) if entry.kind == "process"]
        assert len(pids) == 2
        restored = restore(tmp_path, everything=True)
        assert restored.failed == ()
        assert not any(lives(pid) for pid in pids)
        assert not box.switches.directory.exists()
        assert traces_of(layout.run) == []
        assert open_entries(tmp_path) == []


def sent(layout: Layout) -> dict[str, int]:
    text = in_namespace(layout.switch_namespace, lambda: Path("/proc/thread-self/net/dev").read_text())
    rows = {line.split()[0].rstrip(":"): line.split() for line in text.splitlines()[2:]}
    return {port.name: int(rows[port.interface][10]) for port in layout.ports}
