"""Topics as bits: codes that last while trees grow, and prefixes that take in exactly a subtree."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triagemq.errors import CodeError, ParameterError
from triagemq.mqttsn.filters import matches
from triagemq.topic_codes import (
    CodeBook,
    EventAddress,
    event_address,
    load_book,
    read_address,
    read_tree,
    save_book,
    subtree_prefix,
)
from triagemq.topic_codes.address import child_bits, read_child

names = st.text("abc+é ", min_size=1, max_size=3).filter(lambda name: "+" not in name)
topics = st.lists(st.lists(names, min_size=1, max_size=6).map("/".join), min_size=1, max_size=40)


def growing_tree(count: int, seed: int = 0) -> list[str]:
    """Topics, each below an earlier one, some with hundreds of siblings."""
    draw = np.random.default_rng(seed)
    found, parents = ["campus"], ["campus"]
    for number in range(count - 1):
        found.append(f"{parents[int(draw.integers(len(parents)))]}/n{number}")
        if found[-1].count("/") < 5 and len(parents) < 200:
            parents.append(found[-1])
    return found


@given(st.integers(0, 10**6), st.text("01", max_size=8))
def test_no_code_of_a_child_begins_with_that_of_another(number: int, rest: str) -> None:
    assert read_child(child_bits(number) + rest, 0) == (number, len(child_bits(number)))


@given(topics)
def test_an_address_says_the_topic_it_was_made_of(tree: list[str]) -> None:
    book = CodeBook()
    book.add(tree)
    book.add_type("alarm")
    for topic in tree:
        event = EventAddress(topic, "alarm")
        assert read_address(book, event_address(book, event)) == event


@given(topics)
def test_a_prefix_takes_in_what_the_filter_takes_in_and_nothing_else(tree: list[str]) -> None:
    book = CodeBook()
    book.add(tree)
    known = book.topics()
    for above in known:
        for topic_filter in (above, f"{above}/#"):
            network = ipaddress.IPv6Network(str(subtree_prefix(book, topic_filter)))
            for topic in known:
                address = ipaddress.IPv6Address(event_address(book, EventAddress(topic)))
                assert (address in network) == matches(topic_filter, topic)


def test_ten_thousand_topics_keep_their_codes_while_their_tree_grows_and_over_restarts(
    tmp_path: Path,
) -> None:
    tree, path = growing_tree(10_000), tmp_path / "codes.json"
    kept: dict[str, str] = {}
    for end in range(1_000, 10_001, 1_500):
        book = load_book(path)
        # In another order than before, and without some that have gone.
        book.add(tree[end // 3 : end][::-1])
        save_book(book, path)
        codes = {topic: book.bits(topic) for topic in book.topics()}
        assert kept.items() <= codes.items()
        kept = codes
    assert len(set(kept.values())) == len(kept) > 9_000


def test_a_tree_too_deep_for_its_bits_is_refused_by_name() -> None:
    book = CodeBook()
    with pytest.raises(CodeError, match=r"needs 102 bits, and a topic has 100"):
        book.add(["/".join("x" * 51)])
    book.add(["/".join("x" * 50)])


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("ff1e::", "all zero"),
        ("ff02::1", "begin with ff1e"),
        ("ff1e:c000::", "has 1 children, and no number 1"),
        ("ff1e:8000::ff8", "has the event type 511"),
    ],
)
def test_an_address_of_nobody_is_refused(address: str, says: str) -> None:
    book = CodeBook()
    book.add(["city"])
    with pytest.raises(CodeError, match=says):
        read_address(book, address)


def test_filters_that_are_no_subtree_and_unknown_topics_are_refused() -> None:
    book = CodeBook()
    book.add(["city/hall"])
    with pytest.raises(ParameterError, match="one level only"):
        subtree_prefix(book, "city/+/smoke")
    with pytest.raises(CodeError, match="below 'city' there is hall, not 'pool'"):
        book.bits("city/pool")
    with pytest.raises(ParameterError, match="no topic name"):
        book.add(["city/#"])


@pytest.mark.parametrize("text", ["{", "[]", '{"version": 1}', '{"version": 2, "types": [], "topics": []}'])
def test_a_file_of_something_else_is_refused_and_left_alone(text: str, tmp_path: Path) -> None:
    path = tmp_path / "codes.json"
    path.write_text(text)
    with pytest.raises(CodeError, match=r"codes\.json"):
        load_book(path)
    assert path.read_text() == text


class TestTrees:
    @pytest.mark.parametrize(
        "text",
        ["city:\n  hall: [smoke, water]\n  pool:\n", "- city/hall/smoke\n- city/hall/water\n- city/pool\n"],
    )
    def test_yaml_of_mappings_or_of_whole_topics(self, text: str, tmp_path: Path) -> None:
        path = tmp_path / "tree.yaml"
        path.write_text(text)
        book = CodeBook()
        book.add(read_tree(path))
        assert set(book.topics()) == {"city", "city/hall", "city/hall/smoke", "city/hall/water", "city/pool"}

    @pytest.mark.parametrize("text", ["", "a: b: c", "city: &x [*x]"])
    def test_a_file_without_topics_is_refused_in_one_line(self, text: str, tmp_path: Path) -> None:
        path = tmp_path / "tree.yaml"
        path.write_text(text)
        with pytest.raises(CodeError) as raised:
            read_tree(path)
        assert len(str(raised.value).splitlines()) == 1
