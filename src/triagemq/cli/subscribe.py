"""`triage sub`: print events as they come, one line each."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json as json_format
import sys
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triagemq.cli import options
from triagemq.cli.clients import ClientOptions, DirectOptions, run_client
from triagemq.cli.terminal import say_problem
from triagemq.errors import ParameterError

if TYPE_CHECKING:
    from triagemq.client import Event, Subscriber, SubscriptionIntent
    from triagemq.client.direct import DirectEvent, DirectSubscriber


_PROMISE_SECONDS = 10.0


@options.with_groups
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
            parser=options.seconds_of,
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
    min_share: Annotated[
        float | None,
        typer.Option("--min-share", help="Which share of the events shall come at least, as 0.2."),
    ] = None,
    max_rate: Annotated[
        float | None, typer.Option("--max-rate", help="Thin each topic to so many events per second, evenly.")
    ] = None,
    newest_only: Annotated[
        bool, typer.Option("--newest-only", help="A newer event takes the place of one that still waits.")
    ] = False,
    expires: Annotated[
        float | None,
        typer.Option(
            "--expires",
            parser=options.seconds_of,
            metavar="TIME",
            help="Send no event that is older: seconds, or as 500ms.",
        ),
    ] = None,
    with_properties: Annotated[
        bool, typer.Option("--properties", help="Show what MQTT 5 publishers say of events (--json).")
    ] = False,
    qos: Annotated[int, typer.Option("--qos", "-q", min=0, max=2, help="Quality of service.")] = 0,
    client: ClientOptions,
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
    from triagemq.client import Subscriber, SubscriptionIntent, Utility

    others = {"--coordinator": client.coordinator, "--gateway": client.gateway, "--qos": qos, "--port": port}
    terms = {
        "--utility": utility,
        "--max-latency": deadline,
        "--deadline-share": share,
        "--guaranteed": guaranteed,
        "--min-share": min_share,
        "--max-rate": max_rate,
        "--newest-only": newest_only,
        "--expires": expires,
        "--properties": with_properties,
    }
    address = direct.address(topic[0], others | terms)
    if address is not None:
        if len(topic) != 1:
            raise ParameterError("--topic", "must be one with --direct: each topic has an address of its own")
        from triagemq.client.direct import DirectSubscriber

        listener = DirectSubscriber(topic[0], address, network=direct.network())
        printed = asyncio.run(_listen(listener, listener.open, count, seconds, json))
        _print_summary(listener, as_json=json)
        _require(count, printed)
        return
    if share is not None and deadline is None:
        raise ParameterError("--deadline-share", "is a share within no time; give --max-latency, too")
    if guaranteed and deadline is None:
        raise ParameterError("--guaranteed", "is a promise without a time; give --max-latency, too")
    worth = Utility.parse(utility or "log:1")
    subscriptions = [
        SubscriptionIntent(
            one,
            worth,
            deadline,
            qos=qos,
            max_latency_share=share,
            guaranteed=guaranteed,
            min_share=min_share,
            max_rate_per_second=max_rate,
            newest_only=newest_only,
            expires_seconds=expires,
            properties=with_properties,
        )
        for one in dict.fromkeys(topic)
    ]
    arguments = client.arguments()
    for option, value in (terms | {"--port": port}).items():
        if client.gateway is not None and value:
            raise ParameterError(option, "needs a coordinator; a gateway alone cannot follow it")
    if or_brokered and not guaranteed:
        raise ParameterError("--or-brokered", "is for what may be refused; give --guaranteed, too")
    subscriber = Subscriber(**arguments, port=port, network=direct.network(), on_problem=say_problem)

    async def opening() -> bool:
        return await _open(subscriber, subscriptions, as_json=json) or or_brokered

    _require(count, asyncio.run(_listen(subscriber, opening, count, seconds, json)))


def _require(count: int | None, printed: int) -> None:
    if count is not None and printed < count:
        say_problem(f"{printed} of {count} events came")
        raise typer.Exit(1)


async def _listen(
    subscriber: Subscriber | DirectSubscriber,
    open_all: Callable[[], Coroutine[Any, Any, bool | None]],
    count: int | None,
    seconds: float | None,
    as_json: bool,
) -> int:
    """Print events until it is ended; how many."""
    printed = 0

    async def work() -> None:
        nonlocal printed
        if await open_all() is False:
            raise typer.Exit(1)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while (count is None or printed < count) and (events := await subscriber.take_all()):
                    for event in events[: None if count is None else count - printed]:
                        typer.echo(_shown(event, as_json))
                        printed += 1
                    sys.stdout.flush()

    try:
        await run_client(subscriber, work())
    finally:
        if subscriber.overflowed:
            say_problem(f"{subscriber.overflowed} events came too fast and are not printed")
    return printed


async def _open(subscriber: Subscriber, subscriptions: list[SubscriptionIntent], *, as_json: bool) -> bool:
    """False if something is refused that was to be promised."""
    await subscriber.open()
    await subscriber.subscribe_all(subscriptions)
    admitted = True
    for one in subscriptions:
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


def _shown(event: Event | DirectEvent, as_json: bool) -> str:
    """One line of text, or of JSON, with the payload in base64 if it is no text."""
    fields = event._asdict()
    topic, value = fields.pop("topic"), fields.pop("value")
    payload: bytes = fields.pop("payload", value)
    latency = event.latency_seconds
    if not as_json:
        text = payload.decode(errors="backslashreplace").replace("\n", "\\n").replace("\r", "\\r")
        return f"{topic} {text}" + ("" if latency is None else f" ({1000 * latency:.1f} ms)")
    if (properties := fields.pop("properties", None)) is not None:
        correlation_data = base64.b64encode(properties.correlation_data).decode()
        fields["properties"] = properties._asdict() | {"correlation_data": correlation_data}
    if "session" in fields:
        fields |= {"transport": "multicast", "session": f"{fields['session']:016x}"}
    names = ("latency_seconds", "host_delay_seconds")
    fields |= {name: getattr(event, name) for name in names if hasattr(event, name)}
    try:
        content = {"payload": payload.decode()}
    except UnicodeDecodeError:
        content = {"payload_base64": base64.b64encode(payload).decode()}
    return json_format.dumps({"topic": topic, **content, **fields})


def _print_summary(subscriber: DirectSubscriber, *, as_json: bool) -> None:
    """What came, what did not, and what this host has added to it."""
    counters, delay = subscriber.counters, subscriber.host_delay
    if as_json:
        row = asdict(counters) | {"host_delay": {"multicast": delay.as_json()}}
        typer.echo(json_format.dumps({"summary": row}))
        return
    half, nearly_all = delay.quantile(0.5) or 0.0, delay.quantile(0.999) or 0.0
    shown = f"; host delay p50 {1000 * half:.2f} ms, p99.9 {1000 * nearly_all:.2f} ms" if delay.count else ""
    say_problem(f"{counters.received} events, {counters.missing} missing{shown}")
