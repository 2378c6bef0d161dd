"""Brokers that the gateway runs itself: Mosquitto, and the embedded one where there is nothing else."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.guarded import Guest
from tests.gateway.real import Publisher, SnClient, ended
from tests.ports import own_port

from triagemq.broker import BrokerProcess, FurtherListener
from triagemq.broker.process import find_mosquitto
from triagemq.broker.users import BrokerUser, hashed_password
from triagemq.certificates import own_certificate
from triagemq.errors import BrokerError
from triagemq.gateway import Gateway, GatewaySettings


def with_gateway(tmp_path: Path, scenario: Any, *, embedded: bool, guarded: bool = False) -> None:
    async def run() -> None:
        broker = BrokerProcess(tmp_path / "broker", embedded=embedded, guarded=guarded)
        if guarded:
            broker.let_in(USERS)
        await broker.start()
        gateway = Gateway(GatewaySettings(), broker.address, ("127.0.0.1", 0))
        gateway.core.on_subscriptions = broker.save_soon
        try:
            await gateway.start()
            assert await gateway.wait_for_broker(30)
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
        one.collect(30, 2)
        assert [message.payload for message in one.messages] == [b"kept", b"kept"]
        one.messages.pop()
        two.connect().subscribe("floor/+", 1)
        two.collect(30, 1)
        assert [message.payload for message in two.messages] == [b"kept"]
        for number in range(20):
            publisher.publish("floor/1", b"%d" % number, 1)
        publisher.wait()
        expected = [b"%d" % number for number in range(20)]
        for client in (one, two):
            client.collect(30, 20 + sum(message.retain for message in client.messages))
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
                client.collect(30, 1)
                assert [message.payload for message in client.messages] == [b"x"]
            assert broker.restarts == 1

    with_gateway(tmp_path, scenario, embedded=False)


USERS = [
    BrokerUser("pump", hashed_password("pump's"), publish=("pump/#",)),
    BrokerUser("crew", hashed_password("crew's"), subscribe=("pump/+", "$test/#")),
    BrokerUser("evil\nuser", hashed_password("x"), publish=("#",), subscribe=("#",)),
    BrokerUser("sly", hashed_password("sly's"), publish=("x\ntopic readwrite #",), subscribe=(" #",)),
]


def test_the_embedded_broker_has_no_access_control(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match="needs Mosquitto"):
        BrokerProcess(tmp_path, embedded=True, guarded=True)


@pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")
def test_a_guarded_broker_lets_in_only_users_for_what_they_may_do(tmp_path: Path) -> None:
    def scenario(broker: BrokerProcess, gateway: Gateway) -> None:
        port = broker.address.port
        for user, password in ((None, None), ("pump", "crew's"), ("stranger", "x"), ("evil", "x")):
            stranger = Guest(port, user, password)
            stranger.end()
            assert stranger.code != 0
        client = SnClient(gateway.address[1], "one")
        pump, crew, sly = (Guest(port, name, f"{name}'s", client_id=name) for name in ("pump", "crew", "sly"))
        with ended(pump, crew, sly, client):
            assert (pump.code, crew.code, sly.code) == (0, 0, 0)
            client.connect().subscribe("#", 0)
            crew.subscribe("pump/+")
            for topic_filter in ("#", "$SYS/#", "secret"):
                sly.subscribe(topic_filter)
                crew.subscribe(topic_filter)
            # Mosquitto ends the connection of who publishes what it must not.
            for name, topic in (("sly", "pump/1"), ("sly", "x"), ("crew", "pump/1"), ("pump", "secret")):
                forger = Guest(port, name, f"{name}'s", client_id="forger")
                forger.publish(topic, b"forged")
                forger.collect(0.1)
                forger.end()
            pump.publish("pump/1", b"real")
            assert crew.collect(5.0) == [b"real"]
            client.collect(30, 1)
            assert sly.collect(0.3) == []
            assert crew.collect(0.2, 2) == [b"real"]
            assert [message.payload for message in client.messages] == [b"real"]
            broker.let_in(USERS[:1])
            assert crew.collect(0.5, 2) == [b"real"]
            assert crew.closed
            returning = Guest(port, "crew", "crew's")
            returning.end()
            assert returning.code != 0
            pump.publish("pump/2", b"later")
            client.collect(30, 2)
            assert [message.payload for message in client.messages] == [b"real", b"later"]
            assert crew.collect(0.3, 2) == [b"real"]
        assert gateway.core.counters.broker_losses == 0

    with_gateway(tmp_path, scenario, embedded=False, guarded=True)


def test_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    async def run() -> None:
        broker = BrokerProcess(tmp_path, mosquitto="/bin/false")
        with pytest.raises(BrokerError, match="ended at once"):
            await broker.start()
        await broker.stop()

    asyncio.run(run())


@pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")
def test_a_certificate_that_is_not_trusted_is_said_with_what_to_give(tmp_path: Path) -> None:
    certificate, key = own_certificate(tmp_path / "tls")
    further = FurtherListener("127.0.0.1", own_port(), str(certificate), str(key))

    async def run() -> None:
        broker = BrokerProcess(tmp_path / "broker", further=further)
        await broker.start()
        gateway = Gateway(GatewaySettings(), further.address, ("127.0.0.1", 0))
        try:
            await gateway.start()
            async with asyncio.timeout(30):
                while not gateway.broker_problem:
                    await asyncio.sleep(0.02)
            assert "cannot be reached: its certificate is not trusted (self-signed" in gateway.broker_problem
            assert "--broker-ca" in gateway.broker_problem
        finally:
            await gateway.close()
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
            assert await gateway.wait_for_broker(30)
            os.kill(broker.pid, signal.SIGSTOP)
            async with asyncio.timeout(30):
                while gateway.broker_is_connected:
                    await asyncio.sleep(0.05)
            assert gateway.broker_problem.endswith(f":{broker.address.port} does not answer")
            os.kill(broker.pid, signal.SIGCONT)
            assert await gateway.wait_for_broker(30)
            assert gateway.core.counters.broker_losses == 1
        finally:
            os.kill(broker.pid, signal.SIGCONT)
            await gateway.close()
            await broker.stop()

    asyncio.run(run())


@pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")
def test_what_mosquitto_has_acknowledged_survives_a_kill_a_moment_later(tmp_path: Path) -> None:
    def scenario(broker: BrokerProcess, gateway: Gateway) -> None:
        port = broker.address.port
        absent = Guest(port, None, None, client_id="absent", clean=False)
        absent.subscribe("queue", 1)
        absent.end()
        publisher = Publisher(port)
        with ended(publisher):
            publisher.publish("kept", b"retained", 1, retain=True)
            for number in range(10):
                publisher.publish("queue", b"%d" % number, 1)
            publisher.wait()
            # The next snapshot may have been under way.
            for _ in range(2):
                _wait_for_change(lambda: _snapshot(broker))
                publisher.publish("other", b"x" * 100, 1)
        pid = broker.pid
        os.kill(pid, signal.SIGKILL)
        _wait(lambda: broker.pid != pid and _answers(port))
        absent = Guest(port, None, None, client_id="absent", clean=False)
        with ended(absent):
            absent.subscribe("kept", 1)
            expected = {b"retained", *(b"%d" % number for number in range(10))}
            assert set(absent.collect(20, 11)) == expected

    with_gateway(tmp_path, scenario, embedded=False)


@pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")
def test_mosquitto_is_no_root_and_holds_a_bounded_number_of_messages_for_a_client(tmp_path: Path) -> None:
    def scenario(broker: BrokerProcess, gateway: Gateway) -> None:
        uids = {
            line.split()[1]
            for line in Path(f"/proc/{broker.pid}/status").read_text().splitlines()
            if line.startswith("Uid:")
        }
        assert "0" not in uids
        configuration = next((tmp_path / "broker").rglob("mosquitto.conf")).read_text()
        for limit in ("max_queued_messages", "max_queued_bytes", "max_inflight_bytes"):
            assert f"{limit} 0\n" not in configuration
            assert f"{limit} " in configuration

    with_gateway(tmp_path, scenario, embedded=False)


def test_what_a_broker_says_is_shown_when_it_fails_and_kept_in_a_log_of_a_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BrokerProcess, "most_log_bytes", 500)

    async def run() -> None:
        for _ in range(30):
            # What it is told to run is no command of a shell.
            broker = BrokerProcess(tmp_path, mosquitto="/bin/sh")
            with pytest.raises(BrokerError, match=r"ended at once: .*mosquitto\.conf"):
                await broker.start()
            await broker.stop()
        logs = sorted(tmp_path.glob("broker.log*"))
        assert [log.name for log in logs] == ["broker.log", "broker.log.1"]
        assert all(log.stat().st_size < 1000 and not log.stat().st_mode & 0o077 for log in logs)
        assert b"mosquitto.conf" in broker.log.read_bytes()

    asyncio.run(run())


def _snapshot(broker: BrokerProcess) -> object:
    found = broker._database
    return (found.stat().st_ino, found.stat().st_mtime_ns) if found.exists() else None


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def _wait_for_change(of: Callable[[], object]) -> None:
    before = of()
    _wait(lambda: of() != before)


def _wait(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not what():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
