"""eBPF maps and programs through the bpf() system call: programs are compiled already (`make programs`), no library.

Maps live as long as a program or a file descriptor refers to them: a classifier keeps working with the last plan when
the process that loaded it has died.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import struct
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from triagemq.errors import NetworkError
from triagemq.network.linux.netlink import system_call_error

# The arguments of bpf() and the meaning of its numbers: include/uapi/linux/bpf.h.
_SYSTEM_CALLS = {"x86_64": 321, "aarch64": 280, "riscv64": 280}
_MAP_CREATE, _LOOKUP, _UPDATE, _DELETE, _PROGRAM_LOAD = 0, 1, 2, 3, 5
_HASH, _ARRAY, _LEAST_RECENTLY_USED_HASH, _LONGEST_PREFIX, _RING = 1, 2, 9, 11, 27
_WITHOUT_PREALLOCATION, _MAPPABLE = 1, 1 << 10
SOCKET_FILTER, CLASSIFIER = 1, 3
"""Kinds of programs: what a socket gets to see, and what becomes of a packet that leaves or arrives."""
_LOG_BYTES = 1 << 20

_ELEMENT = struct.Struct("=IxxxxQQQ")
"""A map, where a key is, where its value is or goes, flags."""

_libc = ctypes.CDLL(None, use_errno=True)


def _bpf(command: int, arguments: bytes) -> int:
    return _call(command, ctypes.create_string_buffer(arguments, len(arguments)))


def _call(command: int, arguments: ctypes.Array[ctypes.c_char]) -> int:
    result: int = _libc.syscall(_system_call(), command, arguments, len(arguments))
    if result < 0:
        raise system_call_error()
    return result


@cache
def _system_call() -> int:
    number = _SYSTEM_CALLS.get(platform.machine())
    if number is None:
        raise NetworkError(
            f"eBPF is not known here for {platform.machine()} processors; use --dataplane embedded"
        )
    return number


class BpfMap:
    """A map by its file descriptor, for one thread at a time: what goes in and out has one place."""

    def __init__(self, kind: int, key_bytes: int, value_bytes: int, entries: int, flags: int) -> None:
        self.key_bytes, self.value_bytes, self.entries = key_bytes, value_bytes, entries
        try:
            self.file = _bpf(
                _MAP_CREATE,
                struct.pack("=IIIIIII16s", kind, key_bytes, value_bytes, entries, flags, 0, 0, b"triagemq"),
            )
        except OSError as error:
            raise NetworkError(
                f"the kernel gives no eBPF map ({error.strerror}); run this as root, or use --dataplane embedded"
            ) from None
        self._key = ctypes.create_string_buffer(key_bytes)
        self.value = ctypes.create_string_buffer(value_bytes)
        key_at = ctypes.addressof(self._key) if key_bytes else 0
        self._arguments, self._arguments_of_delete = (
            ctypes.create_string_buffer(_ELEMENT.pack(self.file, key_at, value_at, 0), _ELEMENT.size)
            for value_at in (ctypes.addressof(self.value), 0)
        )

    def close(self) -> None:
        os.close(self.file)

    def command(self, command: int, key: bytes, value: bytes | None = None) -> None:
        """With the element of one key; a value that is requested is in `value`."""
        self._key.raw = key
        if value is not None:
            self.value.raw = value
        _call(command, self._arguments_of_delete if command == _DELETE else self._arguments)


class HashMap(BpfMap):
    """Keys and values of fixed size.

    Values are never changed in place: a program sees an old value or a new one, never half of each.
    """

    kind = _HASH

    def __init__(self, key_bytes: int, value_bytes: int, entries: int) -> None:
        super().__init__(self.kind, key_bytes, value_bytes, entries, _WITHOUT_PREALLOCATION)

    def update(self, items: Sequence[tuple[bytes, bytes]]) -> None:
        """Put in or replace. OSError E2BIG if it is full."""
        for key, value in items:
            self.command(_UPDATE, key, value)

    def delete(self, keys: Sequence[bytes]) -> None:
        """Take out; a key that is not there is none the less gone."""
        for key in keys:
            try:
                self.command(_DELETE, key)
            except OSError as error:
                if error.errno != errno.ENOENT:
                    raise


class PrefixMap(HashMap):
    """Keys that begin with how many of their bits count: a program that looks one up gets the longest that fits."""

    kind = _LONGEST_PREFIX


class RecentMap(BpfMap):
    """Keys and values that programs put in themselves; when it is full, the least recently used go."""

    def __init__(self, key_bytes: int, value_bytes: int, entries: int) -> None:
        super().__init__(_LEAST_RECENTLY_USED_HASH, key_bytes, value_bytes, entries, 0)


class RingMap(BpfMap):
    """Records of one size that programs put in themselves, read as they lie in the kernel's memory.

    What comes while it is full is lost. `record_bytes` is a multiple of eight, `total_bytes` a power of two.
    """

    _HEAD_BYTES, _UNFINISHED = 8, np.uint32(1 << 31)

    def __init__(self, record_bytes: int, total_bytes: int) -> None:
        super().__init__(_RING, 0, 0, total_bytes, 0)
        self._record = record_bytes + self._HEAD_BYTES
        page = mmap.PAGESIZE
        self._taken = mmap.mmap(self.file, page)
        # The place that programs have reached, then all records twice, so that none is cut at the end.
        self._put = mmap.mmap(self.file, page + 2 * total_bytes, prot=mmap.PROT_READ, offset=page)

    def take(self) -> NDArray[np.uint8]:
        """Take out all that is finished: a row of octets for each record."""
        (begin,), (end,) = struct.unpack_from("=Q", self._taken), struct.unpack_from("=Q", self._put)
        count = (end - begin) // self._record
        place = mmap.PAGESIZE + begin % self.entries
        rows = np.frombuffer(self._put, np.uint8, count * self._record, place).reshape(count, self._record)
        heads = np.ascontiguousarray(rows[:, : self._HEAD_BYTES]).view(np.uint32)[:, 0]
        unfinished = np.flatnonzero(heads & self._UNFINISHED)
        count = int(unfinished[0]) if len(unfinished) else count
        found = rows[:count, self._HEAD_BYTES :].copy()
        del rows
        struct.pack_into("=Q", self._taken, 0, begin + count * self._record)
        return found

    def close(self) -> None:
        self._taken.close()
        self._put.close()
        super().close()


class ArrayMap(BpfMap):
    """Values by number, zero at first; `memory` is the kernel's own, so that reading costs nothing."""

    def __init__(self, value_bytes: int, entries: int) -> None:
        assert value_bytes % 8 == 0, "the kernel lays out values at multiples of eight octets"
        super().__init__(_ARRAY, 4, value_bytes, entries, _MAPPABLE)
        self.memory = mmap.mmap(self.file, value_bytes * entries)

    def set(self, number: int, value: bytes) -> None:
        self.command(_UPDATE, struct.pack("=I", number), value)

    def close(self) -> None:
        self.memory.close()
        super().close()


_SECTION, _SYMBOL, _RELOCATION = struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IBBHQQ"), struct.Struct("<QQ")
"""Of ELF: Elf64_Shdr, Elf64_Sym and Elf64_Rel."""
_OF_MAP = 1 << 4


def compiled_program(path: Path, section: str, symbols: Mapping[str, BpfMap | int]) -> bytes:
    """The instructions of a program in an object file, with its maps and numbers in the place of their names."""
    elf = path.read_bytes()
    (headers_at,), (count, names) = struct.unpack_from("<Q", elf, 40), struct.unpack_from("<HH", elf, 60)
    headers = [_SECTION.unpack_from(elf, headers_at + number * _SECTION.size) for number in range(count)]
    texts = headers[names][4]

    def text(place: int) -> str:
        return elf[texts + place : elf.index(0, texts + place)].decode()

    contents = {text(name): elf[begin : begin + size] for name, _, _, _, begin, size, *_ in headers}
    code = bytearray(contents[section])
    for place, information in _RELOCATION.iter_unpack(contents.get(f".rel{section}", b"")):
        name, *_ = _SYMBOL.unpack_from(contents[".symtab"], (information >> 32) * _SYMBOL.size)
        symbol = symbols[text(name)]
        if isinstance(symbol, BpfMap):
            code[place + 1] |= _OF_MAP
        struct.pack_into("<I", code, place + 4, symbol.file if isinstance(symbol, BpfMap) else symbol)
    return bytes(code)


def load_program(program: bytes, licence: str = "Apache-2.0", kind: int = CLASSIFIER) -> int:
    """The file descriptor of a checked program; the error quotes the end of the verifier's log."""
    code = ctypes.create_string_buffer(program, len(program))
    words = ctypes.create_string_buffer(licence.encode())
    log = ctypes.create_string_buffer(_LOG_BYTES)

    def arguments(log_level: int) -> bytes:
        return struct.pack(
            "=IIQQIIQII16s",
            kind,
            len(program) // 8,
            ctypes.addressof(code),
            ctypes.addressof(words),
            log_level,
            _LOG_BYTES if log_level else 0,
            ctypes.addressof(log) if log_level else 0,
            0,
            0,
            b"triagemq",
        )

    try:
        return _bpf(_PROGRAM_LOAD, arguments(0))
    except OSError as first:
        # Only a refusal is worth a log, which costs the verifier time.
        try:
            return _bpf(_PROGRAM_LOAD, arguments(1))
        except OSError:
            lines = log.value.decode(errors="replace").strip().splitlines()[-4:]
            reason = ": " + " / ".join(line.strip() for line in lines) if lines else ""
            raise NetworkError(
                f"the kernel refuses the classifier ({first.strerror}{reason}); "
                "run this as root, or use --dataplane embedded"
            ) from None
