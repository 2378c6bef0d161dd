"""Values as JSON can hold them: all figures for programs are written so."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any


def plain(value: Any) -> Any:
    """NaN and infinity are null, decimals are numbers, and what JSON has no word for (times) is text.

    >>> plain({"mean": float("nan"), "limits": [1.5, float("inf")]})
    {'mean': None, 'limits': [1.5, None]}
    """
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    # A scalar of numpy, which those who have none need not import for this.
    return plain(value.item()) if hasattr(value, "item") else str(value)
