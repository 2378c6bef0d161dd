"""A scenario's clients in a network in a box: `python -m triagemq.lab.emulate.clients CONFIG.json`.

Like live.clients, with sockets in namespaces, notes of what is sent and arrives, and promised messages. JSON datagrams
on a Unix socket say what its clients do next. `{"name": "crew", "there": false}`: a client fails or leaves, or returns
or joins. `{"situation": 2}`: topics are worth what they are in the situation of that number, of those that the
scenario's conditions lead to. `{"begins_ns": 1}`: publishers begin at that time. `{"promised": "FILE"}`: what is
promised is at the addresses in that file (see promised.py); when all are there, FILE with the socket's name behind it
says so. A client that joins may request other latencies, by topic: `max_latency_seconds`.
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
    PromisedPublishers,
    PromisedSubscribers,
    told_addresses,
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
    from triagemq.scenario.conditions import Situation
    from triagemq.simulate.replay import RecordedStream
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
    """All subscribers, each with its flows; what they get is counted and reported, and noted if that is wanted."""
    wanted = subscription_intents(scenario, config.qos, scenario.subscriptions.utility_weight)
    receipts = None if config.receipts is None else Receipts(Path(config.receipts))
    number = {name: row for row, name in enumerate(scenario.topics.name)}
    present: dict[str, Subscriber] = {}
    turn = asyncio.Semaphore(AT_ONCE)
    arrival = LastArrival()
    promised = None if config.promised is None else PromisedSubscribers(scenario, config.promised)

    def noting(subscriber: int) -> Callable[[Event], None]:
        if receipts is None:
            return lambda event: None
        return lambda event: receipts.add(
            subscriber, number.get(event.topic, -1), event.published_ns or 0, arrival.of(event.received_ns)
        )

    async def join(name: str) -> None:
        async with turn:
            subscriber = Subscriber(
                **client_options(config, name),
                direct=False,
                on_event=noting(scenario.subscribers.name.index(name)),
                settings=_settings(config, name, arrival),
            )
            await subscriber.open()
            present[name] = subscriber
            await subscriber.subscribe_all(wanted[name])

    async def command(message: dict[str, Any]) -> None:
        if "situation" in message:
            situation = _course(scenario, conditions)[message["situation"]]
            wanted.update(subscription_intents(scenario, config.qos, situation.utility_weight))
            await asyncio.gather(*(one.subscribe_all(wanted[name]) for name, one in present.items()))
        elif "promised" in message:
            if promised is not None:
                await promised.open(told_addresses(message["promised"]), config.namespaces)
                _say_there(message["promised"], config)
        elif message["there"]:
            name, other = message["name"], message.get("max_latency_seconds", {})
            wanted[name] = [
                replace(each, max_latency_seconds=other.get(each.topic, each.max_latency_seconds))
                for each in wanted[name]
            ]
            if name not in present:
                await join(name)
            elif other:
                await present[name].subscribe_all(wanted[name])
        elif not message["there"] and message["name"] in present:
            await present.pop(message["name"]).close()

    await asyncio.gather(*(join(name) for name in scenario.subscribers.name if name not in config.absent))
    async with listening(config.commands, command):
        report_ready(clients=len(present))
        await ended.wait()
    await asyncio.gather(*(subscriber.close() for subscriber in present.values()), return_exceptions=True)
    if promised is not None:
        await promised.close()
    if receipts is not None:
        receipts.close()


async def run_publishers(
    scenario: Scenario, conditions: Conditions, config: BoxedLoad, ended: asyncio.Event
) -> None:
    """All publishers; their events come as the scenario's rates, processes and sizes have it."""
    stream = _stream(scenario, conditions, config)
    stream.until(0.0)
    sent = None if config.receipts is None else Receipts(Path(config.receipts))
    silent = set(config.absent)
    begins = asyncio.get_running_loop().create_future()
    promised = _promised_publishers(scenario, conditions, config)
    # What is promised to some, and to others not.
    also_brokered: set[int] = set()

    async def command(message: dict[str, Any]) -> None:
        """A publisher that fails says nothing: it is the silence of its topics that is noticed."""
        if "promised" in message:
            if promised is not None:
                await promised.open(told_addresses(message["promised"]), config.namespaces)
                also_brokered.clear()
                also_brokered.update(message["also_brokered"])
                _say_there(message["promised"], config)
        elif "begins_ns" in message:
            if not begins.done():
                begins.set_result(message["begins_ns"])
        else:
            (silent.discard if message["there"] else silent.add)(message["name"])

    names = scenario.publishers.name
    publishers = await open_publishers(scenario, config, lambda name: _settings(config, name), direct=False)
    owner = scenario.publications.publisher.tolist()
    topic_rows = scenario.publications.topic.tolist()
    topics = [scenario.topics.name[topic] for topic in topic_rows]

    async def publish(row: int, size: float, published_ns: int) -> None:
        payload = make_payload(max(size, PREFIX_BYTES), published_ns, row)
        went = await publishers[owner[row]].publish(topics[row], payload, qos=config.qos, wait=False)
        if sent is not None and went:
            sent.add(owner[row], topic_rows[row], published_ns, len(payload))

    async def publish_too(row: int, size: float, published_ns: int) -> None:
        if row in also_brokered:
            await publish(row, size, published_ns)

    async def publish_brokered(row: int, size: float) -> None:
        if names[owner[row]] not in silent and (promised is None or row not in promised.rows):
            await publish(row, size, time.time_ns())

    async with listening(config.commands, command):
        report_ready(clients=len(publishers))
        sending = None
        if await _told(begins, ended):
            if promised is not None:
                sending = asyncio.get_running_loop().create_task(
                    promised.publish(begins.result(), ended, silent=silent, brokered=publish_too)
                )
            await publish_stream(stream, begins.result(), ended, publish_brokered)
        if sending is not None:
            await sending
        if promised is not None:
            await promised.close()
    await asyncio.gather(*(publisher.close() for publisher in publishers), return_exceptions=True)
    if sent is not None:
        sent.close()


async def run_direct(
    scenario: Scenario, conditions: Conditions, config: BoxedLoad, ended: asyncio.Event
) -> None:
    """Publishers that need no exchange: they send promised messages from when they are told to begin."""
    promised = _promised_publishers(scenario, conditions, config)
    assert promised is not None
    begins = asyncio.get_running_loop().create_future()

    async def command(message: dict[str, Any]) -> None:
        if "promised" in message:
            await promised.open(told_addresses(message["promised"]), config.namespaces)
            _say_there(message["promised"], config)
        elif not begins.done():
            begins.set_result(message["begins_ns"])

    async with listening(config.commands, command):
        report_ready(clients=1)
        if await _told(begins, ended):
            await promised.publish(begins.result(), ended)
    await promised.close()


async def _told(begins: asyncio.Future[int], ended: asyncio.Event) -> bool:
    """Wait for the time to begin, or for the end; whether there is one."""
    while not begins.done() and not await is_set_within(ended, _LOOK_SECONDS):
        pass
    return begins.done()


def _promised_publishers(
    scenario: Scenario, conditions: Conditions, config: BoxedLoad
) -> PromisedPublishers | None:
    if config.promised is None:
        return None
    course = _course(scenario, conditions)
    return PromisedPublishers(scenario, course, config.promised, config.seed, config.replay)


def _say_there(path: str, config: BoxedLoad) -> None:
    Path(f"{path}.{Path(config.commands).name}").touch()


@contextlib.asynccontextmanager
async def listening(path: str, command: _Command) -> AsyncIterator[None]:
    """Follow commands from here on."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(path)
        heard.setblocking(False)
        task = asyncio.get_running_loop().create_task(_follow(heard, command))
        try:
            yield
        finally:
            await end(task)


async def _follow(heard: socket.socket, command: _Command) -> None:
    loop = asyncio.get_running_loop()
    while True:
        message = json.loads(await loop.sock_recv(heard, _LONGEST_COMMAND))
        # A client that cannot do as it is told now must not keep the others from it.
        with contextlib.suppress(TriageError):
            await command(message)


def tell(path: str, message: dict[str, Any]) -> None:
    """Let the clients of a process do something."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as teller:
        teller.sendto(json.dumps(message).encode(), path)


def _course(scenario: Scenario, conditions: Conditions) -> list[Situation]:
    """What the conditions of the scenario lead to, from its start on."""
    from triagemq.scenario.conditions import situations

    return situations(scenario, conditions)


def _stream(
    scenario: Scenario, conditions: Conditions, config: BoxedLoad
) -> PublicationStream | RecordedStream:
    # Late: subscribers publish nothing, and start sooner without.
    if config.replay is not None:
        from triagemq.simulate.replay import RecordedStream

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
    if config.role != "subscribers" and config.promised is not None and not config.promised.babbling:
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
