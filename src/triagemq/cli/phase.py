"""`triage phase`: the phase of an incident, which factors on worth hold."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from triagemq.cli import options, terminal
from triagemq.cli.clients import DEFAULT_COORDINATOR, trusting


def phase(
    name: Annotated[
        str | None, typer.Argument(help="The phase that begins; none: print the one of now.")
    ] = None,
    *,
    coordinator: Annotated[str, typer.Option(help="Address of the coordinator.")] = DEFAULT_COORDINATOR,
    token: Annotated[
        str | None,
        typer.Option(envvar="TRIAGE_TOKEN", help="An operator's token, where access is controlled."),
    ] = None,
    ca: Annotated[
        Path | None, typer.Option(help="Certificate of the authority to trust for https://.")
    ] = None,
    reason: Annotated[str, typer.Option(help="Why, for the record of decisions.")] = "",
    json: options.Json = False,
) -> None:
    """Switch to a phase of the policy, or of the scenario's worth profiles; `usual` is the phase without factors."""
    from triagemq.client import Coordinator

    async def ask() -> dict[str, object]:
        there = Coordinator(coordinator, token=token, ssl_context=trusting(ca))
        try:
            if name is None:
                return await there.ask("GET", "/v1/phase")
            return await there.ask("PUT", "/v1/phase", {"phase": name, "reason": reason})
        finally:
            await there.close()

    found = asyncio.run(ask())
    phases = found.get("phases")
    others = ", ".join(map(str, phases if isinstance(phases, list) else ()))
    terminal.show(found, f"phase {found.get('phase')}; there are {others}", as_json=json)
