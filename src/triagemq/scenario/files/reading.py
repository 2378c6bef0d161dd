"""One YAML file as a Document: its valid entries, and the names of all.

The file is checked as a whole by `ScenarioFile`. Invalid parts are reported and taken out, and the rest is checked
again, so that every error is found at once, and one error is one problem.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from triagemq.errors import ScenarioError
from triagemq.mqttsn.filters import has_wildcard
from triagemq.scenario.files.document import USUAL_PROFILE, ScenarioFile
from triagemq.scenario.files.explain import explain, listed, nearest, unknown_key
from triagemq.scenario.files.yaml_lines import LinedFile, LinedList, LinedMapping

REQUIRED = {
    "brokers": "hall: {}",
    "switches": "core: {}",
    "ports": "radio: {switch: core, bandwidth_bps: 8000000}",
    "publishers": "sensor-1: {}",
    "subscribers": "commander: {port: radio}",
}
LISTS = ("broker_links", "conditions")
NAMED = (*REQUIRED, *LISTS, "unmanaged_switches", "topics", "worth_profiles")
"""Sections that hold entries by name, or by number."""
SECTIONS = ("planning", *NAMED)


@dataclass(frozen=True)
class Document:
    """What a file holds: `names` has all entries of each section as they stand there, `valid` those that are valid.

    `invalid_keys` are the keys of the file beside its sections, and sections as a whole, that were invalid.
    """

    file: LinedFile
    valid: ScenarioFile
    names: Mapping[str, Mapping[str, Any]]
    invalid_keys: frozenset[str]

    def rows(self, title: str, key: str) -> dict[str, LinedMapping]:
        """What each publisher publishes, or each subscriber subscribes to, by name; empty where it says nothing."""
        found = {}
        for name, entry in self.names[title].items():
            rows = entry.get(key) if isinstance(entry, dict) else None
            found[name] = rows if isinstance(rows, LinedMapping) else LinedMapping(0)
        return found

    def unmatched(self, topic: str, published: Collection[str]) -> tuple[str, str]:
        """What to say about a topic or pattern that none of what is published matches, and what to write instead."""
        if has_wildcard(topic):
            return "matches no topic that is published", f"published are: {listed(published) or 'none'}"
        return self.file.unknown("topic", topic, published, "the publishes of a publisher")


def read_document(text: str, file: str) -> Document:
    """A file, each entry checked by itself. Raises ScenarioError where it holds nothing that could be checked."""
    lines = LinedFile(text, file)
    root = lines.root
    if not isinstance(root, LinedMapping):
        if root is None:
            lines.report(1, "text", "holds no scenario", "begin with brokers:, or copy one of examples/")
        else:
            kind = "a list" if isinstance(root, LinedList) else "a single value"
            line = root.line if isinstance(root, LinedList) else 1
            lines.report(line, "text", f"is {kind}", "write sections: brokers:, switches:, ports:, ...")
        raise ScenarioError(lines.problems)
    _rename_misspelled_sections(lines, root)
    for title, example in REQUIRED.items():
        if title not in root:
            fix = f"add a section {title}: with entries such as {example}"
            lines.report(root.line, title, "is missing", fix)
        elif root[title] is None or root[title] == {}:
            lines.report(root.lines[title], title, "is empty", f"add an entry such as {example}")
    if isinstance(root.get("topics"), LinedList):
        root["topics"] = _topics_by_name(lines, root["topics"])
    data: dict[str, Any] = dict(root)
    for title in LISTS:
        if isinstance(data.get(title), LinedList):
            data[title] = {str(number): entry for number, entry in enumerate(data[title], start=1)}
    names = {title: data[title] if isinstance(data.get(title), dict) else {} for title in NAMED}
    if USUAL_PROFILE in names["worth_profiles"]:
        what = "is what the subscriptions themselves say"
        lines.report_at(("worth_profiles", USUAL_PROFILE), what, "choose another name")
    valid, invalid_keys = _validated(lines, data)
    return Document(lines, valid, names, invalid_keys)


def _rename_misspelled_sections(lines: LinedFile, root: LinedMapping) -> None:
    """A section under a misspelled title is read as if it were spelled right: one error is one problem."""
    known = list(ScenarioFile.model_fields)
    for title in [title for title in root if title not in known]:
        meant = nearest(title, SECTIONS)
        if meant is not None and meant not in root:
            found = unknown_key((title,), known)
            lines.report_at(found.path, found.what, found.fix)
            root[meant], root.lines[meant] = root.pop(title), root.lines.pop(title)


def _topics_by_name(lines: LinedFile, topics: LinedList) -> LinedMapping:
    """Topics that are a list of names alone."""
    found = LinedMapping(topics.line)
    for number, (name, line) in enumerate(zip(topics, topics.lines, strict=True), start=1):
        if not isinstance(name, str):
            lines.report(line, f"topics.{number}", "is not a name", "write topics as names, or as a mapping")
        elif name in found:
            what = f"stands here twice, first in line {found.lines[name]}"
            lines.report(line, f"topics.{name}", what, "remove one")
        else:
            found[name], found.lines[name] = None, line
    return found


def _validated(lines: LinedFile, data: dict[str, Any]) -> tuple[ScenarioFile, frozenset[str]]:
    invalid: set[str] = set()
    while True:
        try:
            return ScenarioFile.model_validate(data), frozenset(invalid)
        except ValidationError as error:
            errors = error.errors(include_url=False)
        for each in explain(errors, ScenarioFile):
            lines.report_at(each.path, each.what, each.fix)
        taken_out: dict[str, set[object]] = {}
        for details in errors:
            # An error of the file as a whole says at which of its keys it is shown.
            title, *inner = details["loc"] or details["ctx"]["field"]
            if title in NAMED and inner:
                taken_out.setdefault(str(title), set()).add(inner[0])
            else:
                data.pop(str(title), None)
                invalid.add(str(title))
        for section, names in taken_out.items():
            data[section] = {name: entry for name, entry in data[section].items() if name not in names}
