"""What `triage pub` and `triage sub` share (coordinator or gateway, topics without a broker), and `triage phase`."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triagemq.cli import options, terminal
from triagemq.cli.stopping import LEAVING_SECONDS, stop_on_signals
from triagemq.errors import ParameterError
from triagemq.waiting import Opened, end

if TYPE_CHECKING:
    from triagemq.client.direct import NetworkSettings

DEFAULT_COORDINATOR = "http://127.0.0.1:8080"


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Every field is an option of each command that takes them."""

    coordinator: Annotated[
        str | None,
        typer.Option("--coordinator", help=f"Address of the coordinator (default: {DEFAULT_COORDINATOR})."),
    ] = None
    gateway: Annotated[
        str | None,
        typer.Option(
            "--gateway",
            help="HOST:PORT of an MQTT-SN gateway (mqttsns://HOST:PORT for DTLS), to do without a coordinator.",
        ),
    ] = None
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            envvar="TRIAGE_TOKEN",
            help="What the coordinator, or a gateway with --tokens, knows you by.",
        ),
    ] = None
    name: Annotated[
        str | None, typer.Option("--name", help="Name of this client (default: a random one).")
    ] = None
    ca: Annotated[
        Path | None,
        typer.Option("--ca", help="Certificate of the authority to trust for https:// and mqttsns://."),
    ] = None
    certificate: Annotated[
        Path | None,
        typer.Option("--certificate", help="Your own certificate (PEM), for gateways that ask for one."),
    ] = None
    key: Annotated[Path | None, typer.Option("--key", help="Its key (PEM).")] = None
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, help="How long to try to connect, in seconds.")
    ] = 10.0

    def arguments(self) -> dict[str, Any]:
        """Those of a Publisher or Subscriber."""
        from triagemq.client import ConnectionSettings
        from triagemq.dtls import ClientSecurity

        if self.coordinator is not None and self.gateway is not None:
            raise ParameterError("--gateway", "goes without --coordinator: give one of them")
        security = ClientSecurity(authority=self.ca, certificate=self.certificate, private_key=self.key)
        settings = ConnectionSettings(connect_timeout_seconds=self.timeout, security=security)
        common = {"token": self.token, "name": self.name, "settings": settings}
        if self.gateway is not None:
            return {"gateway": self.gateway, **common}
        return {
            "coordinator": self.coordinator or DEFAULT_COORDINATOR,
            "ssl_context": trusting(self.ca),
            **common,
        }


def trusting(authority: Path | None) -> ssl.SSLContext | None:
    """What trusts an authority; None: what the system trusts."""
    if authority is None:
        return None
    try:
        return ssl.create_default_context(cafile=str(authority))
    except (OSError, ssl.SSLError) as error:
        raise ParameterError("--ca", f"{authority}: {getattr(error, 'strerror', None) or error}") from None


async def run_client(client: Opened, work: Coroutine[Any, Any, None]) -> bool:
    """Do the work of a command until it is done or the user stops it, and close the client; whether he has."""
    stop = stop_on_signals()
    loop = asyncio.get_running_loop()
    working, stopping = loop.create_task(work), loop.create_task(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        await end(working, stopping)
        # A gateway may not answer, and the user waits.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVING_SECONDS if stop.is_set() else None):
                await client.close()
    return stop.is_set()


@dataclass(frozen=True, slots=True)
class DirectOptions:
    """Every field is an option of both commands."""

    direct: Annotated[
        str | None,
        typer.Option(
            "--direct",
            help="GROUP:PORT of a topic that goes without a broker, as 239.1.2.3:7400.",
        ),
    ] = None
    interface: Annotated[
        str | None, typer.Option("--interface", help="The network interface for what goes without a broker.")
    ] = None
    codes: Annotated[
        Path | None,
        typer.Option(
            "--codes",
            help="File of topic codes: the topic goes without a broker, at the address of its code.",
        ),
    ] = None
    event_type: Annotated[str, typer.Option("--type", help="With --codes: the type of the events.")] = ""

    def address(self, topic: str, others: Mapping[str, Any]) -> str | None:
        """Where a topic without a broker is, None of another; ParameterError names an option that contradicts it."""
        if self.direct is None and self.codes is None:
            return None
        if self.codes is not None and self.direct is not None:
            raise ParameterError("--codes", "does not go with --direct: the code says where the topic is")
        for option, value in others.items():
            if value:
                raise ParameterError(option, "does not go with --direct: there is no broker, gateway or plan")
        if self.codes is None:
            return self.direct
        from triagemq.topic_codes import EVENT_PORT, EventAddress, event_address, load_book

        event = EventAddress(topic, self.event_type)
        return f"[{event_address(load_book(self.codes), event)}]:{EVENT_PORT}"

    def network(self, **settings: Any) -> NetworkSettings:
        """Of what goes without a broker: the interface, with further settings."""
        from triagemq.client.direct import NetworkSettings

        return NetworkSettings(interface=self.interface, **settings)


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
