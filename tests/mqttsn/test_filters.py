"""What topic filters take in, by the examples of MQTT 3.1.1, section 4.7, and by second definitions."""

from __future__ import annotations

import re
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triagemq.mqttsn import matches, valid_topic_filter
from triagemq.mqttsn.filters import TopicTree, covers


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


some_level = st.sampled_from(["a", "b", "+", "", "$x"])
filters = st.builds(
    lambda parts, rest: "/".join([*parts, *(["#"] if rest else [])]),
    st.lists(some_level, max_size=3),
    st.booleans(),
).filter(valid_topic_filter)
TOPICS = [
    "/".join(levels) for length in range(1, 5) for levels in product(["a", "b", "c", "", "$x"], repeat=length)
]


@given(filters, filters)
def test_a_pattern_covers_a_filter_when_it_matches_all_that_the_filter_matches(
    pattern: str, wanted: str
) -> None:
    matched = [topic for topic in TOPICS if topic and matches(wanted, topic)]
    assert covers(pattern, wanted) == all(matches(pattern, topic) for topic in matched)


LEVELS = st.sampled_from(["a", "b", "$c", ""])
NAMES = st.lists(LEVELS, min_size=1, max_size=3).map("/".join).filter(bool)
PATTERNS = st.tuples(st.lists(LEVELS | st.just("+"), max_size=3), st.sampled_from(["#", "+", "a"])).map(
    lambda parts: "/".join([*parts[0], parts[1]])
)


@given(st.lists(PATTERNS, max_size=12), st.lists(PATTERNS, max_size=12), NAMES)
def test_patterns_are_found_by_topic(patterns: list[str], others: list[str], topic: str) -> None:
    tree = TopicTree()
    for pattern in [*patterns, *others]:
        tree.add(pattern)
    for pattern in set(others) - set(patterns):
        tree.remove(pattern)
    assert sorted(tree.filters_matching(topic)) == sorted(
        each for each in set(patterns) if matches(each, topic)
    )


@given(st.lists(NAMES, max_size=12), st.lists(NAMES, max_size=12), PATTERNS)
def test_topics_are_found_by_pattern(names: list[str], others: list[str], pattern: str) -> None:
    tree = TopicTree([*names, *others])
    for name in set(others) - set(names):
        tree.remove(name)
    assert tree.names_matching(pattern) == sorted(each for each in set(names) if matches(pattern, each))
