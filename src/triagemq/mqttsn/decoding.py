"""From the octets of a datagram to its message, or to a `DecodeError` with its reason, and nothing else.

What the specification calls reserved is refused. What it calls not used or not relevant (flags that a message
has no use for, the message id of a PUBLISH at QoS 0) is ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, Final

from triagemq.errors import DecodeError
from triagemq.mqttsn.codes import PROTOCOL_ID, MessageType, RejectionReason, ReturnCode, TopicIdType
from triagemq.mqttsn.header import peek
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
    PlainMessage,
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
from triagemq.mqttsn.topics import topic_filter_problem, topic_name_problem

_ONE: Final = Struct(">B")
_TWO: Final = Struct(">H")
_ADVERTISE: Final = Struct(">BH")
_CONNECT: Final = Struct(">BBH")
_REGISTER: Final = Struct(">HH")
_ACKNOWLEDGEMENT: Final = Struct(">HHB")
_PUBLISH: Final = Struct(">BHH")
_SUBSCRIBE: Final = Struct(">BH")
_SUBSCRIBE_ACKNOWLEDGEMENT: Final = Struct(">BHHB")

_ENCAPSULATED: Final = int(MessageType.ENCAPSULATED)
_RETURN_CODES: Final = tuple(ReturnCode)
_TOPIC_ID_TYPES: Final = tuple(TopicIdType)
_QOS: Final = (0, 1, 2, -1)


def decode(datagram: bytes) -> Message:
    """The message that a whole datagram holds.

    >>> decode(bytes.fromhex("0b0c000007000066697265"))
    Publish(topic_id_type=<TopicIdType.NORMAL: 0>, topic_id=7, payload=b'fire', qos=0, ...)
    >>> decode(b"\\x03\\x05\\x09")
    Traceback (most recent call last):
    triagemq.errors.DecodeError: not MQTT-SN 1.2: reserved return code at octet 2 of a message of type 0x05
    """
    message_type, header_bytes = peek(datagram)
    if message_type is MessageType.ENCAPSULATED:
        return _encapsulated(datagram, header_bytes)
    return _BODIES[message_type](datagram, header_bytes)


def _refused(reason: RejectionReason, datagram: bytes, start: int, offset: int) -> DecodeError:
    """`start` is where the fields begin, right behind the octet of the message type."""
    return DecodeError(reason, datagram[start - 1], offset)


def _first(fields: Struct, datagram: bytes, start: int) -> tuple[Any, ...]:
    if len(datagram) < start + fields.size:
        raise _refused(RejectionReason.TRUNCATED, datagram, start, len(datagram))
    return fields.unpack_from(datagram, start)


def _all(fields: Struct, datagram: bytes, start: int) -> tuple[Any, ...]:
    values = _first(fields, datagram, start)
    _end(datagram, start, start + fields.size)
    return values


def _end(datagram: bytes, start: int, end: int) -> None:
    if len(datagram) != end:
        reason = RejectionReason.TRAILING_OCTETS if len(datagram) > end else RejectionReason.TRUNCATED
        raise _refused(reason, datagram, start, min(end, len(datagram)))


def _code(number: int, datagram: bytes, start: int) -> ReturnCode:
    if number >= len(_RETURN_CODES):
        raise _refused(RejectionReason.RESERVED_RETURN_CODE, datagram, start, len(datagram) - 1)
    return _RETURN_CODES[number]


def _qos(flags: int, datagram: bytes, start: int) -> int:
    qos = _QOS[(flags >> 5) & 0b11]
    if qos < 0:
        raise _refused(RejectionReason.INVALID_QOS, datagram, start, start)
    return qos


def _topic_id_type(flags: int, datagram: bytes, start: int) -> TopicIdType:
    number = flags & 0b11
    if number >= len(_TOPIC_ID_TYPES):
        raise _refused(RejectionReason.RESERVED_TOPIC_ID_TYPE, datagram, start, start)
    return _TOPIC_ID_TYPES[number]


def _text(datagram: bytes, start: int, begin: int) -> str:
    try:
        return datagram[begin:].decode()
    except UnicodeDecodeError as error:
        offset = begin + error.start
        raise _refused(RejectionReason.NOT_UTF8, datagram, start, offset) from None


def _client_id(datagram: bytes, start: int, begin: int) -> str:
    client_id = _text(datagram, start, begin)
    if not client_id:
        raise _refused(RejectionReason.EMPTY_CLIENT_ID, datagram, start, begin)
    if "\0" in client_id:
        raise _refused(RejectionReason.NUL_CHARACTER, datagram, start, datagram.index(0, begin))
    return client_id


def _topic_name(datagram: bytes, start: int, begin: int) -> str:
    name = _text(datagram, start, begin)
    if problem := topic_name_problem(name):
        raise _refused(problem, datagram, start, begin)
    return name


def _topic(topic_id_type: TopicIdType, datagram: bytes, start: int, begin: int) -> str | int:
    if topic_id_type is TopicIdType.NORMAL:
        topic_filter = _text(datagram, start, begin)
        if problem := topic_filter_problem(topic_filter):
            raise _refused(problem, datagram, start, begin)
        return topic_filter
    _end(datagram, start, begin + 2)
    if topic_id_type is TopicIdType.SHORT:
        return _topic_name(datagram, start, begin)
    return (datagram[begin] << 8) | datagram[begin + 1]


def _advertise(datagram: bytes, start: int) -> Advertise:
    return Advertise(*_all(_ADVERTISE, datagram, start))


def _search_gateway(datagram: bytes, start: int) -> SearchGw:
    return SearchGw(*_all(_ONE, datagram, start))


def _gateway_information(datagram: bytes, start: int) -> GwInfo:
    (gateway_id,) = _first(_ONE, datagram, start)
    return GwInfo(gateway_id, datagram[start + 1 :])


def _connect(datagram: bytes, start: int) -> Connect:
    flags, protocol_id, duration_seconds = _first(_CONNECT, datagram, start)
    if protocol_id != PROTOCOL_ID:
        raise _refused(RejectionReason.RESERVED_PROTOCOL_ID, datagram, start, start + 1)
    client_id = _client_id(datagram, start, start + 4)
    return Connect(client_id, duration_seconds, clean_session=bool(flags & 0x04), will=bool(flags & 0x08))


def _register(datagram: bytes, start: int) -> Register:
    topic_id, message_id = _first(_REGISTER, datagram, start)
    return Register(topic_id, message_id, _topic_name(datagram, start, start + 4))


def _publish(datagram: bytes, start: int) -> Publish:
    flags, topic_id, message_id = _first(_PUBLISH, datagram, start)
    topic_id_type = _topic_id_type(flags, datagram, start)
    qos = _QOS[(flags >> 5) & 0b11]
    if qos < 0 and topic_id_type is TopicIdType.NORMAL:
        raise _refused(RejectionReason.NORMAL_TOPIC_ID_WITHOUT_CONNECTION, datagram, start, start)
    if topic_id_type is TopicIdType.SHORT:
        _topic_name(datagram[: start + 3], start, start + 1)
    return Publish(
        topic_id_type,
        topic_id,
        datagram[start + 5 :],
        qos,
        flags & 0x10 != 0,
        flags & 0x80 != 0,
        message_id if qos > 0 else 0,
    )


def _subscribe(datagram: bytes, start: int) -> Subscribe:
    flags, message_id = _first(_SUBSCRIBE, datagram, start)
    topic_id_type = _topic_id_type(flags, datagram, start)
    qos = _qos(flags, datagram, start)
    topic = _topic(topic_id_type, datagram, start, start + 3)
    return Subscribe(topic_id_type, topic, message_id, qos, dup=bool(flags & 0x80))


def _subscribe_acknowledgement(datagram: bytes, start: int) -> SubAck:
    flags, topic_id, message_id, code = _all(_SUBSCRIBE_ACKNOWLEDGEMENT, datagram, start)
    qos = _qos(flags, datagram, start)
    return SubAck(topic_id, message_id, _code(code, datagram, start), qos)


def _unsubscribe(datagram: bytes, start: int) -> Unsubscribe:
    flags, message_id = _first(_SUBSCRIBE, datagram, start)
    topic_id_type = _topic_id_type(flags, datagram, start)
    return Unsubscribe(topic_id_type, _topic(topic_id_type, datagram, start, start + 3), message_id)


def _ping_request(datagram: bytes, start: int) -> PingReq:
    return PingReq(None if len(datagram) == start else _client_id(datagram, start, start))


def _disconnect(datagram: bytes, start: int) -> Disconnect:
    return Disconnect(None) if len(datagram) == start else Disconnect(*_all(_TWO, datagram, start))


def _encapsulated(datagram: bytes, header_bytes: int) -> Encapsulated:
    control = datagram[2]
    if control > 0b11:
        raise DecodeError(RejectionReason.RESERVED_CONTROL_BITS, _ENCAPSULATED, 2)
    carried = datagram[header_bytes:]
    if not carried:
        raise DecodeError(RejectionReason.TRUNCATED, _ENCAPSULATED, header_bytes)
    try:
        message_type, start = peek(carried)
        if message_type is MessageType.ENCAPSULATED:
            raise DecodeError(RejectionReason.NESTED_ENCAPSULATION, message_type, 1)
        message = _BODIES[message_type](carried, start)
    except DecodeError as error:
        raise DecodeError(error.reason, error.message_type, header_bytes + error.offset) from None
    return Encapsulated(datagram[3:header_bytes], message, control)


def _empty(
    make: Callable[[], WillTopicReq | WillMsgReq | PingResp],
) -> Callable[[bytes, int], PlainMessage]:
    def body(datagram: bytes, start: int) -> PlainMessage:
        _end(datagram, start, start)
        return make()

    return body


def _with_message_id(
    make: Callable[[int], PubRec | PubRel | PubComp | UnsubAck],
) -> Callable[[bytes, int], PlainMessage]:
    return lambda datagram, start: make(*_all(_TWO, datagram, start))


def _with_payload(make: Callable[[bytes], WillMsg | WillMsgUpd]) -> Callable[[bytes, int], PlainMessage]:
    return lambda datagram, start: make(datagram[start:])


def _with_return_code(
    make: Callable[[ReturnCode], ConnAck | WillTopicResp | WillMsgResp],
) -> Callable[[bytes, int], PlainMessage]:
    def body(datagram: bytes, start: int) -> PlainMessage:
        (code,) = _all(_ONE, datagram, start)
        return make(_code(code, datagram, start))

    return body


def _with_topic_id(
    make: Callable[[int, int, ReturnCode], RegAck | PubAck],
) -> Callable[[bytes, int], PlainMessage]:
    def body(datagram: bytes, start: int) -> PlainMessage:
        topic_id, message_id, code = _all(_ACKNOWLEDGEMENT, datagram, start)
        return make(topic_id, message_id, _code(code, datagram, start))

    return body


def _with_will_topic(
    make: Callable[[str | None, int, bool], WillTopic | WillTopicUpd],
) -> Callable[[bytes, int], PlainMessage]:
    def body(datagram: bytes, start: int) -> PlainMessage:
        if len(datagram) == start:
            return make(None, 0, False)
        qos = _qos(datagram[start], datagram, start)
        return make(_topic_name(datagram, start, start + 1), qos, bool(datagram[start] & 0x10))

    return body


_BODIES: Final[dict[MessageType, Callable[[bytes, int], PlainMessage]]] = {
    MessageType.ADVERTISE: _advertise,
    MessageType.SEARCHGW: _search_gateway,
    MessageType.GWINFO: _gateway_information,
    MessageType.CONNECT: _connect,
    MessageType.CONNACK: _with_return_code(ConnAck),
    MessageType.WILLTOPICREQ: _empty(WillTopicReq),
    MessageType.WILLTOPIC: _with_will_topic(WillTopic),
    MessageType.WILLMSGREQ: _empty(WillMsgReq),
    MessageType.WILLMSG: _with_payload(WillMsg),
    MessageType.REGISTER: _register,
    MessageType.REGACK: _with_topic_id(RegAck),
    MessageType.PUBLISH: _publish,
    MessageType.PUBACK: _with_topic_id(PubAck),
    MessageType.PUBCOMP: _with_message_id(PubComp),
    MessageType.PUBREC: _with_message_id(PubRec),
    MessageType.PUBREL: _with_message_id(PubRel),
    MessageType.SUBSCRIBE: _subscribe,
    MessageType.SUBACK: _subscribe_acknowledgement,
    MessageType.UNSUBSCRIBE: _unsubscribe,
    MessageType.UNSUBACK: _with_message_id(UnsubAck),
    MessageType.PINGREQ: _ping_request,
    MessageType.PINGRESP: _empty(PingResp),
    MessageType.DISCONNECT: _disconnect,
    MessageType.WILLTOPICUPD: _with_will_topic(WillTopicUpd),
    MessageType.WILLTOPICRESP: _with_return_code(WillTopicResp),
    MessageType.WILLMSGUPD: _with_payload(WillMsgUpd),
    MessageType.WILLMSGRESP: _with_return_code(WillMsgResp),
}
