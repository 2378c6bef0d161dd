"""Numbers as people write them, with units; what is wrong in a file, and what to write instead.

A key says by its ending what its numbers count (`_bps`, `_seconds`), and so which units may stand behind them. A unit
that two readers could take for two things (`5 m`, `1 KB`, `8 MB` of bandwidth) is refused.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Context
from fractions import Fraction

from pydantic_core import ErrorDetails, PydanticCustomError

from triagemq.errors import Problem, ScenarioError
from triagemq.mqttsn.filters import has_wildcard

CONSTANTS = {
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
}
INTEGER = re.compile(r"[-+]?[0-9]{1,18}", re.ASCII)
FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
OTHER_BASE = re.compile(r"0(?:x[0-9a-fA-F]{1,15}|o[0-7]{1,20})", re.ASCII)
WITH_UNIT = re.compile(rf"({FLOAT.pattern})\s*(\S.*)", re.ASCII | re.DOTALL)

EXACT = Context(prec=60)
"""Digits enough that the number nearest to the product of a number and its unit is found: 1.1 ms is 0.0011 s."""


def parse_number(text: str) -> int | float | None:
    """The number that a plain text stands for, or None where it is another text.

    >>> parse_number("10e6"), parse_number("-3"), parse_number("1_000"), parse_number("0x1f")
    (10000000.0, -3, None, 31)
    """
    if INTEGER.fullmatch(text):
        return int(text)
    if FLOAT.fullmatch(text):
        return float(text) + 0.0  # -0.0 is 0.0, and not another scenario
    if OTHER_BASE.fullmatch(text):
        return int(text, 0)
    return CONSTANTS.get(text)


def number_text(value: float) -> str:
    """A number as a person writes it, exact to the last bit.

    >>> number_text(8e6), number_text(0.1), number_text(1e-05), number_text(2e22)
    ('8000000', '0.1', '1.0e-05', '2.0e+22')
    """
    value = float(value)
    if value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    text = repr(value)
    mantissa, exponent, power = text.partition("e")
    # Without the point, readers of YAML 1.1 take the number for text.
    return f"{mantissa}.0e{power}" if exponent and "." not in mantissa else text


@dataclass(frozen=True)
class Quantity:
    """What a number may count: in which unit when it stands alone, and the units that may stand behind it.

    `units` holds how many of the own unit one of each is.
    """

    noun: str
    own_unit: str | None
    example: str
    units: Mapping[str, Fraction] = field(default_factory=dict)

    def read(self, text: str) -> float | None:
        """The number that a text with a unit stands for; None if it is not clear.

        >>> BANDWIDTH.read("8 Mbit/s"), TIME.read("1.1ms"), SIZE.read("1 kB"), RATE.read("120/min")
        (8000000.0, 0.0011, 1000.0, 2.0)
        >>> SHARE.read("2%"), SIZE.read("5 ms"), SIZE.read("1 KB")
        (0.02, None, None)
        """
        parts = WITH_UNIT.fullmatch(text.strip())
        factor = None if parts is None else self.units.get(_spelled(parts[5]))
        return None if parts is None or factor is None else _times(parts[1], factor)

    def advice(self, text: str) -> tuple[str, str]:
        """What is wrong with a text that should be such a number, and what to write.

        >>> BANDWIDTH.advice("5 ms")
        ("'5 ms' is a time, not a bandwidth", 'write a number, in bits per second, or such as 320 kbit/s')
        """
        shown = repr(text) if len(text) <= 58 else f"{text[:55]!r}..."
        other = next((each for each in QUANTITIES if each is not self and each.read(text) is not None), None)
        what = f"is {other.noun}, not {self.noun}" if other else f"is not {self.noun} with a known unit"
        return f"{shown} {what}", f"write {self.wanted}"

    @property
    def wanted(self) -> str:
        """What to write, for a message."""
        if self.own_unit is None:
            return "a number"
        lead = "" if self.own_unit.startswith("a ") else "a number, in "
        return f"{lead}{self.own_unit}, or such as {self.example}"


def _spelled(unit: str) -> str:
    return re.sub(r"\s*/\s*", "/", " ".join(unit.split()))


def _times(digits: str, factor: Fraction) -> float:
    plain = float(digits)
    if plain == 0 or not math.isfinite(plain):
        return plain + 0.0
    product = EXACT.multiply(EXACT.create_decimal(digits), factor.numerator)
    return float(EXACT.divide(product, factor.denominator))


THOUSANDS = {"k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
TIMES = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), Fraction(1)),
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), Fraction(1, 10**3)),
    **dict.fromkeys(("us", "µs", "μs", "microsecond", "microseconds"), Fraction(1, 10**6)),
    **dict.fromkeys(("ns", "nanosecond", "nanoseconds"), Fraction(1, 10**9)),
    **dict.fromkeys(("min", "minute", "minutes"), Fraction(60)),
    **dict.fromkeys(("h", "hour", "hours"), Fraction(3600)),
}


def _bandwidths() -> dict[str, Fraction]:
    """Bits as everyone writes them, small m and g included; bytes only where a capital B and `per second` say so."""
    found = {prefix: Fraction(factor) for prefix, factor in THOUSANDS.items() if "i" not in prefix}
    for prefix, factor in {"": 1, **THOUSANDS, "m": 10**6, "g": 10**9}.items():
        for bits in ("bit/s", "bits/s", "b/s", "bit", "bits", "bps", "bit per second", "bits per second"):
            found[prefix + bits] = Fraction(factor)
        for octets in ("B/s", "byte/s", "bytes/s", "byte per second", "bytes per second"):
            if prefix not in ("m", "g"):
                found[prefix + octets] = Fraction(8 * factor)
    return found


def _rates() -> dict[str, Fraction]:
    found = {"Hz": Fraction(1), "kHz": Fraction(10**3), "MHz": Fraction(10**6)}
    for name in ("s", "sec", "second", "min", "minute", "h", "hour"):
        for counted in ("", "event", "events", "message", "messages", "packet", "packets"):
            found[f"{counted}/{name}"] = found[f"{counted} per {name}".strip()] = 1 / TIMES[name]
    return found


NUMBER = Quantity("a plain number", None, "")
BANDWIDTH = Quantity(
    "a bandwidth",
    "bits per second",
    "320 kbit/s",
    _bandwidths(),
)
TIME = Quantity("a time", "seconds", "5 ms", TIMES)
SIZE = Quantity(
    "a size",
    "bytes",
    "2 kB",
    {
        **dict.fromkeys(("B", "byte", "bytes"), Fraction(1)),
        **{f"{prefix}B": Fraction(factor) for prefix, factor in THOUSANDS.items() if prefix != "K"},
    },
)
RATE = Quantity("a rate", "events per second", "2/s", _rates())
PACKETS = Quantity(
    "a number of packets", "packets", "2000 packets", dict.fromkeys(("packet", "packets"), Fraction(1))
)
PERCENT = dict.fromkeys(("%", "percent"), Fraction(1, 100))
SHARE = Quantity("a share", "a share of at least 0 and below 1", "2 %", PERCENT)
PART = Quantity("a share", "a share above 0, at most 1", "95 %", PERCENT)
QUANTITIES = (TIME, SIZE, BANDWIDTH, RATE, SHARE, PACKETS)

MOST_LISTED = 12
MOST_COMPARED = 5_000
MOST_SUGGESTIONS = 50
"""Comparing a name with all others takes milliseconds; after so many the reader has the idea."""
LONGEST_TOPIC_BYTES = 65_535
"""MQTT carries a topic's length in two bytes."""

Path = tuple[str | int, ...]
FieldError = tuple[Path, str, str]
"""Where, what is wrong, and what to write."""


class Problems:
    """The problems found so far in one file, and what they call it."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self._suggestions_left = MOST_SUGGESTIONS

    def report(self, line: int | None, field: str, what: str, fix: str) -> None:
        """Remember a problem at a line, or nowhere in particular."""
        self.problems.append(Problem(self.file, line, *map(_one_line, (field or "text", what, fix))))

    def unknown(self, kind: str, name: str, known: Collection[str], section: str) -> tuple[str, str]:
        """What to say about a reference to something that is not there, and what to write instead."""
        close = nearest(name, known) if self._suggestions_left > 0 else None
        self._suggestions_left -= 1
        if close is not None:
            return f"there is no {kind} {name!r}", f"did you mean {close}?"
        choice = f"write one of {listed(known)}, or add it" if known else f"add {name!r}"
        return f"there is no {kind} {name!r}", f"{choice} under {section}"


def refuse_errors(*files: Problems) -> None:
    """Raise ScenarioError with the problems of all files, in order of their lines, if there are any."""
    problems = [
        each for file in files for each in sorted(file.problems, key=lambda problem: problem.line or 0)
    ]
    if problems:
        raise ScenarioError(problems)


def _one_line(text: str) -> str:
    """A problem is one line, whatever characters a name in it has."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like the given one, if any is like it.

    >>> nearest("bandwith_bps", ["switch", "bandwidth_bps"])
    'bandwidth_bps'
    """
    names = list(known)
    if len(names) > MOST_COMPARED:
        names = [other for other in names if other[:1] == name[:1] and abs(len(other) - len(name)) <= 2]
    folded = {other.casefold(): other for other in names}
    found = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.6)
    return folded[found[0]] if found else None


def listed(names: Iterable[str]) -> str:
    """Names for a message, the first dozen of them."""
    names = list(names)
    more = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
    return ", ".join(names[:MOST_LISTED]) + more


def described(value: object) -> str:
    """A value for a message; lists and mappings only by their kind, since they may be huge."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "empty"
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else number_text(value) if math.isfinite(value) else str(value)
    # A plain text that YAML does not take for one is shown as it stands in the file.
    bare = type(value) is str and (
        value.lower() in ("true", "false") or (value and parse_number(value) is not None)
    )
    text = repr(value) if isinstance(value, str) and not bare else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def entry_error(field: str | Path, what: str, fix: str) -> PydanticCustomError:
    """An error of an entry that is shown at one of its fields."""
    inner = (field,) if isinstance(field, str) and field else tuple(field)
    return entry_errors([(inner, what, fix)])


def entry_errors(errors: list[FieldError]) -> PydanticCustomError:
    """Several errors of one entry."""
    return PydanticCustomError("entry", "entry", {"errors": errors})


def explain(errors: Iterable[ErrorDetails]) -> Iterator[FieldError]:
    """Pydantic's errors in words."""
    for error in errors:
        path: Path = tuple(error["loc"])
        if error["type"] == "entry":
            yield from ((path + inner, what, fix) for inner, what, fix in error["ctx"]["errors"])
        else:
            yield _explained(path, error)


def _explained(path: Path, error: ErrorDetails) -> FieldError:
    key = next((part for part in reversed(path) if isinstance(part, str)), "")
    what, fix = f"is {described(error['input'])}", f"write {_expected(error)}"
    match error["type"]:
        case "missing":
            what, fix = "is missing", f"add {key}"
        case "literal_error":
            expected = error["ctx"]["expected"]
            close = nearest(str(error["input"]), re.findall(r"'(\w+)'", expected))
            fix = f"did you mean {close}?" if close else f"write {expected}"
        case "model_type" | "dict_type":
            fix = "write a mapping, {key: value}"
        case _ if path[-1:] == ("[key]",):
            return path[:-1], "has an entry without a name", "write a name before the colon"
    return path, what, fix


def _expected(error: ErrorDetails) -> str:
    """What pydantic says should be there: `a number greater than 0`, `at least 2 items`."""
    text = re.sub(r"^\w+ should (be|have) ", "", error["msg"]).partition(" after validation")[0]
    return f"a number {text}" if text.startswith(("greater", "less")) else text


def unknown_key(key: str, known: Collection[str]) -> FieldError:
    """A key that is not known, and the one that is most like it."""
    close = nearest(key, known)
    fix = f"did you mean {close}?" if close else f"remove it; known keys: {', '.join(known)}"
    return (key,), "is not a known key", fix


def topic_error(name: str) -> tuple[str, str] | None:
    """What is wrong with the name of a topic, and what to do; None if nothing is.

    >>> topic_error("floor/#")
    ('is a pattern, not a topic', 'publish on topics without + and #')
    """
    if not name:
        return "is empty", "write the name of a topic"
    if has_wildcard(name):
        return "is a pattern, not a topic", "publish on topics without + and #"
    return _unfit_for_mqtt(name)


def filter_error(name: str) -> tuple[str, str] | None:
    """What is wrong with the topic or pattern of a subscription, and what to do; None if nothing is.

    >>> filter_error("floor/1+/smoke")
    ('has + or # next to other characters', 'let + or # stand alone between slashes, # only at the end')
    """
    if not name:
        return "is empty", "write the name of a topic"
    levels = name.split("/")
    if any(len(level) > 1 and has_wildcard(level) for level in levels) or "#" in levels[:-1]:
        return (
            "has + or # next to other characters",
            "let + or # stand alone between slashes, # only at the end",
        )
    return _unfit_for_mqtt(name)


def _unfit_for_mqtt(name: str) -> tuple[str, str] | None:
    if "\0" in name:
        return "holds a null character", "remove it"
    if len(name.encode()) > LONGEST_TOPIC_BYTES:
        return f"is longer than the {LONGEST_TOPIC_BYTES} bytes MQTT allows", "write a shorter name"
    return None
