"""docs/reference/commands.md agrees with the program: commands, their purposes, arguments and options."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.docs.terminal import ROOT
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

from triagemq.cli.app import app

PAGE = ROOT / "docs" / "reference" / "commands.md"


def commands(command: TyperCommand | TyperGroup, name: str) -> Iterator[tuple[str, TyperCommand]]:
    if isinstance(command, TyperGroup):
        for word, below in command.commands.items():
            if not below.hidden:
                yield from commands(below, f"{name} {word}")
    else:
        yield name, command


def row(parameter: TyperArgument | TyperOption) -> str:
    """The row of the page's table: syntax and meaning."""
    if isinstance(parameter, TyperArgument):
        written = f"{parameter.name}{'...' if parameter.nargs == -1 else ''}"
    else:
        written = ", ".join((*parameter.opts, *parameter.secondary_opts))
    words = re.sub(r"\s+", " ", getattr(parameter, "help", None) or "").replace("|", "\\|")
    words = words.replace("\\[", "[")  # escaped: the terminal would take it for markup
    known = parameter.default not in (None, "") and not isinstance(parameter.default, bool | list | tuple)
    if isinstance(parameter, TyperOption) and known and "default" not in words:
        words += f" Default: {parameter.default}."
    return f"| `{written}` | {words.strip()} |"


def section(name: str, command: TyperCommand) -> str:
    does = re.sub(r"\s+", " ", (command.help or "").partition("\n\n")[0]).strip()
    rows = [row(each) for each in command.params if each.name not in ("help", "json")]
    as_json = (
        " `--json` prints one JSON object." if any(each.name == "json" for each in command.params) else ""
    )
    table = "\n".join(["| argument or option | |", "| --- | --- |", *rows]) if rows else ""
    return f"## {name}\n\n{does}{as_json}\n\n{table}".rstrip() + "\n"


def test_the_page_has_every_command_with_its_arguments_and_options() -> None:
    shown = re.split(r"^(?=## )", PAGE.read_text(), flags=re.MULTILINE)[1:]
    expected = [section(name, command) for name, command in commands(get_command(app), "triage")]
    assert [each.rstrip() for each in shown] == [each.rstrip() for each in expected]
