"""A scenario's publishers or subscribers as real clients: `python -m triagemq.live.clients CONFIG.json`.

It prints one JSON line when its clients are connected and have told the coordinator what they want or publish.
Publishers begin some seconds later, when the plan that knows of them is in force, or when they are told to. It ends on
SIGTERM.

What its clients do next is told by JSON datagrams on a Unix socket. `{"name": "crew", "there": false}`: a client fails
or leaves, or returns or joins. `{"situation": 2}`: topics are worth to everyone what they are in the situation of that
number, of those that the scenario's conditions lead to. `{"begins_ns": 1}`: publishers begin at that time.
`{"promised": "FILE"}`: what is promised is at the addresses in that file (see live.promised); when all are there, FILE
with the socket's name behind it says so. Who joins may ask for other latencies, by topic: `max_latency_seconds`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import math
import os
import resource
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from triagemq.child import run_child, say_ready
from triagemq.client import Declared, Event, Publisher, Subscriber, Utility, Wanted
from triagemq.client.settings import ConnectionSettings
from triagemq.dtls import ClientSecurity
from triagemq.errors import TriageError
from triagemq.live.promised import PromisedClients, PromisedPublishers, PromisedSubscribers, told_addresses
from triagemq.live.receipts import LastArrival, Receipts, TimedSocket, stamping
from triagemq.mqttsn.timestamps import PREFIX_BYTES, stamp_payload
from triagemq.scenario import Floats, Scenario, UtilityShape, load_with_conditions
from triagemq.scenario.conditions import Conditions
from triagemq.waiting import end, is_set_within

if TYPE_CHECKING:
    from triagemq.scenario.conditions import Situation
    from triagemq.simulate.replay import RecordedStream
    from triagemq.simulate.source import PublicationStream

SETTLING_SECONDS = 2.0
"""From the publishers' declarations to their first event: planning, and subscribers opening their flows."""

_AT_ONCE = 32
_AHEAD_SECONDS = 1.0
_LOOK_SECONDS = 0.02
_LONGEST_READING = 100
_LARGEST_PAYLOAD, _LARGEST_DECLARED = 65_000, 65_535
_LONGEST_COMMAND = 65_536
_PATIENT = ConnectionSettings(connect_timeout_seconds=60.0, answer_timeout_seconds=None)

_Command = Callable[[dict[str, Any]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class LoadConfig:
    """`role` is "publishers" or "subscribers"; `certificate` is the coordinator's, where it has TLS, and
    `gateway_certificate` the gateway's, where it speaks DTLS.

    For a network in a box: `namespaces` says in which network namespace each client opens its sockets, `receipts` is a
    file for what is sent or arrives (see receipts.py), `commands` a Unix datagram socket that tells clients to fail,
    return, leave, join and value topics anew (see commands.py), and `absent` are those who are not there at the start;
    rates change as the scenario's conditions have it, as elsewhere with `follows_rates`. `replay` is a Trace whose
    publications are sent at their times instead of random ones. `promised` says how promised messages are sent and got;
    "direct" publishers do nothing else.
    """

    role: Literal["publishers", "subscribers", "direct"]
    scenario: str
    coordinator: str
    token: str | None = field(default=None, repr=False)
    seed: int = 0
    qos: int = 0
    settling_seconds: float = SETTLING_SECONDS
    certificate: str | None = None
    gateway_certificate: str | None = None
    lease_seconds: float = 10.0
    namespaces: dict[str, str] | None = None
    receipts: str | None = None
    commands: str | None = None
    absent: list[str] = field(default_factory=list)
    replay: str | None = None
    follows_rates: bool = False
    promised: PromisedClients | None = None

    def trusting(self) -> ssl.SSLContext | None:
        """The coordinator's own certificate is all that is trusted, by whatever name it is reached."""
        if self.certificate is None:
            return None
        context = ssl.create_default_context(cafile=self.certificate)
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.check_hostname = False
        return context


async def run_subscribers(
    scenario: Scenario, conditions: Conditions, config: LoadConfig, ended: asyncio.Event
) -> None:
    """All subscribers, each with its flows; what they get is counted and reported, and noted if that is wanted."""
    wanted = _wanted(scenario, config.qos, scenario.subscriptions.utility_weight)
    receipts = None if config.receipts is None else Receipts(Path(config.receipts))
    number = {name: row for row, name in enumerate(scenario.topics.name)}
    present: dict[str, Subscriber] = {}
    turn = asyncio.Semaphore(_AT_ONCE)
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
                **_options(config, name),
                on_event=noting(scenario.subscribers.name.index(name)),
                settings=_settings(config, name, arrival),
            )
            await subscriber.open()
            present[name] = subscriber
            await subscriber.subscribe_all(wanted[name])

    async def command(message: dict[str, Any]) -> None:
        if "situation" in message:
            situation = _course(scenario, conditions)[message["situation"]]
            wanted.update(_wanted(scenario, config.qos, situation.utility_weight))
            await asyncio.gather(*(one.subscribe_all(wanted[name]) for name, one in present.items()))
        elif "promised" in message:
            if promised is not None:
                await promised.open(told_addresses(message["promised"]), config.namespaces or {})
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
        _say_ready(clients=len(present))
        await ended.wait()
    await asyncio.gather(*(subscriber.close() for subscriber in present.values()), return_exceptions=True)
    if promised is not None:
        await promised.close()
    if receipts is not None:
        receipts.close()


async def run_publishers(
    scenario: Scenario, conditions: Conditions, config: LoadConfig, ended: asyncio.Event
) -> None:
    """All publishers; their events come as the scenario's rates, processes and sizes have it."""
    stream = _stream(scenario, conditions, config)
    stream.until(0.0)
    declared = _declared(scenario)
    sent = None if config.receipts is None else Receipts(Path(config.receipts))
    silent = set(config.absent)
    turn = asyncio.Semaphore(_AT_ONCE)
    told = asyncio.Event()
    begins_ns = 0
    promised = _promised_publishers(scenario, conditions, config)
    # What is promised to some, and to others not.
    both_ways: set[int] = set()

    async def begin(name: str) -> Publisher:
        async with turn:
            # One loop publishes for all of them: nobody waits for another's turn.
            publisher = Publisher(
                **_options(config, name), settings=_settings(config, name), slow_down="skip"
            )
            await publisher.open()
            await publisher.declare_all(declared[name])
            # Whoever has to ask for an id with its first event holds up those behind it.
            await publisher.register([each.topic for each in declared[name]])
            return publisher

    async def command(message: dict[str, Any]) -> None:
        """A publisher that fails says nothing to anybody: it is the silence of its topics that is noticed."""
        nonlocal begins_ns
        if "promised" in message:
            if promised is not None:
                await promised.open(told_addresses(message["promised"]), config.namespaces or {})
                both_ways.clear()
                both_ways.update(message["both_ways"])
                _say_there(message["promised"], config)
            return
        if "begins_ns" in message:
            begins_ns = message["begins_ns"]
            told.set()
            return
        (silent.discard if message["there"] else silent.add)(message["name"])

    names = scenario.publishers.name
    publishers = await asyncio.gather(*(begin(name) for name in names))
    begins_ns = time.time_ns() + round(config.settling_seconds * 1e9)
    if config.commands is None:
        told.set()
    owner = scenario.publications.publisher.tolist()
    topic_rows = scenario.publications.topic.tolist()
    topics = [scenario.topics.name[topic] for topic in topic_rows]
    least = PREFIX_BYTES if config.namespaces is not None else 1

    async def publish(row: int, size: float, published_ns: int) -> None:
        payload = _payload(max(size, least), published_ns, row)
        went = await publishers[owner[row]].publish(topics[row], payload, qos=config.qos, wait=False)
        if sent is not None and went:
            sent.add(owner[row], topic_rows[row], published_ns, len(payload))

    async def publish_too(row: int, size: float, published_ns: int) -> None:
        if row in both_ways:
            await publish(row, size, published_ns)

    async with listening(config.commands, command):
        _say_ready(clients=len(publishers), publishing_from_ns=begins_ns)
        while not told.is_set() and not await is_set_within(ended, _LOOK_SECONDS):
            pass
        sending = None
        if promised is not None:
            sending = asyncio.get_running_loop().create_task(
                promised.publish(begins_ns, ended, silent=silent, brokered=publish_too)
            )
        until = 0.0
        while not ended.is_set():
            until += _AHEAD_SECONDS
            for due_ns, row, size in stream.until(until).tolist():
                await _wait_until(begins_ns + due_ns, ended)
                if ended.is_set():
                    break
                if names[owner[row]] not in silent and (promised is None or row not in promised.rows):
                    await publish(row, size, time.time_ns())
            await _wait_until(begins_ns + round((until - _AHEAD_SECONDS / 2) * 1e9), ended)
        if promised is not None and sending is not None:
            await sending
            await promised.close()
    await asyncio.gather(*(publisher.close() for publisher in publishers), return_exceptions=True)
    if sent is not None:
        sent.close()


async def run_direct(
    scenario: Scenario, conditions: Conditions, config: LoadConfig, ended: asyncio.Event
) -> None:
    """Publishers that need no exchange: they send promised messages from when they are told to begin."""
    promised = _promised_publishers(scenario, conditions, config)
    assert promised is not None
    begins = asyncio.get_running_loop().create_future()

    async def command(message: dict[str, Any]) -> None:
        if "promised" in message:
            await promised.open(told_addresses(message["promised"]), config.namespaces or {})
            _say_there(message["promised"], config)
        elif not begins.done():
            begins.set_result(message["begins_ns"])

    async with listening(config.commands, command):
        _say_ready(clients=1)
        while not begins.done() and not await is_set_within(ended, _LOOK_SECONDS):
            pass
        if begins.done():
            await promised.publish(begins.result(), ended)
    await promised.close()


def _promised_publishers(
    scenario: Scenario, conditions: Conditions, config: LoadConfig
) -> PromisedPublishers | None:
    if config.promised is None:
        return None
    course = _course(scenario, conditions)
    return PromisedPublishers(scenario, course, config.promised, config.seed, config.replay)


def _say_there(path: str, config: LoadConfig) -> None:
    Path(f"{path}.{Path(config.commands or config.role).name}").touch()


@contextlib.asynccontextmanager
async def listening(path: str | None, command: _Command) -> AsyncIterator[None]:
    """Follow commands from here on; none where there is no path."""
    if path is None:
        yield
        return
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
    scenario: Scenario, conditions: Conditions, config: LoadConfig
) -> PublicationStream | RecordedStream:
    # Late: subscribers publish nothing, and start sooner without.
    if config.replay is not None:
        from triagemq.simulate.replay import RecordedStream

        return RecordedStream(Path(config.replay), scenario)
    from triagemq.simulate.source import PublicationStream

    follows = config.namespaces is not None or config.follows_rates
    course = _course(scenario, conditions) if follows else []
    return PublicationStream(
        scenario,
        seed=config.seed,
        # A publisher that has failed is silenced; its stream goes on, and it returns into the midst of it.
        rates=[(situation.at_seconds, situation.rate_per_second) for situation in course],
    )


def _options(config: LoadConfig, name: str) -> dict[str, Any]:
    return {
        "coordinator": config.coordinator,
        "name": name,
        "token": config.token,
        "ssl_context": config.trusting(),
        "lease_seconds": config.lease_seconds,
        "keep_session": config.qos > 0,
        # In a box hosts are namespaces, and what is promised has ways of its own from one to the other.
        "direct": config.namespaces is None,
    }


def _settings(config: LoadConfig, name: str, arrival: LastArrival | None = None) -> ConnectionSettings:
    patient = _PATIENT
    if config.gateway_certificate is not None:
        patient = replace(
            patient, security=ClientSecurity(authority=config.gateway_certificate, any_name=True)
        )
    if config.namespaces is None:
        return patient
    from triagemq.network.linux.namespaces import in_namespace

    namespace = config.namespaces[name]
    return replace(
        patient,
        # A question to the gateway every few seconds from every flow would take percents of a slow port.
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


def _payload(size: float, published_ns: int, row: int = 0) -> bytes:
    """As long as the event is; its time is in front wherever there is room for it.

    What is short is a reading, as text: a number that comes and goes over some minutes, other for each `row`.
    """
    length = min(_LARGEST_PAYLOAD, max(1, round(size)))
    if length < PREFIX_BYTES:
        return bytes(length)
    room = length - PREFIX_BYTES
    reading = f"{50 + 49 * math.sin(published_ns * 1e-9 / 30 + row):.0f}".encode().ljust(room)
    return stamp_payload(reading if len(reading) == room <= _LONGEST_READING else bytes(room), published_ns)


async def _wait_until(moment_ns: int, ended: asyncio.Event) -> None:
    pause = (moment_ns - time.time_ns()) * 1e-9
    if pause > 0:
        await is_set_within(ended, pause)


def _declared(scenario: Scenario) -> dict[str, list[Declared]]:
    table = scenario.publications
    found: dict[str, list[Declared]] = {name: [] for name in scenario.publishers.name}
    for row in np.flatnonzero(table.rate_per_second > 0).tolist():
        size, largest = max(1.0, float(table.size_bytes[row])), _finite(table.max_size_bytes[row])
        rate, separation = float(table.rate_per_second[row]), _finite(table.min_separation_seconds[row])
        found[scenario.publishers.name[int(table.publisher[row])]].append(
            Declared(
                scenario.topics.name[int(table.topic[row])],
                rate if separation is None else min(rate, 1 / separation),
                # No broker takes a longer one: it is sent directly, or not at all.
                size if size <= _LARGEST_DECLARED else None,
                separation,
                _finite(table.max_separation_seconds[row]),
                None if largest is None else max(size, largest),
            )
        )
    return found


def _wanted(scenario: Scenario, qos: int, weight: Floats) -> dict[str, list[Wanted]]:
    table = scenario.subscriptions
    found: dict[str, list[Wanted]] = {name: [] for name in scenario.subscribers.name}
    for row in range(len(table)):
        shape: Any = UtilityShape(int(table.utility_shape[row])).name.lower()
        threshold = float(table.utility_threshold[row]) if shape == "step" else None
        freshness = _finite(table.freshness_seconds[row])
        found[scenario.subscribers.name[int(table.subscriber[row])]].append(
            Wanted(
                scenario.topics.name[int(table.topic[row])],
                Utility(shape, float(weight[row]), threshold, freshness),
                _finite(table.max_latency_seconds[row]),
                _finite(table.max_separation_seconds[row]),
                qos,
                max_latency_share=_finite(table.max_latency_share[row]),
                guaranteed=bool(table.guaranteed[row]),
            )
        )
    return found


def _finite(value: float) -> float | None:
    return float(value) if 0 < value < float("inf") else None


def _say_ready(**facts: Any) -> None:
    gc.collect()
    gc.freeze()
    say_ready(**facts)


def be_in_time(process: int = 0) -> None:
    """Let a process (this one) go before all else that this machine does, if this user may: who waits for a processor
    amid a message delays the message, and what is measured is the network."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(process, os.SCHED_RR, os.sched_param(os.sched_get_priority_min(os.SCHED_RR)))


async def _run(config: LoadConfig, ended: asyncio.Event) -> None:
    scenario, conditions = load_with_conditions(config.scenario)
    if config.role != "subscribers" and config.promised is not None and not config.promised.babbling:
        be_in_time()
    if config.role == "publishers":
        await run_publishers(scenario, conditions, config, ended)
        return
    if config.role == "direct":
        await run_direct(scenario, conditions, config, ended)
        return
    with stamping() if config.receipts is not None else contextlib.nullcontext():
        await run_subscribers(scenario, conditions, config, ended)


def main() -> int:
    """Run until told to end; the exit code."""
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Every flow of every client is a socket.
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    return run_child("triagemq.live.clients", LoadConfig, _run)


if __name__ == "__main__":
    sys.exit(main())
