"""Settings of a gateway: timers, limits, and the policy that ranks and refuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from triagemq.addresses import is_loopback
from triagemq.errors import ParameterError
from triagemq.gateway.core.messages import Publication
from triagemq.mqttsn import RESERVED_TOPIC_IDS, matches, valid_topic_filter, valid_topic_name
from triagemq.plan.dataplane import Treatment


@dataclass(frozen=True)
class Policy:
    """Ranks messages and refuses requests; a coordinator hands in its own subclass.

    `priorities` gives topic filters a class (0 is served first); the first that matches counts.

    >>> Policy(priorities=[("+/smoke", 0)], lowest_class=7).treatment("sensor", "floor3/smoke").priority_class
    0
    """

    priorities: Sequence[tuple[str, int]] = ()
    lowest_class: int = 0
    maximum_clients: int = 100_000
    """A new client beyond them is answered with "rejected: congestion", as is a subscription beyond its maximum."""
    maximum_clients_per_address: int = 10_000
    """Sessions of clients at one IP address; at loopback, which many programs share, a fifth of all if that is more."""
    maximum_subscriptions: int = 10_000
    """Subscriptions that one client may have."""

    def __post_init__(self) -> None:
        for topic_filter, priority_class in self.priorities:
            if not valid_topic_filter(topic_filter):
                raise ParameterError("priorities", f"{topic_filter!r} is no topic filter")
            if priority_class < 0:
                raise ParameterError("priorities", f"the class of {topic_filter!r} is negative")

    def treatment(self, client_id: str, topic: str) -> Treatment:
        """The class in which a client's messages of a topic wait, and the share that is not delivered, on purpose."""
        for topic_filter, priority_class in self.priorities:
            if matches(topic_filter, topic):
                return Treatment(priority_class)
        return Treatment(self.lowest_class)

    def hears_directly(self, client_id: str, publication: Publication) -> bool:
        """Has a client got a message without a broker, that went to some without one?"""
        return False

    def clients_per_address(self, host: str) -> int:
        """How many clients may be at an IP address."""
        if is_loopback(host):
            return max(self.maximum_clients_per_address, self.maximum_clients // 5)
        return self.maximum_clients_per_address

    @property
    def closed(self) -> bool:
        """Is everyone, known or not, answered with "rejected: congestion" for now?"""
        return False

    # What is forbidden is answered with "rejected: not supported": to try again later is of no use.

    def forbids_connection(self, client_id: str) -> bool:
        """Is a client never let in?"""
        return False

    def forbids_subscription(self, client_id: str, topic_filter: str) -> bool:
        """Does a filter take in topics that a client must not get?"""
        return False

    def forbids_publication(self, client_id: str, topic: str) -> bool:
        """May a client never publish to a topic? Wills count, too; "" is one without a connection."""
        return False


@dataclass(frozen=True, kw_only=True)
class GatewaySettings:
    """Everything but addresses of sockets. The defaults are those of MQTT-SN 1.2, section 7.2, where it has any."""

    gateway_id: int = 1
    broker_client_id: str = "triage-gateway"
    mqtt_version: int = 5
    """Tried first with the broker; 4 is 3.1.1."""
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    predefined_topics: Mapping[int, str] = field(default_factory=dict)
    policy: Policy = field(default_factory=Policy)
    seed: int | None = None
    """Of the draws by which messages are dropped on purpose; None: another one each time."""
    buffer_messages: int = 10_000
    """Messages stored for one client that sleeps, is away, or does not answer fast enough."""
    in_flight_messages: int = 16
    """Unanswered QoS 1 and 2 messages to one client."""
    burst_messages: int = 100
    """Stored QoS 0 messages that a client gets at once when it comes back; UDP has no other flow control."""
    burst_pause_seconds: float = 0.01
    retry_seconds: float = 10.0
    retries: int = 4
    keep_alive_tolerance: float = 1.5
    advertise_seconds: int = 900
    broker_backlog: int = 10_000
    """QoS 1 and 2 messages from clients that may wait for the broker."""
    arrival_messages: int = 256
    """QoS 2 messages of one client that it has not released."""
    arrival_bytes: int = 64 << 20
    """QoS 2 messages of all clients that the broker does not have; each may have one beyond that."""
    broker_keep_alive_seconds: int = 30
    broker_ping_seconds: float = 2.0
    """Interval of PINGREQ to a broker that all clients share; one that is silent for 5 s is dead."""
    topic_ids: int = 8_192
    """Topic ids that one client may have in one session; messages of further topics are not delivered."""
    topic_ids_in_all: int = 500_000
    """Topic ids of all clients together; beyond that 256 for each."""
    last_topic_id: int = 0xFFFE
    """Ids are from 1 to this one."""
    session_expiry_seconds: float = 7 * 86400
    """How long a session that is not clean outlives its connection."""
    silent_seconds: float = 600.0
    """A client without a keep-alive that is silent for longer makes room for a new one when there is none."""
    handshakes: int = 4096
    """Clients whose wills are requested; the oldest is forgotten for one more."""
    retained_quiet_seconds: float = 0.5
    """MQTT 3.1.1 only: pause between two fetches of the retained messages of one filter."""
    marks_classes: bool = False
    """Without a data plane in the gateway: mark each PUBLISH with its class (DSCP), for the queues behind."""
    read_timestamps: bool = False
    """Take publication times from payload prefixes and user properties (mqttsn/timestamps.py)."""

    def handshakes_per_address(self, host: str) -> int:
        """A sixteenth of all, or at loopback half of them."""
        return max(1, self.handshakes // (2 if is_loopback(host) else 16))

    def __post_init__(self) -> None:
        for topic_id, name in self.predefined_topics.items():
            if not 0 < topic_id < 0xFFFF or topic_id in RESERVED_TOPIC_IDS:
                raise ParameterError("predefined_topics", f"{topic_id} is no topic id: 1 to 65534")
            if not valid_topic_name(name):
                raise ParameterError("predefined_topics", f"{name!r} (id {topic_id}) is no topic name")
