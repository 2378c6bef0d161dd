"""Messages to datagrams and back, by one table of what each message holds (sections 5.2 to 5.5).

What is forbidden is not sent. From a datagram comes its message, or a `DecodeError` with its reason, and nothing else:
what the specification calls reserved is refused; what it calls not used or not relevant (flags that a message has no
use for, the message id of a PUBLISH at QoS 0) is ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from operator import attrgetter
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Any, Final, get_args

from triagemq.errors import DecodeError, ParameterError
from triagemq.mqttsn import messages
from triagemq.mqttsn.messages import (
    MAXIMUM_MESSAGE_BYTES,
    PROTOCOL_ID,
    Encapsulated,
    Message,
    MessageType,
    PlainMessage,
    Publish,
    RejectionReason,
    ReturnCode,
    TopicIdType,
)
from triagemq.mqttsn.topics import (
    short_topic_id,
    short_topic_name,
    topic_filter_problem,
    topic_name_problem,
)

_ENCAPSULATED: Final = int(MessageType.ENCAPSULATED)
_LARGEST_NODE_ID: Final = 0xFF - 3
_RETURN_CODES: Final = tuple(ReturnCode)
_TOPIC_ID_TYPES: Final = tuple(TopicIdType)
_QOS: Final = (0, 1, 2, -1)
_FLAGS: Final = {
    "dup": 0x80, "qos": 0x60, "retain": 0x10, "will": 0x08, "clean_session": 0x04, "topic_id_type": 0x03,
}  # fmt: skip
_NUMBERS: Final = {
    "flags": "B", "protocol_id": "B", "gateway_id": "B", "radius": "B", "return_code": "B",
    "duration_seconds": "H", "topic_id": "H", "message_id": "H",
}  # fmt: skip
_LARGEST: Final = {name: 0xFFFF if code == "H" else 0xFF for name, code in _NUMBERS.items()} | {
    "return_code": len(_RETURN_CODES) - 1
}
_PUBLISH: Final = Struct(">BHH")
_PUBLISH_FIELDS: Final = attrgetter(*[each.name for each in fields(Publish)])
_MESSAGE_TYPES: Final = {int(message_type): message_type for message_type in MessageType}
_PUBLISH_TYPE: Final = int(MessageType.PUBLISH)
_SHORT_HEADER: Final = Struct(">BBBHH")
_LONG_HEADER: Final = Struct(">BHBBHH")
_SHORT_TOPIC: Final = int(TopicIdType.SHORT)
_LARGEST_SHORT_PAYLOAD: Final = 0xFF - _SHORT_HEADER.size
_LARGEST_PAYLOAD: Final = MAXIMUM_MESSAGE_BYTES - _LONG_HEADER.size


def _client_id_problem(client_id: str) -> RejectionReason | None:
    if not client_id:
        return RejectionReason.EMPTY_CLIENT_ID
    return RejectionReason.NUL_CHARACTER if "\0" in client_id else None


_PROBLEMS: Final[dict[str, Callable[[str], RejectionReason | None]]] = {
    "client_id": _client_id_problem,
    "topic_name": topic_name_problem,
}


class _Layout:
    """The body of one message: numbers in the order of the wire, a field of variable length, and the flags in use.

    It follows from the fields of the message's class, by their names: flags first, then numbers, then the last field,
    which is a `client_id`, `topic_name`, `topic`, or octets as they are. A message with `optional` may be empty: then
    this field is None. `plain` messages hold nothing but numbers.
    """

    __slots__ = ("flags", "last", "make", "numbers", "optional", "packed", "plain")

    def __init__(self, make: Any) -> None:
        names = [each.name for each in fields(make)]
        self.make = make
        self.flags = tuple(name for name in names if name in _FLAGS)
        self.numbers = tuple(name for name in names if name in _NUMBERS)
        if make is messages.Connect:
            self.numbers = ("protocol_id", *self.numbers)
        if self.flags:
            self.numbers = ("flags", *self.numbers)
        self.last = next((name for name in names if name not in _FLAGS and name not in _NUMBERS), "")
        self.optional = next((each.name for each in fields(make) if str(each.type).endswith("| None")), "")
        self.packed = Struct(">" + "".join(_NUMBERS[name] for name in self.numbers))
        self.plain = not self.flags and not self.last

    def encode(self, message: Any) -> bytes:
        if self.optional and getattr(message, self.optional) is None:
            if any(getattr(message, flag) for flag in self.flags):
                raise ParameterError(
                    self.optional, "a message that deletes the will has no QoS and no retain flag"
                )
            return b""
        last = self._encode_last(message)
        return self.packed.pack(*[self._number(name, message) for name in self.numbers]) + last

    def _number(self, name: str, message: Any) -> int:
        if name == "flags":
            return sum(_encode_flag(flag, getattr(message, flag)) for flag in self.flags)
        if name == "protocol_id":
            return PROTOCOL_ID
        return _checked_number(name, getattr(message, name), _LARGEST[name])

    def _encode_last(self, message: Any) -> bytes:
        if not self.last:
            return b""
        value = getattr(message, self.last)
        if self.last in _PROBLEMS:
            return _encode_text(self.last, value, _PROBLEMS[self.last](value))
        if self.last == "topic":
            return _encode_topic(message.topic_id_type, value)
        return bytes(value)

    def decode(self, datagram: bytes, start: int) -> PlainMessage:
        """`start` is where the body begins, right behind the octet of the message type."""
        if self.optional and len(datagram) == start:
            empty: PlainMessage = self.make(**{self.optional: None})
            return empty
        end = start + self.packed.size
        if len(datagram) < end:
            raise _refused(RejectionReason.TRUNCATED, datagram, start, len(datagram))
        if not self.last:
            _check_end(datagram, start, end)
        values = self.packed.unpack_from(datagram, start)
        if self.plain:
            if values and self.numbers[-1] == "return_code":
                values = (*values[:-1], _return_code(values[-1], datagram, start))
            acknowledgement: PlainMessage = self.make(*values)
            return acknowledgement
        fields: dict[str, Any] = {}
        for name, value in zip(self.numbers, values, strict=True):
            if name == "flags":
                for flag in self.flags:
                    fields[flag] = _decode_flag(flag, value, datagram, start)
            elif name == "return_code":
                fields[name] = _return_code(value, datagram, start)
            elif name != "protocol_id":
                fields[name] = value
            elif value != PROTOCOL_ID:
                raise _refused(RejectionReason.RESERVED_PROTOCOL_ID, datagram, start, start + 1)
        if self.last in _PROBLEMS:
            fields[self.last] = _text(datagram, start, end, _PROBLEMS[self.last])
        elif self.last == "topic":
            fields["topic"] = _topic(fields["topic_id_type"], datagram, start, end)
        elif self.last:
            fields[self.last] = datagram[end:]
        message: PlainMessage = self.make(**fields)
        return message


_LAYOUTS: Final = {make: _Layout(make) for make in get_args(PlainMessage) if make is not Publish}
_BY_TYPE: Final[dict[MessageType, _Layout]] = {make.message_type: layout for make, layout in _LAYOUTS.items()}


def encode(message: Message) -> bytes:
    """The datagram of a message, with the shorter of the two Length formats.

    Raises `ParameterError` for values that no datagram may carry.

    >>> encode(messages.Connect("sensor-7", duration_seconds=60, clean_session=True)).hex(" ")
    '0e 04 04 01 00 3c 73 65 6e 73 6f 72 2d 37'
    >>> encode(messages.WillTopic(None))
    b'\\x02\\x07'
    """
    if isinstance(message, Publish):
        return encode_publish(*_PUBLISH_FIELDS(message))
    if isinstance(message, Encapsulated):
        if isinstance(message.message, Encapsulated):
            raise ParameterError("message", "an encapsulation cannot hold another")
        return encapsulation_header(message.wireless_node_id, message.radius) + encode(message.message)
    layout = _LAYOUTS.get(type(message))
    if layout is None:
        raise ParameterError("message", f"must be a message of MQTT-SN, is {type(message).__name__}")
    body = layout.encode(message)
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
    control = _checked_number("radius", radius, 0b11)
    return bytes((len(wireless_node_id) + 3, MessageType.ENCAPSULATED, control)) + wireless_node_id


# PUBLISH without a message object: what a gateway sends a hundred thousand times a second.


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
    payload_bytes = len(payload)
    if not -1 <= qos <= 2:
        raise ParameterError("qos", f"must be -1, 0, 1 or 2, is {qos}")
    if not 0 <= topic_id_type <= _SHORT_TOPIC:
        raise ParameterError("topic_id_type", f"must be a TopicIdType, is {topic_id_type}")
    if payload_bytes > _LARGEST_PAYLOAD:
        raise ParameterError("payload", f"must be at most {_LARGEST_PAYLOAD} bytes, is {payload_bytes}")
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
            header = _SHORT_HEADER.pack(payload_bytes + 7, _PUBLISH_TYPE, flags, topic_id, message_id)
        else:
            header = _LONG_HEADER.pack(1, payload_bytes + 9, _PUBLISH_TYPE, flags, topic_id, message_id)
    except StructError:
        name, value = ("topic_id", topic_id) if not 0 <= topic_id <= 0xFFFF else ("message_id", message_id)
        raise ParameterError(name, f"must be from 0 to 65535, is {value}") from None
    return header + payload


def peek(datagram: bytes) -> tuple[MessageType, int]:
    """The type of a datagram's message, and how many octets stand before its fields.

    Length and type are checked, nothing else. For an encapsulation these octets take in the wireless node id,
    so that the message it carries follows them.

    >>> peek(bytes.fromhex("0b0c000007000066697265"))
    (<MessageType.PUBLISH: 12>, 2)
    """
    size = len(datagram)
    if size < 2:
        reason = RejectionReason.TRUNCATED_HEADER if size else RejectionReason.EMPTY_DATAGRAM
        raise DecodeError(reason, None, size)
    length = datagram[0]
    header_bytes = 2
    if length == 1:
        if size < 4:
            raise DecodeError(RejectionReason.TRUNCATED_HEADER, None, size)
        length = (datagram[1] << 8) | datagram[2]
        header_bytes = 4
    number = datagram[header_bytes - 1]
    if number == _ENCAPSULATED:
        if header_bytes != 2 or not 4 <= length <= size:
            raise DecodeError(RejectionReason.ENCAPSULATION_LENGTH, number, 0)
        return MessageType.ENCAPSULATED, length
    if length != size:
        raise DecodeError(RejectionReason.LENGTH_MISMATCH, number, 0)
    message_type = _MESSAGE_TYPES.get(number)
    if message_type is None:
        raise DecodeError(RejectionReason.RESERVED_MESSAGE_TYPE, number, header_bytes - 1)
    return message_type, header_bytes


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
    return _plain(message_type, datagram, header_bytes)


def _plain(message_type: MessageType, datagram: bytes, start: int) -> PlainMessage:
    # What a gateway receives most goes without the table.
    if message_type is MessageType.PUBLISH:
        return _publish(datagram, start)
    return _BY_TYPE[message_type].decode(datagram, start)


def _publish(datagram: bytes, start: int) -> Publish:
    if len(datagram) < start + _PUBLISH.size:
        raise _refused(RejectionReason.TRUNCATED, datagram, start, len(datagram))
    flags, topic_id, message_id = _PUBLISH.unpack_from(datagram, start)
    topic_id_type = _topic_id_type(flags, datagram, start)
    qos = _QOS[(flags >> 5) & 0b11]
    if qos < 0 and topic_id_type is TopicIdType.NORMAL:
        raise _refused(RejectionReason.NORMAL_TOPIC_ID_WITHOUT_CONNECTION, datagram, start, start)
    if topic_id_type is TopicIdType.SHORT:
        _text(datagram[: start + 3], start, start + 1, topic_name_problem)
    return Publish(
        topic_id_type,
        topic_id,
        datagram[start + 5 :],
        qos,
        flags & 0x10 != 0,
        flags & 0x80 != 0,
        message_id if qos > 0 else 0,
    )


def _encapsulated(datagram: bytes, header_bytes: int) -> Encapsulated:
    control = datagram[2]
    if control > 0b11:
        raise DecodeError(RejectionReason.RESERVED_CONTROL_BITS, _ENCAPSULATED, 2)
    inner = datagram[header_bytes:]
    if not inner:
        raise DecodeError(RejectionReason.TRUNCATED, _ENCAPSULATED, header_bytes)
    try:
        message_type, start = peek(inner)
        if message_type is MessageType.ENCAPSULATED:
            raise DecodeError(RejectionReason.NESTED_ENCAPSULATION, message_type, 1)
        message = _plain(message_type, inner, start)
    except DecodeError as error:
        raise DecodeError(error.reason, error.message_type, header_bytes + error.offset) from None
    return Encapsulated(datagram[3:header_bytes], message, control)


def _checked_number(name: str, value: int, largest: int) -> int:
    if not isinstance(value, int) or not 0 <= value <= largest:
        raise ParameterError(name, f"must be a whole number from 0 to {largest}, is {value!r}")
    return value


def _encode_flag(flag: str, value: Any) -> int:
    if flag == "qos":
        return _checked_number("qos", value, 2) << 5
    return int(value) if flag == "topic_id_type" else _FLAGS[flag] * bool(value)


def _encode_text(name: str, value: str, problem: RejectionReason | None) -> bytes:
    if problem is not None:
        raise ParameterError(name, f"{value!r}: {problem.replace('_', ' ')}")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise ParameterError(name, f"{value!r} has characters that UTF-8 cannot hold") from None


def _encode_topic(topic_id_type: TopicIdType, topic: str | int) -> bytes:
    if topic_id_type == TopicIdType.PREDEFINED:
        if isinstance(topic, int):
            return _checked_number("topic", topic, 0xFFFF).to_bytes(2)
        raise ParameterError("topic", f"must be a number when predefined, is {topic!r}")
    if not isinstance(topic, str):
        raise ParameterError("topic", f"must be text unless predefined, is {topic!r}")
    if topic_id_type == TopicIdType.SHORT:
        return short_topic_id(topic).to_bytes(2)
    if topic_id_type == TopicIdType.NORMAL:
        return _encode_text("topic", topic, topic_filter_problem(topic))
    raise ParameterError("topic_id_type", f"must be a TopicIdType, is {topic_id_type!r}")


def _refused(reason: RejectionReason, datagram: bytes, start: int, offset: int) -> DecodeError:
    return DecodeError(reason, datagram[start - 1], offset)


def _check_end(datagram: bytes, start: int, end: int) -> None:
    if len(datagram) != end:
        reason = RejectionReason.TRAILING_OCTETS if len(datagram) > end else RejectionReason.TRUNCATED
        raise _refused(reason, datagram, start, min(end, len(datagram)))


def _return_code(number: int, datagram: bytes, start: int) -> ReturnCode:
    if number >= len(_RETURN_CODES):
        raise _refused(RejectionReason.RESERVED_RETURN_CODE, datagram, start, len(datagram) - 1)
    return _RETURN_CODES[number]


def _decode_flag(flag: str, flags: int, datagram: bytes, start: int) -> Any:
    if flag == "topic_id_type":
        return _topic_id_type(flags, datagram, start)
    if flag != "qos":
        return bool(flags & _FLAGS[flag])
    qos = _QOS[(flags >> 5) & 0b11]
    if qos < 0:
        raise _refused(RejectionReason.INVALID_QOS, datagram, start, start)
    return qos


def _topic_id_type(flags: int, datagram: bytes, start: int) -> TopicIdType:
    number = flags & 0b11
    if number >= len(_TOPIC_ID_TYPES):
        raise _refused(RejectionReason.RESERVED_TOPIC_ID_TYPE, datagram, start, start)
    return _TOPIC_ID_TYPES[number]


def _text(
    datagram: bytes, start: int, begin: int, problem_of: Callable[[str], RejectionReason | None]
) -> str:
    try:
        text = datagram[begin:].decode()
    except UnicodeDecodeError as error:
        raise _refused(RejectionReason.NOT_UTF8, datagram, start, begin + error.start) from None
    if problem := problem_of(text):
        raise _refused(problem, datagram, start, begin)
    return text


def _topic(topic_id_type: TopicIdType, datagram: bytes, start: int, begin: int) -> str | int:
    if topic_id_type is TopicIdType.NORMAL:
        return _text(datagram, start, begin, topic_filter_problem)
    _check_end(datagram, start, begin + 2)
    if topic_id_type is TopicIdType.SHORT:
        return _text(datagram, start, begin, topic_name_problem)
    return (datagram[begin] << 8) | datagram[begin + 1]
