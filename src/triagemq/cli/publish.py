"""`triage pub`: publish one message, the lines of standard input, or generated events at a rate."""

from __future__ import annotations

import asyncio
import contextlib
import json as json_format
import os
import sys
import threading
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triagemq.cli.clients import DirectOptions, Whom, publish_directly, say_problem, seconds_of
from triagemq.cli.options import with_groups
from triagemq.cli.stopping import INTERRUPTED, leaving, stop_on_signals
from triagemq.errors import ParameterError
from triagemq.waiting import end

if TYPE_CHECKING:
    from triagemq.client import Declared, Publisher

_LINES_AHEAD = 100
_ONE_PACKET_BYTES = 1400


@with_groups
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
            parser=seconds_of,
            metavar="TIME",
            help="Declare the least time between two events: seconds, or as 20ms.",
        ),
    ] = None,
    max_separation: Annotated[
        float | None,
        typer.Option(
            "--max-separation",
            parser=seconds_of,
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
        bool, typer.Option("--stamp", help="Put the time in front, so that subscribers can tell the latency.")
    ] = False,
    count: Annotated[
        int | None,
        typer.Option("--count", "-n", min=1, help="Publish the message so often, or at most so much."),
    ] = None,
    whom: Whom,
    direct: DirectOptions,
    dscp: Annotated[
        int | None, typer.Option("--dscp", min=0, max=63, help="With --direct: the mark of every packet.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print what was published as one JSON object.")
    ] = False,
) -> None:
    """Publish, and end when all is acknowledged (--qos 1 and 2). Exit code 1 if something was not."""
    from triagemq.client import Declared, Publisher
    from triagemq.client.outbox import without_registration
    from triagemq.mqttsn.timestamps import PREFIX_BYTES

    if without_registration(topic, {}) is None and qos == -1:
        raise ParameterError("--topic", f"QoS -1 needs a topic name of two octets, not {topic!r}")
    if rate is not None and not 0 < rate <= 100_000:
        raise ParameterError("--rate", f"must be above 0 and at most 100000, is {rate:g}")
    if rate is not None and message is not None:
        raise ParameterError("--message", "goes without --rate: that generates its own")
    others = {"--coordinator": whom.coordinator, "--gateway": whom.gateway, "--qos": qos, "--retain": retain}
    if direct.alone(others | {"--stamp": stamp, "--max-separation": max_separation}):
        largest = max_size or (size if rate is not None else len(message.encode()) if message else 0)
        publisher = direct.publisher(
            topic,
            max_size_bytes=largest or _ONE_PACKET_BYTES,
            min_separation_seconds=min_separation,
            dscp=dscp,
        )
        publish_directly(publisher, _payloads(message, rate, size, count), as_json=json)
        return
    if dscp is not None:
        raise ParameterError("--dscp", "is for --direct GROUP:PORT")
    terms = (min_separation, max_separation, max_size)
    stated = None if rate is None else float(max(1, size))
    for option, value in zip(("--min-separation", "--max-separation", "--max-size"), terms, strict=True):
        if whom.gateway is not None and value is not None:
            raise ParameterError(option, "needs a coordinator; a gateway alone cannot heed it")
    payloads = _payloads(message, rate, max(0, size - PREFIX_BYTES) if stamp else size, count)
    result = asyncio.run(
        _publish(
            Publisher(
                **whom.arguments(),
                stamp=stamp,
                network=direct.network(),
                on_slow_down=_say_slower,
                on_problem=say_problem,
                # What is generated is not worth waiting for: it would all come at once later.
                slow_down="wait" if rate is None else "skip",
            ),
            topic,
            payloads if max_size is None else _bounded(payloads, max_size - (PREFIX_BYTES if stamp else 0)),
            None if (rate, *terms) == (None,) * 4 else Declared(topic, rate, stated, *terms),
            qos,
            retain,
        )
    )
    interrupted = result.pop("interrupted")
    if result["skipped"]:
        typer.echo(
            f"triage: {result['skipped']} events were left out, as the coordinator has requested fewer",
            err=True,
        )
    if json:
        typer.echo(json_format.dumps(result))
    if result["not_acknowledged"] or result["refused"] or result["not_sent"]:
        lost = ", ".join(
            f"{result[key]} {key.replace('_', ' ')}" for key in ("not_acknowledged", "refused", "not_sent")
        )
        typer.echo(f"triage: {result['published']} published: {lost}", err=True)
        raise typer.Exit(INTERRUPTED if interrupted else 1)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _say_slower(rates: Mapping[str, float]) -> None:
    rates_in_words = ", ".join(f"{topic} at most {rate:.3g} times a second" for topic, rate in rates.items())
    typer.echo(
        f"triage: slower, on request: {rates_in_words}" if rates else "triage: as fast as before again",
        err=True,
    )


def _payloads(message: str | None, rate: float | None, size: int, count: int | None) -> AsyncIterator[bytes]:
    if rate is not None:
        return _generated(rate, size, count)
    if message is not None:
        return _repeated(message.encode(errors="surrogateescape"), count or 1)
    return _lines(count)


async def _publish(
    publisher: Publisher,
    topic: str,
    payloads: AsyncIterator[bytes],
    declared: Declared | None,
    qos: int,
    retain: bool,
) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    stop = stop_on_signals()

    async def work() -> None:
        await publisher.open()
        if declared is not None:
            await publisher.declare_all([declared])
        async for payload in payloads:
            await publisher.publish(topic, payload, qos=qos, retain=retain, wait=False)
        await publisher.flush()

    working, stopping = loop.create_task(work()), loop.create_task(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        await end(working, stopping)
        async with leaving(stop):
            await publisher.close()
    counters = publisher.counters
    acknowledgeable = counters.published if qos > 0 else 0
    return {
        "topic": topic,
        "qos": qos,
        "published": counters.published,
        "acknowledged": counters.acknowledged,
        "not_acknowledged": max(0, acknowledgeable - counters.acknowledged),
        "refused": counters.refused,
        "not_sent": counters.not_sent,
        "retransmissions": counters.retransmissions,
        "sent_directly": publisher.sent_directly,
        "skipped": publisher.skipped,
        "interrupted": stop.is_set(),
    }


async def _bounded(payloads: AsyncIterator[bytes], largest: int) -> AsyncIterator[bytes]:
    async for payload in payloads:
        if len(payload) > largest:
            what = f"an event has {len(payload)} bytes, and there is room for {largest}; it is not published"
            raise ParameterError("--max-size", what)
        yield payload


async def _repeated(payload: bytes, count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
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
    lines: asyncio.Queue[bytes | None] = asyncio.Queue()
    room = threading.Semaphore(_LINES_AHEAD)

    def put(line: bytes | None) -> None:
        loop.call_soon_threadsafe(lines.put_nowait, line)

    def read() -> None:
        rest = b""
        # Not through sys.stdin: a thread that waits in it would hold a lock that the interpreter wants at its end.
        while piece := os.read(sys.stdin.fileno(), 65_536):
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                room.acquire()
                put(line.removesuffix(b"\r"))
        if rest:
            put(rest)
        put(None)

    def read_while_wanted() -> None:
        # RuntimeError: the loop has been closed.
        with contextlib.suppress(RuntimeError):
            read()

    # A daemon: it may wait for a line that never comes when the command is stopped.
    threading.Thread(target=read_while_wanted, name="stdin", daemon=True).start()
    number = 0
    while (count is None or number < count) and (line := await lines.get()) is not None:
        room.release()
        number += 1
        yield line
