"""`triage topics encode|decode|carry`: topics as IPv6 multicast addresses, and back; and events carried by them."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triagemq.cli import options, terminal
from triagemq.cli.stopping import stop_on_signals
from triagemq.errors import CodeError, ParameterError
from triagemq.waiting import is_set_within

if TYPE_CHECKING:
    from triagemq.network.openflow import SwitchTls

app = typer.Typer(help="Topics as addresses that switches match by prefix.", no_args_is_help=True)

Codes = Annotated[Path, typer.Option("--codes", help="File of topics and their codes.")]


@app.command()
def encode(
    topics: Annotated[
        list[str] | None,
        typer.Argument(help="Topics, or subtrees as floor3/#; all that have a code unless some are named."),
    ] = None,
    codes: Codes = Path("topic-codes.json"),
    tree: Annotated[
        Path | None,
        typer.Option("--tree", help="Tree of topics (YAML) whose topics get codes in that file."),
    ] = None,
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
    added = book.add(read_tree(tree)) if tree is not None else 0
    book.add_type(event_type)
    if added or len(book.types) > types:
        save_book(book, codes)
    named = topics or book.topics()
    if not named:
        raise CodeError(f"{codes}: holds no topics yet; name a tree of them (--tree)")
    rows: list[dict[str, Any]] = []
    for each in named:
        is_subtree = each == "#" or each.endswith("/#")
        address = None if is_subtree else event_address(book, EventAddress(each, event_type))
        rows.append({"topic": each, "address": address, "prefix": str(subtree_prefix(book, each))})
    columns = {name: name for name in ("topic", "address", "prefix")}
    found = {"codes": str(codes), "added": added, "topics": rows}
    terminal.show(found, lambda: terminal.print_table("", columns, rows), as_json=json)
    if added and not json:
        typer.echo(f"{added} topics are new in {codes}")


@app.command()
def decode(
    addresses: Annotated[
        list[str],
        typer.Argument(
            help="IPv6 addresses of events; - for a log on standard input, which gets names in it."
        ),
    ],
    codes: Codes = Path("topic-codes.json"),
    json: options.Json = False,
) -> None:
    """Print topic and event type of addresses."""
    from triagemq.topic_codes import load_book, read_address, with_names

    book = load_book(codes)
    if addresses == ["-"]:
        for line in sys.stdin:
            typer.echo(with_names(book, line), nl=False)
        return
    events = {address: read_address(book, address) for address in addresses}
    rows = [
        {"address": address, "topic": event.topic, "type": event.event_type or None}
        for address, event in events.items()
    ]
    lines = "\n".join(f"{address}  {event}" for address, event in events.items())
    terminal.show({"events": rows}, lines, as_json=json)


@app.command()
def carry(
    routes: Annotated[
        list[str],
        typer.Argument(
            help="PORT=FILTER or PORT=FILTER@CLASS: events that leave by a port, as radio=building/floor1/#@1; "
            "class 0 is the first, and the default."
        ),
    ],
    interface: Annotated[
        list[str],
        typer.Option(
            "--interface",
            help="PORT=NAME: its network interface, a member of a bridge; with --openflow PORT=DATAPATH/NAME.",
        ),
    ],
    codes: Codes = Path("topic-codes.json"),
    bandwidth: Annotated[float, typer.Option(min=1000, help="Bits a second of each port.")] = 100e6,
    classes: Annotated[int, typer.Option(min=1, max=7, help="Priority classes of each port.")] = 7,
    openflow: Annotated[
        str | None,
        typer.Option(
            "--openflow",
            help="Where OpenFlow switches find us, as tcp:127.0.0.1:6653; they carry the events.",
        ),
    ] = None,
    tls_certificate: Annotated[
        Path | None, typer.Option(help="With --openflow: our certificate (PEM); switches connect over TLS.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key (PEM).")] = None,
    switch_ca: Annotated[
        Path | None,
        typer.Option(help="The authority that has signed the certificates of switches (PEM)."),
    ] = None,
    switch_address: Annotated[
        list[str] | None,
        typer.Option(
            help="An address or network that switches connect from; may be repeated (default: any)."
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen for switches beyond this machine without TLS.")
    ] = False,
    seconds: Annotated[
        float | None, typer.Option("--for", min=0.1, help="Stop after so many seconds (default: Ctrl-C).")
    ] = None,
    json: options.Json = False,
) -> None:
    """Let events leave by the ports that want them, by the prefixes of their topics, until Ctrl-C; discard the rest."""
    import asyncio

    from triagemq.live.carrying import (
        SubtreeRoute,
        check_switch_listener,
        events_carried,
        instructions,
        places_of,
    )
    from triagemq.live.up.kernel_ports import interfaces_of
    from triagemq.network.linux import Interface, LinuxDataPlane
    from triagemq.network.openflow import OpenFlowSwitches
    from triagemq.topic_codes import load_book

    book = load_book(codes)
    subtrees = [SubtreeRoute.parse(each, book) for each in routes]
    ports = list(dict.fromkeys(each.port for each in subtrees))
    plane: LinuxDataPlane | OpenFlowSwitches
    if openflow is None:
        interfaces = interfaces_of(ports, interface)
        plane = LinuxDataPlane({port: Interface(name) for port, name in interfaces.items()})
    else:
        tls = _switch_tls(tls_certificate, tls_key, switch_ca)
        for line in check_switch_listener(openflow, tls, insecure=insecure):
            terminal.say_problem(line)
        places = places_of(ports, interface)
        switches = {switch for switch, _ in places.values()}
        plane = OpenFlowSwitches(
            switches, listen=[openflow], ports=places, tls=tls, allowed=switch_address or ()
        )
    with closing(plane):
        plane.apply(instructions(subtrees, bandwidth, classes))
        typer.echo("triage: carrying" + ("" if seconds is not None else "; Ctrl-C ends it"), err=True)
        asyncio.run(_wait_until_stopped(seconds))
        found = events_carried(subtrees, plane)
    terminal.show(found, lambda: _print_carried(found), as_json=json)


def _switch_tls(certificate: Path | None, key: Path | None, authority: Path | None) -> SwitchTls | None:
    from triagemq.network.openflow import SwitchTls

    if certificate is None and key is None and authority is None:
        return None
    if certificate is None or key is None or authority is None:
        raise ParameterError(
            "--tls-certificate", "--tls-key and --switch-ca belong together: give all or none"
        )
    return SwitchTls(certificate, key, authority)


async def _wait_until_stopped(seconds: float | None) -> None:
    await is_set_within(stop_on_signals(), seconds)


def _print_carried(found: dict[str, Any]) -> None:
    terminal.print_table("", {name: name for name in ("port", "filter", "prefix", "events")}, found["routes"])
    discarded = ", ".join(f"{count} at {where}" for where, count in found["discarded"].items())
    typer.echo(f"matched nothing and were discarded: {discarded}")
