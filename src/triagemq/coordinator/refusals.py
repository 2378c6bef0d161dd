"""Why the coordinator says no: one clear line and an HTTP status. None of them ever holds a secret."""

from __future__ import annotations

from triagemq.errors import TriageError


class StoreError(TriageError):
    """The database cannot be opened, read or written, or was written by a newer TriageMQ."""


class RequestError(TriageError):
    """A request that is not carried out; nothing has changed."""

    status = 400


class UnauthorisedError(RequestError):
    """No token, or one that is malformed, unknown, expired or revoked: always the same answer."""

    status = 401

    def __init__(self) -> None:
        super().__init__("a valid token is needed: send the header `Authorization: Bearer triage_...`")


class ForbiddenError(RequestError):
    """The token is good, but does not allow this; says nothing about what exists."""

    status = 403


class MissingError(RequestError):
    """There is none, or it belongs to another: the answer is the same."""

    status = 404


class ConflictError(RequestError):
    """The name is in use, or the request contradicts itself."""

    status = 409


class UnavailableError(RequestError):
    """Right now it does not go: the database cannot be written, or there are too many requests at once."""

    status = 503
