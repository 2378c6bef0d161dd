"""Requests with a topic that is none, or that brokers end a connection over: answered with a return code.

They never reach the broker, whose connection all clients share. A client that got no answer would send them again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from triagemq.exchange.gateway.model import Endpoint
from triagemq.mqttsn import (
    ConnAck,
    DecodeError,
    MessageType,
    PlainMessage,
    PubAck,
    RegAck,
    RejectionReason,
    ReturnCode,
    SubAck,
    UnsubAck,
    WillTopicResp,
    peek,
)

if TYPE_CHECKING:
    from triagemq.exchange.gateway.core import GatewayCore

__all__ = ["answer"]

_ABOUT_TOPICS = {
    RejectionReason.NOT_UTF8,
    RejectionReason.NUL_CHARACTER,
    RejectionReason.CONTROL_CHARACTER,
    RejectionReason.NON_CHARACTER,
    RejectionReason.TOO_MANY_LEVELS,
    RejectionReason.EMPTY_TOPIC,
    RejectionReason.WILDCARD_IN_TOPIC_NAME,
    RejectionReason.INVALID_TOPIC_FILTER,
}
_NO = ReturnCode.REJECTED_NOT_SUPPORTED


def answer(gateway: GatewayCore, address: tuple[str, int], datagram: bytes, error: DecodeError) -> None:
    """Tell the client, if it is one and its message has an answer at all."""
    if error.reason not in _ABOUT_TOPICS:
        return
    endpoint: Endpoint = address
    message_type, start = peek(datagram)
    if message_type is MessageType.ENCAPSULATED:
        endpoint = (*address, datagram[3:start])
        datagram = datagram[start:]
        message_type, start = peek(datagram)
    if message_type is MessageType.WILLTOPIC:
        if gateway.handshakes.end(endpoint) is not None:
            gateway.send(endpoint, ConnAck(_NO))
        return
    session = gateway.by_endpoint.get(endpoint)
    reply = _reply(message_type, datagram[start:])
    if session is not None and session.connected and reply is not None:
        gateway.send(endpoint, reply)


def _reply(message_type: MessageType, fields: bytes) -> PlainMessage | None:
    match message_type:
        case MessageType.REGISTER:
            return RegAck(0, int.from_bytes(fields[2:4]), _NO)
        case MessageType.SUBSCRIBE:
            return SubAck(0, int.from_bytes(fields[1:3]), _NO)
        case MessageType.UNSUBSCRIBE:
            # It has no return code: what cannot be subscribed to is not subscribed to.
            return UnsubAck(int.from_bytes(fields[1:3]))
        case MessageType.PUBLISH if fields[0] & 0x60 != 0x60:
            return PubAck(int.from_bytes(fields[1:3]), int.from_bytes(fields[3:5]), _NO)
        case MessageType.WILLTOPICUPD:
            return WillTopicResp(_NO)
        case _:
            return None
