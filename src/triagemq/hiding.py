"""What messages may show of what holds a secret: addresses without their passwords, client ids without their keys."""

from __future__ import annotations

import re

# A session key, or a whole token, behind a client's name and before the number of its connection.
_KEY = re.compile(r"\.(?:triage_[A-Za-z0-9_-]{43}|[A-Za-z0-9_-]{22})(?=~[0-9]+$|$)", re.ASCII)


def without_password(url: str) -> str:
    """An address as messages may show it: without the part before its last @.

    >>> without_password("mqtt://fire:s3c/ret@broker:1883"), without_password("fire:s3cret@broker")
    ('mqtt://broker:1883', 'broker')
    """
    scheme, mark, rest = url.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}" if mark else url.rpartition("@")[2]


def without_key(client_id: str) -> str:
    """A client id as messages may show it: with access on it holds a key that opens the exchange.

    >>> without_key("ff-7.Zm9vYmFyYmF6cXV4Y29ycg~2"), without_key("pump.3")
    ('ff-7.***~2', 'pump.3')
    """
    return _KEY.sub(".***", client_id)
