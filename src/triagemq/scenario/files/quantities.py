"""Numbers as people write them in a file: plain, as in YAML 1.2, or with a unit that fits the key.

A key says by its ending what its numbers count (`_bps`, `_seconds`), and so which units may stand behind them. A unit
that two readers could take for two things (`5 m`, `1 KB`, `8 MB` of bandwidth) is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Context
from fractions import Fraction

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

ENDINGS = {
    "_bps": BANDWIDTH,
    "_seconds": TIME,
    "_bytes": SIZE,
    "_per_second": RATE,
    "_packets": PACKETS,
    "_rate": SHARE,
    "_tolerance": SHARE,
    "_share": PART,
    "threshold": PART,
}
"""What the numbers of a key count, by the end of its name."""


def unit_of(key: str) -> str | None:
    """What the plain numbers of a key count, in words.

    >>> unit_of("bandwidth_bps"), unit_of("queues")
    ('bits per second', None)
    """
    return next((kind.own_unit for ending, kind in ENDINGS.items() if key.endswith(ending)), None)
