"""`triage token create|list|revoke`: who may use a coordinator, in its database or through REST."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer
from rich.table import Table

from triagemq.cli import options
from triagemq.cli.options import print_json, screen, with_groups
from triagemq.errors import ParameterError

if TYPE_CHECKING:
    from triagemq.coordinator.access.rights import StoredTokens
    from triagemq.coordinator.access.tokens import TokenFile

app = typer.Typer(help="Make, list and revoke the tokens of a coordinator.", no_args_is_help=True)


@dataclass(frozen=True, slots=True)
class Where:
    """Where tokens are stored. Every field is an option of each command."""

    state: Annotated[
        Path | None, typer.Option("--state", help="State directory of `triage up`: works on its database.")
    ] = None
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            envvar="TRIAGE_STORE",
            show_envvar=False,
            help="postgresql://... that `triage up --store` uses (default: TRIAGE_STORE).",
        ),
    ] = None
    url: Annotated[
        str | None,
        typer.Option(
            "--url", help="Address of a coordinator; the operator's token is taken from TRIAGE_TOKEN."
        ),
    ] = None
    file: Annotated[
        Path | None,
        typer.Option("--file", help="File of tokens, for `triage gateway --tokens`; made if need be."),
    ] = None

    def database(self) -> str | Path | None:
        """A file or an address; None for a coordinator's. Options beat the environment."""
        if self.file is not None:
            if self.state is not None or self.url is not None:
                raise ParameterError("file", "goes without --state and --url")
            return self.file
        if (self.state is None) == (self.url is None) and (self.store is None or self.state is not None):
            raise ParameterError(
                "state", "give one of --state DIR, --store URL, --file FILE and --url ADDRESS"
            )
        if self.url is not None:
            return None
        if self.state is None:
            return self.store
        if not self.state.is_dir():
            raise ParameterError(
                "state", f"{self.state} is no directory; give the one that `triage up --state` uses"
            )
        return f"sqlite:///{self.state / 'coordinator.sqlite'}"


@app.command("create")
@with_groups
def create(
    *,
    role: Annotated[
        list[str],
        typer.Option("--role", help="publisher, subscriber, operator, viewer or gateway; may repeat."),
    ],
    publish: Annotated[
        list[str] | None, typer.Option("--publish", help="Topic pattern it may publish on; may repeat.")
    ] = None,
    subscribe: Annotated[
        list[str] | None, typer.Option("--subscribe", help="Topic pattern it may subscribe to; may repeat.")
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option("--name", help="Name it may announce, * for any characters; may repeat."),
    ] = None,
    label: Annotated[str, typer.Option(help="What people call it.")] = "",
    most_subscriptions: Annotated[int | None, typer.Option(min=0, help="Subscriptions in all.")] = None,
    most_publications_per_second: Annotated[
        float | None, typer.Option(min=0, help="Declared publications a second in all.")
    ] = None,
    expires_seconds: Annotated[float | None, typer.Option(min=1, help="Seconds until it is no good.")] = None,
    where: Where,
    json: options.Json = False,
) -> None:
    """Make a token and print it: this is the only time it can be read."""
    request = {
        "label": label,
        "roles": role,
        "names": name or ["*"],
        "publish": publish or [],
        "subscribe": subscribe or [],
        "most_subscriptions": most_subscriptions,
        "most_publications_per_second": most_publications_per_second,
        "expires_seconds": expires_seconds,
    }
    database = where.database()
    made = _ask(where.url, "POST", "/v1/tokens", request) if database is None else _create(database, request)
    if json:
        print_json(made)
    else:
        typer.echo(made["token"])


@app.command("list")
@with_groups
def list_tokens(*, where: Where, json: options.Json = False) -> None:
    """Print all tokens, without their secrets."""
    database = where.database()
    rows = _ask(where.url, "GET", "/v1/tokens") if database is None else _list(database)
    if json:
        print_json({"tokens": rows})
        return
    table = Table()
    # In one piece: it is to be copied.
    table.add_column("id", overflow="fold", min_width=max((len(row["token_id"]) for row in rows), default=0))
    for column in ("label", "roles", "names", "publish", "subscribe", "state"):
        table.add_column(column, overflow="fold")
    for row in rows:
        lists = (", ".join(row[column]) for column in ("roles", "names", "publish", "subscribe"))
        table.add_row(row["token_id"], row["label"], *lists, _condition(row))
    screen().print(table)


@app.command("revoke")
@with_groups
def revoke(
    *,
    token_id: Annotated[str, typer.Argument(help="As `triage token list` shows it, or its beginning.")],
    where: Where,
    json: options.Json = False,
) -> None:
    """Make a token useless; what was announced with it is withdrawn."""
    database, not_yet = where.database(), None
    if database is None:
        token_id = _meant(token_id, [row["token_id"] for row in _ask(where.url, "GET", "/v1/tokens")])
        not_yet = _ask(where.url, "DELETE", f"/v1/tokens/{quote(token_id, safe='')}")
    else:
        with _opened(database) as tokens:
            token_id = _meant(token_id, [token.token_id for token in tokens.tokens()])
            tokens.revoke(token_id, time.time_ns())
    if json:
        print_json({"revoked": token_id, **(not_yet or {})})
    else:
        typer.echo(f"revoked {token_id}" + (f", {not_yet['detail']}" if not_yet else ""))


def _condition(row: dict[str, Any]) -> str:
    if row["revoked_ns"] is not None:
        return "revoked"
    return "expired" if row["expires_ns"] is not None and row["expires_ns"] <= time.time_ns() else "good"


def _create(database: str | Path, request: dict[str, Any]) -> dict[str, Any]:
    from pydantic import TypeAdapter, ValidationError

    from triagemq.coordinator.access.tokens import TokenRequest, new_token, shown

    try:
        checked = TypeAdapter(TokenRequest).validate_python(request)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ParameterError(".".join(str(part) for part in first["loc"]), first["msg"]) from None
    secret, token = new_token(checked)
    with _opened(database) as tokens:
        tokens.add(token)
    return {**shown(token), "token": secret}


def _list(database: str | Path) -> list[dict[str, Any]]:
    from triagemq.coordinator.access.tokens import shown

    with _opened(database) as tokens:
        return [shown(token) for token in tokens.tokens()]


def _meant(given: str, known: Sequence[str]) -> str:
    """The token whose id this is, or the only one whose id begins with it.

    >>> _meant("4f", ["4f1c", "40aa"]), _meant("4f", ["4f", "4f1c"])
    ('4f1c', '4f')
    """
    found = [given] if given in known else [each for each in known if given and each.startswith(given)]
    if not found:
        raise ParameterError("token_id", f"there is no token {given!r}; `triage token list` shows them")
    if len(found) > 1:
        raise ParameterError("token_id", f"{given!r} begins the ids {', '.join(found)}; give more of it")
    return found[0]


@contextmanager
def _opened(where: str | Path) -> Iterator[TokenFile | StoredTokens]:
    """The tokens of a file, or of a database."""
    if isinstance(where, Path):
        from triagemq.coordinator.access.tokens import TokenFile

        yield TokenFile(where)
        return
    from triagemq.coordinator.access.rights import StoredTokens
    from triagemq.coordinator.store.store import Store

    store = Store(where)
    try:
        yield StoredTokens(store)
    finally:
        store.close_now()


def _ask(url: str | None, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    from triagemq.client.coordinator import Coordinator

    async def ask() -> Any:
        coordinator = Coordinator(url or "", token=os.environ.get("TRIAGE_TOKEN"), timeout_seconds=30.0)
        try:
            return await coordinator.answer(method, path, body)
        finally:
            await coordinator.close()

    return asyncio.run(ask())
