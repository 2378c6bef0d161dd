"""A campus of which a part is described wrongly: that part is left out, and the rest can come up.

Wrong may be where brokers and clients belong: a broker that stands twice, a cluster without a head, a client of a
cluster or broker that is not there. Whatever else is wrong in a file is refused as ever.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml

from triagemq.errors import Problem, ScenarioError
from triagemq.scenario import load

_PLACES = re.compile(
    r"(?P<section>brokers)\.(?P<name>.+?)(\.cluster|\.head)?"
    r"|(?P<links>broker_links)\.(?P<number>\d+)\.between"
    r"|(?P<clients>publishers|subscribers)\.(?P<client>.+)\.(broker|cluster)"
)


def what_fits(file: Path, into: Callable[[], Path]) -> tuple[Path, list[str]]:
    """A file that is right, and a line for everything of `file` that is left out of it.

    It is `file` itself if that is right, else `scenario.yaml` in the directory `into()`. ScenarioError if more is wrong
    than can be left out, or there is but one broker.
    """
    problems, lines = _problems(file), list[str]()
    if not problems:
        return file, lines
    text = yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else None
    if not isinstance(text, dict) or len(text.get("brokers") or ()) < 2:
        raise ScenarioError(problems)
    while problems:
        if not all(_leave_out(text, each.field) for each in problems):
            raise ScenarioError(problems)
        lines += [f"{each}; left out" for each in problems]
        here = into() / "scenario.yaml"
        here.write_text(yaml.safe_dump(_without_gaps(text), sort_keys=False), encoding="utf-8")
        problems = _problems(here, shown=file)
    return here, lines


def _problems(file: Path, shown: Path | None = None) -> list[Problem]:
    try:
        load(file)
    except ScenarioError as error:
        # Of a copy no line is anywhere that a person has seen.
        return [
            each if shown is None else Problem(str(shown), None, each.field, each.what, each.fix)
            for each in error.problems
        ]
    return []


def _leave_out(text: dict[str, Any], field: str) -> bool:
    """Whether what a problem is about could be left out."""
    found = _PLACES.fullmatch(field)
    if found is None:
        return False
    if found["links"]:
        text["broker_links"][int(found["number"]) - 1] = None
    elif found["clients"]:
        text[found["clients"]].pop(found["client"], None)
    elif (broker := text["brokers"].get(found["name"])) is None or field.endswith(found["name"]):
        # It stands twice: one of the two is left.
        return found["name"] in text["brokers"]
    else:
        cluster = broker["cluster"]
        text["brokers"] = {
            name: each
            for name, each in text["brokers"].items()
            if not isinstance(each, dict) or each.get("cluster") != cluster
        }
    return True


def _without_gaps(text: dict[str, Any]) -> dict[str, Any]:
    links: Iterable[Any] = text.get("broker_links") or ()
    return text | {"broker_links": [each for each in links if each is not None]}
