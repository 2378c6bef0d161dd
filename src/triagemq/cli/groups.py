"""Options that belong together, listed once: a record of them in the place of a command's parameters."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the fields of a record in the place of each parameter that is one: they are its options.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Whom:
    ...     gateway: str = "localhost"
    ...     name: str = ""
    >>> def pub(topic: str, whom: Whom, json: bool = False) -> None:
    ...     print(topic, whom, json)
    >>> list(inspect.signature(with_groups(pub)).parameters)
    ['topic', 'gateway', 'name', 'json']
    >>> with_groups(pub)("smoke", name="room-3")
    smoke Whom(gateway='localhost', name='room-3') False
    """
    own = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {
        each.name: each.annotation for each in own.parameters.values() if is_dataclass(each.annotation)
    }
    parameters: list[inspect.Parameter] = []
    for each in own.parameters.values():
        parameters += _options(groups[each.name]) if each.name in groups else [each]
    # Python wants parameters without a default first, and a Typer command is called by names alone.
    named = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY) if number else each
        for number, each in enumerate(parameters)
    ]
    signature = own.replace(parameters=named)

    @functools.wraps(command)
    def run(*arguments: Any, **given: Any) -> None:
        bound = signature.bind(*arguments, **given)
        bound.apply_defaults()
        records = {
            name: group(**{each.name: bound.arguments.pop(each.name) for each in fields(group)})
            for name, group in groups.items()
        }
        command(**bound.arguments, **records)

    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in named}
    return run


def _options(group: Any) -> list[inspect.Parameter]:
    kinds = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=kinds[each.name]
        )
        for each in fields(group)
    ]
