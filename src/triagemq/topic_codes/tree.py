"""Topic trees in files: YAML, or LDIF as an LDAP directory exports it.

In YAML a tree is mappings in mappings, with nothing at their ends, or lists of names there; or a list of whole topics.
In LDIF every entry is a topic, named from the root by its relative distinguished names, without their attributes:
`dn: cn=smoke,ou=hall,ou=city,o=topics` is city/hall/smoke below the root o=topics.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from triagemq.errors import CodeError, ScenarioError
from triagemq.scenario.files.reading import LinedFile

TopicPaths = list[str]
"""Topics in the order in which they stand in a file."""

_ESCAPED = re.compile(r"\\([0-9A-Fa-f]{2}|.)", re.DOTALL)
_SEPARATOR = re.compile(r"(?<!\\)(?:\\\\)*,")


def read_tree(path: Path, root: str | None = None) -> TopicPaths:
    """The topics of a file; `root` is the distinguished name of the root of LDIF, if it has no entry of its own."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise CodeError(f"{path}: cannot be read: {why}") from None
    if path.suffix.lower() in (".ldif", ".ldf"):
        return ldif_topics(text, str(path), root)
    try:
        file = LinedFile(text, str(path))
    except ScenarioError as error:
        raise CodeError(str(error)) from None
    if file.problems:
        raise CodeError(str(file.problems[0]))
    found = list(_yaml_topics(file.root, ()))
    if not found:
        raise CodeError(f"{path}: has no topics")
    return found


def _yaml_topics(value: Any, above: tuple[str, ...]) -> Iterator[str]:
    if isinstance(value, dict):
        for name, below in value.items():
            yield "/".join((*above, name))
            yield from _yaml_topics(below, (*above, name))
    elif isinstance(value, list):
        for each in value:
            if isinstance(each, dict | list):
                yield from _yaml_topics(each, above)
            else:
                yield "/".join((*above, str(each)))
    elif value not in (None, "", "~", "null"):
        yield "/".join((*above, str(value)))


def ldif_topics(text: str, source: str, root: str | None = None) -> TopicPaths:
    """The entries of LDIF below its root, which is an entry above all others unless it is named.

    >>> ldif_topics('dn: o=topics\\n\\ndn: ou=city,o=topics\\n\\ndn: cn=smoke\\\\, dust,ou=city,o=topics\\n', "t.ldif")
    ['city', 'city/smoke, dust']
    """
    entries = [(line, _names(name, f"{source}:{line}")) for line, name in _entries(text, source)]
    if not entries:
        raise CodeError(f"{source}: has no entries; they begin with dn:")
    above = _names(root, "the root") if root is not None else min((names for _, names in entries), key=len)
    topics = []
    for line, names in entries:
        if [each.lower() for each in names[: len(above)]] != [each.lower() for each in above]:
            what = (
                "the root that was named" if root is not None else f"its first entry, {','.join(above[::-1])}"
            )
            raise CodeError(f"{source}:{line}: is not below {what}; name the root of the tree (--root)")
        if len(names) > len(above):
            topics.append("/".join(_value(each) for each in names[len(above) :]))
    return topics


def _entries(text: str, source: str) -> Iterator[tuple[int, str]]:
    """Distinguished names and the lines they begin in; long lines go on behind a space."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if not line.lower().startswith("dn:"):
            continue
        whole, following = line[3:], number + 1
        while following < len(lines) and lines[following].startswith(" "):
            whole += lines[following][1:]
            following += 1
        if whole.startswith(":"):
            try:
                whole = base64.b64decode(whole[1:].strip(), validate=True).decode()
            except (binascii.Error, UnicodeDecodeError):
                raise CodeError(f"{source}:{number + 1}: dn:: is no UTF-8 in base64") from None
        yield number + 1, whole.strip()


def _names(distinguished: str, where: str) -> list[str]:
    """The relative names, from the root on."""
    parts, begin = [], 0
    for found in _SEPARATOR.finditer(distinguished):
        parts.append(distinguished[begin : found.end() - 1].strip())
        begin = found.end()
    parts.append(distinguished[begin:].strip())
    if not all("=" in part for part in parts):
        raise CodeError(f"{where}: {distinguished!r} is no distinguished name; write attribute=value,...")
    return parts[::-1]


def _value(relative: str) -> str:
    """What a relative name says, without its attribute and with escaped characters as they are."""
    octets = bytearray()
    text, begin = relative.partition("=")[2].strip(), 0
    for found in _ESCAPED.finditer(text):
        octets += text[begin : found.start()].encode()
        escaped = found.group(1)
        octets += bytes.fromhex(escaped) if len(escaped) == 2 else escaped.encode()
        begin = found.end()
    octets += text[begin:].encode()
    return octets.decode(errors="replace")
