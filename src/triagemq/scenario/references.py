"""Do the entries of a file fit together: names that refer to others, the tree of switches, links, queues.

An entry that is wrong by itself still counts as existing, so that one mistake is one problem.
"""

from __future__ import annotations

from collections.abc import Iterator

from triagemq.scenario.condition_checks import check_backups, check_conditions
from triagemq.scenario.document import BrokerLinkEntry
from triagemq.scenario.mistakes import listed
from triagemq.scenario.reader import Reader
from triagemq.scenario.sections import Entries, Sections, SomeEntry

__all__ = ["check_references"]


def check_references(reader: Reader, sections: Sections) -> None:
    """Report everything between entries that does not fit."""
    _check_names(reader, sections)
    _check_links(reader, sections)
    _check_tree(reader, sections)
    _check_queues(reader, sections)
    check_backups(reader, sections)
    check_conditions(reader, sections)


def _report(reader: Reader, section: Entries[SomeEntry], name: str, key: str, what: str, fix: str) -> None:
    line, _ = reader.locate(section.pairs[name], [key])
    reader.report(line, f"{section.title}.{name}.{key}", what, fix)


def _check_names(reader: Reader, sections: Sections) -> None:
    publishers, subscribers = sections.publishers, sections.subscribers
    _check_brokers(
        reader, publishers, {name: entry.broker for name, entry in publishers.right.items()}, sections
    )
    _check_brokers(
        reader, subscribers, {name: entry.broker for name, entry in subscribers.right.items()}, sections
    )
    unmanaged = sections.unmanaged_switches
    for name, publisher in publishers.right.items():
        if publisher.switch is not None and publisher.switch not in unmanaged:
            what, fix = reader.unknown("unmanaged switch", publisher.switch, unmanaged, "unmanaged_switches")
            _report(reader, publishers, name, "switch", what, fix)
    if sections.ports:
        for name, subscriber in subscribers.right.items():
            if subscriber.port not in sections.ports:
                what, fix = reader.unknown("port", subscriber.port, sections.ports, "ports")
                _report(reader, subscribers, name, "port", what, fix)
        for name, switch in sections.switches.right.items():
            if switch.fed_by is not None and switch.fed_by not in sections.ports:
                what, fix = reader.unknown("port", switch.fed_by, sections.ports, "ports")
                _report(reader, sections.switches, name, "fed_by", what, fix)
            if switch.backup is not None and switch.backup not in sections.ports:
                what, fix = reader.unknown("port", switch.backup, sections.ports, "ports")
                _report(reader, sections.switches, name, "backup", what, fix)
    if sections.switches:
        for name, port in sections.ports.right.items():
            if port.switch not in sections.switches:
                what, fix = reader.unknown("switch", port.switch, sections.switches, "switches")
                _report(reader, sections.ports, name, "switch", what, fix)


def _check_brokers(
    reader: Reader, section: Entries[SomeEntry], brokers: dict[str, str | None], sections: Sections
) -> None:
    if not sections.brokers:
        return
    for name, broker in brokers.items():
        if broker is None and len(sections.brokers) > 1:
            choice = listed(sections.brokers)
            _report(
                reader,
                section,
                name,
                "broker",
                "is missing where there are several",
                f"write one of {choice}",
            )
        elif broker is not None and broker not in sections.brokers:
            _report(
                reader,
                section,
                name,
                "broker",
                *reader.unknown("broker", broker, sections.brokers, "brokers"),
            )


def _check_links(reader: Reader, sections: Sections) -> None:
    first_line: dict[tuple[str, str], int] = {}
    for link in sections.broker_links:
        if link.entry is None:
            continue
        for place, broker in zip(_link_ends(link.entry), link.entry.ends, strict=True):
            if sections.brokers and broker not in sections.brokers:
                line, depth = reader.locate(link.pair, place)
                what, fix = reader.unknown("broker", broker, sections.brokers, "brokers")
                reader.report(line, ".".join([link.field, place[0]][: 1 + depth]), what, fix)
        for source, target in link.entry.directions:
            if (source, target) in first_line:
                reader.report(
                    link.pair.key,
                    link.field,
                    f"joins {source} to {target} again, after line {first_line[source, target]}",
                    "remove one of the two links",
                )
                break
            first_line[source, target] = link.pair.key.line


def _link_ends(entry: BrokerLinkEntry) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Where in an entry its two brokers stand."""
    if entry.between is not None:
        return ("between", "0"), ("between", "1")
    return ("from",), ("to",)


def _check_tree(reader: Reader, sections: Sections) -> None:
    switches, ports = sections.switches, sections.ports
    feeds: dict[str, str] = {}
    for name, switch in switches.right.items():
        if switch.fed_by is None or switch.fed_by not in ports:
            continue
        if switch.fed_by in feeds:
            _report(
                reader,
                switches,
                name,
                "fed_by",
                f"is {switch.fed_by}, which feeds {feeds[switch.fed_by]} already",
                "give each switch a port of its own upstream",
            )
        else:
            feeds[switch.fed_by] = name
    for loop in _loops(sections):
        if len(loop) == 1:
            what = f"is {switches.right[loop[0]].fed_by}, a port of {loop[0]} itself"
        else:
            what = f"closes a loop: {' is fed by '.join([*loop, loop[0]])}"
        _report(reader, switches, loop[0], "fed_by", what, "name a port of a switch nearer to the brokers")
        for name in loop:
            feeds.pop(switches.right[name].fed_by or "", None)  # which of its ports is meant is not known
    for name, subscriber in sections.subscribers.right.items():
        if subscriber.port in feeds:
            _report(
                reader,
                sections.subscribers,
                name,
                "port",
                f"is {subscriber.port}, which feeds the switch {feeds[subscriber.port]}",
                f"put it on a port of its own, or on one of {feeds[subscriber.port]}",
            )


def _loops(sections: Sections) -> Iterator[list[str]]:
    """Every loop of switches once, each switch followed by the one that feeds it."""
    done: set[str] = set()
    for start in sections.switches.right:
        path: list[str] = []
        name: str | None = start
        while name is not None and name not in done:
            done.add(name)
            path.append(name)
            name = _upstream(sections, name)
        if name in path:
            yield path[path.index(name) :]


def _upstream(sections: Sections, name: str) -> str | None:
    switch = sections.switches.right.get(name)
    port = None if switch is None or switch.fed_by is None else sections.ports.right.get(switch.fed_by)
    return None if port is None or port.switch not in sections.switches.right else port.switch


def _check_queues(reader: Reader, sections: Sections) -> None:
    if sections.planning is None:
        return
    classes = sections.planning.priority_classes
    for name, port in sections.ports.right.items():
        if port.queues is not None and port.queues < classes:
            _report(
                reader,
                sections.ports,
                name,
                "queues",
                f"is {port.queues}, fewer than the {classes} priority classes",
                f"write planning: {{priority_classes: {port.queues}}}, or more queues",
            )
