"""Algorithms by name: those that come with TriageMQ, and a user's own as `module:function`."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from triagemq.errors import ParameterError

__all__ = ["resolve"]

Algorithm = TypeVar("Algorithm", bound=Callable[..., Any])


def resolve(kind: str, name: str, known: Mapping[str, Algorithm]) -> Algorithm:
    """The algorithm of that name.

    >>> resolve("drop policy", "flt", {"flat": print, "linear": print})
    Traceback (most recent call last):
    ...
    triagemq.errors.ParameterError: drop policy: 'flt' is unknown; did you mean 'flat'? known: flat, linear, ...
    """
    if name in known:
        return known[name]
    if ":" in name:
        return cast(Algorithm, _load(kind, name))
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ParameterError(
        kind, f"{name!r} is unknown; {hint}known: {', '.join(known)}, or your own as module:function"
    )


def _load(kind: str, name: str) -> Any:
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise ParameterError(kind, f"{name!r} should read module:function")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's module may fail in any way while it is imported
        raise ParameterError(
            kind,
            f"{name!r}: module {module_name!r} cannot be imported ({type(error).__name__}: {error}); "
            "it is looked for in the current directory and on PYTHONPATH",
        ) from error
    function = getattr(module, attribute, None)
    if function is None:
        raise ParameterError(kind, f"{name!r}: module {module_name!r} has no {attribute!r}")
    if not callable(function):
        raise ParameterError(kind, f"{name!r}: {attribute!r} is a {type(function).__name__}, not a function")
    return function
