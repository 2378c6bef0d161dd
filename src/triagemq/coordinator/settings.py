"""The configuration of a coordinator process."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from triagemq.addresses import Exposed, check_listeners
from triagemq.coordinator.decide.decide import PlannerSettings
from triagemq.errors import ParameterError


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where to listen, what to store, which gateway to lead, and how to plan.

    `network` is a scenario file that gives ports and planning settings; without it there is one port with
    `bandwidth_bps`. `unix_socket` is a path to listen on as well, for clients of this machine. `gateway_address` is
    where clients find it, HOST:PORT, or mqttsns://HOST:PORT where the gateway speaks DTLS; `gateway_name` is what other
    gateways call it.
    `queue_control` has the coordinator divide delay requirements among ports whose queue rates are controlled.
    `balancing` is the policy that moves clients between several brokers. `most_worth` is the budget of clients whose
    role has none of its own. `insecure` waives tokens and TLS beyond loopback. `host_names` are names by which browsers
    may come where there are no tokens. For the page: `page_broker` is the broker with its password that values come
    from, `tables` a directory of finished tables.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8080
    unix_socket: str | None = None
    database: str
    gateway_socket: str
    gateway_address: str
    gateway_name: str = "gateway"
    broker: str | None = None
    network: str | None = None
    bandwidth_bps: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e6
    buffer_packets: Annotated[int, Field(ge=1)] = 1_000
    overhead_bytes: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 49
    planner: PlannerSettings = field(default_factory=PlannerSettings)
    queue_control: bool = False
    balancing: str = "ours"
    most_worth: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1000.0
    access: bool = False
    tls_certificate: str | None = None
    tls_key: str | None = None
    insecure: bool = False
    host_names: tuple[str, ...] = ()
    most_body_bytes: Annotated[int, Field(ge=1_024)] = 32 * 1024 * 1024
    page_broker: Annotated[str | None, Field(repr=False)] = None
    tables: str | None = None


def check_listening(settings: Settings) -> list[str]:
    """The certificate can be used, and REST is not open to others by mistake; the warnings about that.

    >>> check_listening(Settings(host="0.0.0.0", database="", gateway_socket="", gateway_address=""))
    Traceback (most recent call last):
    ...
    triagemq.errors.ParameterError: host: 0.0.0.0 is reached from other machines: add access and tls_certificate ...
    """
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        raise ParameterError("tls_certificate", "and tls_key belong together: give both or none")
    if settings.tls_certificate is not None and settings.tls_key is not None:
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                settings.tls_certificate, settings.tls_key
            )
        except (OSError, ssl.SSLError) as error:
            raise ParameterError(
                "tls_certificate", f"cannot be used: {getattr(error, 'strerror', None) or error}"
            ) from None
    rest = Exposed(
        "REST",
        "host",
        settings.host,
        tokens=None if settings.access else "access",
        encryption=None if settings.tls_certificate is not None else "tls_certificate with tls_key",
    )
    return check_listeners([rest], insecure=settings.insecure)
