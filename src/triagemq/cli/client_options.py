"""Options that `triage pub` and `triage sub` share: whom to talk to, as whom."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Annotated, Any

import typer

from triagemq.errors import ParameterError

__all__ = ["Authority", "CoordinatorUrl", "GatewayAddress", "Name", "Timeout", "Token", "whom"]

DEFAULT_COORDINATOR = "http://127.0.0.1:8080"

CoordinatorUrl = Annotated[
    str | None,
    typer.Option("--coordinator", help=f"Address of the coordinator (default: {DEFAULT_COORDINATOR})."),
]
GatewayAddress = Annotated[
    str | None,
    typer.Option("--gateway", help="HOST:PORT of an MQTT-SN gateway, to do without a coordinator."),
]
Token = Annotated[
    str | None, typer.Option("--token", envvar="TRIAGE_TOKEN", help="What the coordinator knows you by.")
]
Name = Annotated[str | None, typer.Option("--name", help="Name of this client (default: a random one).")]
Authority = Annotated[
    Path | None, typer.Option("--ca", help="Certificate of the authority to trust for https://.")
]

Timeout = Annotated[float, typer.Option("--timeout", min=0.1, help="How long to try to connect, in seconds.")]


def whom(
    coordinator: str | None,
    gateway: str | None,
    token: str | None,
    name: str | None,
    authority: Path | None,
    timeout: float,
) -> dict[str, Any]:
    """The arguments of a Publisher or Subscriber."""
    from triagemq.client import ConnectionSettings

    settings = ConnectionSettings(connect_timeout_seconds=timeout)
    if coordinator is not None and gateway is not None:
        raise ParameterError("--gateway", "goes without --coordinator: give one of them")
    if gateway is not None:
        return {"gateway": gateway, "name": name, "settings": settings}
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
