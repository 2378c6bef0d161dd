"""docs/reference/python.md agrees with the code: public names, their parameters, their first sentences."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import pytest
from tests.docs.terminal import ROOT

from triagemq.client import Publisher, Subscriber

PAGE = ROOT / "docs" / "reference" / "python.md"
MODULES = [
    f"triagemq.{name}"
    for name in (
        "client",
        "client.direct",
        "scenario",
        "plan",
        "forecast",
        "simulate",
        "trace",
        "pipeline",
        "topic_codes",
        "theory",
    )
]


def written_name(name: str, thing: Any) -> str:
    """The name, with parameters and defaults if it is a function."""
    if not inspect.isroutine(thing):
        return name
    parameters = [
        each.replace(annotation=inspect.Parameter.empty)
        for each in inspect.signature(thing).parameters.values()
        if each.name != "self"
    ]
    return f"{name}{inspect.Signature(parameters)}"


def summary(thing: Any) -> str | None:
    """The first paragraph of the docstring; None without one."""
    if inspect.isclass(thing) or inspect.isroutine(thing) or isinstance(thing, property):
        first = " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())
        own = not (inspect.isclass(thing) and first.startswith(f"{thing.__name__}("))
        return first.removeprefix("See the module's text. ").replace("|", "\\|") if first and own else None
    return None


def section(title: str) -> dict[str, str]:
    """The table below a heading: second column by first."""
    text = PAGE.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `([^`]+)` \| (.*) \|$", text, re.MULTILINE))


def is_on_the_page(title: str, things: dict[str, Any]) -> None:
    shown = section(title)
    assert list(shown) == [written_name(name, thing) for name, thing in things.items()]
    for name, thing in things.items():
        words = shown[written_name(name, thing)]
        assert words == (summary(thing) or words), name
        assert words


@pytest.mark.parametrize("module", MODULES)
def test_the_page_has_the_public_names_of(module: str) -> None:
    there = importlib.import_module(module)
    is_on_the_page(f"`{module}`", {name: getattr(there, name) for name in there.__all__})


@pytest.mark.parametrize("kind", [Publisher, Subscriber])
def test_the_page_has_what_can_be_done_with_a(kind: type) -> None:
    found = {name: thing for base in reversed(kind.__mro__) for name, thing in vars(base).items()}
    is_on_the_page(kind.__name__, {name: thing for name, thing in found.items() if not name.startswith("_")})
