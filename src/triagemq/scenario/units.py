"""Numbers that were written with a unit, and keys that name another unit than the scenario's.

Nothing here is accepted as input: it only works out what the writer should have written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from triagemq.scenario.lines import parse_number

__all__ = ["number_text", "plain_number", "respelled_key", "unit_of"]

UNIT_NAMES = {
    "_bps": "bits per second",
    "_seconds": "seconds",
    "_bytes": "bytes",
    "_per_second": "events per second",
    "_packets": "packets",
    "_rate": "a share of at least 0 and below 1",
    "_tolerance": "a share of at least 0 and below 1",
    "_share": "a share above 0, at most 1",
    "threshold": "a share above 0, at most 1",
}
PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "ki": 1024.0, "mi": 1024.0**2, "gi": 1024.0**3}
TIMES = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "nanosecond": 1e-9,
    "microsecond": 1e-6,
    "millisecond": 1e-3,
    "sec": 1.0,
    "second": 1.0,
    "minute": 60.0,
    "hour": 3600.0,
}
PER_TIME = re.compile(r"(?:per|/)?\s*(s|sec|second|min|minute|h|hour)")
BITS = re.compile(r"([kKmMgG]i?)?\s*(bits?|b|B|[bB]ytes?)?\s*(/s|ps|/sec|/second|per second)?")
NUMBER_WITH_UNIT = re.compile(
    r"([-+]?[0-9][0-9_, ]*(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)\s*(.*)", re.ASCII | re.DOTALL
)


def unit_of(field: str) -> str | None:
    """What the numbers of a field count, from the end of its name.

    >>> unit_of("bandwidth_bps"), unit_of("queues")
    ('bits per second', None)
    """
    suffix = _suffix(field)
    return UNIT_NAMES[suffix] if suffix else None


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


def plain_number(text: str, field: str) -> float | None:
    """The number that a text with a unit stands for in the unit of `field`; None if it is not clear.

    >>> plain_number("8 Mbit/s", "bandwidth_bps"), plain_number("10ms", "propagation_seconds")
    (8000000.0, 0.01)
    >>> plain_number("1 kB", "size_bytes"), plain_number("2%", "error_rate"), plain_number("many", "queues")
    (1000.0, 0.02, None)
    """
    parts = NUMBER_WITH_UNIT.fullmatch(text.strip())
    if parts is None:
        return None
    number = parse_number(re.sub(r"[_, ]", "", parts[1]))
    factor = _factor(parts[2].strip(), _suffix(field))
    if number is None or factor is None:
        return None
    # Ten significant digits hide the rounding of 10 * 0.001 and the like.
    return float(f"{number * factor:.10g}")


def respelled_key(key: str, known: Iterable[str]) -> tuple[str, float] | None:
    """The known key that says in its own unit what `key` says in another, and the factor between the two.

    >>> respelled_key("bandwidth_mbps", ["switch", "bandwidth_bps"])
    ('bandwidth_bps', 1000000.0)
    >>> respelled_key("rate", ["rate_per_second"]), respelled_key("colour", ["rate_per_second"])
    (('rate_per_second', 1.0), None)
    """
    for field in known:
        suffix = _suffix(field)
        if suffix is None or not suffix.startswith("_") or suffix == "_rate":
            continue
        stem = field.removesuffix(suffix)
        if key == stem:
            return field, 1.0
        if key.startswith(stem + "_"):
            factor = _factor(key.removeprefix(stem + "_").replace("_", " "), suffix)
            if factor is not None:
                return field, factor
    return None


def _suffix(field: str) -> str | None:
    return next((suffix for suffix in UNIT_NAMES if field.endswith(suffix)), None)


def _factor(unit: str, suffix: str | None) -> float | None:
    """How many of the field's own unit one `unit` is."""
    if not unit:
        return 1.0
    if suffix == "_seconds":
        return TIMES.get(unit.lower(), TIMES.get(unit.lower().rstrip("s")))
    if suffix in ("_bps", "_bytes"):
        return _bits_or_bytes(unit, suffix)
    if suffix == "_per_second":
        return _frequency(unit.lower())
    if suffix in ("_rate", "_tolerance", "_share", "threshold"):
        return 0.01 if unit in ("%", "percent") else None
    if suffix == "_packets":
        return 1.0 if unit.lower() in ("packet", "packets", "pkt", "pkts") else None
    return None


def _bits_or_bytes(unit: str, suffix: str) -> float | None:
    parts = BITS.fullmatch(unit)
    if parts is None or (suffix == "_bytes" and parts[3]):
        return None
    factor = PREFIXES[(parts[1] or "").lower()]
    base = parts[2] or ""
    if suffix == "_bps":
        return factor * 8 if base == "B" or base.lower().startswith("byte") else factor
    return factor / 8 if base.startswith("bit") else factor


def _frequency(unit: str) -> float | None:
    for prefix in ("k", "m", "g", ""):
        if unit == f"{prefix}hz":
            return PREFIXES[prefix]
    times = PER_TIME.fullmatch(re.sub(r"^(events?|packets?|msgs?|messages?|1)\s*", "", unit))
    return 1 / TIMES[times[1]] if times else None
