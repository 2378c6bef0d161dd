"""The ring: a reader gets messages as they were written, or is told how many it has lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triagemq.client.direct.memory import RingReader, RingWriter
from triagemq.client.direct.wire import DirectMessage

SESSION = 99


def reader_of(path: Path, cursor: int | None = 0) -> RingReader:
    return RingReader(os.open(path, os.O_RDONLY), cursor)


def contents(number: int, size: int) -> bytes:
    return (number.to_bytes(4, "big") * (size // 4 + 1))[:size]


@given(steps=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=30))
def test_every_message_is_read_once_in_order_or_counted_as_overrun(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int]]
) -> None:
    path = tmp_path_factory.mktemp("ring") / "w.ring"
    # So large that the ring has few slots.
    writer = RingWriter(path, SESSION, 3 << 20)
    reader = reader_of(path)
    number, read = 0, []
    for written, taken in steps:
        for _ in range(written):
            number += 1
            writer.write(number, 10 * number, contents(number, 37))
        for _ in range(taken):
            message = reader.read()
            if message is not None:
                assert message == DirectMessage(
                    SESSION, message.number, 10 * message.number, contents(message.number, 37)
                )
                read.append(message.number)
    while (message := reader.read()) is not None:
        read.append(message.number)
    assert read == sorted(set(read))
    assert len(read) + reader.overrun == number
    reader.close()
    writer.close()


def test_a_message_that_is_being_replaced_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "w.ring"
    writer = RingWriter(path, SESSION, 3 << 20)
    writer.write(1, 0, b"first")
    reader = reader_of(path)
    # What a writer that was killed at any octet of the next one would leave: its number in front, part of the message.
    memory = path.read_bytes()
    begin = memory.index(b"first") - 24
    stride = memory.index((1).to_bytes(8, "little"), begin + 8) + 8 - begin
    slots = (len(memory) - 64) // stride
    with path.open("r+b") as file:
        file.seek(begin)
        file.write((1 + slots).to_bytes(8, "little"))
        file.seek(begin + 24)
        file.write(b"fi" + b"XX")
    assert reader.read() is None
    assert reader.overrun == 1
    reader.close()
    writer.close()


def test_octets_that_do_not_belong_together_are_not_taken_for_a_message(tmp_path: Path) -> None:
    path = tmp_path / "w.ring"
    writer = RingWriter(path, SESSION, 100)
    writer.write(1, 0, b"first")
    writer.write(2, 0, b"second")
    with path.open("r+b") as file:
        file.seek(path.read_bytes().index(b"first"))
        file.write(b"wrong")
    reader = reader_of(path)
    assert reader.read() == DirectMessage(SESSION, 2, 0, b"second")
    assert reader.overrun == 1
    reader.close()
    writer.close()


def test_a_reader_may_begin_with_what_comes_next(tmp_path: Path) -> None:
    path = tmp_path / "w.ring"
    writer = RingWriter(path, SESSION, 100)
    writer.write(1, 0, b"before")
    reader = reader_of(path, cursor=None)
    assert reader.read() is None
    writer.write(2, 0, bytes(100))
    assert reader.read() == DirectMessage(SESSION, 2, 0, bytes(100))
    reader.close()
    writer.close()


def test_a_file_that_is_no_ring_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.ring"
    path.write_bytes(bytes(5_000))
    with pytest.raises(OSError, match="no ring"):
        reader_of(path)


def test_only_its_user_may_read_a_ring(tmp_path: Path) -> None:
    path = tmp_path / "w.ring"
    writer = RingWriter(path, SESSION, 100)
    assert path.stat().st_mode & 0o777 == 0o600
    writer.close()
