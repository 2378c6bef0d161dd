"""An independent codec makes the same octets: scapy.contrib.mqttsn, for every message type.

Where scapy 2.8 differs from the specification:

* Its WILLTOPIC and WILLTOPICUPD always have a Flags octet, so the empty message that deletes a will (5.4.7,
  5.4.22) has to be built from the header alone.
* Its DISCONNECT without a duration says Length 2 and is 4 octets long, unless that Length is given by hand.
* It reads a message of two octets as a bare header, without the layer that would hold its absent fields.
* It checks nothing: reserved codes, wildcards, text that is not UTF-8 and wrong lengths all pass. That side is
  tested in test_refusals.py.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.contrib import mqttsn as scapy
from scapy.packet import Raw
from tests.mqttsn.strategies import MESSAGES

from triagemq.mqttsn import (
    Disconnect,
    Encapsulated,
    MessageType,
    TopicIdType,
    WillTopic,
    WillTopicUpd,
    encode,
)


def _topic(message):
    match message.topic_id_type:
        case TopicIdType.NORMAL:
            return {"tid_type": 0, "topic_name": message.topic.encode()}
        case TopicIdType.PREDEFINED:
            return {"tid_type": 1, "tid": message.topic}
        case TopicIdType.SHORT:
            return {"tid_type": 2, "short_topic": message.topic.encode()}


def _acknowledgement(message):
    return {"tid": message.topic_id, "mid": message.message_id, "return_code": message.return_code}


def _will_topic(message):
    return {"qos": message.qos, "retain": message.retain, "will_topic": message.topic_name.encode()}


LAYERS = {
    MessageType.ADVERTISE: (
        scapy.MQTTSNAdvertise,
        lambda message: {"gw_id": message.gateway_id, "duration": message.duration_seconds},
    ),
    MessageType.SEARCHGW: (scapy.MQTTSNSearchGW, lambda message: {"radius": message.radius}),
    MessageType.GWINFO: (
        scapy.MQTTSNGwInfo,
        lambda message: {"gw_id": message.gateway_id, "gw_addr": message.address},
    ),
    MessageType.CONNECT: (
        scapy.MQTTSNConnect,
        lambda message: {
            "will": message.will,
            "cleansess": message.clean_session,
            "duration": message.duration_seconds,
            "client_id": message.client_id.encode(),
        },
    ),
    MessageType.CONNACK: (scapy.MQTTSNConnack, lambda message: {"return_code": message.return_code}),
    MessageType.WILLTOPICREQ: (scapy.MQTTSNWillTopicReq, lambda message: {}),
    MessageType.WILLTOPIC: (scapy.MQTTSNWillTopic, _will_topic),
    MessageType.WILLMSGREQ: (scapy.MQTTSNWillMsgReq, lambda message: {}),
    MessageType.WILLMSG: (scapy.MQTTSNWillMsg, lambda message: {"will_msg": message.payload}),
    MessageType.REGISTER: (
        scapy.MQTTSNRegister,
        lambda message: {
            "tid": message.topic_id,
            "mid": message.message_id,
            "topic_name": message.topic_name.encode(),
        },
    ),
    MessageType.REGACK: (scapy.MQTTSNRegack, _acknowledgement),
    MessageType.PUBLISH: (
        scapy.MQTTSNPublish,
        lambda message: {
            "dup": message.dup,
            "qos": message.qos % 4,
            "retain": message.retain,
            "tid_type": message.topic_id_type,
            "tid": message.topic_id,
            "mid": message.message_id,
            "data": message.payload,
        },
    ),
    MessageType.PUBACK: (scapy.MQTTSNPuback, _acknowledgement),
    MessageType.PUBCOMP: (scapy.MQTTSNPubcomp, lambda message: {"mid": message.message_id}),
    MessageType.PUBREC: (scapy.MQTTSNPubrec, lambda message: {"mid": message.message_id}),
    MessageType.PUBREL: (scapy.MQTTSNPubrel, lambda message: {"mid": message.message_id}),
    MessageType.SUBSCRIBE: (
        scapy.MQTTSNSubscribe,
        lambda message: {
            "dup": message.dup,
            "qos": message.qos,
            "mid": message.message_id,
            **_topic(message),
        },
    ),
    MessageType.SUBACK: (
        scapy.MQTTSNSuback,
        lambda message: {"qos": message.qos, **_acknowledgement(message)},
    ),
    MessageType.UNSUBSCRIBE: (
        scapy.MQTTSNUnsubscribe,
        lambda message: {"mid": message.message_id, **_topic(message)},
    ),
    MessageType.UNSUBACK: (scapy.MQTTSNUnsuback, lambda message: {"mid": message.message_id}),
    MessageType.PINGREQ: (
        scapy.MQTTSNPingReq,
        lambda message: {"client_id": (message.client_id or "").encode()},
    ),
    MessageType.PINGRESP: (scapy.MQTTSNPingResp, lambda message: {}),
    MessageType.DISCONNECT: (
        scapy.MQTTSNDisconnect,
        lambda message: {"duration": message.duration_seconds},
    ),
    MessageType.WILLTOPICUPD: (scapy.MQTTSNWillTopicUpd, _will_topic),
    MessageType.WILLTOPICRESP: (
        scapy.MQTTSNWillTopicResp,
        lambda message: {"return_code": message.return_code},
    ),
    MessageType.WILLMSGUPD: (scapy.MQTTSNWillMsgUpd, lambda message: {"will_msg": message.payload}),
    MessageType.WILLMSGRESP: (
        scapy.MQTTSNWillMsgResp,
        lambda message: {"return_code": message.return_code},
    ),
}


def _scapy_octets(message):
    if isinstance(message, Encapsulated):
        forwarder = scapy.MQTTSNEncaps(radius=message.radius, w_node_id=message.wireless_node_id)
        return bytes(scapy.MQTTSN() / forwarder / Raw(_scapy_octets(message.message)))
    header = scapy.MQTTSN(type=message.message_type)
    if isinstance(message, WillTopic | WillTopicUpd) and message.topic_name is None:
        return bytes(header)
    if message == Disconnect(None):
        header.len = 2
    layer, fields = LAYERS[message.message_type]
    return bytes(header / layer(**fields(message)))


def test_scapy_knows_every_message_type():
    assert {*LAYERS, MessageType.ENCAPSULATED} == set(MessageType) == set(scapy.PACKET_TYPE)


@pytest.mark.parametrize("message_class", MESSAGES, ids=lambda message: message.__name__)
@given(data=st.data())
def test_octets_are_those_of_scapy(message_class, data):
    message = data.draw(MESSAGES[message_class])
    assert encode(message) == _scapy_octets(message)


@pytest.mark.parametrize("message_class", MESSAGES, ids=lambda message: message.__name__)
@given(data=st.data())
def test_scapy_reads_every_field_back(message_class, data):
    message = data.draw(MESSAGES[message_class])
    read = scapy.MQTTSN(encode(message))
    if isinstance(message, Encapsulated):
        assert read.type == MessageType.ENCAPSULATED
        forwarder = read[scapy.MQTTSNEncaps]
        assert (forwarder.radius, forwarder.w_node_id) == (message.radius, message.wireless_node_id)
        read, message = forwarder.payload, message.message
    assert read.type == message.message_type
    if read.len == 2:
        assert not read.payload
        return
    _, fields = LAYERS[message.message_type]
    for name, value in fields(message).items():
        assert read.payload.getfieldval(name) == value
