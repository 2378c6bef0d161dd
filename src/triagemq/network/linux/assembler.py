"""An assembler for eBPF: one method per kind of instruction, and labels to jump to.

A program is a list of instructions of eight octets (Documentation/bpf/standardization/instruction-set in the kernel).
Registers: 0 holds results, 1 to 5 arguments (lost by a call), 6 to 9 are kept, 10 points to the end of the stack.
"""

from __future__ import annotations

import struct
from typing import Literal, NamedTuple

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
        """Add a register to 8 octets of memory, as one step for whoever else reads or adds."""
        self._add(_ATOMIC_ADD_8, address, register, offset)

    def count_alone(self, address: Register, offset: int, register: Register, scratch: Register) -> None:
        """The same where nobody else adds meanwhile, at a fraction of the cost; a register is lost by it."""
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
