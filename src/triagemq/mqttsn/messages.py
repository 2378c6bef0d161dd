"""The numbers of MQTT-SN 1.2 (sections 5.2 and 5.3) and every message of it (section 5.4), as plain values.

A class bears the specification's name of its message, and holds what a receiver may rely on: flags that a
message does not use are not here, are sent as zero and ignored on receipt. `encode` checks the values; making
a message does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import ClassVar, Final, TypeAlias

PROTOCOL_ID: Final = 0x01
"""The only ProtocolId that a CONNECT may carry (5.3.8)."""

MAXIMUM_MESSAGE_BYTES: Final = 0xFFFF
"""The largest length that the three-octet Length field can say (5.2.1)."""

RESERVED_TOPIC_IDS: Final = frozenset({0x0000, 0xFFFF})
"""Topic ids that are never assigned (5.3.11).

The codec lets them pass: REGISTER and SUBACK carry 0x0000 by design, and a PUBLISH to one of them deserves
the answer "rejected: invalid topic ID", which only the gateway can give.
"""


class MessageType(IntEnum):
    """MsgType (5.2.2), by the specification's own names; every other value is reserved."""

    ADVERTISE = 0x00
    SEARCHGW = 0x01
    GWINFO = 0x02
    CONNECT = 0x04
    CONNACK = 0x05
    WILLTOPICREQ = 0x06
    WILLTOPIC = 0x07
    WILLMSGREQ = 0x08
    WILLMSG = 0x09
    REGISTER = 0x0A
    REGACK = 0x0B
    PUBLISH = 0x0C
    PUBACK = 0x0D
    PUBCOMP = 0x0E
    PUBREC = 0x0F
    PUBREL = 0x10
    SUBSCRIBE = 0x12
    SUBACK = 0x13
    UNSUBSCRIBE = 0x14
    UNSUBACK = 0x15
    PINGREQ = 0x16
    PINGRESP = 0x17
    DISCONNECT = 0x18
    WILLTOPICUPD = 0x1A
    WILLTOPICRESP = 0x1B
    WILLMSGUPD = 0x1C
    WILLMSGRESP = 0x1D
    ENCAPSULATED = 0xFE


class ReturnCode(IntEnum):
    """ReturnCode (5.3.10); 0x04 to 0xFF are reserved."""

    ACCEPTED = 0x00
    REJECTED_CONGESTION = 0x01
    REJECTED_INVALID_TOPIC_ID = 0x02
    REJECTED_NOT_SUPPORTED = 0x03


class TopicIdType(IntEnum):
    """What the TopicId or TopicName field holds (5.3.4); 0b11 is reserved."""

    NORMAL = 0b00
    PREDEFINED = 0b01
    SHORT = 0b10


class RejectionReason(StrEnum):
    """Why a datagram was refused: `DecodeError.reason`. The values never change: counters bear them."""

    EMPTY_DATAGRAM = "empty_datagram"
    TRUNCATED_HEADER = "truncated_header"
    """It ends before the message type."""
    LENGTH_MISMATCH = "length_mismatch"
    """The Length field is not the length of the datagram."""
    RESERVED_MESSAGE_TYPE = "reserved_message_type"
    TRUNCATED = "truncated"
    """The message ends before the last of its fields of fixed size."""
    TRAILING_OCTETS = "trailing_octets"
    """Octets follow the last field."""
    RESERVED_TOPIC_ID_TYPE = "reserved_topic_id_type"
    RESERVED_RETURN_CODE = "reserved_return_code"
    RESERVED_PROTOCOL_ID = "reserved_protocol_id"
    INVALID_QOS = "invalid_qos"
    """QoS -1 in a message other than PUBLISH."""
    NORMAL_TOPIC_ID_WITHOUT_CONNECTION = "normal_topic_id_without_connection"
    """PUBLISH at QoS -1 to a topic id that only a connection could have registered (6.8)."""
    NOT_UTF8 = "not_utf8"
    NUL_CHARACTER = "nul_character"
    CONTROL_CHARACTER = "control_character"
    """U+0001 to U+001F or U+007F to U+009F in a topic: brokers may end the connection over it."""
    NON_CHARACTER = "non_character"
    """A code point in a topic that will never be a character, such as U+FFFF."""
    TOO_MANY_LEVELS = "too_many_levels"
    """More than 200 levels in a topic, which Mosquitto does not take."""
    EMPTY_CLIENT_ID = "empty_client_id"
    EMPTY_TOPIC = "empty_topic"
    WILDCARD_IN_TOPIC_NAME = "wildcard_in_topic_name"
    INVALID_TOPIC_FILTER = "invalid_topic_filter"
    """`#` that is not the whole last level, or `+` that is not a whole level."""
    ENCAPSULATION_LENGTH = "encapsulation_length"
    """The Length of an encapsulation does not end a wireless node id inside the datagram (5.5)."""
    RESERVED_CONTROL_BITS = "reserved_control_bits"
    NESTED_ENCAPSULATION = "nested_encapsulation"


# Messages.


class Wire:
    """Base of messages: the type follows from the name."""

    __slots__ = ()
    message_type: ClassVar[MessageType]

    def __init_subclass__(cls) -> None:
        cls.message_type = MessageType[cls.__name__.upper()]


@dataclass(frozen=True, slots=True)
class Advertise(Wire):
    """A gateway broadcasts that it is there, and will again within `duration_seconds`."""

    gateway_id: int
    duration_seconds: int


@dataclass(frozen=True, slots=True)
class SearchGw(Wire):
    """A client looks for a gateway; `radius` in hops, 0 for the whole network."""

    radius: int = 0


@dataclass(frozen=True, slots=True)
class GwInfo(Wire):
    """The answer to SEARCHGW; `address` is empty when the gateway itself answers."""

    gateway_id: int
    address: bytes = b""


@dataclass(frozen=True, slots=True)
class Connect(Wire):
    """A client sets up a connection; with `will` the gateway requests the will next.

    The specification gives client ids 1 to 23 characters; longer ones are let through, as MQTT 3.1.1 allows.
    """

    client_id: str
    duration_seconds: int
    clean_session: bool = False
    will: bool = False


@dataclass(frozen=True, slots=True)
class ConnAck(Wire):
    """The answer to CONNECT."""

    return_code: ReturnCode


@dataclass(frozen=True, slots=True)
class WillTopicReq(Wire):
    """The gateway requests the will's topic."""


@dataclass(frozen=True, slots=True)
class WillTopic(Wire):
    """The will's topic; `topic_name` None is the empty message that deletes the will."""

    topic_name: str | None
    qos: int = 0
    retain: bool = False


@dataclass(frozen=True, slots=True)
class WillMsgReq(Wire):
    """The gateway requests the will's payload."""


@dataclass(frozen=True, slots=True)
class WillMsg(Wire):
    """The will's payload."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Register(Wire):
    """A client requests a topic id (`topic_id` 0), or a gateway assigns one."""

    topic_id: int
    message_id: int
    topic_name: str


@dataclass(frozen=True, slots=True)
class RegAck(Wire):
    """The answer to REGISTER."""

    topic_id: int
    message_id: int
    return_code: ReturnCode


@dataclass(frozen=True, slots=True)
class Publish(Wire):
    """An event. For a short topic, `topic_id` is `short_topic_id(name)`.

    QoS -1 needs no connection, and a topic id that needs none. `message_id` is 0 at QoS 0 and -1.
    """

    topic_id_type: TopicIdType
    topic_id: int
    payload: bytes
    qos: int = 0
    retain: bool = False
    dup: bool = False
    message_id: int = 0


@dataclass(frozen=True, slots=True)
class PubAck(Wire):
    """A PUBLISH of QoS 1 has arrived, or one of any QoS was refused."""

    topic_id: int
    message_id: int
    return_code: ReturnCode


@dataclass(frozen=True, slots=True)
class PubRec(Wire):
    """QoS 2, first answer to PUBLISH."""

    message_id: int


@dataclass(frozen=True, slots=True)
class PubRel(Wire):
    """QoS 2, the answer to PUBREC."""

    message_id: int


@dataclass(frozen=True, slots=True)
class PubComp(Wire):
    """QoS 2, the answer to PUBREL."""

    message_id: int


@dataclass(frozen=True, slots=True)
class Subscribe(Wire):
    """`topic` is a filter if NORMAL, a number if PREDEFINED, a name of two octets if SHORT."""

    topic_id_type: TopicIdType
    topic: str | int
    message_id: int
    qos: int = 0
    dup: bool = False


@dataclass(frozen=True, slots=True)
class SubAck(Wire):
    """The answer to SUBSCRIBE; `topic_id` is 0 where the filter has wildcards."""

    topic_id: int
    message_id: int
    return_code: ReturnCode
    qos: int = 0


@dataclass(frozen=True, slots=True)
class Unsubscribe(Wire):
    """`topic` as in SUBSCRIBE."""

    topic_id_type: TopicIdType
    topic: str | int
    message_id: int


@dataclass(frozen=True, slots=True)
class UnsubAck(Wire):
    """The answer to UNSUBSCRIBE."""

    message_id: int


@dataclass(frozen=True, slots=True)
class PingReq(Wire):
    """Are you alive? With `client_id`: a sleeping client is awake and wants what was stored for it."""

    client_id: str | None = None


@dataclass(frozen=True, slots=True)
class PingResp(Wire):
    """Alive; to a client that was asleep: that was all."""


@dataclass(frozen=True, slots=True)
class Disconnect(Wire):
    """The connection ends; with `duration_seconds` the client only sleeps for that long."""

    duration_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class WillTopicUpd(Wire):
    """A new topic for the will; `topic_name` None deletes the will."""

    topic_name: str | None
    qos: int = 0
    retain: bool = False


@dataclass(frozen=True, slots=True)
class WillTopicResp(Wire):
    """The answer to WILLTOPICUPD."""

    return_code: ReturnCode


@dataclass(frozen=True, slots=True)
class WillMsgUpd(Wire):
    """A new payload for the will."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class WillMsgResp(Wire):
    """The answer to WILLMSGUPD."""

    return_code: ReturnCode


PlainMessage: TypeAlias = (
    Advertise | SearchGw | GwInfo | Connect | ConnAck | WillTopicReq | WillTopic | WillMsgReq | WillMsg
    | Register | RegAck | Publish | PubAck | PubRec | PubRel | PubComp | Subscribe | SubAck | Unsubscribe
    | UnsubAck | PingReq | PingResp | Disconnect | WillTopicUpd | WillTopicResp | WillMsgUpd | WillMsgResp
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Encapsulated(Wire):
    """A message that a forwarder carries for the wireless node of that id (5.5); `radius` in hops, 0 to 3."""

    wireless_node_id: bytes
    message: PlainMessage
    radius: int = 0


Message: TypeAlias = PlainMessage | Encapsulated
