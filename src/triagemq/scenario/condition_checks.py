"""Do the conditions of a file, and the backups of its switches, fit the rest of it?"""

from __future__ import annotations

from collections.abc import Collection

from triagemq.scenario.document import ConditionEntry
from triagemq.scenario.reader import Reader
from triagemq.scenario.sections import Listed, Sections

__all__ = ["check_backups", "check_conditions", "joining_port"]


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
        if entry.link is not None:
            _check_link(reader, sections, condition, (entry.link[0], entry.link[1]))


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
