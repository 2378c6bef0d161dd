"""One rule for everything that listens: beyond this machine with tokens and encryption, or openly without."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

from triagemq.addresses import at_host, host_of, is_loopback
from triagemq.errors import ParameterError


@dataclass(frozen=True, slots=True)
class Exposed:
    """Something that listens at `host`, which `option` gave it.

    `tokens` and `encryption` say what to add so that it asks for tokens and encrypts; None where it does.
    """

    name: str
    option: str
    host: str
    tokens: str | None
    encryption: str | None


def check_listeners(listeners: Iterable[Exposed], *, insecure: bool) -> list[str]:
    """What to say aloud, a line for each listener that others reach unprotected; ParameterError unless `insecure`.

    >>> rest = Exposed("REST", "--rest", "0.0.0.0", tokens="--access", encryption=None)
    >>> check_listeners([rest], insecure=True)
    ['insecure: REST at 0.0.0.0 is reached from other machines without tokens']
    >>> check_listeners([rest], insecure=False)
    Traceback (most recent call last):
    ...
    triagemq.errors.ParameterError: --rest: 0.0.0.0 is reached from other machines: add --access, or --insecure if ...
    """
    said = []
    for each in listeners:
        lacks = {"tokens": each.tokens, "encryption": each.encryption}
        missing = {what: how for what, how in lacks.items() if how is not None}
        if is_loopback(each.host) or not missing:
            continue
        if not insecure:
            raise ParameterError(
                each.option,
                f"{each.host} is reached from other machines: add {' and '.join(missing.values())}, "
                "or --insecure if the network protects what is said there",
            )
        said.append(
            f"insecure: {each.name} at {each.host} is reached from other machines without {' or '.join(missing)}"
        )
    return said


def reached_by(address: str, host: str) -> str:
    """An address as a client can use it: a wildcard is replaced by the host by which that client has come.

    >>> reached_by("mqttsns://0.0.0.0:10000", "192.0.2.7"), reached_by("[::]:10000", "2001:db8::7")
    ('mqttsns://192.0.2.7:10000', '[2001:db8::7]:10000')
    >>> reached_by("192.0.2.1:10000", "192.0.2.7")
    '192.0.2.1:10000'
    """
    try:
        wildcard = ipaddress.ip_address(host_of(address)).is_unspecified
    except ValueError:
        wildcard = False
    return at_host(address, host) if wildcard else address
