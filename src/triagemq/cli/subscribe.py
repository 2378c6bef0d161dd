"""`triage sub`: print events as they come, one line each."""

from __future__ import annotations

import asyncio
import base64
import json as json_format
import sys
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triagemq.cli.clients import (
    DirectOptions,
    Whom,
    direct_event_as_row,
    say_problem,
    seconds_of,
    tell_the_end,
)
from triagemq.cli.options import with_groups
from triagemq.cli.stopping import leaving, stop_on_signals
from triagemq.errors import ParameterError
from triagemq.waiting import end

if TYPE_CHECKING:
    from triagemq.client import Event, Subscriber, Wanted
    from triagemq.client.direct import DirectEvent, DirectSubscriber


_PROMISE_SECONDS = 10.0


@with_groups
def sub(
    *,
    topic: Annotated[list[str], typer.Option("--topic", "-t", help="Topic or filter; may be repeated.")],
    utility: Annotated[
        str | None, typer.Option("--utility", "-u", help="What it is worth: log:10, linear:2, step:3@0.8.")
    ] = None,
    deadline: Annotated[
        float | None,
        typer.Option(
            "--max-latency",
            "--deadline",
            parser=seconds_of,
            metavar="TIME",
            help="How late an event may come: seconds, or as 8ms.",
        ),
    ] = None,
    share: Annotated[
        float | None,
        typer.Option("--deadline-share", help="Which share shall come within --max-latency, as 0.95."),
    ] = None,
    guaranteed: Annotated[
        bool, typer.Option("--guaranteed", help="Ask for the promise that none comes after --max-latency.")
    ] = False,
    or_brokered: Annotated[
        bool,
        typer.Option("--or-brokered", help="With --guaranteed: go on without a promise if it is refused."),
    ] = False,
    qos: Annotated[int, typer.Option("--qos", "-q", min=0, max=2, help="Quality of service.")] = 0,
    whom: Whom,
    direct: DirectOptions,
    port: Annotated[
        str | None, typer.Option("--port", help="Output port of the network that this subscriber is behind.")
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="End after so many events.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option("--for", min=0.0, help="End after so many seconds.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per event.")] = False,
) -> None:
    """Subscribe, and print events until Ctrl-C, --count or --for. Exit code 1 if --count events did not come.

    With --guaranteed it says first what is promised of each topic, and ends with exit code 1 where that is refused.
    What is promised comes without a broker, straight from its publisher. A --max-latency alone that the network cannot
    keep is named on standard error, with the smallest that it could.
    """
    from triagemq.client import Subscriber, Utility, Wanted

    others = {"--coordinator": whom.coordinator, "--gateway": whom.gateway, "--qos": qos, "--port": port}
    terms = {"--utility": utility, "--max-latency": deadline, "--deadline-share": share}
    if direct.alone(others | terms | {"--guaranteed": guaranteed}):
        listener = direct.subscriber(topic)

        def show_direct(event: DirectEvent) -> str:
            row = direct_event_as_row(event) if json else None
            return _shown(event.topic, event.value, event.latency_seconds, row)

        printed = asyncio.run(_listen(listener, listener.open, show_direct, count, seconds))
        tell_the_end(listener, as_json=json)
        _require(count, printed)
        return
    if share is not None and deadline is None:
        raise ParameterError("--deadline-share", "is a share within no time; give --max-latency, too")
    if guaranteed and deadline is None:
        raise ParameterError("--guaranteed", "is a promise without a time; give --max-latency, too")
    worth = Utility.parse(utility or "log:1")
    wanted = [
        Wanted(one, worth, deadline, qos=qos, max_latency_share=share, guaranteed=guaranteed)
        for one in dict.fromkeys(topic)
    ]
    arguments = whom.arguments()
    for option, value in (("--utility", utility), ("--max-latency", deadline), ("--port", port)):
        if whom.gateway is not None and value is not None:
            raise ParameterError(option, "needs a coordinator; a gateway alone cannot heed it")
    if or_brokered and not guaranteed:
        raise ParameterError("--or-brokered", "is for what may be refused; give --guaranteed, too")
    subscriber = Subscriber(**arguments, port=port, network=direct.network(), on_problem=say_problem)

    def show(event: Event) -> str:
        row = _event_as_row(event) if json else None
        return _shown(event.topic, event.payload, event.latency_seconds, row)

    async def opening() -> bool:
        return await _open(subscriber, wanted, as_json=json) or or_brokered

    printed = asyncio.run(_listen(subscriber, opening, show, count, seconds))
    _require(count, printed)


def _require(count: int | None, printed: int) -> None:
    if count is not None and printed < count:
        typer.echo(f"triage: {printed} of {count} events came", err=True)
        raise typer.Exit(1)


async def _listen(
    subscriber: Subscriber | DirectSubscriber,
    open_all: Callable[[], Coroutine[Any, Any, bool | None]],
    show: Callable[[Any], str],
    count: int | None,
    seconds: float | None,
) -> int:
    printed = 0
    loop = asyncio.get_running_loop()
    stop = stop_on_signals()
    opening = loop.create_task(open_all())
    stopping = loop.create_task(stop.wait())
    try:
        await asyncio.wait({opening, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not opening.done():
            return printed
        if opening.result() is False:
            raise typer.Exit(1)
        deadline = None if seconds is None else loop.time() + seconds
        while not stop.is_set() and (count is None or printed < count):
            taking: asyncio.Task[list[Any]] = loop.create_task(subscriber.take_all())
            left = None if deadline is None else max(0.0, deadline - loop.time())
            await asyncio.wait({taking, stopping}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not taking.done():
                taking.cancel()
                break
            for event in taking.result()[: None if count is None else count - printed]:
                typer.echo(show(event))
                printed += 1
            sys.stdout.flush()
        return printed
    finally:
        await end(stopping, opening)
        async with leaving(stop):
            await subscriber.close()
        if subscriber.overflowed:
            typer.echo(f"triage: {subscriber.overflowed} events came too fast and are not printed", err=True)


async def _open(subscriber: Subscriber, wanted: list[Wanted], *, as_json: bool) -> bool:
    """False if something is refused that was to be promised."""
    await subscriber.open()
    await subscriber.subscribe_all(wanted)
    admitted = True
    for one in wanted:
        if not one.guaranteed:
            continue
        promise = await subscriber.promise(one.topic, _PROMISE_SECONDS)
        if as_json and promise is not None:
            typer.echo(json_format.dumps({"promise": asdict(promise)}))
        typer.echo(
            f"triage: nothing is decided about {one.topic}: it has no publisher, or is not in force yet"
            if promise is None
            else f"triage: {promise}",
            err=True,
        )
        admitted = admitted and (promise is None or promise.admitted)
    return admitted


def _shown(topic: str, payload: bytes, latency_seconds: float | None, row: dict[str, Any] | None) -> str:
    """One line of text, or the row as JSON with what was published in front: base64 if that is no text."""
    if row is None:
        text = payload.decode(errors="backslashreplace").replace("\n", "\\n").replace("\r", "\\r")
        return f"{topic} {text}" + ("" if latency_seconds is None else f" ({1000 * latency_seconds:.1f} ms)")
    head: dict[str, Any] = {"topic": topic}
    try:
        head["payload"] = payload.decode()
    except UnicodeDecodeError:
        head["payload_base64"] = base64.b64encode(payload).decode()
    return json_format.dumps(head | row)


def _event_as_row(event: Event) -> dict[str, Any]:
    return {
        "qos": event.qos,
        "retained": event.retained,
        "way": event.way,
        "published_ns": event.published_ns,
        "received_ns": event.received_ns,
        "latency_seconds": event.latency_seconds,
    }
