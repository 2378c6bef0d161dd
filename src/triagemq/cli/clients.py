"""What `triage pub` and `triage sub` share: the coordinator or gateway, and topics without a broker."""

from __future__ import annotations

import asyncio
import json as json_format
import re
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triagemq.cli.stopping import INTERRUPTED, stop_on_signals
from triagemq.errors import ParameterError
from triagemq.waiting import end

if TYPE_CHECKING:
    from triagemq.client.direct import (
        DirectEvent,
        DirectPublisher,
        DirectSubscriber,
        HostDelay,
        NetworkSettings,
    )

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

    def alone(self, others: Mapping[str, Any]) -> bool:
        """Whether the topic is direct; ParameterError names an option that does not go with it."""
        if self.codes is not None and self.direct is not None:
            raise ParameterError("--codes", "does not go with --direct: the code says where the topic is")
        if self.direct is None and self.codes is None:
            return False
        for option, value in others.items():
            if value:
                raise ParameterError(option, "does not go with --direct: there is no broker, gateway or plan")
        return True

    def _address(self, topic: str) -> str | None:
        """Where the topic is: as was said, or as its code says."""
        if self.codes is None:
            return self.direct
        from triagemq.topic_codes import EVENT_PORT, EventAddress, event_address, load_book

        event = EventAddress(topic, self.event_type)
        return f"[{event_address(load_book(self.codes), event)}]:{EVENT_PORT}"

    def network(self) -> NetworkSettings | None:
        """Of what goes without a broker because it is promised."""
        from triagemq.client.direct import NetworkSettings

        return None if self.interface is None else NetworkSettings(interface=self.interface, loop=True)

    def publisher(
        self, topic: str, *, max_size_bytes: int, min_separation_seconds: float | None, dscp: int | None
    ) -> DirectPublisher:
        from triagemq.client.direct import DirectPublisher, NetworkSettings

        return DirectPublisher(
            topic,
            self._address(topic),
            max_size_bytes=max_size_bytes,
            min_separation_seconds=min_separation_seconds or 0.0,
            network=NetworkSettings(interface=self.interface, dscp=dscp),
        )

    def subscriber(self, topics: list[str]) -> DirectSubscriber:
        from triagemq.client.direct import DirectSubscriber, NetworkSettings

        if len(topics) != 1:
            raise ParameterError("--topic", "must be one with --direct: each topic has an address of its own")
        return DirectSubscriber(
            topics[0], self._address(topics[0]), network=NetworkSettings(interface=self.interface)
        )


def publish_directly(publisher: DirectPublisher, payloads: AsyncIterator[bytes], *, as_json: bool) -> None:
    """Until there are no more, or Ctrl-C; exit code 1 if the system did not take something."""
    interrupted = asyncio.run(_publish(publisher, payloads))
    counters = publisher.counters
    delay = publisher.host_delay
    if as_json:
        row = {"topic": publisher.topic, **asdict(counters), "host_delay": delay.as_json()}
        typer.echo(json_format.dumps(row))
    if counters.not_sent:
        typer.echo(f"triage: {counters.not_sent} packets were not sent: {publisher.problem}", err=True)
    if interrupted or counters.not_sent:
        raise typer.Exit(INTERRUPTED if interrupted else 1)


async def _publish(publisher: DirectPublisher, payloads: AsyncIterator[bytes]) -> bool:
    stop = stop_on_signals()

    async def work() -> None:
        async with publisher:
            async for payload in payloads:
                await publisher.publish(payload)

    loop = asyncio.get_running_loop()
    working, stopping = loop.create_task(work()), loop.create_task(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        await end(working, stopping)
    return stop.is_set()


def direct_event_as_row(event: DirectEvent) -> dict[str, Any]:
    """What `--json` shows of an event beside its payload."""
    return {
        "way": str(event.way),
        "session": f"{event.session:016x}",
        "number": event.number,
        "published_ns": event.published_ns,
        "arrived_ns": event.arrived_ns,
        "received_ns": event.received_ns,
        "latency_seconds": event.latency_seconds,
        "host_delay_seconds": event.host_delay_seconds,
    }


def tell_the_end(subscriber: DirectSubscriber, *, as_json: bool) -> None:
    """What came, what did not, and what this host has added to it."""
    counters = subscriber.counters
    delays = {str(way): delay for way, delay in subscriber.host_delay.items() if delay.count}
    if as_json:
        rows = {way: delay.as_json() for way, delay in delays.items()}
        typer.echo(json_format.dumps({"summary": asdict(counters) | {"host_delay": rows}}))
        return
    shown = "".join(f"; host delay ({way}) {_in_words(delay)}" for way, delay in delays.items())
    typer.echo(f"triage: {counters.received} events, {counters.missing} missing{shown}", err=True)


def _in_words(delay: HostDelay) -> str:
    half, nearly_all = delay.quantile(0.5) or 0.0, delay.quantile(0.999) or 0.0
    return f"p50 {1000 * half:.2f} ms, p99.9 {1000 * nearly_all:.2f} ms"
