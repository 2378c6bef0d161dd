"""Settings of a connection: timers, limits, and the predefined topics of its gateway."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from triagemq.dtls import ClientSecurity
from triagemq.errors import ParameterError
from triagemq.mqttsn import valid_topic_name


@dataclass(frozen=True, slots=True)
class Will:
    """What the gateway publishes when this client is lost."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """The defaults suit a network with round trips below a second."""

    keep_alive_seconds: int = 15
    """Promised to the gateway: it takes a client that is silent for 1.5 times as long for lost."""
    ping_seconds: float = 3.0
    """A silence after which a PINGREQ asks whether the gateway is there."""
    retry_seconds: float = 1.0
    """T_retry: a message without an answer is sent again after this, then after ever longer pauses."""
    retries: int = 4
    """N_retry: so many pings without an answer, and the connection is lost and made again."""
    first_delay_seconds: float = 0.25
    longest_delay_seconds: float = 2.0
    """Pause between two attempts to connect, growing from the first to the longest."""
    connect_timeout_seconds: float = 10.0
    """How long `open` tries before it gives up. Later on a lost connection is tried for ever."""
    close_timeout_seconds: float = 5.0
    """How long `close` waits for messages to be acknowledged."""
    answer_timeout_seconds: float | None = 30.0
    """How long `publish`, `flush`, `subscribe` and `unsubscribe` wait for the gateway before they raise; None: for
    ever."""
    in_flight_messages: int = 64
    """The in-flight window: unacknowledged QoS 1 and 2 messages; a publisher waits for room."""
    make_socket: Callable[[int, int, int], socket.socket] = socket.socket
    """Makes UDP sockets (family, kind, protocol): in another network namespace, or bound to an interface."""
    predefined_topics: Mapping[int, str] = field(default_factory=dict)
    """Topic ids that the gateway knows without registration."""
    security: ClientSecurity = field(default_factory=ClientSecurity)
    """Whom to trust at mqttsns:// addresses; connections with the same one share handshakes."""

    def __post_init__(self) -> None:
        for name in ("ping_seconds", "retry_seconds", "first_delay_seconds", "connect_timeout_seconds"):
            if not getattr(self, name) > 0:
                raise ParameterError(name, f"must be above 0, is {getattr(self, name)}")
        if self.answer_timeout_seconds is not None and not self.answer_timeout_seconds > 0:
            raise ParameterError(
                "answer_timeout_seconds", f"must be above 0 or None, is {self.answer_timeout_seconds}"
            )
        if not 0 <= self.keep_alive_seconds <= 0xFFFF:
            raise ParameterError(
                "keep_alive_seconds", f"must be from 0 to 65535, is {self.keep_alive_seconds}"
            )
        if not 1 <= self.in_flight_messages <= 10_000:
            raise ParameterError(
                "in_flight_messages", f"must be from 1 to 10000, is {self.in_flight_messages}"
            )
        for topic_id, name in self.predefined_topics.items():
            if not 0 < topic_id < 0xFFFF or not valid_topic_name(name):
                raise ParameterError("predefined_topics", f"{topic_id}: {name!r} is no topic id and name")
