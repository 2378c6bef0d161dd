"""Wireshark's dissector accepts every message and sees the type, length and ids that were meant.

Where tshark 4.0 differs from the specification:

* WILLTOPIC and WILLTOPICUPD are always read with a Flags octet: the empty message that deletes a will (5.4.7,
  5.4.22: "exactly 2 octets long") is called malformed. It is checked by hand in test_golden_octets.py, and by
  scapy in test_scapy.py.
* The wireless node id is read as a number, so one of more than four octets is called malformed, though 5.5
  gives it any length.
* Payloads, gateway addresses and predefined topic ids of a SUBSCRIBE are read as text; it warns of octets behind
  a NUL, and those warnings say nothing about the message.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.mqttsn.capture import dissect, malformed, tshark
from tests.mqttsn.strategies import MESSAGES, plain_messages

from triagemq.mqttsn import Encapsulated, PingReq, WillTopic, WillTopicUpd, encode

NUMBERS = {
    "mqttsn.gw.id": "gateway_id",
    "mqttsn.adv.interv": "duration_seconds",
    "mqttsn.keep.alive": "duration_seconds",
    "mqttsn.sleep.timer": "duration_seconds",
    "mqttsn.radius": "radius",
    "mqttsn.topic.id": "topic_id",
    "mqttsn.msg.id": "message_id",
    "mqttsn.return.code": "return_code",
    "mqttsn.dup": "dup",
    "mqttsn.retain": "retain",
    "mqttsn.will": "will",
    "mqttsn.clean.session": "clean_session",
}


def _generated(strategy, count):
    """Messages as a list, because one start of tshark must do for all of them."""
    found = []

    @settings(
        max_examples=count,
        phases=[Phase.generate],
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(message):
        found.append(message)

    collect()
    return found


def _deletes_will(message):
    return isinstance(message, WillTopic | WillTopicUpd) and message.topic_name is None


def _check(message, read):
    datagram = encode(message)
    assert int(read["mqttsn.msg.type"], 16) == message.message_type
    if isinstance(message, Encapsulated):
        assert int(read["mqttsn.msg.len"]) == len(message.wireless_node_id) + 3
        assert int(read["mqttsn.control.info"], 16) == message.radius
        _check(message.message, read["mqttsn.msg"])
        return
    assert int(read["mqttsn.msg.len"]) == len(datagram)
    for field, attribute in NUMBERS.items():
        if field in read and hasattr(message, attribute):
            assert int(read[field], 0) == int(getattr(message, attribute)), field
    if "mqttsn.qos" in read:
        assert int(read["mqttsn.qos"], 16) == message.qos % 4
    if "mqttsn.topic.id.type" in read and hasattr(message, "topic_id_type"):
        assert int(read["mqttsn.topic.id.type"], 16) == message.topic_id_type


def test_tshark_accepts_every_message(tmp_path):
    forwarded = st.builds(
        Encapsulated, st.binary(min_size=1, max_size=4), plain_messages, st.integers(0, 3)
    ).filter(lambda encapsulated: not _deletes_will(encapsulated.message))
    messages = [message for strategy in MESSAGES.values() for message in _generated(strategy, 15)]
    messages = [
        message
        for message in messages
        if not isinstance(message, Encapsulated) and not _deletes_will(message)
    ] + _generated(forwarded, 40)
    assert {type(message) for message in messages} == set(MESSAGES)

    for message, layers in zip(
        messages, dissect([encode(message) for message in messages], tmp_path / "messages.pcap"), strict=True
    ):
        assert not malformed(layers), message
        _check(message, layers["mqttsn"]["mqttsn.msg"])


@pytest.mark.parametrize(
    "message",
    [WillTopic(None), WillTopicUpd(None), Encapsulated(b"12345", PingReq())],
    ids=["WILLTOPIC", "WILLTOPICUPD", "long node id"],
)
def test_tshark_knows_the_type_of_what_it_cannot_read(message, tmp_path):
    (layers,) = dissect([encode(message)], tmp_path / "message.pcap")
    assert int(layers["mqttsn"]["mqttsn.msg"]["mqttsn.msg.type"], 16) == message.message_type


@pytest.mark.parametrize("octets", ["05 04 00 01 00", "03 0a 00", "02 0c", "04 fe 00 31 02"])
def test_tshark_objects_to_broken_messages(octets, tmp_path):
    (layers,) = dissect([bytes.fromhex(octets)], tmp_path / "broken.pcap")
    assert malformed(layers)


def test_without_tshark_nothing_is_skipped_in_continuous_integration(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="apt-get install tshark"):
        tshark()
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="apt-get install tshark"):
        tshark()
