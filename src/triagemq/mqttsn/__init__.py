"""MQTT-SN 1.2 on the wire: pure functions between messages and octets; no sockets, no state.

    encode(message) -> bytes        every message of the specification, as dataclasses
    decode(datagram) -> Message     or DecodeError, which says why; no other exception for any octets
    peek(datagram)                  message type and header length, without decoding the rest
    encode_publish, publish_header  what a gateway sends most, without message objects;
    encapsulation_header            the same for what goes in front of it to a forwarder
    topics, filters                 which topic names and filters are valid; what a filter takes in

>>> decode(encode(Register(topic_id=0, message_id=1, topic_name="floor3/smoke")))
Register(topic_id=0, message_id=1, topic_name='floor3/smoke')
"""

from triagemq.errors import DecodeError
from triagemq.mqttsn.codec import (
    decode,
    encapsulation_header,
    encode,
    encode_publish,
    peek,
    publish_header,
)
from triagemq.mqttsn.codes import (
    MAXIMUM_MESSAGE_BYTES,
    PROTOCOL_ID,
    RESERVED_TOPIC_IDS,
    MessageType,
    RejectionReason,
    ReturnCode,
    TopicIdType,
)
from triagemq.mqttsn.filters import matches
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
from triagemq.mqttsn.topics import (
    MAXIMUM_TOPIC_LEVELS,
    is_brokers_own,
    is_shared,
    publishable_topic_name,
    short_topic_id,
    short_topic_name,
    valid_topic_filter,
    valid_topic_name,
)

__all__ = [
    "MAXIMUM_MESSAGE_BYTES",
    "MAXIMUM_TOPIC_LEVELS",
    "PROTOCOL_ID",
    "RESERVED_TOPIC_IDS",
    "Advertise",
    "ConnAck",
    "Connect",
    "DecodeError",
    "Disconnect",
    "Encapsulated",
    "GwInfo",
    "Message",
    "MessageType",
    "PingReq",
    "PingResp",
    "PlainMessage",
    "PubAck",
    "PubComp",
    "PubRec",
    "PubRel",
    "Publish",
    "RegAck",
    "Register",
    "RejectionReason",
    "ReturnCode",
    "SearchGw",
    "SubAck",
    "Subscribe",
    "TopicIdType",
    "UnsubAck",
    "Unsubscribe",
    "WillMsg",
    "WillMsgReq",
    "WillMsgResp",
    "WillMsgUpd",
    "WillTopic",
    "WillTopicReq",
    "WillTopicResp",
    "WillTopicUpd",
    "decode",
    "encapsulation_header",
    "encode",
    "encode_publish",
    "is_brokers_own",
    "is_shared",
    "matches",
    "peek",
    "publish_header",
    "publishable_topic_name",
    "short_topic_id",
    "short_topic_name",
    "valid_topic_filter",
    "valid_topic_name",
]
