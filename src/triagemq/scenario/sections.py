"""The sections of a scenario file, each entry read and checked by itself."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from triagemq.scenario.condition_entry import USUAL_PROFILE, ConditionEntry
from triagemq.scenario.document import (
    BrokerEntry,
    BrokerLinkEntry,
    Entry,
    Header,
    Planning,
    PortEntry,
    PublisherEntry,
    SubscriberEntry,
    SwitchEntry,
    TopicEntry,
    UnmanagedSwitchEntry,
)
from triagemq.scenario.lines import Mapping, Node, Scalar, Sequence
from triagemq.scenario.mistakes import described, nearest
from triagemq.scenario.reader import Pair, Reader

__all__ = ["Entries", "Link", "Listed", "Profile", "Sections", "read_sections"]

SomeEntry = TypeVar("SomeEntry", bound=Entry)
REQUIRED = {
    "brokers": "hall: {}",
    "switches": "core: {}",
    "ports": "radio: {switch: core, bandwidth_bps: 8000000}",
    "publishers": "sensor-1: {}",
    "subscribers": "commander: {port: radio}",
}
SECTIONS = (
    "planning",
    "brokers",
    "broker_links",
    "unmanaged_switches",
    "switches",
    "ports",
    "topics",
    "publishers",
    "subscribers",
    "worth_profiles",
    "conditions",
)


@dataclass(frozen=True)
class Entries(Collection[str], Generic[SomeEntry]):
    """One section. `pairs` holds every name in it, `right` those whose entry is right."""

    title: str
    pairs: dict[str, Pair] = field(default_factory=dict)
    right: dict[str, SomeEntry] = field(default_factory=dict)

    def __contains__(self, name: object) -> bool:
        return name in self.pairs

    def __len__(self) -> int:
        return len(self.pairs)

    def __iter__(self) -> Iterator[str]:
        return iter(self.pairs)


@dataclass(frozen=True)
class Listed(Generic[SomeEntry]):
    """One entry of a list and where it stands; `entry` is None if it is wrong."""

    field: str
    pair: Pair
    entry: SomeEntry | None


Link = Listed[BrokerLinkEntry]


@dataclass(frozen=True)
class Profile:
    """A named worth profile: by topic or pattern, the factor on what it is worth; `pairs` says where that stands."""

    pairs: dict[str, Pair]
    factors: dict[str, float]


@dataclass(frozen=True)
class Sections:
    """A scenario file, entry by entry. What is wrong has been reported, and is None or not in `right`."""

    header: Header | None
    planning: Planning | None
    brokers: Entries[BrokerEntry]
    broker_links: list[Link]
    unmanaged_switches: Entries[UnmanagedSwitchEntry]
    switches: Entries[SwitchEntry]
    ports: Entries[PortEntry]
    topics: Entries[TopicEntry]
    publishers: Entries[PublisherEntry]
    subscribers: Entries[SubscriberEntry]
    worth_profiles: dict[str, Profile]
    conditions: list[Listed[ConditionEntry]]


def read_sections(reader: Reader, root: Node | None) -> Sections | None:
    """All sections of a file; None if it holds none, which has then been reported."""
    if root is None:
        reader.report(1, "text", "holds no scenario", "begin with brokers:, or copy one of examples/")
        return None
    if not isinstance(root, Mapping):
        kind = "a list" if isinstance(root, Sequence) else "a single value"
        reader.report(root, "text", f"is {kind}", "write sections: brokers:, switches:, ports:, ...")
        return None
    pairs = _with_misspelled_sections(reader.pairs(root, "") or {})
    whole = Pair(Scalar(root.line, "", plain=True), root)
    for title, example in REQUIRED.items():
        if title not in pairs:
            reader.report(root, title, "is missing", f"add a section {title}: with entries such as {example}")
        elif _is_empty(pairs[title].value):
            reader.report(pairs[title].key, title, "is empty", f"add an entry such as {example}")
    planning = reader.entry(pairs["planning"], "planning", Planning) if "planning" in pairs else Planning()

    def section(title: str, model: type[SomeEntry], *apart: str) -> Entries[SomeEntry]:
        return _read_section(reader, pairs, title, model, apart)

    return Sections(
        header=reader.entry(whole, "", Header, apart=SECTIONS),
        planning=planning,
        brokers=section("brokers", BrokerEntry),
        broker_links=_read_list(reader, pairs, "broker_links", BrokerLinkEntry, "{between: [hall, annex]}"),
        unmanaged_switches=section("unmanaged_switches", UnmanagedSwitchEntry),
        switches=section("switches", SwitchEntry),
        ports=section("ports", PortEntry),
        topics=_read_topics(reader, pairs),
        publishers=section("publishers", PublisherEntry, "publishes"),
        subscribers=section("subscribers", SubscriberEntry, "subscribes"),
        worth_profiles=_read_profiles(reader, pairs),
        conditions=_read_list(
            reader,
            pairs,
            "conditions",
            ConditionEntry,
            "{at_seconds: 20, port: radio, bandwidth_bps: 160000}",
        ),
    )


def _with_misspelled_sections(pairs: dict[str, Pair]) -> dict[str, Pair]:
    """A section under a misspelled title is read as if it were spelled right: one mistake is one problem."""
    absent = [title for title in SECTIONS if title not in pairs]
    found = dict(pairs)
    for title, pair in pairs.items():
        meant = None if title in SECTIONS or title in Header.model_fields else nearest(title, SECTIONS)
        if meant in absent:
            found.setdefault(meant, pair)
    return found


def _is_empty(node: Node) -> bool:
    return (isinstance(node, Scalar) and node.is_null) or (isinstance(node, Mapping) and not node.pairs)


def _read_section(
    reader: Reader, pairs: dict[str, Pair], title: str, model: type[SomeEntry], apart: tuple[str, ...] = ()
) -> Entries[SomeEntry]:
    entries: Entries[SomeEntry] = Entries(title)
    if title in pairs:
        for name, pair in (reader.pairs(pairs[title].value, title) or {}).items():
            entries.pairs[name] = pair
            if not name:
                reader.report(pair.key, title, "has an entry without a name", "write a name before the colon")
            entry = reader.entry(pair, f"{title}.{name}", model, apart)
            if entry is not None:
                entries.right[name] = entry
    return entries


def _read_list(
    reader: Reader, pairs: dict[str, Pair], title: str, model: type[SomeEntry], example: str
) -> list[Listed[SomeEntry]]:
    if title not in pairs:
        return []
    key, node = pairs[title]
    if isinstance(node, Scalar) and node.is_null:
        return []
    if not isinstance(node, Sequence):
        reader.report(key, title, "is not a list", f"write - {example} under it")
        return []
    found = []
    for number, item in enumerate(node.items, start=1):
        name = f"{title}.{number}"
        pair = Pair(Scalar(item.line, name, plain=True), item)
        found.append(Listed(name, pair, reader.entry(pair, name, model)))
    return found


def _read_profiles(reader: Reader, pairs: dict[str, Pair]) -> dict[str, Profile]:
    title, found = "worth_profiles", {}
    for name, pair in ((reader.pairs(pairs[title].value, title) or {}) if title in pairs else {}).items():
        if name == USUAL_PROFILE:
            what = "is what the subscriptions themselves say"
            reader.report(pair.key, f"{title}.{name}", what, "choose another name")
        entries = reader.pairs(pair.value, f"{title}.{name}") or {}
        found[name] = Profile(entries, {})
        for topic, inner in entries.items():
            field = f"{title}.{name}.{topic}"
            factor = reader.value(inner.value, field)
            if isinstance(factor, (int, float)) and not isinstance(factor, bool) and 0 <= factor < math.inf:
                found[name].factors[topic] = float(factor)
            else:
                what = f"is {described(factor)}, not a factor on what the topic is worth"
                reader.report(inner.key, field, what, "write a number, such as 3")
    return found


def _read_topics(reader: Reader, pairs: dict[str, Pair]) -> Entries[TopicEntry]:
    """Topics are a mapping of defaults, or a list of names alone."""
    if "topics" not in pairs or not isinstance(pairs["topics"].value, Sequence):
        return _read_section(reader, pairs, "topics", TopicEntry)
    topics: Entries[TopicEntry] = Entries("topics")
    for number, item in enumerate(pairs["topics"].value.items, start=1):
        if not isinstance(item, Scalar):
            reader.report(item, f"topics.{number}", "is not a name", "write topics as names, or as a mapping")
        elif item.text in topics:
            first = topics.pairs[item.text].key.line
            reader.report(
                item, f"topics.{item.text}", f"stands here twice, first in line {first}", "remove one"
            )
        else:
            topics.pairs[item.text] = Pair(item, item)
            topics.right[item.text] = TopicEntry()
    return topics
