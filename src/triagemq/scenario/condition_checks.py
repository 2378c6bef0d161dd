"""Do the conditions of a file, and the backups of its switches, fit the rest of it?"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from triagemq.scenario.condition_entry import USUAL_PROFILE, ConditionEntry
from triagemq.scenario.mistakes import listed
from triagemq.scenario.reader import Reader
from triagemq.scenario.rows import PublicationRows
from triagemq.scenario.sections import Listed, Sections
from triagemq.scenario.wildcards import TopicTree, filter_mistake, is_pattern

__all__ = ["check_backups", "check_condition_topics", "check_conditions", "joining_port"]


def check_backups(reader: Reader, sections: Sections) -> None:
    """A backup is a port kept free for one switch, on another that does not itself hang below it."""
    feeds = {switch.fed_by: name for name, switch in sections.switches.right.items() if switch.fed_by}
    holders = {
        subscriber.port: f"has the subscriber {name}"
        for name, subscriber in sections.subscribers.right.items()
    }
    backs: dict[str, str] = {}
    for name, switch in sections.switches.right.items():
        port = switch.backup
        if port is None or port not in sections.ports.right:
            continue
        what = None
        if port in feeds:
            what = f"feeds the switch {feeds[port]} already"
        elif port in backs:
            what = f"is the backup of {backs[port]} already"
        elif port in holders:
            what = holders[port]
        elif name in _above(sections, sections.ports.right[port].switch):
            what = f"is behind {name} itself"
        backs.setdefault(port, name)
        if what is not None:
            line, _ = reader.locate(sections.switches.pairs[name], ["backup"])
            fix = "name a port of its own, on a switch that is nearer to the brokers"
            reader.report(line, f"switches.{name}.backup", f"is {port}, which {what}", fix)


def check_conditions(reader: Reader, sections: Sections) -> None:
    """Conditions name things that exist, and links that join two switches."""
    for condition in sections.conditions:
        entry = condition.entry
        if entry is None:
            continue
        for key, name, known in (
            ("port", entry.port, sections.ports),
            ("publisher", entry.publisher, sections.publishers),
            ("subscriber", entry.subscriber, sections.subscribers),
        ):
            if name is not None and name not in known:
                _report(reader, condition, (key,), *reader.unknown(key, name, known, f"{key}s"))
        profile, profiles = entry.worth_profile, sections.worth_profiles
        if profile is not None and profile not in (USUAL_PROFILE, *profiles):
            what, fix = reader.unknown("worth profile", profile, profiles, "worth_profiles")
            _report(reader, condition, ("worth_profile",), what, fix)
        if entry.link is not None:
            _check_link(reader, sections, condition, (entry.link[0], entry.link[1]))


def check_condition_topics(reader: Reader, sections: Sections, published: PublicationRows) -> None:
    """Conditions and worth profiles name topics that are published, by the publisher that stands beside them."""
    tree = TopicTree(published.published)
    for name, profile in sections.worth_profiles.items():
        for topic, pair in profile.pairs.items():
            mistake = _topic_mistake(reader, topic, tree, published.published)
            if mistake is not None:
                reader.report(pair.key, f"worth_profiles.{name}.{topic}", *mistake)
    names, publishers = list(published.topics), list(sections.publishers)
    for condition in sections.conditions:
        if condition.entry is None or condition.entry.topic is None:
            continue
        publisher, topic = condition.entry.publisher, condition.entry.topic
        mistake = _topic_mistake(reader, topic, tree, published.published)
        if mistake is None and publisher in publishers:
            own = published.table.topic[published.table.publisher == publishers.index(publisher)]
            topics = [names[row] for row in np.unique(own)]
            if not TopicTree(topics).matching(topic):
                mistake = f"{publisher} does not publish {topic}", f"it publishes {listed(topics)}"
        if mistake is not None:
            _report(reader, condition, ("topic",), *mistake)


def _topic_mistake(
    reader: Reader, topic: str, tree: TopicTree, published: Collection[str]
) -> tuple[str, str] | None:
    wrong = filter_mistake(topic)
    if wrong is not None or tree.matching(topic):
        return wrong
    if is_pattern(topic):
        return "matches no topic that is published", f"published are: {listed(published) or 'none'}"
    return reader.unknown("topic", topic, published, "the publishes of a publisher")


def joining_port(sections: Sections, ends: Collection[str]) -> str | None:
    """The port whose link joins two switches, whichever is named first: the one that feeds, else the backup."""
    for key in ("fed_by", "backup"):
        for name, switch in sections.switches.right.items():
            port = sections.ports.right.get(getattr(switch, key) or "")
            if port is not None and {name, port.switch} == set(ends):
                return str(getattr(switch, key))
    return None


def _check_link(
    reader: Reader, sections: Sections, condition: Listed[ConditionEntry], ends: tuple[str, str]
) -> None:
    unknown = [number for number, name in enumerate(ends) if name not in sections.switches]
    for number in unknown:
        what, fix = reader.unknown("switch", ends[number], sections.switches, "switches")
        _report(reader, condition, ("link", str(number)), what, fix)
    whole = len(sections.switches.right) == len(sections.switches)
    if not unknown and whole and joining_port(sections, ends) is None:
        what = f"no port of {ends[0]} or {ends[1]} feeds the other"
        _report(reader, condition, ("link",), what, "name a switch and the one that it is fed by")


def _above(sections: Sections, name: str) -> list[str]:
    """A switch and all that it is fed by, the nearest first; stops at what is wrong elsewhere."""
    found: list[str] = []
    while name in sections.switches.right and name not in found:
        found.append(name)
        port = sections.ports.right.get(sections.switches.right[name].fed_by or "")
        name = port.switch if port is not None else ""
    return found


def _report(
    reader: Reader, condition: Listed[ConditionEntry], path: tuple[str, ...], what: str, fix: str
) -> None:
    line, depth = reader.locate(condition.pair, path)
    reader.report(line, ".".join([condition.field, *path[:1]][: 1 + depth]), what, fix)
