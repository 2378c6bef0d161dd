"""Options that `triage pub` and `triage sub` share: whom to talk to, as whom."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from triagemq.errors import ParameterError

DEFAULT_COORDINATOR = "http://127.0.0.1:8080"


@dataclass(frozen=True, slots=True)
class Whom:
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
            "ssl_context": self._trusting(),
            **common,
        }

    def _trusting(self) -> ssl.SSLContext | None:
        if self.ca is None:
            return None
        try:
            return ssl.create_default_context(cafile=str(self.ca))
        except (OSError, ssl.SSLError) as error:
            raise ParameterError("--ca", f"{self.ca}: {getattr(error, 'strerror', None) or error}") from None


def say_problem(problem: Exception) -> None:
    """What goes wrong while a client goes on."""
    typer.echo(f"triage: {problem}", err=True)


def seconds_of(text: str) -> float:
    """Seconds, with or without a unit.

    >>> seconds_of("8ms"), seconds_of("0.5"), seconds_of("250 us")
    (0.008, 0.5, 0.00025)
    """
    found = re.fullmatch(r"([0-9.eE+-]+) *(s|ms|us)?", text.strip())
    try:
        return float(found[1]) / {"us": 1e6, "ms": 1e3}.get(found[2], 1.0) if found else float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no time; write 0.008, 8ms or 250us") from None
