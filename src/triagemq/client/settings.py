"""Settings of a connection: timers, limits, and the predefined topics of its gateway."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from triagemq.dtls import ClientSecurity
from triagemq.errors import ParameterError
from triagemq.intents import Number, Ruled, check
from triagemq.mqttsn import valid_topic_name

_Pause = Annotated[float, Number(0, 1e9, above=True)]


@dataclass(frozen=True, slots=True)
class Will:
    """What the gateway publishes when this client is lost."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings(Ruled):
    """The defaults suit a network with round trips below a second."""

    keep_alive_seconds: Annotated[int, Number(0, 0xFFFF, whole=True)] = 15
    """Promised to the gateway: it takes a client that is silent for 1.5 times as long for lost."""
    ping_seconds: _Pause = 3.0
    """A silence after which a PINGREQ is sent."""
    retry_seconds: _Pause = 1.0
    """T_retry: a message without an answer is sent again after this, then after ever longer pauses."""
    retries: int = 4
    """N_retry: so many pings without an answer, and the connection is lost and made again."""
    first_delay_seconds: _Pause = 0.25
    longest_delay_seconds: float = 2.0
    """Pause between two attempts to connect, growing from the first to the longest."""
    connect_timeout_seconds: _Pause = 10.0
    """How long `open` tries before it gives up. Later on a lost connection is tried for ever."""
    close_timeout_seconds: float = 5.0
    """How long `close` waits for messages to be acknowledged."""
    answer_timeout_seconds: _Pause | None = 30.0
    """How long `publish`, `flush`, `subscribe` and `unsubscribe` wait for the gateway before they raise; None: for
    ever."""
    in_flight_messages: Annotated[int, Number(1, 10_000, whole=True)] = 64
    """The in-flight window: unacknowledged QoS 1 and 2 messages; a publisher waits for room."""
    make_socket: Callable[[int, int, int], socket.socket] = socket.socket
    """Makes UDP sockets (family, kind, protocol): in another network namespace, or bound to an interface."""
    predefined_topics: Mapping[int, str] = field(default_factory=dict)
    """Topic ids that the gateway knows without registration."""
    security: ClientSecurity = field(default_factory=ClientSecurity)
    """Whom to trust at mqttsns:// addresses; connections with the same one share handshakes."""

    def __post_init__(self) -> None:
        check(self)
        for topic_id, name in self.predefined_topics.items():
            if not 0 < topic_id < 0xFFFF or not valid_topic_name(name):
                raise ParameterError("predefined_topics", f"{topic_id}: {name!r} is no topic id and name")
