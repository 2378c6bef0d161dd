"""The fast ways to PUBLISH and to encapsulate make the same octets as `encode`, and refuse the same values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.mqttsn.strategies import MESSAGES, plain_messages

from triagemq import mqttsn
from triagemq.errors import ParameterError
from triagemq.mqttsn import (
    MessageType,
    TopicIdType,
    decode,
    encapsulation_header,
    encode,
    encode_publish,
    peek,
)


@given(MESSAGES[mqttsn.Publish])
def test_the_fast_way_makes_the_same_octets(message):
    datagram = encode_publish(
        message.topic_id_type,
        message.topic_id,
        message.payload,
        message.qos,
        message.retain,
        message.dup,
        message.message_id,
    )
    assert datagram == encode(message)
    assert decode(datagram) == message
    assert peek(datagram) == (MessageType.PUBLISH, 2 if len(datagram) < 256 else 4)


@given(st.binary(min_size=1, max_size=252), plain_messages, st.integers(0, 3))
def test_an_encapsulation_is_a_header_before_any_datagram(wireless_node_id, message, radius):
    header = encapsulation_header(wireless_node_id, radius)
    datagram = header + encode(message)
    assert datagram == encode(mqttsn.Encapsulated(wireless_node_id, message, radius))
    assert peek(datagram) == (MessageType.ENCAPSULATED, len(header))


@pytest.mark.parametrize(
    ("parameter", "arguments"),
    [
        ("qos", {"qos": 3}),
        ("qos", {"qos": -2}),
        ("topic_id", {"topic_id": 0x10000}),
        ("topic_id", {"topic_id": -1}),
        ("message_id", {"qos": 1, "message_id": 0x10000}),
        ("message_id", {"qos": 2, "message_id": -1}),
        ("message_id", {"qos": 0, "message_id": 1}),
        ("topic_id_type", {"qos": -1}),
        ("topic_id_type", {"topic_id_type": 3}),
        ("payload", {"payload": bytes(65527)}),
        ("topic_id", {"topic_id_type": TopicIdType.SHORT, "topic_id": 0x0061}),
        ("topic_id", {"topic_id_type": TopicIdType.SHORT, "topic_id": 0x612B}),
        ("topic_id", {"topic_id_type": TopicIdType.SHORT, "topic_id": 0xFFFF}),
    ],
)
def test_impossible_values_are_named(parameter, arguments):
    values = {"topic_id_type": TopicIdType.NORMAL, "topic_id": 1, "payload": b"x"} | arguments
    with pytest.raises(ParameterError) as refusal:
        encode_publish(**values)
    assert refusal.value.parameter == parameter
    with pytest.raises(ParameterError):
        encode(mqttsn.Publish(**values))
