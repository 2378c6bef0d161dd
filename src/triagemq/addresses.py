"""Addresses as people write them, HOST:PORT or a URL, and one rule for everything that listens at one."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from triagemq.errors import ParameterError


def host_and_port(text: str, parameter: str = "gateway", *, lowest_port: int = 1) -> tuple[str, int]:
    """The two parts of HOST:PORT; port 0 is for those who listen, and leave the choice to the system.

    >>> host_and_port("127.0.0.1:10000"), host_and_port("[::1]:10000")
    (('127.0.0.1', 10000), ('::1', 10000))
    """
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not lowest_port <= int(port) <= 0xFFFF:
        raise ParameterError(parameter, f"must be HOST:PORT, as 127.0.0.1:10000, is {text!r}")
    return host.strip("[]"), int(port)


def place(host: str, port: int) -> str:
    """HOST:PORT, as `host_and_port` reads it.

    >>> place("127.0.0.1", 10000), place("::1", 10000)
    ('127.0.0.1:10000', '[::1]:10000')
    """
    return f"{with_brackets(host)}:{port}"


def with_brackets(host: str) -> str:
    """A host as it stands in front of a port."""
    bare = host.strip("[]")
    return f"[{bare}]" if ":" in bare else bare


def host_of(address: str) -> str:
    """The host of HOST:PORT, whatever is before it, and whatever the port is.

    >>> host_of("mqttsns://[::1]:0"), host_of("127.0.0.1:10000")
    ('::1', '127.0.0.1')
    """
    return address.rpartition("://")[2].rpartition(":")[0].strip("[]")


def at_host(address: str, host: str) -> str:
    """The same scheme and port at another host.

    >>> at_host("mqttsns://0.0.0.0:10000", "192.0.2.7"), at_host("[::]:10000", "2001:db8::7")
    ('mqttsns://192.0.2.7:10000', '[2001:db8::7]:10000')
    """
    scheme, mark, rest = address.rpartition("://")
    return f"{scheme}{mark}{with_brackets(host)}:{rest.rpartition(':')[2]}"


def is_loopback(host: str) -> bool:
    """Can only this machine reach it, or be there? A name may stand for anything, but for `localhost`.

    >>> [is_loopback(host) for host in ("127.0.0.1", "[::1]", "::ffff:127.0.0.1", "localhost")]
    [True, True, True, True]
    >>> [is_loopback(host) for host in ("0.0.0.0", "10.0.0.1", "127.example")]
    [False, False, False]
    """
    if host == "localhost":
        return True
    try:
        found = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return bool((getattr(found, "ipv4_mapped", None) or found).is_loopback)


class GatewayAddress(NamedTuple):
    """Where a gateway is, and whether it speaks DTLS.

    >>> GatewayAddress.parse("mqttsns://gateway.example:10000")
    GatewayAddress(host='gateway.example', port=10000, secure=True)
    >>> str(GatewayAddress.parse("127.0.0.1:10000"))
    '127.0.0.1:10000'
    """

    host: str
    port: int
    secure: bool = False

    @classmethod
    def parse(cls, text: str, parameter: str = "gateway") -> GatewayAddress:
        """HOST:PORT, or the same with mqttsns:// (DTLS) or mqttsn:// before it."""
        scheme, mark, rest = text.rpartition("://")
        if scheme not in ("", "mqttsn", "mqttsns") or (mark and not scheme):
            raise ParameterError(parameter, f"must be HOST:PORT or mqttsns://HOST:PORT, is {text!r}")
        return cls(*host_and_port(rest.rstrip("/"), parameter), scheme == "mqttsns")

    def __str__(self) -> str:
        return f"{'mqttsns://' if self.secure else ''}{place(self.host, self.port)}"


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


def front_listener(front: str, *, encrypts: bool, broker: str | None, has_access: bool) -> Exposed:
    """What MQTT clients reach at `front`: the broker, ours (None) with access control or another by its URL."""
    if broker is None:
        tokens = None if has_access else "--access"
    else:
        # A broker that asks this gateway for a user asks others, too.
        tokens = (
            None if "@" in broker else "--broker mqtt://USER:PASSWORD@HOST of a broker that asks for users"
        )
    host, _ = host_and_port(front, "--front", lowest_port=0)
    return Exposed("the front", "--front", host, tokens, None if encrypts else "--front-tls CERT,KEY")


def check_listeners(listeners: Iterable[Exposed], *, insecure: bool) -> list[str]:
    """Warnings, a line for each listener that others reach unprotected; ParameterError unless `insecure`.

    >>> rest = Exposed("REST", "--rest", "0.0.0.0", tokens="--access", encryption=None)
    >>> check_listeners([rest], insecure=True)
    ['insecure: REST at 0.0.0.0 is reached from other machines without tokens']
    >>> check_listeners([rest], insecure=False)
    Traceback (most recent call last):
    ...
    triagemq.errors.ParameterError: --rest: 0.0.0.0 is reached from other machines: add --access, or --insecure if ...
    """
    warnings = []
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
        warnings.append(
            f"insecure: {each.name} at {each.host} is reached from other machines without {' or '.join(missing)}"
        )
    return warnings


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
