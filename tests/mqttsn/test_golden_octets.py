"""Octets worked out by hand from the field tables of the MQTT-SN 1.2 specification, sections 5.4 and 5.5."""

from __future__ import annotations

import pytest

from triagemq.mqttsn import (
    Advertise,
    ConnAck,
    Connect,
    Disconnect,
    Encapsulated,
    GwInfo,
    MessageType,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    RegAck,
    Register,
    ReturnCode,
    SearchGw,
    SubAck,
    Subscribe,
    TopicIdType,
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
    decode,
    encode,
    short_topic_id,
)

NORMAL, PREDEFINED, SHORT = TopicIdType

GOLDEN = [
    # 5.4.1: Length, MsgType, GwId, Duration
    (Advertise(gateway_id=5, duration_seconds=900), "05 00 05 0384"),
    # 5.4.2: Length, MsgType, Radius
    (SearchGw(radius=2), "03 01 02"),
    # 5.4.3: Length, MsgType, GwId, GwAdd (only from a client)
    (GwInfo(5), "03 02 05"),
    (GwInfo(5, bytes([10, 0, 0, 1])), "07 02 05 0a000001"),
    # 5.4.4: Length, MsgType, Flags (Will 0x08, CleanSession 0x04), ProtocolId, Duration, ClientId
    (Connect("dev", 60), "09 04 00 01 003c 646576"),
    (Connect("dev", 60, clean_session=True), "09 04 04 01 003c 646576"),
    (Connect("dev", 60, will=True), "09 04 08 01 003c 646576"),
    # 5.4.5: Length, MsgType, ReturnCode
    (ConnAck(ReturnCode.ACCEPTED), "03 05 00"),
    (ConnAck(ReturnCode.REJECTED_CONGESTION), "03 05 01"),
    (ConnAck(ReturnCode.REJECTED_NOT_SUPPORTED), "03 05 03"),
    # 5.4.6 to 5.4.9: the will; Flags (QoS, Retain), WillTopic; without both it deletes the will
    (WillTopicReq(), "02 06"),
    (WillTopic("a/b", qos=2, retain=True), "06 07 50 612f62"),
    (WillTopic(None), "02 07"),
    (WillMsgReq(), "02 08"),
    (WillMsg(b"gone"), "06 09 676f6e65"),
    # 5.4.10: Length, MsgType, TopicId, MsgId, TopicName
    (Register(0, 0x0102, "a/b"), "09 0a 0000 0102 612f62"),
    # 5.4.11: Length, MsgType, TopicId, MsgId, ReturnCode
    (RegAck(0x0A0B, 0x0102, ReturnCode.REJECTED_INVALID_TOPIC_ID), "07 0b 0a0b 0102 02"),
    # 5.4.12: Length, MsgType, Flags (DUP 0x80, QoS 0x60, Retain 0x10, TopicIdType 0x03), TopicId, MsgId, Data
    (Publish(NORMAL, 0x0A0B, b"hi"), "09 0c 00 0a0b 0000 6869"),
    (Publish(NORMAL, 0x0A0B, b"hi", qos=1, message_id=3), "09 0c 20 0a0b 0003 6869"),
    (Publish(NORMAL, 0x0A0B, b"hi", qos=2, retain=True, dup=True, message_id=3), "09 0c d0 0a0b 0003 6869"),
    (Publish(PREDEFINED, 0x0A0B, b"hi", qos=-1), "09 0c 61 0a0b 0000 6869"),
    (Publish(SHORT, short_topic_id("ab"), b""), "07 0c 02 6162 0000"),
    (Publish(NORMAL, 1, b"x" * 249), "01 0102 0c 00 0001 0000" + "78" * 249),
    # 5.4.13 and 5.4.14
    (PubAck(0x0A0B, 3, ReturnCode.ACCEPTED), "07 0d 0a0b 0003 00"),
    (PubComp(3), "04 0e 0003"),
    (PubRec(3), "04 0f 0003"),
    (PubRel(3), "04 10 0003"),
    # 5.4.15: Length, MsgType, Flags (DUP, QoS, TopicIdType), MsgId, TopicName or TopicId
    (Subscribe(NORMAL, "a/#", 4, qos=1), "08 12 20 0004 612f23"),
    (Subscribe(PREDEFINED, 0x0A0B, 4, dup=True), "07 12 81 0004 0a0b"),
    (Subscribe(SHORT, "ab", 4, qos=2), "07 12 42 0004 6162"),
    # 5.4.16: Length, MsgType, Flags (QoS), TopicId, MsgId, ReturnCode
    (SubAck(0x0A0B, 4, ReturnCode.ACCEPTED, qos=1), "08 13 20 0a0b 0004 00"),
    # 5.4.17 and 5.4.18: Flags (TopicIdType) only
    (Unsubscribe(NORMAL, "+", 5), "06 14 00 0005 2b"),
    (Unsubscribe(PREDEFINED, 0x0A0B, 5), "07 14 01 0005 0a0b"),
    (Unsubscribe(SHORT, "ab", 5), "07 14 02 0005 6162"),
    (UnsubAck(5), "04 15 0005"),
    # 5.4.19 to 5.4.21: ClientId and Duration are optional
    (PingReq(), "02 16"),
    (PingReq("dev"), "05 16 646576"),
    (PingResp(), "02 17"),
    (Disconnect(), "02 18"),
    (Disconnect(300), "04 18 012c"),
    (Disconnect(0), "04 18 0000"),
    # 5.4.22 to 5.4.25: updates of the will
    (WillTopicUpd("a/b", qos=1), "06 1a 20 612f62"),
    (WillTopicUpd(None), "02 1a"),
    (WillTopicResp(ReturnCode.ACCEPTED), "03 1b 00"),
    (WillMsgUpd(b"gone"), "06 1c 676f6e65"),
    (WillMsgResp(ReturnCode.REJECTED_NOT_SUPPORTED), "03 1d 03"),
    # 5.5: Length up to and with the Wireless Node Id, MsgType, Ctrl (radius), Wireless Node Id, message
    (Encapsulated(bytes([0x12, 0x34]), PingReq(), radius=1), "05 fe 01 1234 02 16"),
]


def test_every_message_type_is_here():
    assert {message.message_type for message, _ in GOLDEN} == set(MessageType)


@pytest.mark.parametrize(
    ("message", "octets"), GOLDEN, ids=lambda value: None if isinstance(value, str) else type(value).__name__
)
def test_octets_are_those_of_the_specification(message, octets):
    datagram = bytes.fromhex(octets)
    assert encode(message) == datagram
    assert decode(datagram) == message


@pytest.mark.parametrize(
    ("octets", "message"),
    [
        ("09 04 f3 01 003c 646576", Connect("dev", 60)),
        ("06 07 8f 612f62", WillTopic("a/b")),
        ("09 0c 0c 0a0b 0000 6869", Publish(NORMAL, 0x0A0B, b"hi")),
        ("09 0c 00 0a0b 0003 6869", Publish(NORMAL, 0x0A0B, b"hi")),
        ("08 12 3c 0004 612f23", Subscribe(NORMAL, "a/#", 4, qos=1)),
        ("08 13 bf 0a0b 0004 00", SubAck(0x0A0B, 4, ReturnCode.ACCEPTED, qos=1)),
        ("06 14 fc 0005 2b", Unsubscribe(NORMAL, "+", 5)),
    ],
)
def test_what_a_message_does_not_use_is_ignored(octets, message):
    assert decode(bytes.fromhex(octets)) == message
