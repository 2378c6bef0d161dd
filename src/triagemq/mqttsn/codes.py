"""The numbers of MQTT-SN 1.2 (sections 5.2 and 5.3), and the codes by which refused datagrams are counted."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Final

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
