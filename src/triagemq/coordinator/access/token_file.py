"""A file of tokens, for a gateway without a coordinator: whom it lets in, and for what.

`triage token create --file FILE` makes it: {"tokens": [...]}, each as `token_to_json` has it. It holds hashes, none of
which lets anybody in. A client shows its token in its client id, NAME.TOKEN, as it would show a coordinator's key.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from triagemq.coordinator.access.tokens import Caller, Role, Token, TokenBook, token_from_json, token_to_json
from triagemq.coordinator.decide.orders import subscriber_of
from triagemq.coordinator.refusals import RequestError
from triagemq.errors import ParameterError
from triagemq.exchange import Policy
from triagemq.exchange.private_files import write_private
from triagemq.mqttsn.filters import within

_MOST_REMEMBERED = 100_000


class TokenFile:
    """Read and written as a whole; whoever changes it waits until nobody else does."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def tokens(self) -> list[Token]:
        """All of them; ParameterError if it cannot be read or is something else."""
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
            return [token_from_json(each) for each in document["tokens"]]
        except OSError as error:
            raise ParameterError(str(self._path), error.strerror or str(error)) from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ParameterError(
                str(self._path), "is not a file of tokens; `triage token create --file` makes one"
            ) from None

    def add(self, token: Token) -> None:
        self._change(lambda tokens: [*tokens, token])

    def revoke(self, token_id: str, revoked_ns: int) -> None:
        self._change(
            lambda tokens: [
                replace(token, revoked_ns=revoked_ns)
                if token.token_id == token_id and token.revoked_ns is None
                else token
                for token in tokens
            ]
        )

    def _change(self, how: Callable[[list[Token]], list[Token]]) -> None:
        try:
            with _alone_in(self._path.absolute().parent):
                tokens = how(self.tokens() if self._path.exists() else [])
                document = {"tokens": [token_to_json(token) for token in tokens]}
                write_private(self._path, json.dumps(document, indent=1) + "\n")
        except OSError as error:
            raise ParameterError(str(self._path), error.strerror or str(error)) from None


@contextlib.contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    held = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


class TokenRules:
    """What a file of tokens allows now; `look` now and then, because it changes and tokens expire."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._look()
        self.tokens: Sequence[Token] = TokenFile(path).tokens()
        self._valid: set[str] = set()
        self._book = TokenBook()
        self._callers: dict[str, Caller | None] = {}
        self._take_over()

    def look(self) -> bool:
        """Has anything changed? A file that cannot be read changes nothing."""
        seen = self._look()
        if seen != self._seen and seen is not None:
            self._seen = seen
            with contextlib.suppress(ParameterError):
                self.tokens = TokenFile(self._path).tokens()
        before = self._valid
        self._take_over()
        return self._valid != before

    def caller(self, client_id: str) -> Caller | None:
        """Who comes with this client id; None if nobody may."""
        if client_id not in self._callers:
            # Strangers choose their ids: they must not fill the memory.
            if len(self._callers) > _MOST_REMEMBERED:
                self._callers.clear()
            self._callers[client_id] = self._find(client_id)
        return self._callers[client_id]

    def _find(self, client_id: str) -> Caller | None:
        name, _, secret = subscriber_of(client_id)[0].rpartition(".")
        try:
            caller = self._book.caller(secret)
            caller.require_name(name)
        except RequestError:
            return None
        return caller

    def _take_over(self) -> None:
        now_ns = time.time_ns()
        valid = [token for token in self.tokens if token.valid(now_ns)]
        if (ids := {token.token_id for token in valid}) != self._valid:
            self._valid, self._book, self._callers = ids, TokenBook(valid), {}

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size


@dataclass(frozen=True)
class TokenPolicy(Policy):
    """Refuses by the tokens of a file; ranks as any other."""

    rules: TokenRules = field(kw_only=True)

    def client_ids_are_secret(self) -> bool:
        return True

    def forbids_connection(self, client_id: str) -> bool:
        return self.rules.caller(client_id) is None

    def forbids_subscription(self, client_id: str, topic_filter: str) -> bool:
        caller = self._with_role(client_id, Role.SUBSCRIBER)
        return caller is None or not within(topic_filter, caller.subscribe)

    def forbids_publication(self, client_id: str, topic: str) -> bool:
        caller = self._with_role(client_id, Role.PUBLISHER)
        return caller is None or not within(topic, caller.publish)

    def _with_role(self, client_id: str, role: Role) -> Caller | None:
        caller = self.rules.caller(client_id)
        return caller if caller is not None and (caller.is_operator or role in caller.roles) else None
