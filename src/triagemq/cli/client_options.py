"""Options that `triage pub` and `triage sub` share: whom to talk to, as whom."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Annotated, Any

import typer

from triagemq.errors import ParameterError

__all__ = [
    "Authority",
    "Certificate",
    "CertificateKey",
    "CoordinatorUrl",
    "GatewayAddress",
    "Name",
    "Timeout",
    "Token",
    "whom",
]

DEFAULT_COORDINATOR = "http://127.0.0.1:8080"

CoordinatorUrl = Annotated[
    str | None,
    typer.Option("--coordinator", help=f"Address of the coordinator (default: {DEFAULT_COORDINATOR})."),
]
GatewayAddress = Annotated[
    str | None,
    typer.Option(
        "--gateway",
        help="HOST:PORT of an MQTT-SN gateway (mqttsns://HOST:PORT for DTLS), to do without a coordinator.",
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="TRIAGE_TOKEN",
        help="What the coordinator, or a gateway with --tokens, knows you by.",
    ),
]
Name = Annotated[str | None, typer.Option("--name", help="Name of this client (default: a random one).")]
Authority = Annotated[
    Path | None,
    typer.Option("--ca", help="Certificate of the authority to trust for https:// and mqttsns://."),
]
Certificate = Annotated[
    Path | None,
    typer.Option("--certificate", help="Your own certificate (PEM), for gateways that ask for one."),
]
CertificateKey = Annotated[Path | None, typer.Option("--key", help="Its key (PEM).")]

Timeout = Annotated[float, typer.Option("--timeout", min=0.1, help="How long to try to connect, in seconds.")]


def whom(
    coordinator: str | None,
    gateway: str | None,
    token: str | None,
    name: str | None,
    authority: Path | None,
    timeout: float,
    certificate: Path | None = None,
    key: Path | None = None,
) -> dict[str, Any]:
    """The arguments of a Publisher or Subscriber."""
    from triagemq.client import ConnectionSettings
    from triagemq.dtls import ClientSecurity

    settings = ConnectionSettings(
        connect_timeout_seconds=timeout,
        security=ClientSecurity(authority=authority, certificate=certificate, private_key=key),
    )
    if coordinator is not None and gateway is not None:
        raise ParameterError("--gateway", "goes without --coordinator: give one of them")
    if gateway is not None:
        return {"gateway": gateway, "token": token, "name": name, "settings": settings}
    context = None
    if authority is not None:
        try:
            context = ssl.create_default_context(cafile=str(authority))
        except (OSError, ssl.SSLError) as error:
            raise ParameterError(
                "--ca", f"{authority}: {getattr(error, 'strerror', None) or error}"
            ) from None
    return {
        "coordinator": coordinator or DEFAULT_COORDINATOR,
        "token": token,
        "name": name,
        "ssl_context": context,
        "settings": settings,
    }
