"""Hypothesis strategies for every message of MQTT-SN 1.2, and for topics."""

from __future__ import annotations

from hypothesis import strategies as st

from triagemq import mqttsn
from triagemq.mqttsn import ReturnCode, TopicIdType

octets = st.integers(0, 0xFF)
numbers = st.integers(0, 0xFFFF)
flags = st.booleans()
qos = st.integers(0, 2)
return_codes = st.sampled_from(ReturnCode)
# Long enough to need the three-octet length now and then, and sometimes just at its edge.
payloads = st.binary(max_size=40) | st.integers(240, 270).map(lambda size: b"p" * size)

_character = st.characters(codec="utf-8", exclude_characters="\0")
# Control characters and non-characters are refused in topics.
_level = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cn"), exclude_characters="+#/"), max_size=8
)
_padding = st.sampled_from(["", "", "", "x" * 250])

client_ids = st.text(_character, min_size=1, max_size=23)
topic_names = st.builds(
    lambda levels, end: "/".join(levels) + end, st.lists(_level, min_size=1), _padding
).filter(bool)
topic_filters = st.builds(
    lambda levels, end: "/".join([*levels, *end]),
    st.lists(_level | st.just("+"), min_size=1, max_size=6),
    st.sampled_from([[], ["#"], ["x" * 250]]),
).filter(bool) | st.just("#")
_one_octet = st.characters(min_codepoint=0x20, max_codepoint=0x7E, exclude_characters="+#")
short_names = st.text(_one_octet, min_size=2, max_size=2) | st.characters(
    min_codepoint=0xA0, max_codepoint=0x7FF
)


def _publications() -> st.SearchStrategy[mqttsn.Publish]:
    topics = st.one_of(
        st.tuples(st.just(TopicIdType.NORMAL), numbers),
        st.tuples(st.just(TopicIdType.PREDEFINED), numbers),
        st.tuples(st.just(TopicIdType.SHORT), short_names.map(mqttsn.short_topic_id)),
    )

    def publication(topic, payload, qos, retain, dup, message_id):
        if qos < 0 and topic[0] is TopicIdType.NORMAL:
            qos = 0
        return mqttsn.Publish(*topic, payload, qos, retain, dup, message_id if qos > 0 else 0)

    return st.builds(publication, topics, payloads, st.integers(-1, 2), flags, flags, numbers)


_topics = st.one_of(
    st.tuples(st.just(TopicIdType.NORMAL), topic_filters),
    st.tuples(st.just(TopicIdType.PREDEFINED), numbers),
    st.tuples(st.just(TopicIdType.SHORT), short_names),
)


def _wills(make):
    return st.builds(make, topic_names, qos, flags) | st.just(make(None))


MESSAGES = {
    mqttsn.Advertise: st.builds(mqttsn.Advertise, octets, numbers),
    mqttsn.SearchGw: st.builds(mqttsn.SearchGw, octets),
    mqttsn.GwInfo: st.builds(mqttsn.GwInfo, octets, st.binary(max_size=20)),
    mqttsn.Connect: st.builds(mqttsn.Connect, client_ids, numbers, flags, flags),
    mqttsn.ConnAck: st.builds(mqttsn.ConnAck, return_codes),
    mqttsn.WillTopicReq: st.just(mqttsn.WillTopicReq()),
    mqttsn.WillTopic: _wills(mqttsn.WillTopic),
    mqttsn.WillMsgReq: st.just(mqttsn.WillMsgReq()),
    mqttsn.WillMsg: st.builds(mqttsn.WillMsg, payloads),
    mqttsn.Register: st.builds(mqttsn.Register, numbers, numbers, topic_names),
    mqttsn.RegAck: st.builds(mqttsn.RegAck, numbers, numbers, return_codes),
    mqttsn.Publish: _publications(),
    mqttsn.PubAck: st.builds(mqttsn.PubAck, numbers, numbers, return_codes),
    mqttsn.PubComp: st.builds(mqttsn.PubComp, numbers),
    mqttsn.PubRec: st.builds(mqttsn.PubRec, numbers),
    mqttsn.PubRel: st.builds(mqttsn.PubRel, numbers),
    mqttsn.Subscribe: st.builds(
        lambda topic, message_id, qos, dup: mqttsn.Subscribe(*topic, message_id, qos, dup),
        _topics,
        numbers,
        qos,
        flags,
    ),
    mqttsn.SubAck: st.builds(mqttsn.SubAck, numbers, numbers, return_codes, qos),
    mqttsn.Unsubscribe: st.builds(
        lambda topic, message_id: mqttsn.Unsubscribe(*topic, message_id), _topics, numbers
    ),
    mqttsn.UnsubAck: st.builds(mqttsn.UnsubAck, numbers),
    mqttsn.PingReq: st.builds(mqttsn.PingReq, st.none() | client_ids),
    mqttsn.PingResp: st.just(mqttsn.PingResp()),
    mqttsn.Disconnect: st.builds(mqttsn.Disconnect, st.none() | numbers),
    mqttsn.WillTopicUpd: _wills(mqttsn.WillTopicUpd),
    mqttsn.WillTopicResp: st.builds(mqttsn.WillTopicResp, return_codes),
    mqttsn.WillMsgUpd: st.builds(mqttsn.WillMsgUpd, payloads),
    mqttsn.WillMsgResp: st.builds(mqttsn.WillMsgResp, return_codes),
}
plain_messages = st.one_of(*MESSAGES.values())
MESSAGES[mqttsn.Encapsulated] = st.builds(
    mqttsn.Encapsulated, st.binary(min_size=1, max_size=20), plain_messages, st.integers(0, 3)
)
messages = st.one_of(*MESSAGES.values())
