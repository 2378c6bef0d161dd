"""Whatever arrives, `decode` answers with a message or with a `DecodeError` that can be counted."""

from __future__ import annotations

import itertools
import pickle

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.mqttsn.strategies import messages

from triagemq.errors import DecodeError, TriageError
from triagemq.mqttsn import Encapsulated, MessageType, RejectionReason, decode, encode, peek

# reason, datagram, message type in the error, offset in the error
REFUSALS = [
    ("empty_datagram", "", None, 0),
    ("truncated_header", "02", None, 1),
    ("truncated_header", "01 00", None, 2),
    ("truncated_header", "01 00 04", None, 3),
    ("length_mismatch", "00 16", 0x16, 0),
    ("length_mismatch", "03 16", 0x16, 0),
    ("length_mismatch", "02 16 16", 0x16, 0),
    ("length_mismatch", "01 00 02 16", 0x16, 0),
    ("length_mismatch", "01 00 05 16", 0x16, 0),
    ("reserved_message_type", "02 03", 0x03, 1),
    ("reserved_message_type", "02 11", 0x11, 1),
    ("reserved_message_type", "02 19", 0x19, 1),
    ("reserved_message_type", "02 1e", 0x1E, 1),
    ("reserved_message_type", "01 00 04 ff", 0xFF, 3),
    ("truncated", "04 00 05 03", 0x00, 4),
    ("truncated", "02 02", 0x02, 2),
    ("truncated", "05 04 00 01 00", 0x04, 5),
    ("truncated", "02 05", 0x05, 2),
    ("truncated", "05 0a 0000 01", 0x0A, 5),
    ("truncated", "06 0c 00 0001 00", 0x0C, 6),
    ("truncated", "03 18 01", 0x18, 3),
    ("truncated", "06 12 01 0004 0a", 0x12, 6),
    ("truncated", "06 12 02 0004 61", 0x12, 6),
    ("truncated", "04 fe 00 31", 0xFE, 4),
    ("trailing_octets", "04 05 00 00", 0x05, 3),
    ("trailing_octets", "03 06 00", 0x06, 2),
    ("trailing_octets", "03 17 00", 0x17, 2),
    ("trailing_octets", "05 18 0001 00", 0x18, 4),
    ("trailing_octets", "08 14 02 0005 616263", 0x14, 7),
    ("reserved_topic_id_type", "07 0c 03 0001 0000", 0x0C, 2),
    ("reserved_topic_id_type", "07 12 03 0004 0001", 0x12, 2),
    ("reserved_topic_id_type", "07 14 03 0005 0001", 0x14, 2),
    ("reserved_return_code", "03 05 04", 0x05, 2),
    ("reserved_return_code", "07 0b 0001 0002 ff", 0x0B, 6),
    ("reserved_return_code", "08 13 00 0001 0002 04", 0x13, 7),
    ("reserved_protocol_id", "07 04 00 02 003c 61", 0x04, 3),
    ("invalid_qos", "04 07 60 61", 0x07, 2),
    ("invalid_qos", "06 12 60 0004 61", 0x12, 2),
    ("invalid_qos", "08 13 60 0001 0002 00", 0x13, 2),
    ("normal_topic_id_without_connection", "07 0c 60 0001 0000", 0x0C, 2),
    ("not_utf8", "09 04 00 01 003c 61ff62", 0x04, 7),
    ("not_utf8", "09 0a 0000 0001 eda080", 0x0A, 6),
    ("not_utf8", "07 0c 02 61c3 0000", 0x0C, 4),
    ("nul_character", "08 04 00 01 003c 6100", 0x04, 6),
    ("nul_character", "04 16 6100", 0x16, 2),
    ("nul_character", "08 0a 0000 0001 6100", 0x0A, 6),
    ("nul_character", "07 0c 02 0000 0000", 0x0C, 3),
    ("control_character", "08 0a 0000 0001 610a", 0x0A, 6),
    ("control_character", "07 0c 02 617f 0000", 0x0C, 3),
    ("control_character", "08 12 00 0004 61c29f", 0x12, 5),
    ("non_character", "09 0a 0000 0001 efbfbf", 0x0A, 6),
    ("non_character", "07 07 00 61efb790", 0x07, 3),
    ("too_many_levels", "01 00d0 0a 0000 0001" + 200 * "2f", 0x0A, 8),
    ("empty_client_id", "06 04 00 01 003c", 0x04, 6),
    ("empty_topic", "03 07 00", 0x07, 3),
    ("empty_topic", "03 1a 00", 0x1A, 3),
    ("empty_topic", "06 0a 0000 0001", 0x0A, 6),
    ("empty_topic", "05 12 00 0004", 0x12, 5),
    ("wildcard_in_topic_name", "06 07 00 612f23", 0x07, 3),
    ("wildcard_in_topic_name", "07 0a 0000 0001 2b", 0x0A, 6),
    ("wildcard_in_topic_name", "07 0c 02 6123 0000", 0x0C, 3),
    ("wildcard_in_topic_name", "07 12 02 0004 2f2b", 0x12, 5),
    ("invalid_topic_filter", "07 12 00 0004 6123", 0x12, 5),
    ("invalid_topic_filter", "08 14 00 0005 232f61", 0x14, 5),
    ("encapsulation_length", "03 fe 00 02 16", 0xFE, 0),
    ("encapsulation_length", "08 fe 00 31 02 16", 0xFE, 0),
    ("encapsulation_length", "01 00 06 fe 00 31", 0xFE, 0),
    ("reserved_control_bits", "04 fe 04 31 02 16", 0xFE, 2),
    ("nested_encapsulation", "04 fe 00 31 04 fe 00 32 02 16", 0xFE, 5),
    ("reserved_return_code", "04 fe 00 31 03 05 09", 0x05, 6),
    ("truncated_header", "04 fe 00 31 02", None, 5),
]


def test_every_reason_has_a_datagram():
    assert {reason for reason, *_ in REFUSALS} == set(RejectionReason)


@pytest.mark.parametrize(("reason", "octets", "message_type", "offset"), REFUSALS)
def test_a_bad_datagram_is_refused_with_its_reason_and_place(reason, octets, message_type, offset):
    with pytest.raises(DecodeError) as refusal:
        decode(bytes.fromhex(octets))
    error = refusal.value
    assert (error.reason, error.message_type, error.offset) == (reason, message_type, offset)
    assert isinstance(error, TriageError)
    assert reason.replace("_", " ") in str(error)
    assert f"octet {offset}" in str(error)


def test_a_refusal_can_cross_processes():
    error = DecodeError(RejectionReason.NOT_UTF8, 0x0A, 6)
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.reason, copy.message_type, copy.offset) == ("not_utf8", 0x0A, 6)
    assert str(copy) == "not MQTT-SN 1.2: not utf8 at octet 6 of a message of type 0x0A"


def test_every_datagram_of_one_or_two_octets():
    empty = {MessageType.WILLTOPICREQ, MessageType.WILLTOPIC, MessageType.WILLMSGREQ, MessageType.WILLMSG}
    empty |= {MessageType.PINGREQ, MessageType.PINGRESP, MessageType.DISCONNECT}
    empty |= {MessageType.WILLTOPICUPD, MessageType.WILLMSGUPD}
    accepted = set()
    short = [(octet,) for octet in range(256)]
    for octets in itertools.chain(short, itertools.product(range(256), repeat=2)):
        outcome = _outcome(bytes(octets))
        if not isinstance(outcome, DecodeError):
            assert octets[0] == 2
            accepted.add(outcome.message_type)
    assert accepted == empty


def _outcome(datagram):
    """The message or the refusal; a refusal must be one that can be counted and located."""
    try:
        return decode(datagram)
    except DecodeError as error:
        refusal = error
    assert isinstance(refusal.reason, RejectionReason)
    assert 0 <= refusal.offset <= len(datagram)
    return refusal


def _check(datagram):
    """Hold `peek` and `encode` to what `decode` makes of it."""
    outcome = _outcome(datagram)
    if not isinstance(outcome, DecodeError):
        assert peek(datagram)[0] is outcome.message_type
        assert decode(encode(outcome)) == outcome


@settings(max_examples=500)
@given(st.binary(max_size=300))
@example(b"\x04\xfe\x001" * 16000 + b"\x02\x16")
def test_any_octets(datagram):
    _check(datagram)


@settings(max_examples=500)
@given(st.sampled_from(MessageType), st.binary(max_size=40), st.booleans())
def test_any_octets_behind_a_right_header(message_type, body, long):
    if message_type is MessageType.ENCAPSULATED:
        header = bytes((4, message_type))
    elif long:
        header = b"\x01" + (len(body) + 4).to_bytes(2) + bytes((message_type,))
    else:
        header = bytes((len(body) + 2, message_type))
    _check(header + body)


@settings(max_examples=500)
@given(messages, st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 255)), max_size=4), st.data())
def test_mutated_messages(message, changes, data):
    datagram = bytearray(encode(message))
    for place, octet in changes:
        datagram[place % len(datagram)] = octet
    end = data.draw(st.integers(0, len(datagram)))
    _check(bytes(datagram))
    _check(bytes(datagram[:end]))


@given(messages.filter(lambda message: not isinstance(message, Encapsulated)))
def test_every_beginning_and_every_continuation_of_a_message_is_refused(message):
    datagram = encode(message)
    for end in range(min(len(datagram), 50)):
        with pytest.raises(DecodeError):
            decode(datagram[:end])
    with pytest.raises(DecodeError):
        decode(datagram + b"\0")
