"""eBPF maps and programs through the bpf() system call: no compiler, no library.

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
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from triagemq.errors import NetworkError
from triagemq.network.linux.netlink import system_call_error

Register = Literal[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
Comparison = Literal["==", "!=", "<", "<=", ">", ">="]
Operation = Literal["+", "-", "*", "|", "&", "<<", ">>"]

_SIZES = {1: 0x10, 2: 0x08, 4: 0x00, 8: 0x18}
_COMPARISONS = {"==": 0x10, ">": 0x20, ">=": 0x30, "!=": 0x50, "<": 0xA0, "<=": 0xB0}
_OPERATIONS = {"+": 0x00, "-": 0x10, "*": 0x20, "|": 0x40, "&": 0x50, "<<": 0x60, ">>": 0x70}
_JUMP, _ARITHMETIC = 0x05, 0x07
_LOAD, _STORE_NUMBER, _STORE = 0x61, 0x62, 0x63
_BY_REGISTER = 0x08
_ATOMIC_ADD_8 = 0xDB
_LOAD_ADDRESS, _OF_MAP, _OF_VALUE = 0x18, 1, 2
_CALL, _EXIT = 0x85, 0x95


class _Instruction(NamedTuple):
    code: int
    destination: int
    source: int
    offset: int | str
    number: int


class Assembler:
    """Collects instructions; `program` gives them as octets.

    >>> a = Assembler()
    >>> a.set(0, 1)
    >>> a.jump_if(0, "==", 1, "end")
    >>> a.set(0, 2)
    >>> a.label("end")
    >>> a.exit()
    >>> len(a.program()) // 8
    4
    """

    def __init__(self) -> None:
        self._instructions: list[_Instruction] = []
        self._labels: dict[str, int] = {}

    def label(self, name: str) -> None:
        """Where jumps to `name` go."""
        assert name not in self._labels, f"two places are called {name}"
        self._labels[name] = len(self._instructions)

    def copy(self, to: Register, source: Register) -> None:
        self._add(0xB0 | _ARITHMETIC | _BY_REGISTER, to, source)

    def set(self, to: Register, number: int) -> None:
        self._add(0xB0 | _ARITHMETIC, to, number=number)

    def compute(self, to: Register, operation: Operation, number: int) -> None:
        self._add(_OPERATIONS[operation] | _ARITHMETIC, to, number=number)

    def compute_by(self, to: Register, operation: Operation, register: Register) -> None:
        self._add(_OPERATIONS[operation] | _ARITHMETIC | _BY_REGISTER, to, register)

    def load(self, size: int, to: Register, address: Register, offset: int) -> None:
        """Read 1, 2, 4 or 8 octets of memory."""
        self._add(_SIZES[size] | _LOAD, to, address, offset)

    def store(self, size: int, address: Register, offset: int, register: Register) -> None:
        self._add(_SIZES[size] | _STORE, address, register, offset)

    def store_number(self, size: int, address: Register, offset: int, number: int) -> None:
        self._add(_SIZES[size] | _STORE_NUMBER, address, 0, offset, number)

    def count(self, address: Register, offset: int, register: Register) -> None:
        """Add a register to 8 octets of memory, atomically."""
        self._add(_ATOMIC_ADD_8, address, register, offset)

    def count_alone(self, address: Register, offset: int, register: Register, scratch: Register) -> None:
        """The same where no other program adds meanwhile, at a fraction of the cost; a register is lost by it."""
        self.load(8, scratch, address, offset)
        self.compute_by(scratch, "+", register)
        self.store(8, address, offset, scratch)

    def jump(self, label: str) -> None:
        self._add(_JUMP, offset=label)

    def jump_if(self, register: Register, comparison: Comparison, number: int, label: str) -> None:
        self._add(_COMPARISONS[comparison] | _JUMP, register, 0, label, number)

    def jump_if_by(self, register: Register, comparison: Comparison, other: Register, label: str) -> None:
        self._add(_COMPARISONS[comparison] | _JUMP | _BY_REGISTER, register, other, label)

    def load_map(self, to: Register, file: int) -> None:
        """The map with this file descriptor, for a helper."""
        self._add(_LOAD_ADDRESS, to, _OF_MAP, number=file)
        self._add(0)

    def load_value(self, to: Register, file: int) -> None:
        """The address of the only value of an array, without looking it up."""
        self._add(_LOAD_ADDRESS, to, _OF_VALUE, number=file)
        self._add(0)

    def call(self, helper: int) -> None:
        self._add(_CALL, number=helper)

    def exit(self) -> None:
        self._add(_EXIT)

    def program(self) -> bytes:
        """The instructions, with labels turned into distances."""
        octets = bytearray()
        for place, (code, destination, source, offset, number) in enumerate(self._instructions):
            distance = self._labels[offset] - place - 1 if isinstance(offset, str) else offset
            signed = number - (1 << 32) if number >= 1 << 31 else number
            octets += struct.pack("=BBhi", code, destination | source << 4, distance, signed)
        return bytes(octets)

    def _add(
        self, code: int, destination: int = 0, source: int = 0, offset: int | str = 0, number: int = 0
    ) -> None:
        self._instructions.append(_Instruction(code, destination, source, offset, number))


# The arguments of bpf() and the meaning of its numbers: include/uapi/linux/bpf.h.
_SYSTEM_CALLS = {"x86_64": 321, "aarch64": 280, "riscv64": 280}
_MAP_CREATE, _LOOKUP, _UPDATE, _DELETE, _PROGRAM_LOAD = 0, 1, 2, 3, 5
_UPDATE_BATCH = 26
_HASH, _ARRAY, _LEAST_RECENTLY_USED_HASH, _LONGEST_PREFIX, _RING = 1, 2, 9, 11, 27
_WITHOUT_PREALLOCATION, _MAPPABLE = 1, 1 << 10
SOCKET_FILTER, CLASSIFIER = 1, 3
"""Kinds of programs: what a socket gets to see, and what becomes of a packet that leaves or arrives."""
_LOG_BYTES = 1 << 20
_NO_BATCHES = (errno.EINVAL, errno.EOPNOTSUPP, 524)  # The last is the kernel's own ENOTSUPP.

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
        self._batches = True

    def update(self, items: Sequence[tuple[bytes, bytes]]) -> None:
        """Put in or replace; with one system call where the kernel can. OSError E2BIG if it is full."""
        if len(items) > 1 and self._batches and self._update_batch(items):
            return
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

    def get(self, key: bytes) -> bytes | None:
        try:
            self.command(_LOOKUP, key)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return None
            raise
        return self.value.raw

    def _update_batch(self, items: Sequence[tuple[bytes, bytes]]) -> bool:
        """Whether the kernel could do it in one call (since Linux 5.6)."""
        keys, values = (
            ctypes.create_string_buffer(b"".join(each), sum(map(len, each)))
            for each in zip(*items, strict=True)
        )
        addresses = ctypes.addressof(keys), ctypes.addressof(values)
        try:
            _bpf(_UPDATE_BATCH, struct.pack("=QQQQIIQQ", 0, 0, *addresses, len(items), self.file, 0, 0))
        except OSError as error:
            if error.errno not in _NO_BATCHES:
                raise
            self._batches = False
            return False
        return True


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
            said = " / ".join(_last_lines(log.value.decode(errors="replace")))
            raise NetworkError(
                f"the kernel refuses the classifier ({first.strerror}{': ' + said if said else ''}); "
                "run this as root, or use --dataplane embedded"
            ) from None


def _last_lines(log: str) -> Iterator[str]:
    yield from (line.strip() for line in log.strip().splitlines()[-4:])
