"""Numbers and names as the page shows them: with units, cut to a length, and with every character to be seen.

Templates use these as filters; what they return is text, which the templates escape.
"""

from __future__ import annotations

import functools
import html
import math
import unicodedata
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

LONGEST_NAME = 60
UNKNOWN = "–"

_UNSEEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
"""Control, format (text direction too), surrogate, private and unassigned characters, and line separators."""

_SIZES = {"TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3, "B": 1.0}
_RATES = {"Gbit/s": 1e9, "Mbit/s": 1e6, "kbit/s": 1e3, "bit/s": 1.0}
_TIMES = {"h": 3600.0, "s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}


def visible(text: object, longest: int = LONGEST_NAME) -> str:
    """Text from a table: cut, control and direction characters shown by number; a dash for nothing.

    >>> visible("<b>fire</b>\\x1b"), visible(None)
    ('<b>fire</b>\\\\x1b', '–')
    """
    characters = str(text or UNKNOWN)
    if len(characters) > longest:
        characters = characters[: longest - 1] + "…"
    return "".join(
        character.encode("unicode_escape").decode("ascii")
        if unicodedata.category(character) in _UNSEEN
        else character
        for character in characters
    )


def plot_text(text: object, longest: int = 40) -> str:
    """The same for a label in a figure, where Plotly would read tags and turn entities back into characters."""
    return html.escape(visible(text, longest), quote=False)


def _if_known(function: Callable[[float], str]) -> Callable[[float | None], str]:
    """A dash for what is not known."""

    @functools.wraps(function)
    def format_known(value: Any) -> str:
        # Templates pass what a record does not have as an undefined value of their own.
        return function(float(value)) if isinstance(value, Real) and math.isfinite(value) else UNKNOWN

    return format_known


@_if_known
def percent(share: float) -> str:
    """A share of one.

    >>> percent(0.98765), percent(0.99997), percent(0.0001), percent(None)
    ('98.8 %', '99.997 %', '< 0.1 %', '–')
    """
    if 0 < share < 0.001:
        return "< 0.1 %"
    text = f"{100 * share:.1f}"
    # Nearly everything is not everything.
    return f"{100 * share:.3f} %" if text == "100.0" and share != 1 else f"{text} %"


@_if_known
def count(value: float) -> str:
    """A whole number."""
    return f"{round(value):,}"


@_if_known
def number(value: float) -> str:
    """Three digits, without a trailing zero behind the point and without an exponent."""
    if value == 0:
        return "0"
    places = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{min(places, 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


@_if_known
def duration(seconds: float) -> str:
    """Seconds in the unit that a person would use.

    >>> duration(0.00123), duration(75.2), duration(4000), duration(0)
    ('1.23 ms', '75.2 s', '1.11 h', '0 s')
    """
    return _in_unit(seconds, _TIMES) if seconds else "0 s"


@_if_known
def size(size_bytes: float) -> str:
    """Bytes in the unit that a person would use.

    >>> size(123456), size(12)
    ('123 kB', '12 B')
    """
    return _in_unit(size_bytes, _SIZES)


@_if_known
def bit_rate(bps: float) -> str:
    """Bits a second in the unit that a person would use.

    >>> bit_rate(495_000), bit_rate(None)
    ('495 kbit/s', '–')
    """
    return _in_unit(bps, _RATES)


@_if_known
def load(share: float) -> str:
    """The load of a port, in whole percent.

    >>> load(1.00036), load(None)
    ('100 %', '–')
    """
    return f"{100 * share:.0f} %"


def _in_unit(value: float, units: Mapping[str, float]) -> str:
    """In the largest unit of which there is one, else in the smallest."""
    unit = next((unit for unit, worth in units.items() if abs(value) >= worth), list(units)[-1])
    return f"{number(value / units[unit])} {unit}"


FILTERS = {each.__name__: each for each in (visible, percent, count, number, duration, size, bit_rate, load)}
"""The names of filters in templates."""
