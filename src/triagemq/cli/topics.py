"""`triage topics encode|decode`: topics as IPv6 multicast addresses, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from triagemq.cli import options
from triagemq.cli.options import print_json, screen
from triagemq.errors import CodeError

app = typer.Typer(help="Topics as addresses that switches match by prefix.", no_args_is_help=True)

Codes = Annotated[Path, typer.Option("--codes", help="File that keeps which topic has which code.")]


@app.command()
def encode(
    topics: Annotated[
        list[str] | None,
        typer.Argument(help="Topics, or subtrees as floor3/#; all that have a code unless some are named."),
    ] = None,
    codes: Codes = Path("topic-codes.json"),
    tree: Annotated[
        Path | None,
        typer.Option(
            "--tree", help="Tree of topics (YAML or .ldif) whose topics get codes; the file keeps them."
        ),
    ] = None,
    root: Annotated[
        str | None, typer.Option("--root", help="Distinguished name above all topics of an LDIF file.")
    ] = None,
    queue: Annotated[int, typer.Option(min=0, max=7, help="Queue of the events; 7 is served best.")] = 0,
    event_type: Annotated[
        str, typer.Option("--type", help="Type of the events; a new one gets a number.")
    ] = "",
    json: options.Json = False,
) -> None:
    """Print the addresses of topics, and the prefixes of subtrees; with a tree, give codes to its topics first."""
    from triagemq.topic_codes import (
        EventAddress,
        event_address,
        load_book,
        read_tree,
        save_book,
        subtree_prefix,
    )

    book = load_book(codes)
    types = len(book.types)
    added = book.add(read_tree(tree, root)) if tree is not None else 0
    book.add_type(event_type)
    if added or len(book.types) > types:
        save_book(book, codes)
    wanted = topics or book.topics()
    if not wanted:
        raise CodeError(f"{codes}: holds no topics yet; name a tree of them (--tree)")
    rows: list[dict[str, Any]] = []
    for each in wanted:
        if each == "#" or each.endswith("/#"):
            rows.append({"topic": each, "address": None, "prefix": str(subtree_prefix(book, each))})
        else:
            address = event_address(book, EventAddress(each, queue, event_type))
            rows.append({"topic": each, "address": address, "prefix": str(subtree_prefix(book, each))})
    if json:
        print_json({"codes": str(codes), "added": added, "topics": rows})
        return
    table = Table()
    for column in ("topic", "address", "prefix"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(row["topic"], row["address"] or "", row["prefix"])
    screen().print(table)
    if added:
        typer.echo(f"{added} topics are new in {codes}")


@app.command()
def decode(
    addresses: Annotated[list[str], typer.Argument(help="IPv6 addresses of events.")],
    codes: Codes = Path("topic-codes.json"),
    json: options.Json = False,
) -> None:
    """Print topic, queue and event type of addresses."""
    from triagemq.topic_codes import load_book, read_address

    book = load_book(codes)
    rows: list[dict[str, Any]] = []
    for address in addresses:
        event = read_address(book, address)
        rows.append(
            {"address": address, "topic": event.topic, "queue": event.queue, "type": event.event_type or None}
        )
    if json:
        print_json({"events": rows})
        return
    for row in rows:
        kind = f", type {row['type']}" if row["type"] else ""
        typer.echo(f"{row['address']}  {row['topic']}, queue {row['queue']}{kind}")
