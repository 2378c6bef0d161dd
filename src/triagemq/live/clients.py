"""A scenario's publishers or subscribers as real clients: `python -m triagemq.live.clients CONFIG.json`.

It prints one JSON line when its clients are connected and have announced their intents to the coordinator. Publishers
begin some seconds later, when the plan that knows of them is in force. It ends on SIGTERM.
"""

from __future__ import annotations

import asyncio
import gc
import math
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from triagemq.certificates import trust_only
from triagemq.child import run_child, say_ready
from triagemq.client import PublicationIntent, Publisher, Subscriber, SubscriptionIntent, Utility
from triagemq.client.settings import ConnectionSettings
from triagemq.dtls import ClientSecurity
from triagemq.mqttsn.timestamps import PREFIX_BYTES, stamp_payload
from triagemq.scenario import Floats, Scenario, UtilityShape, load_with_conditions
from triagemq.scenario.conditions import Conditions
from triagemq.waiting import is_set_within

SETTLING_SECONDS = 2.0
"""From the publishers' declarations to their first event: planning, and subscribers opening their flows."""

AT_ONCE = 32
_AHEAD_SECONDS = 1.0
_LONGEST_READING = 100
_LARGEST_PAYLOAD, _LARGEST_DECLARED = 65_000, 65_535
_PATIENT = ConnectionSettings(connect_timeout_seconds=60.0, answer_timeout_seconds=None)


class Stream(Protocol):
    """Publications to come: when each is due in ns from the start, its row in the scenario, and its size."""

    def until(self, seconds: float) -> NDArray[Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadConfig:
    """`certificate` is the coordinator's, where it has TLS, and `gateway_certificate` the gateway's, where it has DTLS.

    If it `follows_rates`, these change as the scenario's conditions have it.
    """

    role: Literal["publishers", "subscribers"]
    scenario: str
    coordinator: str
    token: str | None = field(default=None, repr=False)
    seed: int = 0
    qos: int = 0
    settling_seconds: float = SETTLING_SECONDS
    certificate: str | None = None
    gateway_certificate: str | None = None
    lease_seconds: float = 10.0
    follows_rates: bool = False


async def run_subscribers(scenario: Scenario, config: LoadConfig, ended: asyncio.Event) -> None:
    """All subscribers; what they get is counted and reported by the library."""
    intents = subscription_intents(scenario, config.qos, scenario.subscriptions.utility_weight)
    turn = asyncio.Semaphore(AT_ONCE)

    async def join(name: str) -> Subscriber:
        async with turn:
            subscriber = Subscriber(**client_options(config, name), settings=connection_settings(config))
            await subscriber.open()
            await subscriber.subscribe_all(intents[name])
            return subscriber

    present = await asyncio.gather(*(join(name) for name in scenario.subscribers.name))
    report_ready(clients=len(present))
    await ended.wait()
    await asyncio.gather(*(subscriber.close() for subscriber in present), return_exceptions=True)


async def open_publishers(
    scenario: Scenario, config: LoadConfig, own: Callable[[str], dict[str, Any]]
) -> list[Publisher]:
    """All publishers of a scenario, which have announced what they publish; `own` are the options of each."""
    intents = publication_intents(scenario)
    turn = asyncio.Semaphore(AT_ONCE)

    async def begin(name: str) -> Publisher:
        async with turn:
            # One loop publishes for all of them: none waits for the turn of another.
            publisher = Publisher(**client_options(config, name), **own(name), slow_down="skip")
            await publisher.open()
            await publisher.declare_all(intents[name])
            # An id that is requested with the first event holds up those behind it.
            await publisher.register([each.topic for each in intents[name]])
            return publisher

    return list(await asyncio.gather(*(begin(name) for name in scenario.publishers.name)))


async def run_publishers(
    scenario: Scenario, conditions: Conditions, config: LoadConfig, ended: asyncio.Event
) -> None:
    """All publishers; their events come as the scenario's rates, processes and sizes have it."""
    # Late: subscribers publish nothing, and start sooner without.
    from triagemq.scenario.conditions import situations
    from triagemq.simulate.source import PublicationStream

    course = situations(scenario, conditions) if config.follows_rates else []
    stream = PublicationStream(
        scenario, seed=config.seed, rates=[(each.at_seconds, each.rate_per_second) for each in course]
    )
    stream.until(0.0)
    publishers = await open_publishers(
        scenario, config, lambda name: {"settings": connection_settings(config)}
    )
    begins_ns = time.time_ns() + round(config.settling_seconds * 1e9)
    owner = scenario.publications.publisher.tolist()
    topics = [scenario.topics.name[topic] for topic in scenario.publications.topic.tolist()]

    async def publish(row: int, size: float) -> None:
        payload = make_payload(max(size, 1), time.time_ns(), row)
        await publishers[owner[row]].publish(topics[row], payload, qos=config.qos, wait=False)

    report_ready(clients=len(publishers), publishing_from_ns=begins_ns)
    await publish_stream(stream, begins_ns, ended, publish)
    await asyncio.gather(*(publisher.close() for publisher in publishers), return_exceptions=True)


async def publish_stream(
    stream: Stream, begins_ns: int, ended: asyncio.Event, publish: Callable[[int, float], Awaitable[None]]
) -> None:
    """Each event in its time, until the end."""
    until = 0.0
    while not ended.is_set():
        until += _AHEAD_SECONDS
        for due_ns, row, size in stream.until(until).tolist():
            await _wait_until(begins_ns + due_ns, ended)
            if ended.is_set():
                break
            await publish(row, size)
        await _wait_until(begins_ns + round((until - _AHEAD_SECONDS / 2) * 1e9), ended)


def client_options(config: LoadConfig, name: str) -> dict[str, Any]:
    """Of a client by the library."""
    return {
        "coordinator": config.coordinator,
        "name": name,
        "token": config.token,
        "ssl_context": trust_only(config.certificate),
        "lease_seconds": config.lease_seconds,
        "keep_session": config.qos > 0,
    }


def connection_settings(config: LoadConfig) -> ConnectionSettings:
    """Of a client's connections: it waits for a gateway that is away."""
    if config.gateway_certificate is None:
        return _PATIENT
    security = ClientSecurity(authority=config.gateway_certificate, any_name=True)
    return replace(_PATIENT, security=security)


def make_payload(size: float, published_ns: int, row: int = 0) -> bytes:
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


def publication_intents(scenario: Scenario) -> dict[str, list[PublicationIntent]]:
    """By publisher, as its scenario has them."""
    table = scenario.publications
    found: dict[str, list[PublicationIntent]] = {name: [] for name in scenario.publishers.name}
    for row in np.flatnonzero(table.rate_per_second > 0).tolist():
        size, largest = max(1.0, float(table.size_bytes[row])), _finite(table.max_size_bytes[row])
        rate, separation = float(table.rate_per_second[row]), _finite(table.min_separation_seconds[row])
        found[scenario.publishers.name[int(table.publisher[row])]].append(
            PublicationIntent(
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


def subscription_intents(scenario: Scenario, qos: int, weight: Floats) -> dict[str, list[SubscriptionIntent]]:
    """By subscriber, as its scenario has them; `weight` is that of each subscription."""
    table = scenario.subscriptions
    found: dict[str, list[SubscriptionIntent]] = {name: [] for name in scenario.subscribers.name}
    for row in range(len(table)):
        shape: Any = UtilityShape(int(table.utility_shape[row])).name.lower()
        threshold = float(table.utility_threshold[row]) if shape == "step" else None
        freshness = _finite(table.freshness_seconds[row])
        found[scenario.subscribers.name[int(table.subscriber[row])]].append(
            SubscriptionIntent(
                scenario.topics.name[int(table.topic[row])],
                Utility(shape, float(weight[row]), threshold, freshness),
                _finite(table.max_latency_seconds[row]),
                _finite(table.max_separation_seconds[row]),
                qos,
                max_latency_share=_finite(table.max_latency_share[row]),
                guaranteed=bool(table.guaranteed[row]),
                min_share=_finite(table.min_share[row]),
                max_rate_per_second=_finite(table.max_rate_per_second[row]),
                newest_only=bool(table.newest_only[row]),
                expires_seconds=_finite(table.expires_seconds[row]),
            )
        )
    return found


def _finite(value: float) -> float | None:
    return float(value) if 0 < value < float("inf") else None


def report_ready(**facts: Any) -> None:
    """To the parent; what has been made by now stays."""
    gc.collect()
    gc.freeze()
    say_ready(**facts)


async def _run(config: LoadConfig, ended: asyncio.Event) -> None:
    scenario, conditions = load_with_conditions(config.scenario)
    if config.role == "publishers":
        await run_publishers(scenario, conditions, config, ended)
    else:
        await run_subscribers(scenario, config, ended)


def raise_file_limit() -> None:
    """Every connection of every client is a socket."""
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))


def main() -> int:
    """Run until SIGTERM; the exit code."""
    raise_file_limit()
    return run_child("triagemq.live.clients", LoadConfig, _run)


if __name__ == "__main__":
    sys.exit(main())
