"""The library without asyncio, over TLS, and how little it needs."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.client.fake_coordinator import FakeCoordinator
from tests.client.loopback import QUICK
from tests.gateway.real import GatewayProcess, Mosquitto, ended

from triagemq.broker.process import find_mosquitto
from triagemq.client import (
    BlockingPublisher,
    BlockingSubscriber,
    ClosedError,
    Coordinator,
    CoordinatorUnreachableError,
    GatewayUnreachableError,
    RefusedError,
    publish_without_connection,
)
from triagemq.client.settings import ConnectionSettings

needs_mosquitto = pytest.mark.skipif(
    find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)"
)


@needs_mosquitto
def test_publish_and_subscribe_without_asyncio(tmp_path: Path) -> None:
    broker = Mosquitto(tmp_path / "broker")
    gateway = GatewayProcess(tmp_path, "--broker", broker.url)
    address = f"127.0.0.1:{gateway.port}"
    with (
        ended(gateway, broker),
        BlockingSubscriber(gateway=address, name="ff-7", settings=QUICK) as subscriber,
        BlockingPublisher(gateway=address, stamp=True, settings=QUICK) as publisher,
    ):
        subscriber.subscribe("floor/+", qos=1)
        subscriber.subscribe("ab")
        assert subscriber.next(timeout_seconds=0.01) is None

        def publish(thread: int) -> None:
            for number in range(25):
                publisher.publish(f"floor/{thread}", b"%d" % number, qos=1, wait=number % 2 == 0)

        threads = [threading.Thread(target=publish, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        publisher.flush()
        assert publisher.counters.acknowledged == 100
        events = []
        for event in subscriber:
            events.append(event)
            if len(events) == 100:
                break
        for thread_number in range(4):
            numbers = [int(event.payload) for event in events if event.topic == f"floor/{thread_number}"]
            assert numbers == list(range(25))
        publish_without_connection(address, "ab", b"from a small sensor")
        event = subscriber.next(timeout_seconds=30)
        assert event is not None
        assert (event.topic, event.payload) == ("ab", b"from a small sensor")
        with pytest.raises(RefusedError):
            publisher.publish(7, b"", qos=1)
        publisher.publish(7, b"", qos=1, wait=False)
        with pytest.raises(RefusedError, match="publishing to 7"):
            publisher.flush()
        publisher.flush()
        publisher.close()
        publisher.close()
        with pytest.raises(ClosedError):
            publisher.publish("floor/1", b"")
    assert list(subscriber) == []


def test_an_error_leaves_no_thread_behind() -> None:
    before = threading.active_count()
    hurried = ConnectionSettings(connect_timeout_seconds=0.2)
    with pytest.raises(GatewayUnreachableError):
        BlockingPublisher(gateway="127.0.0.1:9", settings=hurried)
    with pytest.raises(CoordinatorUnreachableError):
        BlockingSubscriber("http://127.0.0.1:9", settings=hurried)
    assert threading.active_count() == before


def test_a_coordinator_is_trusted_only_with_a_certificate(tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    subject = ("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1")
    files = ("-keyout", str(key), "-out", str(certificate))
    command = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, *files)
    subprocess.run(command, check=True, capture_output=True)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(certificate, key)

    async def scene() -> None:
        async with FakeCoordinator("127.0.0.1:10000", token="secret", context=server) as coordinator:
            trusting = ssl.create_default_context(cafile=str(certificate))
            known = Coordinator(coordinator.url, token="secret", ssl_context=trusting)
            announced = await known.announce("subscribers", "ff 7/8", {"subscriptions": []})
            assert str(announced.gateway) == "127.0.0.1:10000"
            assert announced.client_id == "ff 7/8.key"
            assert coordinator.requests == ["PUT /v1/subscribers/ff%207%2F8"]
            await known.close()
            for url, problem in (
                (coordinator.url, "certificate is not trusted"),
                (coordinator.url.replace("https", "http"), "cannot be reached|does not speak HTTP"),
            ):
                stranger = Coordinator(url, token="secret")
                with pytest.raises(Exception, match=problem):
                    await stranger.withdraw("subscribers", "ff-7")
                await stranger.close()

    asyncio.run(scene())


def test_importing_the_client_imports_the_standard_library_and_nothing_else() -> None:
    program = (
        "import sys; before = set(sys.modules); import triagemq.client;"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    foreign = {
        name for name in found.stdout.split() if name not in sys.stdlib_module_names and name != "triagemq"
    }
    assert not foreign
    layers = "import sys, triagemq.client; print(*(n for n in sys.modules if n.startswith('triagemq.')))"
    found = subprocess.run([sys.executable, "-c", layers], check=True, capture_output=True, text=True)
    wanted = {"client", "intents", "dtls", "addresses", "hiding", "waiting", "mqttsn", "errors"}
    assert {name.split(".")[1] for name in found.stdout.split()} == wanted
