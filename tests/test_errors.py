"""The tree of errors at the top of errors.py is the tree of classes."""

from __future__ import annotations

import re

from triagemq import errors
from triagemq.errors import TriageError


def _tree(kind: type[TriageError]) -> dict[str, str]:
    """Names of all classes below a class that errors.py defines, each with the name of its parent."""
    found = {}
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            found[child.__name__] = kind.__name__
            found |= _tree(child)
    return found


def test_the_drawn_tree_is_that_of_the_classes() -> None:
    drawn, parents = {}, {0: "TriageError"}
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"(?P<branch>[│├└─ ]+) (?P<name>\w+Error)\b", line)
        if match:
            depth = (len(match["branch"]) + 1) // 4
            drawn[match["name"]] = parents[depth - 1]
            parents[depth] = match["name"]
    assert drawn == _tree(TriageError)


def test_every_error_can_be_imported_by_name() -> None:
    assert set(_tree(TriageError)) | {"TriageError", "Problem"} == {
        name for name, thing in vars(errors).items() if getattr(thing, "__module__", "") == errors.__name__
    }
