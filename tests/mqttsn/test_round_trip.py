"""What is encoded is decoded to the same message, whatever its type, topic and size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.mqttsn.strategies import MESSAGES, messages

from triagemq import mqttsn
from triagemq.mqttsn import MessageType, TopicIdType, decode, encode, peek


def test_every_message_type_has_a_message():
    assert {message.message_type for message in MESSAGES} == set(MessageType)


@pytest.mark.parametrize("message_class", MESSAGES, ids=lambda message: message.__name__)
@given(data=st.data())
def test_every_message_survives_the_wire(message_class, data):
    message = data.draw(MESSAGES[message_class])
    datagram = encode(message)
    decoded = decode(datagram)
    assert type(decoded) is message_class
    assert decoded == message
    assert peek(datagram)[0] is message.message_type


@given(messages)
def test_a_message_is_as_long_as_it_says(message):
    if isinstance(message, mqttsn.Encapsulated):
        datagram = encode(message)
        assert datagram[0] == len(message.wireless_node_id) + 3
        assert datagram[datagram[0] :] == encode(message.message)
        return
    datagram = encode(message)
    if datagram[0] == 1:
        assert len(datagram) >= 256
        assert int.from_bytes(datagram[1:3]) == len(datagram)
    else:
        assert datagram[0] == len(datagram) <= 255


@given(messages.filter(lambda message: not isinstance(message, mqttsn.Encapsulated)))
def test_a_small_message_may_use_the_three_octet_length(message):
    datagram = encode(message)
    if datagram[0] != 1:
        datagram = b"\x01" + (len(datagram) + 2).to_bytes(2) + datagram[1:]
    assert decode(datagram) == message


@pytest.mark.parametrize(
    ("message", "datagram_bytes"),
    [
        (mqttsn.Publish(TopicIdType.NORMAL, 1, b""), 7),
        (mqttsn.Publish(TopicIdType.NORMAL, 1, bytes(248)), 255),
        (mqttsn.Publish(TopicIdType.NORMAL, 1, bytes(249)), 258),
        (mqttsn.Publish(TopicIdType.NORMAL, 1, bytes(65526)), 65535),
        (mqttsn.WillMsg(bytes(253)), 255),
        (mqttsn.WillMsg(bytes(254)), 258),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, int) else None,
)
def test_the_length_changes_its_format_at_256_octets(message, datagram_bytes):
    datagram = encode(message)
    assert len(datagram) == datagram_bytes
    assert decode(datagram) == message


def test_messages_are_values():
    message = mqttsn.Connect("sensor-7", 60)
    assert hash(message) == hash(mqttsn.Connect("sensor-7", 60))
    assert not hasattr(message, "__dict__")
    with pytest.raises(AttributeError):
        message.client_id = "other"
