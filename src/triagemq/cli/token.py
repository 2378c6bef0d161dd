"""`triage token create|list|revoke`: who may use a coordinator, in its database, or a gateway, in its file."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triagemq.cli import options, terminal
from triagemq.errors import ParameterError

if TYPE_CHECKING:
    from triagemq.coordinator.access.tokens import TokenFile
    from triagemq.coordinator.store import Store

app = typer.Typer(help="Make, list and revoke the tokens of a coordinator.", no_args_is_help=True)


@dataclass(frozen=True, slots=True)
class TokenStore:
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
    file: Annotated[
        Path | None,
        typer.Option("--file", help="File of tokens, for `triage gateway --tokens`; made if need be."),
    ] = None

    @contextmanager
    def open(self) -> Iterator[TokenFile | Store]:
        """The tokens of a file, or of a database. Options beat the environment."""
        if self.file is not None:
            if self.state is not None:
                raise ParameterError("file", "goes without --state")
            from triagemq.coordinator.access.tokens import TokenFile

            yield TokenFile(self.file)
            return
        if self.state is None and self.store is None:
            raise ParameterError("state", "give one of --state DIR, --store URL and --file FILE")
        if self.state is not None and not self.state.is_dir():
            raise ParameterError(
                "state", f"{self.state} is no directory; give the one that `triage up --state` uses"
            )
        from triagemq.coordinator.store import Store

        own = None if self.state is None else f"sqlite:///{self.state / 'coordinator.sqlite'}"
        store = Store(own or self.store or "")
        try:
            yield store
        finally:
            store.close_now()


@app.command("create")
@options.with_groups
def create(
    *,
    role: Annotated[
        list[str],
        typer.Option(
            "--role",
            help="publisher, subscriber, operator, viewer or gateway, may repeat; or a role of the policy, whose "
            "clients subscribe.",
        ),
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
    where: TokenStore,
    json: options.Json = False,
) -> None:
    """Make a token and print it: this is the only time it can be read."""
    from pydantic import TypeAdapter, ValidationError

    from triagemq.coordinator.access.tokens import Role, TokenRequest, new_token, shown

    roles = [each for each in role if each in set(Role)]
    request = {
        "label": label,
        "roles": roles or ["subscriber"],
        "policy_role": "",
        "names": name or ["*"],
        "publish": publish or [],
        "subscribe": subscribe or [],
        "most_subscriptions": most_subscriptions,
        "most_publications_per_second": most_publications_per_second,
        "expires_seconds": expires_seconds,
    }
    of_policy = [each for each in role if each not in roles]
    if len(of_policy) > 1:
        raise ParameterError("roles", f"{' and '.join(of_policy)} are several roles of a policy; give one")
    if of_policy:
        with where.open() as tokens:
            request["policy_role"] = _known_role(of_policy[0], tokens)
    try:
        checked = TypeAdapter(TokenRequest).validate_python(request)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ParameterError(".".join(str(part) for part in first["loc"]), first["msg"]) from None
    secret, token = new_token(checked)
    with where.open() as tokens:
        tokens.add(token)
    made = {**shown(token), "token": secret}
    terminal.show(made, secret, as_json=json)


@app.command("list")
@options.with_groups
def list_tokens(*, where: TokenStore, json: options.Json = False) -> None:
    """Print all tokens, without their secrets."""
    from triagemq.coordinator.access.tokens import shown

    with where.open() as tokens:
        rows = [shown(token) for token in tokens.tokens()]
    if json:
        terminal.print_json({"tokens": rows})
        return
    columns = ("token_id", "label", "roles", "names", "publish", "subscribe", "state")
    terminal.print_table(
        "",
        {name: name.removeprefix("token_") for name in columns},
        [
            row
            | {name: ", ".join(row[name]) for name in ("roles", "names", "publish", "subscribe")}
            | {"state": _condition(row)}
            for row in rows
        ],
    )


@app.command("revoke")
@options.with_groups
def revoke(
    *,
    token_id: Annotated[str, typer.Argument(help="As `triage token list` shows it, or its beginning.")],
    where: TokenStore,
    json: options.Json = False,
) -> None:
    """Make a token useless; what was announced with it is withdrawn."""
    with where.open() as tokens:
        token_id = _meant(token_id, [token.token_id for token in tokens.tokens()])
        tokens.revoke(token_id, time.time_ns())
    terminal.show({"revoked": token_id}, f"revoked {token_id}", as_json=json)


def _known_role(name: str, tokens: TokenFile | Store) -> str:
    """A role of the policy that is stored with the tokens."""
    from triagemq.coordinator.access.tokens import Role, TokenFile
    from triagemq.coordinator.policy.in_force import stored_policy

    known = [] if isinstance(tokens, TokenFile) else [*stored_policy(tokens).roles]
    if name not in known:
        raise ParameterError("roles", f"{name!r} is none of {', '.join([*Role, *known])}")
    return name


def _condition(row: dict[str, Any]) -> str:
    if row["revoked_ns"] is not None:
        return "revoked"
    return "expired" if row["expires_ns"] is not None and row["expires_ns"] <= time.time_ns() else "good"


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
