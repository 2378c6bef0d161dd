"""Topic names, filters and short names, by the examples of MQTT 3.1.1, section 4.7, and by a second definition."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.mqttsn.strategies import short_names, topic_filters, topic_names

from triagemq.errors import ParameterError
from triagemq.mqttsn import (
    matches,
    short_topic_id,
    short_topic_name,
    valid_topic_filter,
    valid_topic_name,
)


@pytest.mark.parametrize(
    ("topic_filter", "name", "expected"),
    [
        ("sport/tennis/player1/#", "sport/tennis/player1", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
        ("sport/#", "sport", True),
        ("sport/#", "sports", False),
        ("#", "sport/tennis", True),
        ("sport/tennis/+", "sport/tennis/player1", True),
        ("sport/tennis/+", "sport/tennis/player1/ranking", False),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+", "/finance", False),
        ("+/tennis/#", "sport/tennis", True),
        ("ACCOUNTS", "Accounts", False),
        ("#", "$SYS/uptime", False),
        ("+/monitor/Clients", "$SYS/monitor/Clients", False),
        ("$SYS/#", "$SYS/uptime", True),
        ("$SYS/monitor/+", "$SYS/monitor/Clients", True),
        ("a/+/#", "a", False),
        ("a/b", "a/b/c", False),
    ],
)
def test_matching_is_that_of_mqtt(topic_filter, name, expected):
    assert matches(topic_filter, name) is expected


def _pattern(topic_filter):
    parts = ["[^/]*" if level == "+" else re.escape(level) for level in topic_filter.split("/")]
    if topic_filter == "#":
        return ".*"
    if parts[-1] == re.escape("#"):
        return "/".join(parts[:-1]) + "(/.*)?"
    return "/".join(parts)


_small_filters = st.lists(st.sampled_from(["a", "b", "", "+"]), min_size=1, max_size=4).flatmap(
    lambda levels: st.sampled_from(["/".join(levels), "/".join([*levels, "#"])])
)
_small_names = st.lists(st.sampled_from(["a", "b", ""]), min_size=1, max_size=4).map("/".join)


@given(_small_filters, _small_names)
def test_matching_agrees_with_a_regular_expression(topic_filter, name):
    assert matches(topic_filter, name) == bool(re.fullmatch(_pattern(topic_filter), name, re.DOTALL))


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
