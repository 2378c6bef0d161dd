"""Packets and messages: whatever the network does to packets, a message comes once and whole, or not at all."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triagemq.client.direct.wire import (
    HEADER_BYTES,
    SMALLEST_PAYLOAD,
    DirectMessage,
    Reassembly,
    Rejection,
    packets_of,
    topic_mark,
)
from triagemq.errors import ParameterError

TOPIC, LARGEST = "ward/3/pulse", 5_000
MARK = topic_mark(TOPIC)


def message(number: int, size: int = 10, session: int = 7) -> DirectMessage:
    return DirectMessage(
        session, number, 1_000 + number, random.Random(f"{session} {number} {size}").randbytes(size)
    )


def packets(of: DirectMessage, payload_bytes: int = SMALLEST_PAYLOAD) -> list[bytes]:
    return packets_of(of, MARK, payload_bytes)


@given(
    sizes=st.lists(st.integers(0, LARGEST), min_size=1, max_size=20),
    payload_bytes=st.integers(SMALLEST_PAYLOAD, 9_000),
    losses=st.randoms(use_true_random=False),
)
def test_messages_come_once_and_whole_however_packets_are_lost_repeated_and_mixed(
    sizes: list[int], payload_bytes: int, losses: random.Random
) -> None:
    sent = [message(number, size) for number, size in enumerate(sizes, 1)]
    arriving: list[bytes] = []
    whole = []
    for each in sent:
        copies = [(packet, losses.choice((0, 1, 1, 1, 2))) for packet in packets(each, payload_bytes)]
        arriving += [packet for packet, count in copies for _ in range(count)]
        if all(count for _, count in copies):
            whole.append(each)
    losses.shuffle(arriving)
    reassembly = Reassembly(TOPIC, LARGEST)
    found = [done for packet in arriving if (done := reassembly.add(packet, 0)) is not None]
    assert sorted(found) == whole
    assert set(reassembly.rejected) <= {Rejection.DUPLICATE}
    assert reassembly.seen.received == len(whole)
    if whole == sent:
        assert (reassembly.seen.missing, reassembly.held_bytes) == (0, 0)


@given(junk=st.lists(st.binary(max_size=200), max_size=50))
def test_foreign_datagrams_are_counted_and_leave_nothing_behind(junk: list[bytes]) -> None:
    reassembly = Reassembly(TOPIC, LARGEST)
    assert [reassembly.add(each, 0) for each in junk] == [None] * len(junk)
    assert reassembly.rejected.total() == len(junk)
    assert reassembly.held_bytes == 0


@given(
    seed=st.integers(0, 2**32),
    changes=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 255)), max_size=4),
)
def test_whatever_is_changed_in_packets_what_is_kept_is_limited(
    seed: int, changes: list[tuple[int, int]]
) -> None:
    drawn = random.Random(seed)
    reassembly = Reassembly(TOPIC, LARGEST)
    for number in range(1, 200):
        for packet in packets(message(number, drawn.randrange(LARGEST), drawn.randrange(9))):
            octets = bytearray(packet[: drawn.randrange(len(packet) + 1)] if drawn.random() < 0.3 else packet)
            for at, value in changes:
                if at < len(octets):
                    octets[at] = value
            done = reassembly.add(bytes(octets), number)
            assert done is None or len(done.payload) <= LARGEST
            assert 0 <= reassembly.held_bytes <= 64 * LARGEST


def test_what_is_lost_is_known_as_missing_and_what_comes_late_is_not() -> None:
    reassembly = Reassembly(TOPIC, LARGEST)
    for number in (3, 4, 7, 6, 2):
        assert reassembly.add(*packets(message(number)), 0) == message(number)
    assert (reassembly.seen.received, reassembly.seen.missing) == (5, 1)
    assert reassembly.add(*packets(message(5)), 0) == message(5)
    assert reassembly.seen.missing == 0
    assert reassembly.add(*packets(message(9_000)), 0) == message(9_000)
    assert reassembly.add(*packets(message(8)), 0) is None
    assert reassembly.rejected == {Rejection.LATE: 1}
    assert reassembly.seen.missing == 9_000 - 8


def test_a_message_of_which_a_part_is_lost_is_given_up_after_a_while() -> None:
    reassembly = Reassembly(TOPIC, LARGEST, patience_seconds=0.5)
    first, *rest = packets(message(1, 1_200))
    assert reassembly.add(first, 0) is None
    assert reassembly.held_bytes == SMALLEST_PAYLOAD
    assert reassembly.add(packets(message(2, 1_200))[0], 600_000_000) is None
    assert reassembly.held_bytes == SMALLEST_PAYLOAD
    assert [reassembly.add(packet, 600_000_000) for packet in rest] == [None, None]
    assert reassembly.seen.received == 0


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (b"", Rejection.MALFORMED),
        (bytes(HEADER_BYTES), Rejection.MALFORMED),
        (packets(message(1))[0][: HEADER_BYTES - 1], Rejection.MALFORMED),
        (packets(message(0))[0], Rejection.MALFORMED),
        (packets_of(message(1), topic_mark("another"), 1_000)[0], Rejection.FOREIGN),
        (packets(message(1, LARGEST + 1), 9_000)[0], Rejection.TOO_LARGE),
        (packets(message(1, 100_000), 9_000)[0], Rejection.TOO_LARGE),
        (packets(message(1, 900))[0][:-1], Rejection.INCONSISTENT),
        (packets(message(1, 900))[1][:HEADER_BYTES], Rejection.INCONSISTENT),
    ],
)
def test_a_packet_that_cannot_be_is_counted_by_its_reason(packet: bytes, reason: Rejection) -> None:
    reassembly = Reassembly(TOPIC, LARGEST)
    assert reassembly.add(packet, 0) is None
    assert reassembly.rejected == {reason: 1}
    assert reassembly.held_bytes == 0


def test_packets_that_contradict_each_other_do_not_harm_the_message() -> None:
    reassembly = Reassembly(TOPIC, LARGEST)
    first, second, third = packets(message(1, 1_300))
    others = [
        packets(message(1, 1_300), 600)[1],
        packets(message(1, 600))[0],
        packets(message(1))[0],
        packets(message(1, 1_300)._replace(published_ns=5))[1],
    ]
    assert reassembly.add(first, 0) is None
    assert [reassembly.add(packet, 0) for packet in others] == [None] * len(others)
    assert reassembly.rejected == {Rejection.INCONSISTENT: len(others)}
    assert reassembly.add(third, 0) is None
    assert reassembly.add(second, 0) == message(1, 1_300)


def test_a_message_that_no_packet_has_room_for_is_refused() -> None:
    with pytest.raises(ParameterError, match="is the least"):
        packets_of(message(1), MARK, 100)
    with pytest.raises(ParameterError, match="too large"):
        packets_of(DirectMessage(1, 1, 0, bytes(SMALLEST_PAYLOAD * 65_536)), MARK, SMALLEST_PAYLOAD)
    with pytest.raises(ParameterError, match="max_size_bytes"):
        Reassembly(TOPIC, 0)
