"""The errors of a client about its gateway, in words."""

from __future__ import annotations

from triagemq.errors import GatewayUnreachableError, RefusedError
from triagemq.mqttsn import ReturnCode

__all__ = ["refused", "unreachable"]

_MEANING = {
    ReturnCode.REJECTED_CONGESTION: "the gateway or its broker cannot take more now",
    ReturnCode.REJECTED_INVALID_TOPIC_ID: "the gateway does not know that topic id",
    ReturnCode.REJECTED_NOT_SUPPORTED: "not allowed, or not supported by the gateway or its broker",
}


def refused(what: str, return_code: ReturnCode) -> RefusedError:
    """The gateway's answer to `what` was no.

    >>> str(refused("registering topic 'smoke'", ReturnCode.REJECTED_CONGESTION))
    "registering topic 'smoke' was refused: the gateway or its broker cannot take more now"
    """
    return RefusedError(what, return_code, _MEANING.get(return_code, return_code.name))


def unreachable(host: str, port: int, error: OSError) -> GatewayUnreachableError:
    """The system knows no way to that address.

    >>> str(unreachable("nowhere", 10000, OSError(101, "Network is unreachable")))
    'gateway nowhere:10000: Network is unreachable; check the address'
    """
    return GatewayUnreachableError(f"gateway {host}:{port}: {error.strerror or error}; check the address")
