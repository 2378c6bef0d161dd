"""CONNECTs whose wills are being asked for: few, cheap, and the oldest goes when there are too many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from triagemq.exchange.gateway.model import Endpoint
from triagemq.mqttsn import Connect, WillMsgReq, WillTopic, WillTopicReq

if TYPE_CHECKING:
    from triagemq.exchange.gateway.core import GatewayCore
    from triagemq.exchange.gateway.timers import Timer

__all__ = ["Handshake", "Handshakes"]


@dataclass(slots=True)
class Handshake:
    """A CONNECT whose will is being asked for, for the first time or again."""

    message: Connect
    due_ns: int
    topic: WillTopic | None = None
    attempts: int = 1


class Handshakes:
    """By endpoint, in the order in which they are due to be asked again; one timer serves them all."""

    def __init__(self, gateway: GatewayCore) -> None:
        self._gateway = gateway
        self._waiting: dict[Endpoint, Handshake] = {}
        self._at: dict[str, dict[Endpoint, None]] = {}
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def get(self, endpoint: Endpoint) -> Handshake | None:
        """The one of a client that is there."""
        return self._waiting.get(endpoint)

    def begin(self, endpoint: Endpoint, message: Connect) -> None:
        """Ask for a will. It takes the place of an older one, at first of the same client or address."""
        self.end(endpoint)
        settings = self._gateway.settings
        neighbours = self._at.get(endpoint[0], {})
        if len(neighbours) >= settings.handshakes_per_address(endpoint[0]):
            self.end(next(iter(neighbours)))
        elif len(self._waiting) >= settings.handshakes:
            self.end(next(iter(self._waiting)))
        self._put(endpoint, Handshake(message, 0))
        self._gateway.send(endpoint, WillTopicReq())

    def end(self, endpoint: Endpoint) -> Handshake | None:
        """It is over, or forgotten."""
        handshake = self._waiting.pop(endpoint, None)
        if handshake is not None:
            neighbours = self._at[endpoint[0]]
            del neighbours[endpoint]
            if not neighbours:
                del self._at[endpoint[0]]
        return handshake

    def _put(self, endpoint: Endpoint, handshake: Handshake) -> None:
        handshake.due_ns = self._gateway.now_ns + int(self._gateway.settings.retry_seconds * 1e9)
        self._waiting[endpoint] = handshake
        self._at.setdefault(endpoint[0], {})[endpoint] = None
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is None and self._waiting:
            first = next(iter(self._waiting.values()))
            self._timer = self._gateway.schedule(first.due_ns, self._ask_again)

    def _ask_again(self) -> None:
        self._timer = None
        gateway = self._gateway
        due = []
        for endpoint, handshake in self._waiting.items():
            if handshake.due_ns > gateway.now_ns:
                break
            due.append((endpoint, handshake))
        for endpoint, handshake in due:
            self.end(endpoint)
            if handshake.attempts <= gateway.settings.retries:
                handshake.attempts += 1
                gateway.counters.retries += 1
                self._put(endpoint, handshake)
                gateway.send(endpoint, WillTopicReq() if handshake.topic is None else WillMsgReq())
        self._set_timer()
