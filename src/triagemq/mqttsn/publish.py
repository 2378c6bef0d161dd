"""PUBLISH without a message object: what a gateway sends a hundred thousand times a second.

`publish_header` makes all but the payload, so that one payload can go to many clients by scatter-gather
without being copied.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Final

from triagemq.errors import ParameterError
from triagemq.mqttsn.codes import MAXIMUM_MESSAGE_BYTES, MessageType, TopicIdType
from triagemq.mqttsn.topics import short_topic_name

_SHORT_HEADER: Final = Struct(">BBBHH")
_LONG_HEADER: Final = Struct(">BHBBHH")
_PUBLISH: Final = int(MessageType.PUBLISH)
_SHORT_TOPIC: Final = int(TopicIdType.SHORT)
_LARGEST_SHORT_PAYLOAD: Final = 0xFF - _SHORT_HEADER.size
_LARGEST_PAYLOAD: Final = MAXIMUM_MESSAGE_BYTES - _LONG_HEADER.size


def encode_publish(
    topic_id_type: TopicIdType,
    topic_id: int,
    payload: bytes,
    qos: int = 0,
    retain: bool = False,
    dup: bool = False,
    message_id: int = 0,
) -> bytes:
    """The datagram of a PUBLISH, as `encode(Publish(...))` makes it.

    >>> encode_publish(TopicIdType.NORMAL, 7, b"fire").hex(" ")
    '0b 0c 00 00 07 00 00 66 69 72 65'
    """
    return publish_header(topic_id_type, topic_id, len(payload), qos, retain, dup, message_id) + payload


def publish_header(
    topic_id_type: TopicIdType,
    topic_id: int,
    payload_bytes: int,
    qos: int = 0,
    retain: bool = False,
    dup: bool = False,
    message_id: int = 0,
) -> bytes:
    """The octets that stand before a payload of `payload_bytes`: 7 of them, or 9 with the three-octet length.

    >>> publish_header(TopicIdType.PREDEFINED, 2, 300, qos=1, message_id=9).hex(" ")
    '01 01 35 0c 21 00 02 00 09'
    """
    if not (-1 <= qos <= 2 and 0 <= topic_id_type <= _SHORT_TOPIC and 0 <= payload_bytes <= _LARGEST_PAYLOAD):
        raise _impossible(topic_id_type, payload_bytes, qos)
    if qos < 1:
        if message_id:
            raise ParameterError("message_id", f"must be 0 at QoS {qos}, is {message_id}")
        if qos < 0 and not topic_id_type:
            raise ParameterError("topic_id_type", "must be predefined or short at QoS -1, is normal")
    if topic_id_type == _SHORT_TOPIC:
        short_topic_name(topic_id)
    flags = (0x80 if dup else 0) | ((qos & 0b11) << 5) | (0x10 if retain else 0) | topic_id_type
    try:
        if payload_bytes <= _LARGEST_SHORT_PAYLOAD:
            return _SHORT_HEADER.pack(payload_bytes + 7, _PUBLISH, flags, topic_id, message_id)
        return _LONG_HEADER.pack(1, payload_bytes + 9, _PUBLISH, flags, topic_id, message_id)
    except StructError:
        name, value = ("topic_id", topic_id) if not 0 <= topic_id <= 0xFFFF else ("message_id", message_id)
        raise ParameterError(name, f"must be from 0 to 65535, is {value}") from None


def _impossible(topic_id_type: int, payload_bytes: int, qos: int) -> ParameterError:
    if not -1 <= qos <= 2:
        return ParameterError("qos", f"must be -1, 0, 1 or 2, is {qos}")
    if not 0 <= topic_id_type <= _SHORT_TOPIC:
        return ParameterError("topic_id_type", f"must be a TopicIdType, is {topic_id_type}")
    return ParameterError("payload", f"must be at most {_LARGEST_PAYLOAD} bytes, is {payload_bytes}")
