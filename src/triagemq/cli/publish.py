"""`triage pub`: publish one message, the lines of standard input, or generated events at a rate."""

from __future__ import annotations

import asyncio
import contextlib
import json as json_format
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triagemq.cli import options
from triagemq.cli.clients import ClientOptions, DirectOptions, run_client
from triagemq.cli.stopping import INTERRUPTED
from triagemq.cli.terminal import say_problem
from triagemq.errors import ParameterError

if TYPE_CHECKING:
    from triagemq.client import PublicationIntent, Publisher
    from triagemq.client.direct import DirectPublisher

_LINES_AHEAD = 100
_ONE_PACKET_BYTES = 1400


@options.with_groups
def pub(
    *,
    topic: Annotated[str, typer.Option("--topic", "-t", help="Topic to publish to.")],
    message: Annotated[
        str | None,
        typer.Option("--message", "-m", help="What to publish (default: each line of standard input)."),
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", "-r", help="Generate so many events a second, and declare it.")
    ] = None,
    size: Annotated[
        int, typer.Option("--size", "-s", min=0, max=65_000, help="Payload of a generated event, in bytes.")
    ] = 100,
    min_separation: Annotated[
        float | None,
        typer.Option(
            "--min-separation",
            parser=options.seconds_of,
            metavar="TIME",
            help="Declare the least time between two events: seconds, or as 20ms.",
        ),
    ] = None,
    max_separation: Annotated[
        float | None,
        typer.Option(
            "--max-separation",
            parser=options.seconds_of,
            metavar="TIME",
            help="Declare the longest time between two events: seconds, or as 1s.",
        ),
    ] = None,
    max_size: Annotated[
        int | None, typer.Option("--max-size", help="Declare the largest event, in bytes; none is larger.")
    ] = None,
    qos: Annotated[int, typer.Option("--qos", "-q", min=-1, max=2, help="Quality of service.")] = 0,
    retain: Annotated[bool, typer.Option("--retain", help="Have the broker keep the last message.")] = False,
    stamp: Annotated[
        bool, typer.Option("--stamp", help="Put the time in front, so that subscribers know the latency.")
    ] = False,
    count: Annotated[
        int | None,
        typer.Option("--count", "-n", min=1, help="Publish the message so often, or at most so much."),
    ] = None,
    client: ClientOptions,
    direct: DirectOptions,
    dscp: Annotated[
        int | None, typer.Option("--dscp", min=0, max=63, help="With --direct: the mark of every packet.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print what was published as one JSON object.")
    ] = False,
) -> None:
    """Publish, and end when all is acknowledged (--qos 1 and 2). Exit code 1 if something was not."""
    from triagemq.client import PublicationIntent, Publisher
    from triagemq.client.outbox import without_registration
    from triagemq.mqttsn.timestamps import PREFIX_BYTES

    if without_registration(topic, {}) is None and qos == -1:
        raise ParameterError("--topic", f"QoS -1 needs a topic name of two octets, not {topic!r}")
    if rate is not None and not 0 < rate <= 100_000:
        raise ParameterError("--rate", f"must be above 0 and at most 100000, is {rate:g}")
    if rate is not None and message is not None:
        raise ParameterError("--message", "goes without --rate: that generates its own")
    others = {
        "--coordinator": client.coordinator,
        "--gateway": client.gateway,
        "--qos": qos,
        "--retain": retain,
    }
    address = direct.address(topic, others | {"--stamp": stamp, "--max-separation": max_separation})
    if address is not None:
        from triagemq.client.direct import DirectPublisher

        largest = max_size or (size if rate is not None else len(message.encode()) if message else 0)
        sender = DirectPublisher(
            topic,
            address,
            max_size_bytes=largest or _ONE_PACKET_BYTES,
            min_separation_seconds=min_separation or 0.0,
            network=direct.network(dscp=dscp),
        )
        publishing = _publish(sender, _payloads(message, rate, size, count), sender.publish)
        interrupted = asyncio.run(run_client(sender, publishing))
        sent = sender.counters
        _end(
            {"topic": topic, **asdict(sent), "host_delay": sender.host_delay.as_json()} if json else None,
            f"{sent.not_sent} packets were not sent: {sender.problem}" if sent.not_sent else "",
            interrupted,
        )
        return
    if dscp is not None:
        raise ParameterError("--dscp", "is for --direct GROUP:PORT")
    terms = (min_separation, max_separation, max_size)
    stated = None if rate is None else float(max(1, size))
    for option, value in zip(("--min-separation", "--max-separation", "--max-size"), terms, strict=True):
        if client.gateway is not None and value is not None:
            raise ParameterError(option, "needs a coordinator; a gateway alone cannot follow it")
    declared = None if (rate, *terms) == (None,) * 4 else PublicationIntent(topic, rate, stated, *terms)
    prefix = PREFIX_BYTES if stamp else 0
    payloads = _payloads(message, rate, max(0, size - prefix), count)
    publisher = Publisher(
        **client.arguments(),
        stamp=stamp,
        network=direct.network(),
        on_slow_down=_say_slower,
        on_problem=say_problem,
        # What is generated is not worth waiting for: it would all come at once later.
        slow_down="wait" if rate is None else "skip",
    )
    publishing = _publish(
        publisher,
        payloads if max_size is None else _bounded(payloads, max_size - prefix),
        partial(publisher.publish, topic, qos=qos, retain=retain, wait=False),
        declared,
    )
    interrupted = asyncio.run(run_client(publisher, publishing))
    counters = publisher.counters
    result: dict[str, Any] = {
        "topic": topic,
        "qos": qos,
        "published": counters.published,
        "acknowledged": counters.acknowledged,
        "not_acknowledged": max(0, counters.published - counters.acknowledged) if qos > 0 else 0,
        "refused": counters.refused,
        "not_sent": counters.not_sent,
        "retransmissions": counters.retransmissions,
        "sent_directly": publisher.sent_directly,
        "skipped": publisher.skipped,
    }
    if publisher.skipped:
        say_problem(f"{publisher.skipped} events were left out, as the coordinator has requested fewer")
    failed = ("not_acknowledged", "refused", "not_sent")
    lost = ", ".join(f"{result[key]} {key.replace('_', ' ')}" for key in failed)
    is_lost = any(result[key] for key in failed)
    _end(result if json else None, f"{counters.published} published: {lost}" if is_lost else "", interrupted)


def _end(result: dict[str, Any] | None, problem: str, interrupted: bool) -> None:
    """Print what was published, and end with exit code 1 if something was not."""
    if result is not None:
        typer.echo(json_format.dumps(result))
    if problem:
        say_problem(problem)
    if interrupted or problem:
        raise typer.Exit(INTERRUPTED if interrupted else 1)


def _say_slower(rates: Mapping[str, float]) -> None:
    limits = ", ".join(f"{topic} at most {rate:.3g} times a second" for topic, rate in rates.items())
    say_problem(f"slower, on request: {limits}" if rates else "as fast as before again")


def _payloads(message: str | None, rate: float | None, size: int, count: int | None) -> AsyncIterator[bytes]:
    if rate is not None:
        return _generated(rate, size, count)
    return _lines(count) if message is None else _repeated(message.encode(errors="surrogateescape"), count)


async def _publish(
    publisher: Publisher | DirectPublisher,
    payloads: AsyncIterator[bytes],
    publish: Callable[[bytes], Coroutine[Any, Any, object]],
    declared: PublicationIntent | None = None,
) -> None:
    from triagemq.client import Publisher

    await publisher.open()
    if isinstance(publisher, Publisher) and declared is not None:
        await publisher.declare_all([declared])
    async for payload in payloads:
        await publish(payload)
    if isinstance(publisher, Publisher):
        await publisher.flush()


async def _bounded(payloads: AsyncIterator[bytes], largest: int) -> AsyncIterator[bytes]:
    async for payload in payloads:
        if len(payload) > largest:
            what = f"an event has {len(payload)} bytes, and there is room for {largest}; it is not published"
            raise ParameterError("--max-size", what)
        yield payload


async def _repeated(payload: bytes, count: int | None) -> AsyncIterator[bytes]:
    for _ in range(count or 1):
        yield payload


async def _generated(rate: float, size: int, count: int | None) -> AsyncIterator[bytes]:
    """Evenly spaced; what the machine could not send in time follows at once, so that the rate holds on average."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    number = 0
    while count is None or number < count:
        pause = started + number / rate - loop.time()
        await asyncio.sleep(max(0.0, pause))
        yield os.urandom(size)
        number += 1


async def _lines(count: int | None) -> AsyncIterator[bytes]:
    """Lines of standard input, read in a thread: a terminal or a file cannot be waited for in an event loop."""
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[bytes | None] = asyncio.Queue(_LINES_AHEAD)

    def put(line: bytes | None) -> None:
        asyncio.run_coroutine_threadsafe(lines.put(line), loop).result()

    def read() -> None:
        # RuntimeError: the loop has been closed. Not through sys.stdin, whose lock the interpreter wants at its end.
        with contextlib.suppress(RuntimeError), open(sys.stdin.fileno(), "rb", closefd=False) as stdin:
            for line in stdin:
                put(line.removesuffix(b"\n").removesuffix(b"\r"))
            put(None)

    # A daemon: it may wait for a line that never comes when the command is stopped.
    threading.Thread(target=read, name="stdin", daemon=True).start()
    number = 0
    while (count is None or number < count) and (line := await lines.get()) is not None:
        number += 1
        yield line
