"""Memory in virtual time: whatever clients do over and over again, what the gateway keeps stays the same."""

from __future__ import annotations

import gc
import tracemalloc
from collections import deque
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from tests.gateway.virtual import Client, VirtualGateway

from triagemq.mqttsn import Connect, Disconnect, PingReq, Publish, Subscribe, TopicIdType, Unsubscribe

Cycle = Callable[[Client, int], None]


def subscribe_and_unsubscribe(client: Client, number: int) -> None:
    message_id = number % 60_000 + 1
    client.send(Subscribe(TopicIdType.NORMAL, f"own/{number}/#", message_id, 1))
    client.send(Unsubscribe(TopicIdType.NORMAL, f"own/{number}/#", message_id))


def subscribe_again(client: Client, number: int) -> None:
    client.send(Subscribe(TopicIdType.NORMAL, "same/#", number % 60_000 + 1, 1))


def connect_and_disconnect(client: Client, number: int) -> None:
    client.send(Connect("same", 60))
    client.send(Disconnect())


def connect_clean_for_long(client: Client, number: int) -> None:
    client.send(Connect(f"client{number}", 0xFFFF, clean_session=True))
    client.send(Subscribe(TopicIdType.NORMAL, "news", 1, 0))


def sleep_and_wake(client: Client, number: int) -> None:
    client.send(Connect("sleeper", 0xFFFF))
    client.send(Disconnect(0xFFFF))
    client.send(PingReq("sleeper"))


def begin_to_connect(client: Client, number: int) -> None:
    client.send(Connect(f"client{number}", 0xFFFF, will=True))


def publish_without_end(client: Client, number: int) -> None:
    client.send(Connect("publisher", 60, clean_session=not number % 100))
    client.send(Publish(TopicIdType.SHORT, 0x6162, b"%d" % number, qos=2, message_id=number % 60_000 + 1))


def items(root: Any) -> int:
    """The number of entries of all containers that can be reached from here."""
    seen: set[int] = set()
    waiting, count = [root], 0
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, type | ModuleType | VirtualGateway | Client):
            continue
        seen.add(id(one))
        if isinstance(one, dict | list | set | tuple | deque):
            count += len(one)
        waiting += gc.get_referents(one)
    return count


@pytest.mark.parametrize(
    "cycle",
    [
        subscribe_and_unsubscribe,
        subscribe_again,
        connect_and_disconnect,
        connect_clean_for_long,
        sleep_and_wake,
        begin_to_connect,
        publish_without_end,
    ],
)
def test_what_clients_do_over_and_over_again_takes_no_memory(cycle: Cycle) -> None:
    gateway = VirtualGateway()
    client = gateway.client().connect("client")
    gateway.outcomes = deque(maxlen=1)  # type: ignore[assignment]
    counts = []
    for number in range(4_000):
        cycle(client, number)
        client.received.clear()
        if number in (1_499, 3_999):
            gateway.broker.published.clear()
            counts.append(items(gateway.core))
    # Places of timers that were called off come and go; one entry a cycle would be 2,500.
    assert counts[1] <= counts[0] + 500
    gateway.wait(60)
    assert len(gateway.core.timers) < 100


def test_sessions_that_are_kept_are_small_and_go_when_they_expire() -> None:
    gateway = VirtualGateway(session_expiry_seconds=3600)
    client = gateway.client().connect("client")
    before = items(gateway.core)

    def keep(count: int) -> None:
        for number in range(count):
            client.send(Connect(f"kept{number}", 60))
            client.send(Disconnect())
            client.received.clear()

    keep(100)
    gateway.wait(3601)
    gc.collect()
    tracemalloc.start()
    begun = tracemalloc.get_traced_memory()[0]
    keep(1_000)
    gc.collect()
    each = (tracemalloc.get_traced_memory()[0] - begun) / 1_000
    tracemalloc.stop()
    assert each < 2_000
    assert len(gateway.core.sessions) == 1_000
    gateway.wait(3601)
    assert not gateway.core.sessions
    assert items(gateway.core) < before + 1_100
