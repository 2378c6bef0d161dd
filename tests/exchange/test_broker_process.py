"""Brokers that the gateway runs itself: Mosquitto, and the embedded one where there is nothing else."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.exchange.real import Publisher, SnClient, ended

from triagemq.exchange import BrokerError, BrokerProcess, Gateway, GatewaySettings
from triagemq.exchange.broker_process import find_mosquitto


def with_gateway(tmp_path: Path, scenario: Any, *, embedded: bool) -> None:
    async def run() -> None:
        broker = BrokerProcess(tmp_path / "broker", embedded=embedded)
        await broker.start()
        gateway = Gateway(GatewaySettings(broker_grace_seconds=60), broker.address, ("127.0.0.1", 0))
        gateway.core.on_subscriptions = broker.save_soon
        try:
            await gateway.start()
            assert await gateway.wait_for_broker(10)
            await asyncio.to_thread(scenario, broker, gateway)
        finally:
            await gateway.close()
            await broker.stop()
        assert broker._process is not None
        assert broker._process.returncode is not None

    asyncio.run(run())


def _passes_messages(broker: BrokerProcess, gateway: Gateway) -> None:
    one, two = (SnClient(gateway.address[1], name) for name in ("one", "two"))
    publisher = Publisher(broker.address.port)
    with ended(publisher, one, two):
        publisher.publish("floor/1", b"kept", 1, retain=True)
        publisher.wait()
        # amqtt acknowledges a message before it passes it on.
        time.sleep(0.5)
        one.connect().subscribe("floor/+", 1)
        one.subscribe("#", 1)
        one.collect(3.0, 2)
        assert [message.payload for message in one.messages] == [b"kept", b"kept"]
        one.messages.pop()
        two.connect().subscribe("floor/+", 1)
        two.collect(3.0, 1)
        assert [message.payload for message in two.messages] == [b"kept"]
        for number in range(20):
            publisher.publish("floor/1", b"%d" % number, 1)
        publisher.wait()
        expected = [b"%d" % number for number in range(20)]
        for client in (one, two):
            client.collect(5.0, 20 + sum(message.retain for message in client.messages))
            client.collect(0.3)
            assert [message.payload for message in client.messages if not message.retain] == expected
            # amqtt itself sends a retained message twice now and then; everybody has it at least once.
            assert {message.payload for message in client.messages if message.retain} == {b"kept"}


def test_embedded_broker_serves_a_machine_with_nothing_but_python(tmp_path: Path) -> None:
    pytest.importorskip("amqtt")
    with_gateway(tmp_path, _passes_messages, embedded=True)


@pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")
def test_mosquitto_that_is_killed_comes_back_with_its_subscriptions(tmp_path: Path) -> None:
    def scenario(broker: BrokerProcess, gateway: Gateway) -> None:
        client = SnClient(gateway.address[1], "one")
        with ended(client):
            client.connect().subscribe("a", 1)
            client.collect(0.5)
            os.kill(broker.pid, signal.SIGKILL)
            publisher = None
            for _ in range(100):
                try:
                    publisher = Publisher(broker.address.port)
                    break
                except OSError:
                    client.collect(0.05)
            assert publisher is not None
            with ended(publisher):
                # Perhaps before the gateway is back: the broker remembers its subscription.
                publisher.publish("a", b"x", 1)
                publisher.wait()
                client.collect(5.0, 1)
                assert [message.payload for message in client.messages] == [b"x"]
            assert broker.restarts == 1

    with_gateway(tmp_path, scenario, embedded=False)


def test_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    async def run() -> None:
        broker = BrokerProcess(tmp_path, mosquitto="/bin/false")
        with pytest.raises(BrokerError, match="ended at once"):
            await broker.start()
        await broker.stop()

    asyncio.run(run())


@pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")
def test_broker_that_hangs_is_noticed_and_found_again(tmp_path: Path) -> None:
    async def run() -> None:
        broker = BrokerProcess(tmp_path / "broker")
        await broker.start()
        gateway = Gateway(GatewaySettings(broker_keep_alive_seconds=1), broker.address, ("127.0.0.1", 0))
        try:
            await gateway.start()
            assert await gateway.wait_for_broker(10)
            os.kill(broker.pid, signal.SIGSTOP)
            async with asyncio.timeout(10):
                while gateway.broker_is_connected:
                    await asyncio.sleep(0.05)
            assert gateway.broker_problem == "the broker does not answer"
            os.kill(broker.pid, signal.SIGCONT)
            assert await gateway.wait_for_broker(10)
            assert gateway.core.counters.broker_losses == 1
        finally:
            os.kill(broker.pid, signal.SIGCONT)
            await gateway.close()
            await broker.stop()

    asyncio.run(run())
