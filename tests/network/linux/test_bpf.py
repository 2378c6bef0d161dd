"""Maps of the kernel: what is put in is there, and what is taken out is gone."""

from __future__ import annotations

import contextlib
import errno
import os
import struct

import pytest

from triagemq.network.linux import bpf
from triagemq.network.linux.bpf import ArrayMap, HashMap

pytestmark = pytest.mark.needs_root("it changes queues of the kernel")


def numbered(count: int, value: int = 0) -> list[tuple[bytes, bytes]]:
    return [(struct.pack("=I", key), struct.pack("=Q", key + value)) for key in range(count)]


def look_up(table: HashMap, key: bytes) -> bytes | None:
    with contextlib.suppress(OSError):
        table.command(bpf._LOOKUP, key)
        return table.value.raw
    return None


def test_a_hash_map_takes_replaces_and_forgets() -> None:
    table = HashMap(4, 8, 1000)
    try:
        table.update(numbered(500))
        table.update(numbered(500, 7))
        assert [look_up(table, key) for key, _ in numbered(500)] == [value for _, value in numbered(500, 7)]
        table.delete([key for key, _ in numbered(400)])
        table.delete([key for key, _ in numbered(400)])
        assert sum(look_up(table, key) is not None for key, _ in numbered(500)) == 100
        with pytest.raises(OSError, match=os.strerror(errno.E2BIG)):
            table.update([(struct.pack("=I", 1000 + key), bytes(8)) for key in range(1000)])
    finally:
        table.close()


def test_an_array_shows_what_is_in_it() -> None:
    array = ArrayMap(16, 4)
    try:
        array.set(2, struct.pack("=QQ", 5, 6))
        assert struct.unpack_from("=QQ", array.memory, 32) == (5, 6)
        assert array.memory[:32] == bytes(32)
    finally:
        array.close()
