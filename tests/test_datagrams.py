"""Sending datagrams: in batches, in order, counting what cannot be sent."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from tests.full_socket import Room

from triagemq import datagrams
from triagemq.datagrams import CLASS_DSCP, CONTROL_CLASS, AddressList, DatagramSender, Unsent

HOSTS = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def bound(family: socket.AddressFamily, host: str | None = None) -> socket.socket:
    found = socket.socket(family, socket.SOCK_DGRAM)
    found.bind((HOSTS[family] if host is None else host, 0))
    found.setblocking(False)
    return found


@pytest.fixture(params=[socket.AF_INET, socket.AF_INET6], ids=["IPv4", "IPv6"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    if request.param == socket.AF_INET6 and not has_ipv6():
        pytest.skip("this machine has no IPv6 loopback address; enable net.ipv6.conf.lo")
    with closing(bound(request.param)) as output, closing(bound(request.param)) as receiver:
        yield output, receiver


def received(receiver: socket.socket) -> list[bytes]:
    found = []
    while True:
        try:
            found.append(receiver.recv(70_000))
        except BlockingIOError:
            return found


def counted_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Gets the number of datagrams of each system call from now on."""
    send, calls = datagrams.sendmmsg, list[int]()

    def counted(descriptor: int, first: Any, count: int, flags: int) -> Any:
        calls.append(count)
        return send(descriptor, first, count, flags)

    monkeypatch.setattr(datagrams, "sendmmsg", counted)
    return calls


def test_everything_arrives_in_order(
    monkeypatch: pytest.MonkeyPatch, pair: tuple[socket.socket, socket.socket]
) -> None:
    output, receiver = pair
    sender = DatagramSender(output)
    address = receiver.getsockname()[:2]
    sent = [bytes([number]) * (number % 50) for number in range(200)]
    calls = counted_calls(monkeypatch)
    assert sender([(address, datagram) for datagram in sent]) == []
    assert received(receiver) == sent
    assert calls == [200]
    sender([(address, b"more")] * 3)
    assert received(receiver) == [b"more"] * 3


def test_a_long_list_goes_out_in_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted_calls(monkeypatch)
    with closing(bound(socket.AF_INET)) as output:
        receivers = [bound(socket.AF_INET) for _ in range(10)]
        sender = DatagramSender(output)
        sender([(receivers[number % 10].getsockname(), number.to_bytes(4, "big")) for number in range(1000)])
        assert calls == [256, 256, 256, 232]
        for place, receiver in enumerate(receivers):
            with receiver:
                numbers = [int.from_bytes(each, "big") for each in received(receiver)]
                assert numbers == list(range(place, 1000, 10))


def test_what_cannot_be_sent_is_returned_and_the_rest_goes_on(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    output, receiver = pair
    sender = DatagramSender(output)
    address = receiver.getsockname()[:2]
    unsent = sender(
        [
            (address, b"first"),
            (address, bytes(66_000)),
            (("example.org", 1), b"a name"),
            (address, b"second"),
            ((HOSTS[output.family], 70_000), b"no such port"),
            (address, b"third"),
        ]
    )
    assert received(receiver) == [b"first", b"second", b"third"]
    problems = [(one.place, one.problem) for one in unsent]
    assert problems == [(1, errno.EMSGSIZE), (2, errno.EINVAL), (4, errno.EINVAL)]


def test_an_ipv6_socket_sends_to_ipv4_addresses() -> None:
    if not has_ipv6():
        pytest.skip("this machine has no IPv6 loopback address; enable net.ipv6.conf.lo")
    with closing(bound(socket.AF_INET6, "::")) as output, closing(bound(socket.AF_INET)) as receiver:
        receiver.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        DatagramSender(output, marks_classes=True)([(receiver.getsockname(), b"mapped")])
        receiver.settimeout(10.0)
        datagram, ancillary, _, _ = receiver.recvmsg(100, 100)
        assert (datagram, ancillary[0][2][0] >> 2) == (b"mapped", CLASS_DSCP[0])


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_control_datagrams_alone_are_marked(family: socket.AddressFamily) -> None:
    if family == socket.AF_INET6 and not has_ipv6():
        pytest.skip("this machine has no IPv6 loopback address; enable net.ipv6.conf.lo")
    level, wanted, kind = (
        (socket.IPPROTO_IPV6, socket.IPV6_RECVTCLASS, socket.IPV6_TCLASS)
        if family == socket.AF_INET6
        else (socket.IPPROTO_IP, socket.IP_RECVTOS, socket.IP_TOS)
    )
    with closing(bound(family)) as output, closing(bound(family)) as receiver:
        receiver.setsockopt(level, wanted, 1)
        receiver.settimeout(10.0)
        address = receiver.getsockname()[:2]
        sender = DatagramSender(output)
        for send, octet in ((sender.control, 0xC0), (sender, 0), (sender.control, 0xC0)):
            send([(address, b"one"), (address, b"two")])
            for expected in (b"one", b"two"):
                datagram, ancillary, _, _ = receiver.recvmsg(100, 100)
                (mark,) = [value[0] for at, what, value in ancillary if (at, what) == (level, kind)]
                assert (datagram, mark) == (expected, octet)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_datagrams_bear_the_marks_of_their_classes(family: socket.AddressFamily) -> None:
    if family == socket.AF_INET6 and not has_ipv6():
        pytest.skip("this machine has no IPv6 loopback address; enable net.ipv6.conf.lo")
    v6 = family == socket.AF_INET6
    level, wanted = (
        (socket.IPPROTO_IPV6, socket.IPV6_RECVTCLASS) if v6 else (socket.IPPROTO_IP, socket.IP_RECVTOS)
    )
    marks = [*CLASS_DSCP, 0]
    with closing(bound(family)) as output, closing(bound(family)) as receiver:
        receiver.setsockopt(level, wanted, 1)
        receiver.settimeout(10.0)
        address = receiver.getsockname()[:2]
        DatagramSender(output, marks_classes=True)([(address, b"x")] * 120, lambda place: place % 8)
        for number in range(120):
            _, ancillary, _, _ = receiver.recvmsg(100, 100)
            assert ancillary[0][2][0] >> 2 == marks[number % 8]
        AddressList(family, [address] * 8, range(8)).send(output.fileno(), b"x")
        for mark in marks:
            _, ancillary, _, _ = receiver.recvmsg(100, 100)
            assert ancillary[0][2][0] >> 2 == mark


def test_control_waits_for_no_data_and_is_discarded_after_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(monkeypatch)

    async def run() -> None:
        settled: list[Unsent] = []
        output = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with output, bound(socket.AF_INET) as receiver:
            address = receiver.getsockname()
            sender = DatagramSender(output, most_waiting=4, on_settled=settled.extend)
            ranks = [2, 0, 2, 1]
            waiting = sender([(address, bytes([number])) for number in range(4)], ranks.__getitem__)
            for one in waiting:
                one.token = one.place
            sender.control([(address, b"c"), (address, b"d")])
            assert [(one.token, one.problem) for one in settled] == [(2, errno.ENOBUFS), (0, errno.ENOBUFS)]
            assert sender([(address, b"late")], lambda place: 3)[0].problem == errno.ENOBUFS
            for octet in b"efg":
                sender.control([(address, bytes([octet]))])
            # Nothing but control is left, and then the newest gives way.
            assert [one.token for one in settled[2:]] == [3, 1]
            assert sender.waiting == 4
            room.left = 100
            while sender.waiting:
                await asyncio.sleep(0)
            assert received(receiver) == [b"c", b"d", b"e", b"f"]

    asyncio.run(run())


def test_a_full_socket_is_emptied_by_class_and_tells_what_became_of_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    room = Room(monkeypatch)

    async def run() -> None:
        settled: list[Unsent] = []
        output = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with output, bound(socket.AF_INET) as receiver:
            address = receiver.getsockname()
            sender = DatagramSender(output, on_settled=settled.extend)
            several = [(address, b"0"), (address, b"1"), (("example.org", 1), b"nowhere"), (address, b"3")]
            waiting = sender(several, lambda place: 5 - place)
            for one in waiting:
                one.token = one.datagram
            assert [one.problem for one in waiting] == [None] * 4
            (control,) = sender.control([(address, b"control")])
            assert (control.priority_class, control.problem) == (CONTROL_CLASS, None)
            room.left = 3
            while sender.waiting > 1:
                await asyncio.sleep(0)
            assert received(receiver) == [b"control", b"3", b"1"]
            assert [(one.token, one.problem) for one in settled] == [
                (b"3", 0),
                (b"nowhere", errno.EINVAL),
                (b"1", 0),
            ]
            sender.close()
            assert (settled[-1].token, settled[-1].problem) == (b"0", errno.EAGAIN)

    asyncio.run(run())


def test_what_a_full_socket_refuses_goes_out_later_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(monkeypatch)

    async def run() -> None:
        output = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with output, bound(socket.AF_INET) as receiver:
            address = receiver.getsockname()
            sender = DatagramSender(output, most_waiting=5)
            room.left = 2
            sender([(address, bytes([number])) for number in range(4)])
            unsent = sender([(address, bytes([number])) for number in range(4, 10)])
            assert sender.waiting == 5
            assert [one.problem for one in unsent] == [None] * 3 + [errno.ENOBUFS] * 3
            assert received(receiver) == [b"\0", b"\1"]
            room.left = 100
            while sender.waiting:
                await asyncio.sleep(0)
            sender([(address, b"last")])
            assert received(receiver) == [b"\2", b"\3", b"\4", b"\5", b"\6", b"last"]
            room.left = 0
            (lost,) = sender([(address, b"lost")])
            sender.close()
            assert lost.problem == errno.EAGAIN

    asyncio.run(run())
