"""Types of events: how their values are written as octets, and the largest size that they can have (MIDAS, IV.A).

A type is a struct format or a dataclass. Its fields are of

    Int8 to Int64, UInt8 to UInt64, Annotated[int, Format("h")]     an integer of that width
    float, Float32, bool                                            eight octets, four, one
    Annotated[str, Length(20)], Annotated[bytes, Length(20)]        so many characters or octets at most
    Annotated[bytes, Length(6, exact=True)]                         exactly so many
    tuple[Int16, Int16, Int16]                                      a fixed number of values
    Annotated[list[float], Length(8)], Annotated[tuple[float, ...], Length(8)]    so many at most
    an Enum, another dataclass, and any of these or None

A type without a largest size is refused. Octets are in network order, without padding, fields one after the other;
what may have different lengths has its length in front.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

from triagemq.errors import ParameterError
from triagemq.intents import PublicationIntent

Value = TypeVar("Value")

MOST_IN_A_PREFIX = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Format:
    """A number by its format character in the struct module."""

    code: str


@dataclass(frozen=True, slots=True)
class Length:
    """How long a text, octets or a list may be; if `exact`, octets have this length."""

    max_length: int
    exact: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.max_length <= MOST_IN_A_PREFIX:
            raise ParameterError("Length", f"must be from 1 to {MOST_IN_A_PREFIX}, is {self.max_length!r}")


Int8, UInt8 = Annotated[int, Format("b")], Annotated[int, Format("B")]
Int16, UInt16 = Annotated[int, Format("h")], Annotated[int, Format("H")]
Int32, UInt32 = Annotated[int, Format("i")], Annotated[int, Format("I")]
Int64, UInt64 = Annotated[int, Format("q")], Annotated[int, Format("Q")]
Float32 = Annotated[float, Format("f")]

WIDTHS = "bBhHiIqQ"
Taken = tuple[Any, int]
"""A value, and where the octets behind it begin."""


@dataclass(frozen=True, slots=True)
class Part:
    """How one field is written: `put` adds the octets of a value, `take` reads one from an offset on."""

    largest_bytes: int
    put: Callable[[Any, bytearray], None]
    take: Callable[[memoryview, int], Taken]


class TypedTopic(Generic[Value]):
    """A topic whose events are values of one type.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Pulse:
    ...     bed: UInt16
    ...     beats_per_minute: float
    ...     note: Annotated[str, Length(10)]
    >>> pulse = TypedTopic("ward/3/pulse", Pulse)
    >>> pulse.largest_size_bytes, len(pulse.encode(Pulse(7, 61.5, "calm")))
    (51, 15)
    >>> pulse.decode(pulse.encode(Pulse(7, 61.5, "calm")))
    Pulse(bed=7, beats_per_minute=61.5, note='calm')
    >>> pulse.declared(min_separation_seconds=0.02).as_json()
    {'topic': 'ward/3/pulse', 'min_separation_seconds': 0.02, 'max_size_bytes': 51}
    """

    def __init__(self, topic: str, kind: type[Value] | str) -> None:
        self.topic = topic
        self._part = _part_of(kind)

    @property
    def largest_size_bytes(self) -> int:
        """No event is larger."""
        return self._part.largest_bytes

    def encode(self, value: Value) -> bytes:
        """The octets of a value; ParameterError names a field that has not the value that it should have."""
        octets = bytearray()
        self._part.put(value, octets)
        return bytes(octets)

    def decode(self, payload: bytes) -> Value:
        """The value that octets stand for; ParameterError where they stand for none."""
        try:
            value, end = self._part.take(memoryview(payload), 0)
        except struct.error:
            raise ParameterError(
                "payload", f"of {len(payload)} bytes is too short for {self.topic!r}"
            ) from None
        if end != len(payload):
            raise ParameterError("payload", f"has {len(payload)} bytes, {self.topic!r} ends after {end}")
        found: Value = value
        return found

    def declared(
        self,
        *,
        rate_per_second: float | None = None,
        min_separation_seconds: float | None = None,
        max_separation_seconds: float | None = None,
    ) -> PublicationIntent:
        """What to declare of this topic: its largest size, and what is given."""
        return PublicationIntent(
            self.topic,
            rate_per_second,
            None,
            min_separation_seconds,
            max_separation_seconds,
            max(1, self.largest_size_bytes),
        )


def largest_size_bytes(kind: type[Any] | str) -> int:
    """The size that no encoded value of a type exceeds: of a dataclass or a struct format.

    >>> largest_size_bytes("<d3H"), largest_size_bytes(tuple[Int16, bool])
    (14, 3)
    >>> largest_size_bytes(tuple[Int16, str])
    Traceback (most recent call last):
    triagemq.errors.ParameterError: tuple.1: a str has no largest size; write Annotated[str, Length(20)]
    """
    return _part_of(kind).largest_bytes


def _part_of(kind: Any) -> Part:
    if isinstance(kind, str):
        return _struct_format(kind)
    return _part(kind, (), getattr(kind, "__name__", str(kind)), ())


def _struct_format(text: str) -> Part:
    try:
        form = struct.Struct(text)
    except struct.error as error:
        raise ParameterError("type", f"{text!r} is not a struct format: {error}") from None

    def put(value: Any, octets: bytearray) -> None:
        try:
            octets += form.pack(*value)
        except (struct.error, TypeError) as error:
            raise ParameterError("value", f"does not fit {text!r}: {error}") from None

    return Part(form.size, put, lambda payload, at: (form.unpack_from(payload, at), at + form.size))


def _part(kind: Any, limits: tuple[Any, ...], name: str, inside: tuple[Any, ...]) -> Part:
    """The part of a type at a field of this name; `inside` are the dataclasses around it."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _part(arguments[0], (*arguments[1:], *limits), name, inside)
    if origin in (Union, UnionType):
        return _optional(kind, limits, name, inside)
    if isinstance(kind, type) and is_dataclass(kind):
        return _record(kind, name, inside)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _choice(kind, name)
    if kind is bool:
        return _number("?", name, bool)
    if kind in (int, float):
        usual = "d" if kind is float else None
        code = next((limit.code for limit in limits if isinstance(limit, Format)), usual)
        if code is None:
            raise ParameterError(name, "an int has no largest size; write Int32 or another width for int")
        return _number(code, name, kind)
    if kind in (str, bytes):
        return _text(kind, limits, name)
    if origin in (list, tuple):
        return _several(origin, arguments, limits, name, inside)
    shown = getattr(kind, "__name__", str(kind))
    if kind in (list, tuple):
        raise ParameterError(name, f"a {shown} has no largest size; write Annotated[list[float], Length(8)]")
    raise ParameterError(
        name, f"a {shown} has no largest size; write a dataclass of numbers and bounded texts"
    )


def _length(limits: Sequence[Any]) -> Length | None:
    return next((limit for limit in limits if isinstance(limit, Length)), None)


def _number(code: str, name: str, kind: type[Any]) -> Part:
    form = struct.Struct(f"!{code}")
    accepted = (int, float) if kind is float else kind

    def put(value: Any, octets: bytearray) -> None:
        try:
            if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
                raise ParameterError(name, f"must be {kind.__name__}, is {value!r:.100}")
            octets += form.pack(value)
        except (struct.error, OverflowError):
            room = f"{form.size} octets ({code!r} of struct)"
            raise ParameterError(name, f"does not fit {room}: {value!r:.100}") from None

    return Part(form.size, put, lambda payload, at: (form.unpack_from(payload, at)[0], at + form.size))


def _prefix(most: int, name: str) -> Part:
    """A number of octets, characters or values, up to the most there may be."""
    code = next((code for code in "BHI" if most < 2 ** (8 * struct.calcsize(f"!{code}"))), None)
    if code is None:
        raise ParameterError(name, f"a length of up to {most} is too large; write at most {MOST_IN_A_PREFIX}")
    return _number(code, name, int)


def _text(kind: type[Any], limits: Sequence[Any], name: str) -> Part:
    word = kind.__name__
    length = _length(limits)
    if length is None:
        raise ParameterError(name, f"a {word} has no largest size; write Annotated[{word}, Length(20)]")
    most, exact = length.max_length, length.exact
    if exact and kind is str:
        raise ParameterError(name, "a str has no exact size in octets; write Length without exact")
    # A character is up to four octets of UTF-8.
    largest = most if kind is bytes else 4 * most
    prefix = Part(0, lambda value, octets: None, lambda payload, at: (most, at))
    prefix = prefix if exact else _prefix(largest, name)

    def put(value: Any, octets: bytearray) -> None:
        if not isinstance(value, kind) or len(value) > most or (exact and len(value) < most):
            bound = "exactly" if exact else "at most"
            shown = f"{len(value)} long" if isinstance(value, kind) else repr(value)[:100]
            raise ParameterError(name, f"must be a {word} of {bound} {most}, is {shown}")
        try:
            written = value.encode() if isinstance(value, str) else value
        except UnicodeEncodeError as error:
            raise ParameterError(name, f"is no text: {error.reason}") from None
        prefix.put(len(written), octets)
        octets += written

    def take(payload: memoryview, at: int) -> Taken:
        size, at = prefix.take(payload, at)
        found = bytes(payload[at : at + size])
        if len(found) < size or size > largest:
            raise ParameterError(name, f"has {size} octets, of which {len(found)} are there")
        try:
            text = found if kind is bytes else found.decode()
        except UnicodeDecodeError:
            raise ParameterError(name, "is not text in UTF-8") from None
        if len(text) > most:
            raise ParameterError(name, f"has {len(text)} characters, at most {most} are possible")
        return text, at + size

    return Part(prefix.largest_bytes + largest, put, take)


def _several(
    origin: Any, arguments: tuple[Any, ...], limits: Sequence[Any], name: str, inside: tuple[Any, ...]
) -> Part:
    """A list or tuple of up to so many values, or a tuple of as many as it names."""
    if origin is tuple and arguments[-1:] != (...,):
        kinds = [_part(kind, (), f"{name}.{number}", inside) for number, kind in enumerate(arguments)]

        def split(values: Any) -> tuple[Any, ...]:
            if not isinstance(values, tuple) or len(values) != len(kinds):
                raise ParameterError(name, f"must be a tuple of {len(kinds)}, is {values!r:.100}")
            return values

        return _in_order(kinds, split, tuple)
    length = _length(limits)
    if length is None:
        advice = f"write Annotated[{'list[float]' if origin is list else 'tuple[float, ...]'}, Length(8)]"
        raise ParameterError(name, f"a {origin.__name__} of any length has no largest size; {advice}")
    most = length.max_length
    each, prefix = _part(arguments[0], (), f"{name}[]", inside), _prefix(most, name)

    def put(values: Any, octets: bytearray) -> None:
        if not isinstance(values, origin) or len(values) > most:
            raise ParameterError(name, f"must be a {origin.__name__} of at most {most}, is {values!r:.100}")
        prefix.put(len(values), octets)
        for value in values:
            each.put(value, octets)

    def take(payload: memoryview, at: int) -> Taken:
        count, at = prefix.take(payload, at)
        if count > most:
            raise ParameterError(name, f"has {count} values, at most {most} are possible")
        found = []
        for _ in range(count):
            value, at = each.take(payload, at)
            found.append(value)
        return origin(found), at

    return Part(prefix.largest_bytes + most * each.largest_bytes, put, take)


def _in_order(
    parts: Sequence[Part], split: Callable[[Any], Iterable[Any]], join: Callable[[list[Any]], Any]
) -> Part:
    """Parts that follow each other, of the values that a whole is split into."""

    def put(whole: Any, octets: bytearray) -> None:
        for part, value in zip(parts, split(whole), strict=True):
            part.put(value, octets)

    def take(payload: memoryview, at: int) -> Taken:
        found = []
        for part in parts:
            value, at = part.take(payload, at)
            found.append(value)
        return join(found), at

    return Part(sum(part.largest_bytes for part in parts), put, take)


def _choice(kind: type[Enum], name: str) -> Part:
    """One of some values: its number."""
    values = list(kind)
    prefix = _prefix(len(values), name)

    def put(value: Any, octets: bytearray) -> None:
        if not isinstance(value, kind):
            raise ParameterError(name, f"must be a {kind.__name__}, is {value!r:.100}")
        prefix.put(values.index(value), octets)

    def take(payload: memoryview, at: int) -> Taken:
        row, at = prefix.take(payload, at)
        if row >= len(values):
            raise ParameterError(name, f"has the number {row}, and there are {len(values)}")
        return values[row], at

    return Part(prefix.largest_bytes, put, take)


def _optional(kind: Any, limits: tuple[Any, ...], name: str, inside: tuple[Any, ...]) -> Part:
    kinds = [each for each in get_args(kind) if each is not NoneType]
    if len(kinds) != 1:
        raise ParameterError(name, "may be of several types; write one of them, or one and None")
    inner, flag = _part(kinds[0], limits, name, inside), _number("?", name, bool)

    def put(value: Any, octets: bytearray) -> None:
        flag.put(value is not None, octets)
        if value is not None:
            inner.put(value, octets)

    def take(payload: memoryview, at: int) -> Taken:
        there, at = flag.take(payload, at)
        return inner.take(payload, at) if there else (None, at)

    return Part(flag.largest_bytes + inner.largest_bytes, put, take)


def _record(kind: type[Any], name: str, inside: tuple[Any, ...]) -> Part:
    """A dataclass: its fields in their order."""
    if kind in inside:
        raise ParameterError(name, f"holds {kind.__name__} again, and so has no largest size")
    hints = get_type_hints(kind, include_extras=True)
    names = [field.name for field in fields(kind) if field.init]
    parts = [_part(hints[key], (), f"{name}.{key}", (*inside, kind)) for key in names]

    def split(value: Any) -> list[Any]:
        if not isinstance(value, kind):
            raise ParameterError(name, f"must be a {kind.__name__}, is {value!r:.100}")
        return [getattr(value, key) for key in names]

    def join(values: list[Any]) -> Any:
        try:
            return kind(**dict(zip(names, values, strict=True)))
        except ValueError as error:
            raise ParameterError(name, f"is not a {kind.__name__}: {error}") from None

    return _in_order(parts, split, join)
