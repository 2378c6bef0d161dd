"""Types of events: no value is larger than the size inferred from its type, and what was encoded can be decoded."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, make_dataclass
from enum import Enum
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triagemq.client import TypedTopic, largest_size_bytes
from triagemq.client.types import Float32, Format, Int8, Int16, Int64, Length, UInt8, UInt16, UInt64
from triagemq.errors import ParameterError


class Alarm(Enum):
    NONE = "none"
    LOW = "low"
    HIGH = "high"


@dataclass
class Place:
    ward: Int8
    bed: UInt16


@dataclass
class Vitals:
    place: Place
    alarm: Alarm
    pulse: float
    oxygen: Float32
    valid: bool
    samples: Annotated[list[Int16], Length(4)]
    axes: tuple[Int64, UInt64]
    note: Annotated[str, Length(10)]
    address: Annotated[bytes, Length(6, exact=True)]
    extra: Annotated[bytes, Length(300)] | None = None
    seen: float = field(init=False, default=0.0)


LARGEST = Vitals(
    Place(-128, 65535),
    Alarm.HIGH,
    1e300,
    0.5,
    True,
    [-32768] * 4,
    (-(2**63), 2**64 - 1),
    "\U0001f525" * 10,
    b"123456",
    b"x" * 300,
)

numbers = {
    "b": (-128, 127),
    "B": (0, 255),
    "h": (-(2**15), 2**15 - 1),
    "I": (0, 2**32 - 1),
    "q": (-(2**63), 2**63 - 1),
}
simple = st.one_of(
    st.sampled_from(sorted(numbers)).map(
        lambda code: (Annotated[int, Format(code)], st.integers(*numbers[code]))
    ),
    st.just((float, st.floats(allow_nan=False))),
    st.just((Float32, st.floats(width=32, allow_nan=False))),
    st.just((bool, st.booleans())),
    st.just((Alarm, st.sampled_from(Alarm))),
    st.integers(1, 300).map(
        lambda most: (
            Annotated[str, Length(most)],
            st.text(st.characters(exclude_categories=["Cs"]), max_size=most),
        )
    ),
    st.integers(1, 300).map(lambda most: (Annotated[bytes, Length(most)], st.binary(max_size=most))),
    st.integers(1, 20).map(
        lambda most: (Annotated[bytes, Length(most, exact=True)], st.binary(min_size=most, max_size=most))
    ),
)


def larger(inner: Any) -> Any:
    def record(parts: list[tuple[Any, Any]]) -> tuple[Any, Any]:
        kind = make_dataclass("Record", [(f"part_{row}", part) for row, (part, _) in enumerate(parts)])
        return kind, st.builds(kind, *(values for _, values in parts))

    return st.one_of(
        st.lists(inner, max_size=4).map(record),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda parts: (tuple[tuple(part for part, _ in parts)], st.tuples(*(v for _, v in parts)))  # type: ignore[misc]
        ),
        st.tuples(inner, st.integers(1, 5)).map(
            lambda given: (
                Annotated[list[given[0][0]], Length(given[1])],  # type: ignore[name-defined]
                st.lists(given[0][1], max_size=given[1]),
            )
        ),
        inner.map(
            lambda part: (
                part[0] | None,
                st.none() | part[1],
            )
        ),
    )


typed_values = st.recursive(simple, larger, max_leaves=8).flatmap(
    lambda part: st.tuples(st.just(part[0]), part[1])
)


@settings(max_examples=300, deadline=None)
@given(typed_values)
def test_no_value_is_larger_than_its_type_says_and_all_are_decoded_again(typed: tuple[Any, Any]) -> None:
    kind, value = typed
    topic: TypedTopic[Any] = TypedTopic("a", kind)
    encoded = topic.encode(value)
    assert len(encoded) <= topic.largest_size_bytes == largest_size_bytes(kind)
    assert topic.decode(encoded) == value


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=400))
def test_foreign_octets_are_a_value_or_refused_and_nothing_else(payload: bytes) -> None:
    topic = TypedTopic("vitals", Vitals)
    try:
        value = topic.decode(payload)
    except ParameterError:
        return
    assert len(topic.encode(value)) <= topic.largest_size_bytes


def test_the_largest_size_is_reached() -> None:
    topic = TypedTopic("vitals", Vitals)
    assert len(topic.encode(LARGEST)) == topic.largest_size_bytes == 392
    assert topic.decode(topic.encode(LARGEST)) == LARGEST


def test_struct_formats_are_taken_as_they_are() -> None:
    topic: TypedTopic[Any] = TypedTopic("a", "<dI4s")
    assert topic.largest_size_bytes == struct.calcsize("<dI4s")
    assert topic.encode((1.5, 7, b"fire")) == struct.pack("<dI4s", 1.5, 7, b"fire")
    assert topic.decode(topic.encode((1.5, 7, b"fire"))) == (1.5, 7, b"fire")
    with pytest.raises(ParameterError, match="does not fit"):
        topic.encode((1.5, -7, b"fire"))
    with pytest.raises(ParameterError, match="is not a struct format"):
        TypedTopic("a", "<dY")


def test_values_that_a_type_refuses_are_refused_when_they_are_decoded() -> None:
    @dataclass
    class Floor:
        number: UInt8

        def __post_init__(self) -> None:
            if self.number > 100:
                raise ValueError("is too high")

    topic = TypedTopic("floor", Floor)
    with pytest.raises(ParameterError, match="is not a Floor"):
        topic.decode(b"\x7f")


@dataclass
class Chain:
    next: Chain | None


@dataclass
class Plain:
    text: str


@pytest.mark.parametrize(
    ("kind", "name", "fix"),
    [
        (make_dataclass("T", [("a", int)]), "T.a", "write Int32"),
        (make_dataclass("T", [("a", str)]), "T.a", "write Annotated[str, Length(20)]"),
        (make_dataclass("T", [("a", bytes)]), "T.a", "write Annotated[bytes, Length(20)]"),
        (make_dataclass("T", [("a", list)]), "T.a", "write Annotated[list[float], Length(8)]"),
        (make_dataclass("T", [("a", list[float])]), "T.a", "write Annotated[list[float], Length(8)]"),
        (make_dataclass("T", [("a", tuple[float, ...])]), "T.a", "Annotated[tuple[float, ...], Length(8)]"),
        (make_dataclass("T", [("a", dict)]), "T.a", "write a dataclass of numbers and bounded texts"),
        (
            make_dataclass("T", [("a", dict[str, int])]),
            "T.a",
            "write a dataclass of numbers and bounded texts",
        ),
        (make_dataclass("T", [("a", tuple[Int8, str])]), "T.a.1", "write Annotated[str, Length(20)]"),
        (make_dataclass("T", [("a", Int8 | str)]), "T.a", "write one of them"),
        (make_dataclass("T", [("a", Annotated[str, Length(3, exact=True)])]), "T.a", "Length without exact"),
        (Chain, "Chain.next", "has no largest size"),
        (Plain, "Plain.text", "write Annotated[str, Length(20)]"),
    ],
)
def test_a_type_without_a_largest_size_is_refused_by_the_name_of_the_field(
    kind: Any, name: str, fix: str
) -> None:
    with pytest.raises(ParameterError) as caught:
        largest_size_bytes(kind)
    assert caught.value.parameter == name
    assert fix in str(caught.value)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"place": Place(200, 0)}, "Vitals.place.ward"),
        ({"place": 3}, "Vitals.place"),
        ({"alarm": "high"}, "Vitals.alarm"),
        ({"pulse": "61"}, "Vitals.pulse"),
        ({"oxygen": 1e300}, "Vitals.oxygen"),
        ({"valid": 1}, "Vitals.valid"),
        ({"samples": [0] * 5}, "Vitals.samples"),
        ({"samples": [True]}, "Vitals.samples[]"),
        ({"axes": (1,)}, "Vitals.axes"),
        ({"note": "x" * 11}, "Vitals.note"),
        ({"note": "\ud800"}, "Vitals.note"),
        ({"address": b"12345"}, "Vitals.address"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_the_name_of_the_field(
    change: dict[str, Any], name: str
) -> None:
    values = {key: getattr(LARGEST, key) for key in Vitals.__dataclass_fields__ if key != "seen"}
    with pytest.raises(ParameterError) as caught:
        TypedTopic("vitals", Vitals).encode(Vitals(**(values | change)))
    assert caught.value.parameter == name


def test_a_topic_declares_its_largest_size() -> None:
    topic = TypedTopic("vitals", Vitals)
    declared = topic.declared(min_separation_seconds=0.02, max_separation_seconds=1.0)
    assert declared.as_json() == {
        "topic": "vitals",
        "min_separation_seconds": 0.02,
        "max_separation_seconds": 1.0,
        "max_size_bytes": 392,
    }
