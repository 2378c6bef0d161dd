"""Boxes of real namespaces, with real datagrams through them."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.lab.box.campuses import TWO_SWITCHES
from tests.lab.box.traffic import PORT, arrives, traces_of, udp_socket

from triagemq.errors import NetworkError
from triagemq.lab.box import Box, Host, Layout, lay_out, new_run
from triagemq.lab.box.journal import Journal, open_entries
from triagemq.lab.box.namespaces import create_namespace, remove_namespace
from triagemq.lab.generators import prototype
from triagemq.mqttsn import TopicIdType, encode_publish
from triagemq.mqttsn.timestamps import split_payload, stamp_payload
from triagemq.network.linux.netlink import in_namespace
from triagemq.scenario import loads

pytestmark = pytest.mark.needs_root("it makes namespaces of the network")

RING = TWO_SWITCHES.replace("{fed_by: trunk}", "{fed_by: trunk, backup: trunk-2}").replace(
    "ports:\n", "ports:\n  trunk-2: {switch: core, bandwidth_bps: 5e5}\n"
)


SENT = 400


def arrived(source: Host, target: Host) -> int:
    """How many of so many datagrams, few enough at a time that no buffer is full."""
    found = 0
    with closing(udp_socket(source)) as sender, closing(udp_socket(target)) as receiver:
        for number in range(SENT // 50):
            for _ in range(50):
                sender.sendto(b"event", receiver.getsockname())
            found += came_before(b"mark %d" % number, sender, receiver).count(b"event")
    return found


def came_before(mark: bytes, sender: socket.socket, receiver: socket.socket) -> list[bytes]:
    """What comes before a mark that is sent until it comes, too: links lose datagrams, and keep their order."""
    receiver.settimeout(0.3)
    came = []
    while True:
        sender.sendto(mark, receiver.getsockname())
        with suppress(TimeoutError):
            while (content := receiver.recv(2000)) != mark:
                came.append(content)
            return came


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    layout = lay_out(loads(RING), new_run(), backups={"floor": "trunk-2"}, ipv6=True, apart=["door-1"])
    with Box(layout, journal=Journal(tmp_path_factory.mktemp("journal"))) as made:
        yield made


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["ipv4", "ipv6"])
def test_one_datagram_to_each_subscriber_arrives_and_is_answered(
    box: Box, family: socket.AddressFamily
) -> None:
    (broker,) = box.layout.brokers.values()
    for host in box.layout.subscribers.values():
        assert arrives(broker, host, family)
        assert arrives(host, broker, family)


def test_publishers_reach_the_broker_also_through_an_unmanaged_switch(box: Box) -> None:
    (broker,) = box.layout.brokers.values()
    assert box.layout.publishers["smoke-1"] != box.layout.publishers["door-1"]
    for host in box.layout.publishers.values():
        assert arrives(host, broker)
        assert arrives(broker, host)


def test_a_frame_crosses_the_ports_on_its_way_and_no_others(box: Box) -> None:
    before = sent(box.layout)
    (broker,) = box.layout.brokers.values()
    for _ in range(10):
        assert arrives(broker, box.layout.subscribers["engine-2"])
    counted = {name: count - before[name] for name, count in sent(box.layout).items()}
    # The kernel says a word of its own now and then, to everyone.
    assert {name for name, count in counted.items() if count >= 10} == {"trunk", "radio"}


@pytest.mark.parametrize(
    ("errors", "reached", "share"),
    [
        ([("subscriber", "engine-1", 0.3)], "engine-1", 0.3),
        ([("subscriber", "engine-1", 0.3)], "engine-2", 0.0),
        ([("port", "trunk", 0.5), ("port", "radio", 0.2)], "engine-2", 0.6),
        ([("port", "office", 0.5), ("subscriber", "janitor", 0.2)], "janitor", 0.6),
        ([("publisher", "door-1", 0.4)], "door-1", 0.4),
        ([("publisher", "door-1", 0.4)], "smoke-1", 0.0),
    ],
    ids=["subscriber", "its-neighbour", "two-ports", "port-of-one", "publisher", "another-publisher"],
)
def test_links_lose_the_share_that_they_are_told_to(
    box: Box, errors: list[tuple[Any, str, float]], reached: str, share: float
) -> None:
    (broker,) = box.layout.brokers.values()
    source, target = broker, box.layout.subscribers.get(reached)
    if target is None:
        source, target = box.layout.publishers[reached], broker
    try:
        for of, name, rate in errors:
            box.set_error_rate(of, name, rate)
        # Within five standard deviations; without loss, exactly.
        assert abs(arrived(source, target) / SENT - (1 - share)) <= 5 * (share * (1 - share) / SENT) ** 0.5
    finally:
        for of, name, _ in errors:
            box.set_error_rate(of, name, 0.0)
    assert arrived(source, target) == SENT


def test_links_tell_which_events_they_lost(box: Box) -> None:
    (broker,) = box.layout.brokers.values()
    engine = box.layout.subscribers["engine-1"]
    came = set()
    with closing(udp_socket(broker)) as sender, closing(udp_socket(engine)) as receiver:
        box.set_error_rate("subscriber", "engine-1", 0.4)
        try:
            for number in range(SENT):
                # Below and above the size from which the header is a longer one.
                content = stamp_payload(bytes(number), number)
                sender.sendto(encode_publish(TopicIdType.NORMAL, 7, content), receiver.getsockname())
                sender.sendto(b"no event", receiver.getsockname())
                if number % 20 == 19:
                    for message in came_before(b"mark %d" % number, sender, receiver):
                        if message != b"no event" and not message.startswith(b"mark"):
                            came.add(split_payload(message[9 if message[0] == 1 else 7 :])[0])
        finally:
            box.set_error_rate("subscriber", "engine-1", 0.0)
    lost = box.lost_events()
    assert {event.address for event in lost} == {engine.ipv4}
    assert sorted([*came, *(event.published_ns for event in lost)]) == list(range(SENT))
    assert box.lost_events() == []


def test_when_a_link_fails_its_backup_carries_the_traffic_until_it_returns(box: Box) -> None:
    (broker,) = box.layout.brokers.values()
    commander, janitor = box.layout.subscribers["commander"], box.layout.subscribers["janitor"]
    box.set_link("trunk", up=False)
    try:
        assert not arrives(broker, commander, wait=0.3)
        assert arrives(broker, janitor)
        box.feed_by({"trunk-2"})
        before = sent(box.layout)
        assert all(arrives(broker, commander) for _ in range(10))
        assert arrives(commander, broker)
        assert sent(box.layout)["trunk-2"] >= before["trunk-2"] + 10
    finally:
        box.set_link("trunk", up=True)
        box.feed_by({"trunk"})
    before = sent(box.layout)
    assert all(arrives(broker, commander) for _ in range(10))
    assert arrives(commander, broker)
    assert sent(box.layout)["trunk"] >= before["trunk"] + 10
    assert sent(box.layout)["trunk-2"] < before["trunk-2"] + 10


def test_a_broadcast_reaches_everyone_once_although_there_are_two_trunks(box: Box) -> None:
    (broker,) = box.layout.brokers.values()
    engine = box.layout.subscribers["engine-1"]
    with closing(udp_socket(broker)) as sender:
        receiver = in_namespace(engine.namespace, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        with closing(receiver):
            receiver.bind(("", PORT))
            receiver.settimeout(20)
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            sender.sendto(b"fire", ("10.77.255.255", PORT))
            assert receiver.recv(100) == b"fire"
            receiver.settimeout(0.3)
            with pytest.raises(TimeoutError):
                receiver.recv(100)


def test_an_unmanaged_switch_is_as_narrow_as_the_scenario_says(box: Box) -> None:
    """What waits is in its queue: much more than 1 Mbit/s can carry in the time that sending takes."""
    (broker,) = box.layout.brokers.values()
    with (
        closing(udp_socket(box.layout.publishers["smoke-1"])) as sender,
        closing(udp_socket(broker)) as receiver,
    ):
        start = time.monotonic()
        for _ in range(60):
            sender.sendto(bytes(1000), (broker.ipv4, PORT))
        for _ in range(60):
            receiver.recv(2000)
        # 60 frames of 1042 bytes, one of them from the bucket: 0.49 s at 1 Mbit/s, and never faster than that.
        assert time.monotonic() - start > 0.45


def test_no_word_is_spoken_that_nobody_asked_for(box: Box) -> None:
    before = received(box.layout)
    time.sleep(0.5)
    assert received(box.layout) == before


def test_offloads_are_off_everywhere(box: Box) -> None:
    engine = box.layout.subscribers["engine-1"]
    for namespace, interface in (
        (engine.namespace, engine.interface),
        (box.layout.switch_namespace, box.layout.port["radio"].interface),
    ):
        assert features(namespace, interface) == {0x16: 0, 0x1E: 0, 0x23: 0, 0x2B: 0}


def test_everything_is_noted_before_and_forgotten_after(journal: Journal) -> None:
    layout = lay_out(loads(TWO_SWITCHES), new_run())
    with Box(layout, journal=journal) as box:
        noted = {entry.facts["name"] for entry in open_entries(journal.directory)}
        assert noted == set(layout.namespaces)
        assert traces_of(layout.run) == sorted(layout.namespaces)
    assert traces_of(layout.run) == []
    assert open_entries(journal.directory) == []
    box.remove()


def test_removal_passes_over_what_is_gone_already(journal: Journal) -> None:
    layout = lay_out(loads(TWO_SWITCHES), new_run())
    with Box(layout, journal=journal):
        remove_namespace(layout.subscribers["engine-1"].namespace)
        remove_namespace(layout.switch_namespace)
    assert traces_of(layout.run) == []
    assert open_entries(journal.directory) == []


def test_a_name_that_is_taken_is_refused_and_left_alone(journal: Journal) -> None:
    layout = lay_out(loads(TWO_SWITCHES), new_run())
    taken = layout.subscribers["engine-2"].namespace
    create_namespace(taken)
    try:
        with pytest.raises(NetworkError, match="exists already"), Box(layout, journal=journal):
            pass
        assert traces_of(layout.run) == [taken]
    finally:
        remove_namespace(taken)
    assert open_entries(journal.directory) == []


def test_an_error_inside_removes_the_box(journal: Journal) -> None:
    layout = lay_out(loads(TWO_SWITCHES), new_run())
    with pytest.raises(ZeroDivisionError), Box(layout, journal=journal):
        raise ZeroDivisionError
    assert traces_of(layout.run) == []


@pytest.mark.parametrize("late", [0.0, 0.02, 0.05])
def test_ctrl_c_while_building_leaves_nothing(journal: Journal, late: float) -> None:
    layout = lay_out(prototype(subscribers=30), new_run())
    timer = threading.Timer(late, os.kill, (os.getpid(), signal.SIGINT))

    def use() -> None:
        timer.start()
        try:
            with Box(layout, journal=journal):
                time.sleep(30)
        finally:
            # Where the box cannot be built, nobody waits for Ctrl-C any more but the test run itself.
            timer.cancel()

    with pytest.raises(KeyboardInterrupt):
        use()
    timer.join()
    assert traces_of(layout.run) == []
    assert open_entries(journal.directory) == []


def test_a_cancelled_task_leaves_nothing(journal: Journal) -> None:
    layout = lay_out(prototype(subscribers=30), new_run())

    async def use() -> None:
        async with Box(layout, journal=journal):
            await asyncio.sleep(60)

    async def cancel() -> None:
        for pause in (0.0, 0.01, 0.5):
            task = asyncio.create_task(use())
            await asyncio.sleep(pause)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert traces_of(layout.run) == []

    asyncio.run(cancel())
    assert open_entries(journal.directory) == []


def test_what_the_box_has_no_port_for_is_refused(box: Box) -> None:
    with pytest.raises(NetworkError, match="no port 'cellar'"):
        box.set_link("cellar", up=False)


@pytest.mark.slow
def test_a_hundred_subscribers(journal: Journal) -> None:
    layout = lay_out(prototype(subscribers=100), new_run())
    with Box(layout, journal=journal):
        (broker,) = layout.brokers.values()
        assert all(arrives(broker, host) for host in layout.subscribers.values())
    assert traces_of(layout.run) == []


def counters(layout: Layout) -> dict[str, tuple[int, int]]:
    """Packets received and sent by every interface of the switches."""
    text = in_namespace(layout.switch_namespace, lambda: Path("/proc/thread-self/net/dev").read_text())
    rows = [line.split() for line in text.splitlines()[2:]]
    return {row[0].rstrip(":"): (int(row[2]), int(row[10])) for row in rows}


def sent(layout: Layout) -> dict[str, int]:
    seen = counters(layout)
    return {port.name: seen[port.interface][1] for port in layout.ports}


def received(layout: Layout) -> dict[str, int]:
    return {name: seen[0] for name, seen in counters(layout).items()}


def features(namespace: str, interface: str) -> dict[int, int]:
    """What the kernel answers to the questions of ethtool for checksums, TSO, GSO and GRO."""
    import array
    import fcntl
    import struct

    def ask() -> dict[int, int]:
        answers = {}
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
            for question in (0x16, 0x1E, 0x23, 0x2B):
                value = array.array("I", [question, 7])
                fcntl.ioctl(
                    channel.fileno(),
                    0x8946,
                    struct.pack("16sP16x", interface.encode(), value.buffer_info()[0]),
                )
                answers[question] = value[1]
        return answers

    return in_namespace(namespace, ask)
