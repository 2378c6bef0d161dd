"""`triage pub` and `triage sub` with --direct or --codes: a topic without a broker, at its multicast address."""

from __future__ import annotations

import asyncio
import json as json_format
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
