"""Numbers and names as the page shows them: with units, cut to a length, and with every character to be seen.

Templates use these as filters; what they return is text, which the templates escape.
"""

from __future__ import annotations

import html
import math
import unicodedata

LONGEST_NAME = 60
UNKNOWN = "–"

_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def visible(text: object, longest: int = LONGEST_NAME) -> str:
    """Text from a table: cut, control and direction characters shown by number; a dash for nothing.

    >>> visible("<b>fire</b>\\x1b"), visible(None)
    ('<b>fire</b>\\\\x1b', '–')
    """
    characters = str(text or UNKNOWN)
    if len(characters) > longest:
        characters = characters[: longest - 1] + "…"
    return "".join(_visible(character) for character in characters)


def plot_text(text: object, longest: int = 40) -> str:
    """The same for a label in a figure, where Plotly would read tags and turn entities back into characters."""
    return html.escape(visible(text, longest), quote=False)


def _visible(character: str) -> str:
    # Control, format (text direction too), surrogate, private and unassigned characters, and line separators.
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
        return character.encode("unicode_escape").decode("ascii")
    return character


def percent(share: float | None) -> str:
    """A share of one.

    >>> percent(0.98765), percent(0.99997), percent(0.0001), percent(None)
    ('98.8 %', '99.997 %', '< 0.1 %', '–')
    """
    if share is None or not math.isfinite(share):
        return UNKNOWN
    if 0 < share < 0.001:
        return "< 0.1 %"
    text = f"{100 * share:.1f}"
    if text == "100.0" and share != 1:
        # Nearly everything is not everything.
        text = f"{100 * share:.3f}"
    return f"{text} %"


def count(value: float | None) -> str:
    """A whole number."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{round(value):,}"


def number(value: float | None) -> str:
    """A number in three digits."""
    return rate(value, "")


def rate(value: float | None, unit: str = "/s") -> str:
    """Something per second."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{_digits(value)}{unit}"


def duration(seconds: float | None) -> str:
    """Seconds in the unit that a person would use.

    >>> duration(0.00123), duration(75.2), duration(4000), duration(0)
    ('1.23 ms', '75.2 s', '1.11 h', '0 s')
    """
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    if seconds >= 3600:
        return f"{_digits(seconds / 3600)} h"
    for factor, unit in _TIMES:
        if abs(seconds) >= factor:
            return f"{_digits(seconds / factor)} {unit}"
    return f"{_digits(seconds * 1e9)} ns" if seconds else "0 s"


def size(size_bytes: float | None) -> str:
    """Bytes in the unit that a person would use.

    >>> size(123456), size(12)
    ('123 kB', '12 B')
    """
    if size_bytes is None or not math.isfinite(size_bytes):
        return UNKNOWN
    for factor, unit in _SIZES:
        if size_bytes >= factor:
            return f"{_digits(size_bytes / factor)} {unit}"
    return f"{_digits(size_bytes)} B"


def _digits(value: float) -> str:
    """Three digits, without a trailing zero behind the point and without an exponent."""
    if value == 0:
        return "0"
    places = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{min(places, 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


FILTERS = {each.__name__: each for each in (visible, percent, count, number, rate, duration, size)}
"""What templates call them."""
