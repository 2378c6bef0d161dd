"""What every datagram begins with: Length, in one or three octets, and message type (sections 5.2 and 5.5).

A small message may use the three-octet Length, too. That of an encapsulation has one octet and ends with the
wireless node id; the message carried has a Length of its own.
"""

from __future__ import annotations

from typing import Final

from triagemq.errors import DecodeError
from triagemq.mqttsn.codes import MessageType, RejectionReason

_ENCAPSULATED: Final = int(MessageType.ENCAPSULATED)
_MESSAGE_TYPES: Final = {int(message_type): message_type for message_type in MessageType}


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
