"""What can go wrong for a client and be put right by its user.

ClientError
├── GatewayUnreachableError  no gateway answers there
├── RefusedError             the gateway says no; carries its return code
├── ClosedError              used after it was closed
└── CoordinatorError         the coordinator says no; carries its HTTP status
    └── CoordinatorUnreachableError
"""

from __future__ import annotations

from triagemq.errors import TriageError
from triagemq.mqttsn import ReturnCode

__all__ = [
    "ClientError",
    "ClosedError",
    "CoordinatorError",
    "CoordinatorUnreachableError",
    "GatewayUnreachableError",
    "RefusedError",
]

_ADVICE = {
    ReturnCode.REJECTED_CONGESTION: "the gateway or its broker cannot take more now",
    ReturnCode.REJECTED_INVALID_TOPIC_ID: "the gateway does not know that topic id",
    ReturnCode.REJECTED_NOT_SUPPORTED: "not allowed, or not supported by the gateway or its broker",
}


class ClientError(TriageError):
    """A client cannot do what it was asked to."""


class GatewayUnreachableError(ClientError):
    """No gateway answers."""


class RefusedError(ClientError):
    """The gateway answered, and the answer is no."""

    def __init__(self, what: str, return_code: ReturnCode) -> None:
        self.what = what
        self.return_code = return_code
        super().__init__(f"{what} was refused: {_ADVICE.get(return_code, return_code.name)}")


class ClosedError(ClientError):
    """The client was closed; make a new one."""


class CoordinatorError(ClientError):
    """The coordinator answered with an error; `status` is that of HTTP, 0 if it was not HTTP at all."""

    def __init__(self, message: str, status: int = 0) -> None:
        self.status = status
        super().__init__(message)


class CoordinatorUnreachableError(CoordinatorError):
    """No coordinator answers."""
