"""The configuration of a gateway process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from triagemq.addresses import host_and_port
from triagemq.errors import ParameterError

Positive = Annotated[float, Field(gt=0)]

CONTROLS = ("off", "idm", "backlog", "learned")
"""By what the rates of queues are controlled; off: they are not."""


def check_control(control: str, delay_model: object = None) -> None:
    """ParameterError if there is no such control, or its model is not named.

    >>> check_control("learned")
    Traceback (most recent call last):
    triagemq.errors.ParameterError: control: learned needs a model; add --delay-model DIRECTORY
    """
    if control not in CONTROLS:
        raise ParameterError("control", f"is {control!r}; it is one of {', '.join(CONTROLS)}")
    if control == "learned" and delay_model is None:
        raise ParameterError("control", "learned needs a model; add --delay-model DIRECTORY")
    if control != "learned" and delay_model is not None:
        raise ParameterError("delay_model", f"is for --control learned, not for {control}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """`listen` is HOST:PORT (port 0: any free one), `control` the path of the control socket.

    `trace` is a directory in which every start begins a run of its own (run-0, run-1, ...). `scenario` gives the trace
    its numbers, `plan` is a plan file to keep with it. `timestamps` takes publication times from messages that carry
    them. After `keep_trace_seconds` what was traced is removed.
    `dataplane` is "embedded", or where the ports behind the gateway are managed by another process "reported" (which
    also reports what they count) or "none"; "plain" has no ports and no marks.
    `access` is "open", or "required": then no client is let in before the grants have come.
    Without a coordinator, `priorities` are classes by topic filter. `predefined` are topic names by id. Unless it
    `stores`, sessions end with it. `advertise` is where ADVERTISE goes.
    `queue_control` is what the queue rates of embedded queues are controlled by, with the learned `delay_model` of a
    directory (see queue_control.py).
    `broker_boot` is a file that changes whenever the broker is started, where it is one of ours.
    `front` is HOST:PORT where MQTT clients connect, with `front_certificate` and `front_key` (PEM files) over TLS.
    `name` is what the coordinator and other gateways call it. It joins the coordinator at the address `join` with a
    `token`, where that does not come to its control socket; `join_authority` (PEM) is whom to trust there.
    `certificate` and `private_key` are PEM files: with them it speaks DTLS, and nothing else, and with
    `client_authority` only with clients that have a certificate of that authority.
    """

    listen: str
    broker: str = field(repr=False)
    state: str
    control: str
    trace: str | None = None
    scenario: str | None = None
    plan: str | None = None
    seed: int | None = None
    timestamps: bool = False
    dataplane: Literal["embedded", "reported", "none", "plain"] = "embedded"
    access: Literal["open", "required"] = "open"
    priorities: dict[str, int] = field(default_factory=dict)
    predefined: dict[int, str] = field(default_factory=dict)
    stores: bool = True
    buffer_messages: int = 10_000
    clients_per_address: int = 10_000
    advertise: str | None = None
    gateway_id: int = 1
    broker_client_id: str | None = None
    broker_boot: str | None = None
    rotate_seconds: Positive = 5.0
    keep_trace_seconds: Positive | None = None
    certificate: str | None = None
    private_key: str | None = None
    client_authority: str | None = None
    front: str | None = None
    front_certificate: str | None = None
    front_key: str | None = None
    queue_control: str = "off"
    delay_model: str | None = None
    name: str = "gateway"
    join: str | None = None
    token: str | None = field(default=None, repr=False)
    join_authority: str | None = None

    def __post_init__(self) -> None:
        check_control(self.queue_control, self.delay_model)
        if (self.certificate is None) != (self.private_key is None):
            raise ParameterError("certificate", "and private_key belong together: give both or none")
        if self.client_authority is not None and self.certificate is None:
            raise ParameterError("client_authority", "is for DTLS: give certificate and private_key, too")
        if (self.front_certificate is None) != (self.front_key is None):
            raise ParameterError("front_certificate", "and front_key belong together: give both or none")
        if self.front is not None:
            host_and_port(self.front, "front", lowest_port=0)
        self.address  # noqa: B018 -- refuses what is no address

    @property
    def address(self) -> tuple[str, int]:
        """`listen` in two parts."""
        return host_and_port(self.listen, "listen", lowest_port=0)
