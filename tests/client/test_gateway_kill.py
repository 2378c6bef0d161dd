"""kill -9 of the gateway while messages are under way: nothing acknowledged is lost, QoS 2 is not repeated."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from pathlib import Path

import pytest
from tests.client.loopback import connected, until
from tests.gateway.real import GatewayProcess, Mosquitto, ended

from triagemq.broker.process import find_mosquitto
from triagemq.client.connection import Connection
from triagemq.client.events import Event

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")


async def _publish(connection: Connection, qos: int, acknowledged: set[bytes], stop: asyncio.Event) -> None:
    number = 0
    while not stop.is_set():
        payload = b"%d" % number
        number += 1
        done = await connection.publish(f"load/{qos}", payload, qos=qos, wait=False)
        assert done is not None
        done.add_done_callback(lambda _, payload=payload: acknowledged.add(payload))
        await asyncio.sleep(0.003)


def test_nothing_is_lost_over_two_kills_and_qos_2_comes_once(tmp_path: Path) -> None:
    broker = Mosquitto(tmp_path / "broker")
    gateway = GatewayProcess(tmp_path, "--broker", broker.url, "--state", str(tmp_path / "state"))

    async def scene() -> None:
        events: list[Event] = []
        subscriber = await connected(gateway.port, "subscriber", events)
        publisher = await connected(gateway.port, "publisher")
        for qos in (1, 2):
            await subscriber.subscribe(f"load/{qos}", qos=qos)
        stop = asyncio.Event()
        acknowledged: dict[int, set[bytes]] = {1: set(), 2: set()}
        loads = [asyncio.create_task(_publish(publisher, qos, acknowledged[qos], stop)) for qos in (1, 2)]
        for _ in range(2):
            await asyncio.sleep(0.7)
            before = len(acknowledged[2])
            await asyncio.to_thread(gateway.kill)
            await asyncio.sleep(0.3)
            await asyncio.to_thread(gateway.start)
            await until(lambda before=before: len(acknowledged[2]) > before + 20)
        stop.set()
        await asyncio.gather(*loads)
        await publisher.flush()
        for qos in (1, 2):
            assert len(acknowledged[qos]) > 100

            def received(qos: int = qos) -> Counter[bytes]:
                return Counter(event.payload for event in events if event.topic == f"load/{qos}")

            await until(lambda qos=qos, received=received: acknowledged[qos] <= set(received()))
        await asyncio.sleep(1.0)
        assert set(Counter(event.payload for event in events if event.topic == "load/2").values()) == {1}
        await subscriber.close()
        await publisher.close()

    with ended(gateway, broker):
        asyncio.run(scene())


def test_a_gateway_that_has_forgotten_everything_is_told_again(tmp_path: Path) -> None:
    """Without a state directory: topic ids, subscriptions and unacknowledged messages come from the clients."""
    broker = Mosquitto(tmp_path / "broker")
    gateway = GatewayProcess(tmp_path, "--broker", broker.url)

    async def scene() -> None:
        events: list[Event] = []
        subscriber = await connected(gateway.port, "subscriber", events)
        publisher = await connected(gateway.port, "publisher")
        await subscriber.subscribe("floor/+", qos=1)
        await publisher.publish("floor/1", b"before", qos=1)
        await until(lambda: len(events) == 1)
        await asyncio.to_thread(gateway.kill)
        away = [asyncio.create_task(publisher.publish("floor/2", b"away%d" % n, qos=1)) for n in range(10)]
        impatient = asyncio.create_task(publisher.publish("floor/2", b"impatient", qos=2))
        await asyncio.sleep(0.5)
        impatient.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await impatient
        await asyncio.to_thread(gateway.start)
        await asyncio.gather(*away)
        await until(lambda: subscriber.counters.connected == 2)
        await until(lambda: publisher.counters.connected >= 2)
        await publisher.flush()
        number = 0
        while b"after" not in [event.payload for event in events]:
            # The gateway knows the publisher before it knows the subscriber again.
            await publisher.publish("floor/3", b"after", qos=1)
            await asyncio.sleep(0.1)
            number += 1
            assert number < 300
        await publisher.publish("floor/1", b"quiet", qos=0)
        await subscriber.close()
        await publisher.close()

    with ended(gateway, broker):
        asyncio.run(scene())


def test_while_the_broker_is_away_messages_wait_and_clients_stay(tmp_path: Path) -> None:
    broker = Mosquitto(tmp_path / "broker")
    gateway = GatewayProcess(tmp_path, "--broker", broker.url, "--state", str(tmp_path / "state"))

    async def scene() -> None:
        events: list[Event] = []
        subscriber = await connected(gateway.port, "subscriber", events)
        publisher = await connected(gateway.port, "publisher")
        await subscriber.subscribe("floor/1", qos=2)
        broker.save()
        await asyncio.to_thread(broker.kill)
        sending = [
            asyncio.create_task(publisher.publish("floor/1", b"%d" % n, qos=1 + n % 2)) for n in range(20)
        ]
        # Longer than a restart takes: clients stay connected all the same.
        await asyncio.sleep(5.0)
        assert publisher.is_active
        assert not any(each.done() for each in sending)
        await asyncio.to_thread(broker.start)
        await asyncio.gather(*sending)
        await until(lambda: {event.payload for event in events} == {b"%d" % n for n in range(20)})
        odd = Counter(event.payload for event in events if int(event.payload) % 2)
        assert set(odd.values()) == {1}
        await subscriber.close()
        await publisher.close()

    with ended(gateway, broker):
        asyncio.run(scene())
