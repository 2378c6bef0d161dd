"""A scenario's clients in a network in a box: `python -m triagemq.lab.emulate.clients CONFIG.json`.

Like live.clients, with sockets in namespaces, notes of what is sent and arrives, and promised messages. JSON datagrams
on a Unix socket say what its clients do next. `{"name": "crew", "there": false}`: a client fails or leaves, or returns
or joins. `{"begins_ns": 1}`: publishers begin at that time. `{"promised": [[0, "239.1.2.3:17"]]}`: these publications
are promised, at these addresses. A client that joins may request other latencies, by topic: `max_latency_seconds`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from triagemq.child import run_child
from triagemq.client import Event, Subscriber
from triagemq.client.settings import ConnectionSettings
from triagemq.errors import TriageError
from triagemq.lab.emulate.promised import (
    PromisedClients,
    PromisedPublications,
    PromisedReceipts,
    Publish,
)
from triagemq.lab.emulate.receipts import LastArrival, Receipts, TimedSocket, stamping
from triagemq.live.clients import (
    AT_ONCE,
    LoadConfig,
    client_options,
    connection_settings,
    make_payload,
    open_publishers,
    publish_stream,
    raise_file_limit,
    report_ready,
    subscription_intents,
)
from triagemq.mqttsn.timestamps import PREFIX_BYTES
from triagemq.network.linux.netlink import in_namespace
from triagemq.scenario import Scenario, load_with_conditions
from triagemq.scenario.conditions import Conditions
from triagemq.waiting import end, is_set_within

if TYPE_CHECKING:
    from triagemq.lab.recordings import RecordedStream
    from triagemq.scenario.conditions import Situation
    from triagemq.simulate.source import PublicationStream

MODULE = "triagemq.lab.emulate.clients"

_LOOK_SECONDS = 0.02
_LONGEST_COMMAND = 65_536

_Command = Callable[[dict[str, Any]], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxedLoad(LoadConfig):
    """`namespaces` says in which network namespace each client opens its sockets, `receipts` is a file for what is sent
    or arrives (see receipts.py), `commands` a Unix datagram socket, and `absent` are those who are not there at the
    start. `replay` is a Trace whose publications are sent at their times instead of random ones. `promised` says how
    promised messages are sent and got; "direct" publishers do nothing else.
    """

    role: Literal["publishers", "subscribers", "direct"]  # type: ignore[assignment]
    namespaces: dict[str, str]
    receipts: str | None = None
    commands: str
    absent: list[str] = field(default_factory=list)
    replay: str | None = None
    promised: PromisedClients | None = None


async def run_subscribers(
    scenario: Scenario, conditions: Conditions, config: BoxedLoad, ended: asyncio.Event
) -> None:
    """All subscribers, each with its flows; what they get is counted and reported, and noted if requested."""
    intents = subscription_intents(scenario, config.qos, scenario.subscriptions.utility_weight)
    receipts = None if config.receipts is None else Receipts(Path(config.receipts))
    number = {name: row for row, name in enumerate(scenario.topics.name)}
    present: dict[str, Subscriber] = {}
    turn = asyncio.Semaphore(AT_ONCE)
    promised = None if config.promised is None else PromisedReceipts(config.promised, config.namespaces)
    arrival = LastArrival() if promised is None else promised.arrival

    def noting(subscriber: int) -> Callable[[Event], None]:
        def note(event: Event) -> None:
            published_ns, topic = event.published_ns or 0, number.get(event.topic, -1)
            if event.transport == "multicast" and promised is not None:
                promised.note(subscriber, topic, published_ns, event.received_ns)
            elif receipts is not None:
                receipts.add(subscriber, topic, published_ns, arrival.of(event.received_ns))

        return note

    async def join(name: str) -> None:
        async with turn:
            subscriber = Subscriber(
                **client_options(config, name),
                on_event=noting(scenario.subscribers.name.index(name)),
                settings=_settings(config, name, arrival),
                network=None if promised is None else promised.network(name),
            )
            await subscriber.open()
            present[name] = subscriber
            await subscriber.subscribe_all(intents[name])

    async def command(message: dict[str, Any]) -> None:
        if message["there"]:
            name, other = message["name"], message.get("max_latency_seconds", {})
            intents[name] = [
                replace(each, max_latency_seconds=other.get(each.topic, each.max_latency_seconds))
                for each in intents[name]
            ]
            if name not in present:
                await join(name)
            elif other:
                await present[name].subscribe_all(intents[name])
        elif not message["there"] and message["name"] in present:
            await present.pop(message["name"]).close()

    if promised is not None:
        await promised.listen_to_idle_port()
    await asyncio.gather(*(join(name) for name in scenario.subscribers.name if name not in config.absent))
    async with listening(config.commands, command):
        report_ready(clients=len(present))
        await ended.wait()
    if promised is not None:
        await promised.until_quiet()
    await asyncio.gather(*(subscriber.close() for subscriber in present.values()), return_exceptions=True)
    if promised is not None:
        await promised.close()
    if receipts is not None:
        receipts.close()


async def run_publishers(
    scenario: Scenario, conditions: Conditions, config: BoxedLoad, ended: asyncio.Event
) -> None:
    """All publishers; their events come as the scenario's rates, processes and sizes have it, from the time that
    `begin` names. What is promised comes as often as it may."""
    sent = None if config.receipts is None else Receipts(Path(config.receipts))
    stream = _stream(scenario, conditions, config)
    stream.until(0.0)
    silent: set[str] = set(config.absent)
    names, owner = scenario.publishers.name, scenario.publications.publisher.tolist()
    topic_rows = scenario.publications.topic.tolist()
    topics = [scenario.topics.name[topic] for topic in topic_rows]

    async def publish(row: int, payload: bytes, published_ns: int) -> None:
        went = await publishers[owner[row]].publish(topics[row], payload, qos=config.qos, wait=False)
        if sent is not None and went:
            sent.add(owner[row], topic_rows[row], published_ns, len(payload))

    async def publish_now(row: int, size: float) -> None:
        if names[owner[row]] not in silent and (promised is None or row not in promised.rows):
            published_ns = time.time_ns()
            await publish(row, make_payload(max(size, PREFIX_BYTES), published_ns, row), published_ns)

    promised = _promised_publications(scenario, conditions, config, publish)
    publishers = await open_publishers(
        scenario,
        config,
        lambda name: {
            "settings": _settings(config, name),
            "network": None if promised is None else promised.network(name),
        },
    )
    async with _publishing(config, promised, ended, silent, clients=len(publishers)) as begins_ns:
        if begins_ns is not None:
            await publish_stream(stream, begins_ns, ended, publish_now)
    await asyncio.gather(*(publisher.close() for publisher in publishers), return_exceptions=True)
    if sent is not None:
        sent.close()


async def run_direct(
    scenario: Scenario, conditions: Conditions, config: BoxedLoad, ended: asyncio.Event
) -> None:
    """Publishers that need no exchange: they send promised messages to their addresses."""
    promised = _promised_publications(scenario, conditions, config)
    async with _publishing(config, promised, ended, set(), clients=1):
        await ended.wait()


@contextlib.asynccontextmanager
async def _publishing(
    config: BoxedLoad,
    promised: PromisedPublications | None,
    ended: asyncio.Event,
    silent: set[str],
    *,
    clients: int,
) -> AsyncIterator[int | None]:
    """Follow commands, and publish what is promised; gives the time to begin, None if the end comes before it."""
    begins = asyncio.get_running_loop().create_future()

    async def command(message: dict[str, Any]) -> None:
        """A publisher that fails gives no notice: the silence of its topics is noticed."""
        if "promised" in message:
            if promised is not None:
                await promised.promise((row, address) for row, address in message["promised"])
        elif "begins_ns" in message:
            if not begins.done():
                begins.set_result(message["begins_ns"])
        else:
            (silent.discard if message["there"] else silent.add)(message["name"])

    async with listening(config.commands, command):
        report_ready(clients=clients)
        while not begins.done() and not await is_set_within(ended, _LOOK_SECONDS):
            pass
        begins_ns, sending = begins.result() if begins.done() else None, None
        if promised is not None and begins_ns is not None:
            sending = asyncio.get_running_loop().create_task(promised.run(begins_ns, ended, silent))
        yield begins_ns
        if sending is not None:
            await sending
        if promised is not None:
            await promised.close()


def _promised_publications(
    scenario: Scenario, conditions: Conditions, config: BoxedLoad, publish: Publish | None = None
) -> PromisedPublications | None:
    if config.promised is None:
        return None
    return PromisedPublications(
        scenario,
        _course(scenario, conditions),
        config.promised,
        config.namespaces,
        seed=config.seed,
        replay=config.replay,
        publish=publish,
    )


@contextlib.asynccontextmanager
async def listening(path: str, command: _Command) -> AsyncIterator[None]:
    """Follow commands from here on."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as commands:
        commands.bind(path)
        commands.setblocking(False)
        task = asyncio.get_running_loop().create_task(_follow(commands, command))
        try:
            yield
        finally:
            await end(task)


async def _follow(commands: socket.socket, command: _Command) -> None:
    loop = asyncio.get_running_loop()
    while True:
        message = json.loads(await loop.sock_recv(commands, _LONGEST_COMMAND))
        # A client that fails must not hinder the others.
        with contextlib.suppress(TriageError):
            await command(message)


def notify(path: str, message: dict[str, Any]) -> None:
    """Send a command to the clients of a process."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(json.dumps(message).encode(), path)


def _course(scenario: Scenario, conditions: Conditions) -> list[Situation]:
    """What the conditions of the scenario lead to, from its start on."""
    from triagemq.scenario.conditions import situations

    return situations(scenario, conditions)


def _stream(
    scenario: Scenario, conditions: Conditions, config: BoxedLoad
) -> PublicationStream | RecordedStream:
    # Late: subscribers publish nothing, and start sooner without.
    if config.replay is not None:
        from triagemq.lab.recordings import RecordedStream

        return RecordedStream(Path(config.replay), scenario)
    from triagemq.simulate.source import PublicationStream

    course = _course(scenario, conditions)
    return PublicationStream(
        scenario,
        seed=config.seed,
        # A publisher that has failed is silenced; its stream goes on, and it returns into the midst of it.
        rates=[(situation.at_seconds, situation.rate_per_second) for situation in course],
    )


def _settings(config: BoxedLoad, name: str, arrival: LastArrival | None = None) -> ConnectionSettings:
    namespace = config.namespaces[name]
    return replace(
        connection_settings(config),
        # A PINGREQ to the gateway every few seconds from every client would take percents of a slow port.
        ping_seconds=60.0,
        keep_alive_seconds=240,
        make_socket=lambda family, kind, protocol: in_namespace(
            namespace,
            lambda: (
                socket.socket(family, kind, protocol)
                if arrival is None
                else TimedSocket(arrival, family, kind, protocol)
            ),
        ),
    )


def use_realtime_scheduling(process: int = 0) -> None:
    """Let a process (this one) go before all else that this machine does, if this user may: who waits for a processor
    amid a message delays the message, and what is measured is the network."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(process, os.SCHED_RR, os.sched_param(os.sched_get_priority_min(os.SCHED_RR)))


async def _run(config: BoxedLoad, ended: asyncio.Event) -> None:
    scenario, conditions = load_with_conditions(config.scenario)
    babbles = config.role == "direct" and config.promised is not None and config.promised.babbling
    if config.role != "subscribers" and config.promised is not None and not babbles:
        use_realtime_scheduling()
    if config.role == "publishers":
        await run_publishers(scenario, conditions, config, ended)
        return
    if config.role == "direct":
        await run_direct(scenario, conditions, config, ended)
        return
    with stamping() if config.receipts is not None else contextlib.nullcontext():
        await run_subscribers(scenario, conditions, config, ended)


def main() -> int:
    """Run until SIGTERM; the exit code."""
    raise_file_limit()
    return run_child(MODULE, BoxedLoad, _run)


if __name__ == "__main__":
    sys.exit(main())
