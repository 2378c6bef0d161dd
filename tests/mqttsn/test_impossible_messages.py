"""What may not be sent is not encoded: the error names the field."""

from __future__ import annotations

import pytest

from triagemq.errors import ParameterError
from triagemq.mqttsn import (
    Advertise,
    ConnAck,
    Connect,
    Disconnect,
    Encapsulated,
    PingReq,
    PubRec,
    Register,
    ReturnCode,
    SearchGw,
    SubAck,
    Subscribe,
    TopicIdType,
    Unsubscribe,
    WillMsg,
    WillTopic,
    WillTopicUpd,
    encode,
)

NORMAL, PREDEFINED, SHORT = TopicIdType


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("gateway_id", Advertise(256, 0)),
        ("duration_seconds", Advertise(1, 65536)),
        ("duration_seconds", Disconnect(-1)),
        ("duration_seconds", Connect("dev", 1.5)),
        ("radius", SearchGw(-1)),
        ("client_id", Connect("", 60)),
        ("client_id", Connect("a\0", 60)),
        ("client_id", Connect("\ud800", 60)),
        ("client_id", PingReq("")),
        ("return_code", ConnAck(4)),
        ("topic_name", WillTopic("")),
        ("topic_name", WillTopic("a/#")),
        ("topic_name", WillTopicUpd(None, qos=1)),
        ("topic_name", Register(1, 1, "+")),
        ("topic_name", Register(1, 1, "a\0")),
        ("topic_name", Register(1, 1, "\udfff")),
        ("topic_id", Register(65536, 1, "a")),
        ("message_id", PubRec(65536)),
        ("qos", WillTopic("a", qos=-1)),
        ("qos", Subscribe(NORMAL, "a", 1, qos=3)),
        ("qos", SubAck(1, 1, ReturnCode.ACCEPTED, qos=-1)),
        ("topic", Subscribe(NORMAL, "a#", 1)),
        ("topic", Subscribe(NORMAL, 7, 1)),
        ("topic", Subscribe(PREDEFINED, "a", 1)),
        ("topic", Unsubscribe(PREDEFINED, 65536, 1)),
        ("name", Subscribe(SHORT, "abc", 1)),
        ("name", Subscribe(SHORT, "a+", 1)),
        ("topic_id_type", Subscribe(3, "a", 1)),
        ("message", WillMsg(bytes(65532))),
        ("wireless_node_id", Encapsulated(b"", PingReq())),
        ("wireless_node_id", Encapsulated(bytes(253), PingReq())),
        ("radius", Encapsulated(b"1", PingReq(), radius=4)),
        ("message", Encapsulated(b"1", Encapsulated(b"2", PingReq()))),
        ("message", "PINGREQ"),
    ],
)
def test_an_impossible_field_is_named(field, message):
    with pytest.raises(ParameterError) as refusal:
        encode(message)
    assert refusal.value.parameter == field


def test_the_largest_messages_are_possible():
    assert len(encode(WillMsg(bytes(65531)))) == 65535
    assert len(encode(Encapsulated(bytes(252), WillMsg(bytes(65531))))) == 65535 + 255
