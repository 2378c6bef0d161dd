"""Topic names, filters and short names: which are valid, and which are not."""

from __future__ import annotations

import pytest
from hypothesis import given
from tests.mqttsn.strategies import short_names, topic_filters, topic_names

from triagemq.errors import ParameterError
from triagemq.mqttsn import (
    matches,
    short_topic_id,
    short_topic_name,
    valid_topic_filter,
    valid_topic_name,
)


@given(topic_names)
def test_a_name_is_a_filter_that_matches_itself(name):
    assert valid_topic_name(name)
    assert valid_topic_filter(name)
    assert matches(name, name)


@given(topic_filters)
def test_generated_filters_are_valid(topic_filter):
    assert valid_topic_filter(topic_filter)
    assert valid_topic_name(topic_filter) == (not set("+#") & set(topic_filter))


@pytest.mark.parametrize("topic", ["", "a\0b", "\ud800", "x" * 65536])
def test_neither_name_nor_filter(topic):
    assert not valid_topic_name(topic)
    assert not valid_topic_filter(topic)


@pytest.mark.parametrize("topic", ["a#", "#/a", "a/#/b", "a+", "+a/b", "##", "++", "a/b#"])
def test_misplaced_wildcards(topic):
    assert not valid_topic_filter(topic)


@given(short_names)
def test_short_names_and_their_ids(name):
    assert short_topic_name(short_topic_id(name)) == name


@pytest.mark.parametrize("name", ["", "a", "abc", "a#", "a\0", "é1", "\ud800"])
def test_no_short_name(name):
    with pytest.raises(ParameterError):
        short_topic_id(name)


@pytest.mark.parametrize("topic_id", [0, 0x6100, 0x2361, 0xFFFF, -1, 65536])
def test_no_short_topic_id(topic_id):
    with pytest.raises(ParameterError):
        short_topic_name(topic_id)
