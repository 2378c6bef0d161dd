"""Messages in memory that several processes see: a ring of slots, one writer, any number of readers.

The writer never waits: it writes message n into slot n modulo the number of slots, whatever was there. Each slot has
the number of its message before and after it. The writer puts the number in front, the message, the number behind; a
reader looks in the opposite order, so that a message which is being replaced shows two different numbers. A checksum
makes that certain on processors that reorder what they write. Every reader has a cursor of its own; one that was
overrun is told how many messages it has lost.

    header      magic 8, version 4, slots 4, slot_bytes 4, reserved 4, session 8, head 8
    slot        before 8, published_ns 8, length 4, checksum 4, message slot_bytes, after 8

Numbers are in the order of this machine's octets, as nobody else reads them; all words of eight are aligned, and so are
written in one go.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from struct import Struct
from zlib import crc32

from triagemq.client.direct.wire import DirectMessage

_HEADER = Struct("@8sIIIIQ")
_MAGIC, _VERSION = b"TriageRg", 1
_HEAD_AT = _HEADER.size
_HEADER_BYTES = 64
_FRONT = Struct("@QII")
_WORD = 8
_BEFORE_BYTES = _WORD + _FRONT.size
_TRIES = 3
_MOST_RING_BYTES = 16 << 20
_MOST_SLOTS, _LEAST_SLOTS = 1024, 8


class _Layout:
    def __init__(self, slots: int, slot_bytes: int) -> None:
        self.slots, self.slot_bytes = slots, slot_bytes
        self.stride = _BEFORE_BYTES + -(-slot_bytes // _WORD) * _WORD + _WORD
        self.total_bytes = _HEADER_BYTES + slots * self.stride

    def slot(self, number: int) -> int:
        return _HEADER_BYTES + number % self.slots * self.stride


class RingWriter:
    """Makes the file, which must not exist yet; OSError if there is no room for it."""

    def __init__(self, path: Path, session: int, slot_bytes: int) -> None:
        per_slot = _Layout(1, slot_bytes).stride
        layout = self._layout = _Layout(
            max(_LEAST_SLOTS, min(_MOST_SLOTS, _MOST_RING_BYTES // per_slot)), slot_bytes
        )
        unfinished = path.with_suffix(".new")
        file = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            # All of it now: memory that is missing later on would end whoever touches it.
            os.posix_fallocate(file, 0, layout.total_bytes)
            self._memory = mmap.mmap(file, layout.total_bytes)
            self._words = memoryview(self._memory).cast("Q")
            _HEADER.pack_into(self._memory, 0, _MAGIC, _VERSION, layout.slots, slot_bytes, 0, session)
            unfinished.rename(path)
            self.file = file
            """For readers that find the path gone."""
        except OSError:
            os.close(file)
            unfinished.unlink()
            raise

    def write(self, number: int, published_ns: int, payload: bytes) -> None:
        """Numbers grow by one."""
        begin = self._layout.slot(number)
        message = begin + _BEFORE_BYTES
        self._words[begin // _WORD] = number
        _FRONT.pack_into(
            self._memory, begin + _WORD, published_ns, len(payload), _checksum(number, published_ns, payload)
        )
        self._memory[message : message + len(payload)] = payload
        self._words[(begin + self._layout.stride) // _WORD - 1] = number
        self._words[_HEAD_AT // _WORD] = number

    def close(self) -> None:
        """Twice is an error."""
        os.close(self.file)
        self._words.release()
        self._memory.close()


class RingReader:
    """Reads from the message after `cursor` on; None stands for the last one that is there. The file is closed."""

    def __init__(self, file: int, cursor: int | None) -> None:
        try:
            self._memory = mmap.mmap(file, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(file)
        self._words = memoryview(self._memory).cast("Q")
        magic, version, slots, slot_bytes, _, self.session = _HEADER.unpack_from(self._memory)
        self._layout = _Layout(slots, slot_bytes)
        if (magic, version, len(self._memory)) != (_MAGIC, _VERSION, self._layout.total_bytes):
            self.close()
            raise OSError("no ring of this version")
        self.next_number = 1 + (self._head if cursor is None else cursor)
        """That of the message which is read next."""
        self.overrun = 0
        """Messages that were replaced before they were read."""

    @property
    def _head(self) -> int:
        return self._words[_HEAD_AT // _WORD]

    def read(self) -> DirectMessage | None:
        """The next message; None if there is none at the moment."""
        layout = self._layout
        while True:
            number = self.next_number
            begin = layout.slot(number)
            for _ in range(_TRIES):
                after = self._words[(begin + layout.stride) // _WORD - 1]
                if after != number:
                    break
                published_ns, length, checksum = _FRONT.unpack_from(self._memory, begin + _WORD)
                message = begin + _BEFORE_BYTES
                payload = self._memory[message : message + min(length, layout.slot_bytes)]
                before = self._words[begin // _WORD]
                if before == number and checksum == _checksum(number, published_ns, payload):
                    self.next_number += 1
                    return DirectMessage(self.session, number, published_ns, payload)
            if after < number:
                return None
            # A quarter of the ring ahead of the writer, or the next one would be gone at once, too.
            oldest = self._head - layout.slots * 3 // 4
            self.next_number = max(number + 1, oldest)
            self.overrun += self.next_number - number

    def close(self) -> None:
        self._words.release()
        self._memory.close()


def _checksum(number: int, published_ns: int, payload: bytes) -> int:
    return crc32(payload, (number ^ published_ns) & 0xFFFFFFFF)
