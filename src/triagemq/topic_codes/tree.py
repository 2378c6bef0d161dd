"""Topic trees in YAML files: mappings in mappings, with nothing at their ends, or lists of names there; or a list of
whole topics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from triagemq.errors import CodeError, ScenarioError
from triagemq.scenario.files.reading import LinedFile


def read_tree(path: Path) -> list[str]:
    """The topics of a file, in their order."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise CodeError(f"{path}: cannot be read: {why}") from None
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
