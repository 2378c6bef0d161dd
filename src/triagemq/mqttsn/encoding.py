"""From a message to the octets of its datagram (sections 5.2 to 5.5); what is forbidden is not sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from triagemq.errors import ParameterError
from triagemq.mqttsn.codes import (
    MAXIMUM_MESSAGE_BYTES,
    PROTOCOL_ID,
    MessageType,
    RejectionReason,
    ReturnCode,
    TopicIdType,
)
from triagemq.mqttsn.messages import (
    Advertise,
    ConnAck,
    Connect,
    Disconnect,
    Encapsulated,
    GwInfo,
    Message,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    RegAck,
    Register,
    SearchGw,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    WillMsg,
    WillMsgReq,
    WillMsgResp,
    WillMsgUpd,
    WillTopic,
    WillTopicReq,
    WillTopicResp,
    WillTopicUpd,
)
from triagemq.mqttsn.publish import encode_publish
from triagemq.mqttsn.topics import short_topic_id, topic_filter_problem, topic_name_problem

_LARGEST_NODE_ID: Final = 0xFF - 3


def encode(message: Message) -> bytes:
    """The datagram of a message, with the shorter of the two Length formats.

    Raises `ParameterError` for values that no datagram may carry.

    >>> encode(Connect("sensor-7", duration_seconds=60, clean_session=True)).hex(" ")
    '0e 04 04 01 00 3c 73 65 6e 73 6f 72 2d 37'
    >>> encode(WillTopic(None))
    b'\\x02\\x07'
    """
    if isinstance(message, Publish):
        return encode_publish(
            message.topic_id_type,
            message.topic_id,
            message.payload,
            message.qos,
            message.retain,
            message.dup,
            message.message_id,
        )
    if isinstance(message, Encapsulated):
        if isinstance(message.message, Encapsulated):
            raise ParameterError("message", "an encapsulation cannot hold another")
        return encapsulation_header(message.wireless_node_id, message.radius) + encode(message.message)
    encode_body = _BODIES.get(type(message))
    if encode_body is None:
        raise ParameterError("message", f"must be a message of MQTT-SN, is {type(message).__name__}")
    body = encode_body(message)
    length = len(body) + 2
    if length <= 0xFF:
        return bytes((length, message.message_type)) + body
    if length + 2 > MAXIMUM_MESSAGE_BYTES:
        raise ParameterError(
            "message", f"would be {length + 2} bytes, at most {MAXIMUM_MESSAGE_BYTES} are possible"
        )
    return b"\x01" + (length + 2).to_bytes(2) + bytes((message.message_type,)) + body


def encapsulation_header(wireless_node_id: bytes, radius: int = 0) -> bytes:
    """What a forwarder puts in front of a datagram from or to a wireless node.

    >>> encapsulation_header(b"\\x12\\x34", radius=1).hex(" ")
    '05 fe 01 12 34'
    """
    if not 1 <= len(wireless_node_id) <= _LARGEST_NODE_ID:
        raise ParameterError(
            "wireless_node_id", f"must be 1 to {_LARGEST_NODE_ID} bytes long, is {len(wireless_node_id)}"
        )
    control = _number("radius", radius, 0b11)
    return bytes((len(wireless_node_id) + 3, MessageType.ENCAPSULATED, control)) + wireless_node_id


def _number(name: str, value: int, largest: int) -> int:
    if not isinstance(value, int) or not 0 <= value <= largest:
        raise ParameterError(name, f"must be a whole number from 0 to {largest}, is {value!r}")
    return value


def _one(name: str, value: int) -> bytes:
    return _number(name, value, 0xFF).to_bytes()


def _two(name: str, value: int) -> bytes:
    return _number(name, value, 0xFFFF).to_bytes(2)


def _code(value: ReturnCode) -> bytes:
    return _number("return_code", value, max(ReturnCode)).to_bytes()


def _qos(value: int) -> int:
    return _number("qos", value, 2) << 5


def _text(name: str, value: str, problem: RejectionReason | None) -> bytes:
    if problem is not None:
        raise ParameterError(name, f"{value!r}: {problem.replace('_', ' ')}")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise ParameterError(name, f"{value!r} has characters that UTF-8 cannot hold") from None


def _client_id(value: str) -> bytes:
    if not value:
        raise ParameterError("client_id", "must not be empty")
    return _text("client_id", value, RejectionReason.NUL_CHARACTER if "\0" in value else None)


def _topic_name(value: str) -> bytes:
    return _text("topic_name", value, topic_name_problem(value))


def _topic(topic_id_type: TopicIdType, topic: str | int) -> bytes:
    if topic_id_type == TopicIdType.PREDEFINED:
        if isinstance(topic, int):
            return _two("topic", topic)
        raise ParameterError("topic", f"must be a number when predefined, is {topic!r}")
    if not isinstance(topic, str):
        raise ParameterError("topic", f"must be text unless predefined, is {topic!r}")
    if topic_id_type == TopicIdType.SHORT:
        return short_topic_id(topic).to_bytes(2)
    if topic_id_type == TopicIdType.NORMAL:
        return _text("topic", topic, topic_filter_problem(topic))
    raise ParameterError("topic_id_type", f"must be a TopicIdType, is {topic_id_type!r}")


def _nothing(message: object) -> bytes:
    return b""


def _advertise(message: Advertise) -> bytes:
    return _one("gateway_id", message.gateway_id) + _two("duration_seconds", message.duration_seconds)


def _search_gateway(message: SearchGw) -> bytes:
    return _one("radius", message.radius)


def _gateway_information(message: GwInfo) -> bytes:
    return _one("gateway_id", message.gateway_id) + message.address


def _connect(message: Connect) -> bytes:
    flags = (bool(message.will) << 3) | (bool(message.clean_session) << 2)
    duration = _two("duration_seconds", message.duration_seconds)
    return bytes((flags, PROTOCOL_ID)) + duration + _client_id(message.client_id)


def _will_topic(message: WillTopic | WillTopicUpd) -> bytes:
    if message.topic_name is None:
        if message.qos or message.retain:
            raise ParameterError(
                "topic_name", "a message that deletes the will has no QoS and no retain flag"
            )
        return b""
    return bytes((_qos(message.qos) | (bool(message.retain) << 4),)) + _topic_name(message.topic_name)


def _will_message(message: WillMsg | WillMsgUpd) -> bytes:
    return message.payload


def _register(message: Register) -> bytes:
    ids = _two("topic_id", message.topic_id) + _two("message_id", message.message_id)
    return ids + _topic_name(message.topic_name)


def _topic_acknowledgement(message: RegAck | PubAck) -> bytes:
    ids = _two("topic_id", message.topic_id) + _two("message_id", message.message_id)
    return ids + _code(message.return_code)


def _message_id(message: PubRec | PubRel | PubComp | UnsubAck) -> bytes:
    return _two("message_id", message.message_id)


def _subscribe(message: Subscribe) -> bytes:
    topic = _topic(message.topic_id_type, message.topic)
    flags = (bool(message.dup) << 7) | _qos(message.qos) | message.topic_id_type
    return bytes((flags,)) + _two("message_id", message.message_id) + topic


def _subscribe_acknowledgement(message: SubAck) -> bytes:
    ids = _two("topic_id", message.topic_id) + _two("message_id", message.message_id)
    return bytes((_qos(message.qos),)) + ids + _code(message.return_code)


def _unsubscribe(message: Unsubscribe) -> bytes:
    topic = _topic(message.topic_id_type, message.topic)
    return bytes((message.topic_id_type,)) + _two("message_id", message.message_id) + topic


def _ping_request(message: PingReq) -> bytes:
    return b"" if message.client_id is None else _client_id(message.client_id)


def _disconnect(message: Disconnect) -> bytes:
    return b"" if message.duration_seconds is None else _two("duration_seconds", message.duration_seconds)


def _return_code(message: ConnAck | WillTopicResp | WillMsgResp) -> bytes:
    return _code(message.return_code)


_BODIES: Final[dict[type, Callable[[Any], bytes]]] = {
    Advertise: _advertise,
    SearchGw: _search_gateway,
    GwInfo: _gateway_information,
    Connect: _connect,
    ConnAck: _return_code,
    WillTopicReq: _nothing,
    WillTopic: _will_topic,
    WillMsgReq: _nothing,
    WillMsg: _will_message,
    Register: _register,
    RegAck: _topic_acknowledgement,
    PubAck: _topic_acknowledgement,
    PubRec: _message_id,
    PubRel: _message_id,
    PubComp: _message_id,
    Subscribe: _subscribe,
    SubAck: _subscribe_acknowledgement,
    Unsubscribe: _unsubscribe,
    UnsubAck: _message_id,
    PingReq: _ping_request,
    PingResp: _nothing,
    Disconnect: _disconnect,
    WillTopicUpd: _will_topic,
    WillTopicResp: _return_code,
    WillMsgUpd: _will_message,
    WillMsgResp: _return_code,
}
