"""Every message of MQTT-SN 1.2 (section 5.4), as plain values.

A class bears the specification's name of its message, and holds what a receiver may rely on: flags that a
message does not use are not here, are sent as zero and ignored on receipt. `encode` checks the values; making
a message does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from triagemq.mqttsn.codes import MessageType, ReturnCode, TopicIdType


@dataclass(frozen=True, slots=True)
class Advertise:
    """A gateway broadcasts that it is there, and will again within `duration_seconds`."""

    message_type: ClassVar = MessageType.ADVERTISE
    gateway_id: int
    duration_seconds: int


@dataclass(frozen=True, slots=True)
class SearchGw:
    """A client looks for a gateway; `radius` in hops, 0 for the whole network."""

    message_type: ClassVar = MessageType.SEARCHGW
    radius: int = 0


@dataclass(frozen=True, slots=True)
class GwInfo:
    """The answer to SEARCHGW; `address` is empty when the gateway itself answers."""

    message_type: ClassVar = MessageType.GWINFO
    gateway_id: int
    address: bytes = b""


@dataclass(frozen=True, slots=True)
class Connect:
    """A client sets up a connection; with `will` the gateway asks for the will next.

    The specification gives client ids 1 to 23 characters; longer ones are let through, as MQTT 3.1.1 allows.
    """

    message_type: ClassVar = MessageType.CONNECT
    client_id: str
    duration_seconds: int
    clean_session: bool = False
    will: bool = False


@dataclass(frozen=True, slots=True)
class ConnAck:
    """The answer to CONNECT."""

    message_type: ClassVar = MessageType.CONNACK
    return_code: ReturnCode


@dataclass(frozen=True, slots=True)
class WillTopicReq:
    """The gateway asks for the will's topic."""

    message_type: ClassVar = MessageType.WILLTOPICREQ


@dataclass(frozen=True, slots=True)
class WillTopic:
    """The will's topic; `topic_name` None is the empty message that deletes the will."""

    message_type: ClassVar = MessageType.WILLTOPIC
    topic_name: str | None
    qos: int = 0
    retain: bool = False


@dataclass(frozen=True, slots=True)
class WillMsgReq:
    """The gateway asks for the will's payload."""

    message_type: ClassVar = MessageType.WILLMSGREQ


@dataclass(frozen=True, slots=True)
class WillMsg:
    """The will's payload."""

    message_type: ClassVar = MessageType.WILLMSG
    payload: bytes


@dataclass(frozen=True, slots=True)
class Register:
    """A client asks for a topic id (`topic_id` 0), or a gateway tells one."""

    message_type: ClassVar = MessageType.REGISTER
    topic_id: int
    message_id: int
    topic_name: str


@dataclass(frozen=True, slots=True)
class RegAck:
    """The answer to REGISTER."""

    message_type: ClassVar = MessageType.REGACK
    topic_id: int
    message_id: int
    return_code: ReturnCode


@dataclass(frozen=True, slots=True)
class Publish:
    """An event. For a short topic, `topic_id` is `short_topic_id(name)`.

    QoS -1 needs no connection, and a topic id that needs none. `message_id` is 0 at QoS 0 and -1.
    """

    message_type: ClassVar = MessageType.PUBLISH
    topic_id_type: TopicIdType
    topic_id: int
    payload: bytes
    qos: int = 0
    retain: bool = False
    dup: bool = False
    message_id: int = 0


@dataclass(frozen=True, slots=True)
class PubAck:
    """A PUBLISH of QoS 1 has arrived, or one of any QoS was refused."""

    message_type: ClassVar = MessageType.PUBACK
    topic_id: int
    message_id: int
    return_code: ReturnCode


@dataclass(frozen=True, slots=True)
class PubRec:
    """QoS 2, first answer to PUBLISH."""

    message_type: ClassVar = MessageType.PUBREC
    message_id: int


@dataclass(frozen=True, slots=True)
class PubRel:
    """QoS 2, the answer to PUBREC."""

    message_type: ClassVar = MessageType.PUBREL
    message_id: int


@dataclass(frozen=True, slots=True)
class PubComp:
    """QoS 2, the answer to PUBREL."""

    message_type: ClassVar = MessageType.PUBCOMP
    message_id: int


@dataclass(frozen=True, slots=True)
class Subscribe:
    """`topic` is a filter if NORMAL, a number if PREDEFINED, a name of two octets if SHORT."""

    message_type: ClassVar = MessageType.SUBSCRIBE
    topic_id_type: TopicIdType
    topic: str | int
    message_id: int
    qos: int = 0
    dup: bool = False


@dataclass(frozen=True, slots=True)
class SubAck:
    """The answer to SUBSCRIBE; `topic_id` is 0 where the filter has wildcards."""

    message_type: ClassVar = MessageType.SUBACK
    topic_id: int
    message_id: int
    return_code: ReturnCode
    qos: int = 0


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """`topic` as in SUBSCRIBE."""

    message_type: ClassVar = MessageType.UNSUBSCRIBE
    topic_id_type: TopicIdType
    topic: str | int
    message_id: int


@dataclass(frozen=True, slots=True)
class UnsubAck:
    """The answer to UNSUBSCRIBE."""

    message_type: ClassVar = MessageType.UNSUBACK
    message_id: int


@dataclass(frozen=True, slots=True)
class PingReq:
    """Are you alive? With `client_id`: a sleeping client is awake and wants what was stored for it."""

    message_type: ClassVar = MessageType.PINGREQ
    client_id: str | None = None


@dataclass(frozen=True, slots=True)
class PingResp:
    """Alive; to a client that was asleep: that was all."""

    message_type: ClassVar = MessageType.PINGRESP


@dataclass(frozen=True, slots=True)
class Disconnect:
    """The connection ends; with `duration_seconds` the client only sleeps for that long."""

    message_type: ClassVar = MessageType.DISCONNECT
    duration_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class WillTopicUpd:
    """A new topic for the will; `topic_name` None deletes the will."""

    message_type: ClassVar = MessageType.WILLTOPICUPD
    topic_name: str | None
    qos: int = 0
    retain: bool = False


@dataclass(frozen=True, slots=True)
class WillTopicResp:
    """The answer to WILLTOPICUPD."""

    message_type: ClassVar = MessageType.WILLTOPICRESP
    return_code: ReturnCode


@dataclass(frozen=True, slots=True)
class WillMsgUpd:
    """A new payload for the will."""

    message_type: ClassVar = MessageType.WILLMSGUPD
    payload: bytes


@dataclass(frozen=True, slots=True)
class WillMsgResp:
    """The answer to WILLMSGUPD."""

    message_type: ClassVar = MessageType.WILLMSGRESP
    return_code: ReturnCode


PlainMessage: TypeAlias = (
    Advertise | SearchGw | GwInfo | Connect | ConnAck | WillTopicReq | WillTopic | WillMsgReq | WillMsg
    | Register | RegAck | Publish | PubAck | PubRec | PubRel | PubComp | Subscribe | SubAck | Unsubscribe
    | UnsubAck | PingReq | PingResp | Disconnect | WillTopicUpd | WillTopicResp | WillMsgUpd | WillMsgResp
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Encapsulated:
    """A message that a forwarder carries for the wireless node of that id (5.5); `radius` in hops, 0 to 3."""

    message_type: ClassVar = MessageType.ENCAPSULATED
    wireless_node_id: bytes
    message: PlainMessage
    radius: int = 0


Message: TypeAlias = PlainMessage | Encapsulated
