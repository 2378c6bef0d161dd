"""Between processes of one host: nothing is lost or torn, no publisher waits, and a killed process harms no other."""

from __future__ import annotations

import secrets
import signal
import socket
import time
from pathlib import Path

import pytest
from tests.client.direct.peers import publisher, subscriber
from tests.ports import own_port

from triagemq.client.direct import BlockingDirectPublisher, BlockingDirectSubscriber, NetworkSettings

LOOPBACK = NetworkSettings(interface="lo")


@pytest.fixture
def where() -> dict[str, str]:
    address = f"239.255.{secrets.randbelow(250)}.{secrets.randbelow(250)}"
    return {
        "topic": f"test/{secrets.token_hex(6)}",
        "address": f"{address}:{own_port(kind=socket.SOCK_DGRAM)}",
    }


def test_a_thousand_messages_to_two_other_processes(where: dict[str, str]) -> None:
    with (
        subscriber(**where) as one,
        subscriber(**where) as other,
        publisher(**where, size=3_000, separation=0.0005) as sender,
    ):
        assert sender.publish(1_000) == 1_000
        assert one.numbers(1_000) == other.numbers(1_000) == list(range(1, 1_001))


def test_who_comes_later_gets_what_is_published_from_then_on(where: dict[str, str]) -> None:
    with publisher(**where) as sender:
        sender.publish(3)
        with subscriber(**where) as listener:
            sender.publish(2)
            assert listener.numbers(2) == [4, 5]


def test_what_a_publisher_says_before_it_ends_is_still_read(where: dict[str, str]) -> None:
    with BlockingDirectSubscriber(**where, network=LOOPBACK) as listener:
        for _ in range(3):
            with BlockingDirectPublisher(**where, max_size_bytes=10, network=LOOPBACK) as sender:
                sender.publish(b"first")
                sender.publish(b"last")
        found = [listener.next(60) for _ in range(6)]
        assert [event.value for event in found if event] == [b"first", b"last"] * 3
        assert len({event.session for event in found if event}) == 3
        assert listener.counters.missing == 0


def test_a_publisher_that_is_killed_leaves_nothing_torn(where: dict[str, str]) -> None:
    known: set[int] = set()
    with subscriber(**where) as listener:
        for _ in range(3):
            with publisher(**where, size=60_000) as sender:
                assert sender.process.stdin is not None
                sender.process.stdin.write("1000000\n")
                sender.process.stdin.flush()
                assert listener.first_of_another(known) >= 1
                sender.kill()
        with publisher(**where) as sender:
            sender.publish(2)
            assert listener.first_of_another(known) == 1
            assert listener.numbers(1) == [2]


def test_a_subscriber_that_is_killed_or_stopped_holds_nobody_up(where: dict[str, str]) -> None:
    with (
        publisher(**where, separation=0.0001) as sender,
        subscriber(**where) as killed,
        subscriber(**where) as stopped,
        subscriber(**where) as listener,
    ):
        sender.publish(1)
        assert listener.numbers(1) == killed.numbers(1) == stopped.numbers(1) == [1]
        killed.kill()
        stopped.process.send_signal(signal.SIGSTOP)
        assert sender.publish(200) == 201
        assert listener.numbers(200) == list(range(2, 202))
        stopped.process.send_signal(signal.SIGCONT)
        assert stopped.numbers(200) == list(range(2, 202))


def test_a_subscriber_that_is_too_slow_counts_every_lost_event(where: dict[str, str]) -> None:
    with (
        BlockingDirectSubscriber(**where, network=LOOPBACK) as slow,
        BlockingDirectPublisher(**where, max_size_bytes=1_400, network=LOOPBACK) as sender,
    ):
        numbers = []
        for number in range(1, 20_001):
            sender.publish(b"%d," % number * (1_400 // len(b"%d," % number)))
        while (event := slow.next(0.2)) is not None:
            assert event.value.startswith(b"%d," % event.number)
            numbers.append(event.number)
        sender.publish(b"last")
        assert slow.next(60) is not None
        assert slow.counters.missing + slow.overflowed == 20_000 - len(numbers) > 0


def test_a_subscriber_at_rest_uses_no_processor_time(where: dict[str, str]) -> None:
    with publisher(**where) as sender, subscriber(**where) as listener:
        sender.publish(1)
        assert listener.numbers(1) == [1]

        def switches() -> int:
            """How often it slept and was woken: who polls, does so often."""
            text = Path(f"/proc/{listener.process.pid}/status").read_text()
            return int(text.partition("\nvoluntary_ctxt_switches:")[2].split()[0])

        before = switches()
        time.sleep(0.5)
        assert switches() - before <= 2


def test_several_publishers_of_a_topic_are_told_apart(where: dict[str, str]) -> None:
    with (
        BlockingDirectPublisher(**where, max_size_bytes=10, network=LOOPBACK) as one,
        BlockingDirectSubscriber(**where, network=LOOPBACK) as listener,
        BlockingDirectPublisher(**where, max_size_bytes=20, network=LOOPBACK) as other,
    ):
        one.publish(b"one")
        other.publish(b"other")
        found = [listener.next(60), listener.next(60)]
        assert {(event.value, event.number) for event in found if event} == {(b"one", 1), (b"other", 1)}
        assert listener.host_delay.count == 2
