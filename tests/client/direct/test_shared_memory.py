"""Between processes of one host: nothing is lost or torn, nobody waits for anybody, and kill -9 leaves nothing."""

from __future__ import annotations

import os
import secrets
import signal
import time
from pathlib import Path

import pytest
from tests.client.direct.peers import publisher, subscriber

from triagemq.client import ClientError
from triagemq.client.direct import BlockingDirectPublisher, BlockingDirectSubscriber, DirectWay
from triagemq.client.direct.memory import meeting_place


@pytest.fixture
def topic() -> str:
    return f"test/{secrets.token_hex(6)}"


def left_over(topic: str) -> list[str]:
    place = meeting_place(topic, "")
    return sorted(path.name for path in place.iterdir()) if place.exists() else []


def test_a_thousand_messages_to_two_other_processes(topic: str) -> None:
    with (
        subscriber(topic=topic) as one,
        subscriber(topic=topic) as other,
        publisher(topic=topic, size=3_000, separation=0.0005) as sender,
    ):
        assert sender.publish(1_000) == 1_000
        assert one.numbers(1_000) == other.numbers(1_000) == list(range(1, 1_001))


def test_who_comes_later_gets_what_is_published_from_then_on(topic: str) -> None:
    with publisher(topic=topic) as sender:
        sender.publish(3)
        with subscriber(topic=topic) as listener:
            sender.publish(2)
            assert listener.numbers(2) == [4, 5]


def test_what_a_publisher_says_before_it_ends_is_still_read(topic: str) -> None:
    with BlockingDirectSubscriber(topic, None) as listener:
        for _ in range(3):
            with BlockingDirectPublisher(topic, None, max_size_bytes=10) as sender:
                sender.publish(b"first")
                sender.publish(b"last")
        found = [listener.next(60) for _ in range(6)]
        assert [event.value for event in found if event] == [b"first", b"last"] * 3
        assert len({event.session for event in found if event}) == 3
        assert listener.counters.missing == 0
    assert left_over(topic) == []


def test_a_publisher_that_is_killed_leaves_nothing_torn_and_its_files_are_removed(topic: str) -> None:
    known: set[int] = set()
    with subscriber(topic=topic) as listener:
        for _ in range(3):
            with publisher(topic=topic, size=60_000) as sender:
                assert sender.process.stdin is not None
                sender.process.stdin.write("1000000\n")
                sender.process.stdin.flush()
                assert listener.first_of_another(known) >= 1
                sender.kill()
        with publisher(topic=topic) as sender:
            # The files of those before are gone: one publisher with its ring, one subscriber.
            assert len(left_over(topic)) == 3
            sender.publish(2)
            assert listener.first_of_another(known) == 1
            assert listener.numbers(1) == [2]


def test_a_subscriber_that_is_killed_or_stopped_holds_nobody_up(topic: str) -> None:
    with (
        publisher(topic=topic, separation=0.0001) as sender,
        subscriber(topic=topic) as killed,
        subscriber(topic=topic) as stopped,
        subscriber(topic=topic) as listener,
    ):
        sender.publish(1)
        assert listener.numbers(1) == killed.numbers(1) == stopped.numbers(1) == [1]
        killed.kill()
        stopped.process.send_signal(signal.SIGSTOP)
        assert sender.publish(500) == 501
        assert listener.numbers(500) == list(range(2, 502))
        assert len(left_over(topic)) == 4
        stopped.process.send_signal(signal.SIGCONT)
        assert stopped.numbers(500) == list(range(2, 502))


def test_a_subscriber_that_is_too_slow_is_told_how_many_it_has_lost(topic: str) -> None:
    with (
        BlockingDirectSubscriber(topic, None) as slow,
        BlockingDirectPublisher(topic, None, max_size_bytes=100) as sender,
    ):
        for number in range(5_000):
            sender.publish(str(number).encode())
        numbers = []
        while (event := slow.next(0.2)) is not None:
            assert event.value == str(event.number - 1).encode()
            numbers.append(event.number)
        assert numbers == list(range(numbers[0], 5_001))
        assert slow.counters.overrun == slow.counters.missing == 5_000 - len(numbers) > 0


def test_a_subscriber_at_rest_uses_no_processor_time(topic: str) -> None:
    with publisher(topic=topic) as sender, subscriber(topic=topic) as listener:
        sender.publish(1)
        assert listener.numbers(1) == [1]

        def switches() -> int:
            """How often it slept and was woken: who polls, does so often."""
            text = Path(f"/proc/{listener.process.pid}/status").read_text()
            return int(text.partition("\nvoluntary_ctxt_switches:")[2].split()[0])

        before = switches()
        time.sleep(0.5)
        assert switches() - before <= 2


def test_several_publishers_of_a_topic_are_told_apart(topic: str) -> None:
    with (
        BlockingDirectPublisher(topic, None, max_size_bytes=10) as one,
        BlockingDirectSubscriber(topic, None) as listener,
        BlockingDirectPublisher(topic, None, max_size_bytes=20) as other,
    ):
        one.publish(b"one")
        other.publish(b"other")
        found = [listener.next(60), listener.next(60)]
        assert {(event.value, event.number, event.way) for event in found if event} == {
            (b"one", 1, DirectWay.MEMORY),
            (b"other", 1, DirectWay.MEMORY),
        }
        assert listener.host_delay[DirectWay.MEMORY].count == 2


def test_only_its_user_may_look_into_the_folder(topic: str) -> None:
    with BlockingDirectPublisher(topic, None, max_size_bytes=10):
        place = meeting_place(topic, "")
        assert {path.stat().st_mode & 0o777 for path in (place.parent, place)} == {0o700}
    place.mkdir(0o700)
    place.chmod(0o755)
    try:
        with pytest.raises(ClientError, match=r"not a folder of yours alone.*shared_memory=False"):
            BlockingDirectPublisher(topic, None, max_size_bytes=10)
    finally:
        os.rmdir(place)
