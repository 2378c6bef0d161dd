"""The coordinator's REST interface, as clients use it: announce, keep alive, learn of changes, withdraw."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from triagemq.client.http import HttpClient
from triagemq.client.settings import GatewayAddress
from triagemq.errors import CoordinatorError

__all__ = ["Announced", "Assignment", "Coordinator"]

_MOST_FLOWS = 1_000


@dataclass(frozen=True, slots=True)
class Announced:
    """Where and as whom to connect; `flows` is how many connections a subscriber opens."""

    gateway: GatewayAddress
    client_id: str
    flows: int
    lease_seconds: float
    generation: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the plan in force means for one subscriber."""

    generation: int
    flows: int
    slots: Mapping[str, int]
    classes: Mapping[str, int]
    drop_rates: Mapping[str, float]


class Coordinator:
    """One coordinator; several publishers and subscribers may share the object. `kind`: publishers, subscribers."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout_seconds: float = 10.0,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._http = HttpClient(url, token=token, timeout_seconds=timeout_seconds, ssl_context=ssl_context)
        self.url = self._http.url

    async def announce(self, kind: str, name: str, intent: Mapping[str, Any]) -> Announced:
        """Say what is wanted; whatever was said under that name before is replaced."""
        answer = await self._ask("PUT", _path(kind, name), intent)
        connection = _object(answer.get("connection"))
        gateway, client_id = connection.get("gateway"), connection.get("client_id")
        if not isinstance(gateway, str) or not isinstance(client_id, str) or not client_id:
            raise self._http.strange_answer()
        return Announced(
            GatewayAddress.parse(gateway),
            client_id,
            _flows(connection.get("flows")),
            self._number(answer, "lease_seconds"),
            int(self._number(answer, "generation")),
        )

    async def heartbeat(self, kind: str, name: str, report: Mapping[str, Any]) -> int:
        """Keep the lease, and report; how many flows a subscriber should have."""
        return _flows((await self._ask("POST", f"{_path(kind, name)}/heartbeat", report)).get("flows"))

    async def assignment(self, name: str, *, after: int, wait_seconds: float) -> Assignment:
        """The assignment in force, as soon as it is newer than `after`, or when that time is over."""
        path = f"{_path('subscribers', name)}/assignment?after={after}&wait_seconds={wait_seconds:g}"
        answer = await self._ask("GET", path, wait_seconds=wait_seconds)
        return Assignment(
            int(self._number(answer, "generation")),
            _flows(answer.get("flows")),
            _object(answer.get("slots")),
            _object(answer.get("classes")),
            _object(answer.get("drop_rates")),
        )

    async def withdraw(self, kind: str, name: str) -> None:
        """Nothing is wanted any more."""
        await self._ask("DELETE", _path(kind, name))

    async def close(self) -> None:
        """End the connections to it."""
        await self._http.close()

    async def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, wait_seconds: float = 0.0
    ) -> dict[str, Any]:
        status, answer = await self._http.request(method, path, body, wait_seconds=wait_seconds)
        if not 200 <= status < 300:
            raise CoordinatorError(f"coordinator {self.url}: {_detail(status, answer)}", status)
        return _object(answer)

    def _number(self, answer: Mapping[str, Any], key: str) -> float:
        value = answer.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._http.strange_answer()
        return value


def _path(kind: str, name: str) -> str:
    return f"/v1/{kind}/{quote(name, safe='')}"


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _flows(value: object) -> int:
    return min(max(1, value), _MOST_FLOWS) if isinstance(value, int) else 1


def _detail(status: int, answer: object) -> str:
    """The reason in one line, whether it is a text or the list that FastAPI makes of a body it does not understand.

    >>> _detail(422, {"detail": [{"loc": ["body", "lease_seconds"], "msg": "must be above 0"}]})
    'lease_seconds: must be above 0'
    >>> _detail(502, None)
    'HTTP status 502'
    """
    detail = _object(answer).get("detail")
    if isinstance(detail, str) and detail:
        return " ".join(detail.split())
    if isinstance(detail, list):
        mistakes = [
            f"{'.'.join(str(part) for part in one.get('loc', ())[1:])}: {one.get('msg', 'is wrong')}"
            for one in detail
            if isinstance(one, dict)
        ]
        if mistakes:
            return "; ".join(mistakes)
    return f"HTTP status {status}"
