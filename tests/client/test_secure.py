"""Clients of a gateway that speaks DTLS: everything as without, and nothing in clear."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from tests.client.loopback import QUICK, BadNetwork, connected, gateway_with_broker, until
from tests.gateway.real import GatewayProcess, Mosquitto, ended

from triagemq.broker.process import find_mosquitto
from triagemq.certificates import own_certificate
from triagemq.client.connection import Connection
from triagemq.client.events import Event
from triagemq.client.settings import ConnectionSettings
from triagemq.dtls import ClientSecurity, ServerSecurity, no_association_alert
from triagemq.errors import GatewayUnreachableError, MissingDependencyError, ParameterError
from triagemq.gateway import Gateway

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")


def trusting(directory: Path, **others: object) -> ConnectionSettings:
    """Settings of a client that trusts the certificate in that directory."""
    certificate, _ = own_certificate(directory)
    return replace(QUICK, security=ClientSecurity(authority=certificate, **others))  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def secure_gateway(directory: Path, **settings: object) -> AsyncIterator[Gateway]:
    security = ServerSecurity(*own_certificate(directory / "certificate"))
    async with gateway_with_broker(directory, security=security, **settings) as gateway:
        yield gateway


def test_messages_pass_both_ways_at_every_qos_through_dtls(tmp_path: Path) -> None:
    async def main() -> None:
        async with secure_gateway(tmp_path) as gateway:
            settings = trusting(tmp_path / "certificate")
            events: list[Event] = []
            port = gateway.address[1]
            subscriber = await connected(port, "subscriber", events, secure=True, settings=settings)
            publisher = await connected(port, "publisher", secure=True, settings=settings)
            await subscriber.subscribe("floor/+", qos=2)
            for qos in range(3):
                await publisher.publish("floor/1", b"%d" % qos, qos=qos)
            await until(lambda: len(events) == 3)
            assert sorted(event.payload for event in events) == [b"0", b"1", b"2"]
            await publisher.close()
            await subscriber.close()
            counters = gateway.core.counters
            assert (counters.handshakes, counters.resumptions) == (2, 1)

    asyncio.run(main())


class Recorded(socket.socket):
    """A socket that keeps what passes over the wire."""

    wire: ClassVar[list[bytes]] = []

    def send(self, octets: bytes, *others: int) -> int:  # type: ignore[override]
        self.wire.append(bytes(octets))
        return super().send(octets, *others)

    def recv(self, *others: int) -> bytes:
        octets = super().recv(*others)
        self.wire.append(octets)
        return octets


@pytest.mark.parametrize("secure", [True, False])
def test_payload_topic_and_key_are_not_to_be_seen_on_the_wire(tmp_path: Path, secure: bool) -> None:
    """Without DTLS the same recording shows all of them: it is the right wire that is looked at."""

    async def main() -> None:
        Recorded.wire = []
        opening = secure_gateway(tmp_path) if secure else gateway_with_broker(tmp_path)
        async with opening as gateway:
            settings = replace(trusting(tmp_path / "certificate"), make_socket=Recorded)
            events: list[Event] = []
            port = gateway.address[1]
            for_all = {"secure": secure, "settings": settings}
            subscriber = await connected(port, "name.kEy-of-tHe-cLiEnt", events, **for_all)
            await subscriber.subscribe("sEcReT/topic", qos=1)
            publisher = await connected(port, "other.kEy-of-tHe-cLiEnt", **for_all)
            await publisher.publish("sEcReT/topic", b"pAyLoAd of the event", qos=1)
            await until(lambda: len(events) == 1)
            await publisher.close()
            await subscriber.close()

    asyncio.run(main())
    seen = [word for word in (b"pAyLoAd", b"sEcReT", b"kEy-of-tHe") if word in b"".join(Recorded.wire)]
    assert seen == ([] if secure else [b"pAyLoAd", b"sEcReT", b"kEy-of-tHe"])
    assert len(Recorded.wire) > 10


def test_every_qos_keeps_its_promise_over_a_bad_network(tmp_path: Path) -> None:
    count = 60

    async def main() -> None:
        async with (
            secure_gateway(tmp_path) as gateway,
            BadNetwork(gateway.address[1], 3, loss=0.15, doubled=0.1, delayed=0.2) as network,
        ):
            settings = trusting(tmp_path / "certificate")
            events: list[Event] = []
            subscriber = await connected(network.port, "subscriber", events, secure=True, settings=settings)
            await subscriber.subscribe("one", qos=1)
            await subscriber.subscribe("two", qos=2)
            publisher = await connected(network.port, "publisher", secure=True, settings=settings)
            for number in range(count):
                await publisher.publish("one", b"%d" % number, qos=1, wait=False)
                await publisher.publish("two", b"%d" % number, qos=2, wait=False)
            await publisher.flush()
            wanted = {b"%d" % number for number in range(count)}

            def received(topic: str) -> Counter[bytes]:
                return Counter(event.payload for event in events if event.topic == topic)

            await until(lambda: set(received("one")) == wanted and set(received("two")) == wanted)
            network.is_perfect = True
            assert set(received("two").values()) == {1}
            assert network.lost > 20
            await subscriber.close()
            await publisher.close()

    asyncio.run(main())


@contextlib.contextmanager
def standing_still(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """No time passes for what the loop runs; it does what comes in by its sockets."""
    now = loop.time()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "time", lambda: now)
        yield


@pytest.mark.timeout(60)
def test_a_certificate_that_is_not_trusted_is_said_at_once(tmp_path: Path) -> None:
    certificate, key = tmp_path / "elsewhere.pem", tmp_path / "key.pem"
    made = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    named = ("-subj", "/CN=elsewhere", "-addext", "subjectAltName=DNS:elsewhere.example")
    files = ("-keyout", str(key), "-out", str(certificate))
    subprocess.run([*made, *named, *files], check=True, capture_output=True)

    async def main() -> None:
        async with gateway_with_broker(tmp_path, security=ServerSecurity(certificate, key)) as gateway:
            port = gateway.address[1]
            trust = replace(QUICK, security=ClientSecurity(authority=certificate))
            for settings, host, problem in (
                (QUICK, "127.0.0.1", "self-signed certificate"),
                (trust, "127.0.0.1", "IP address mismatch"),
                (trust, "localhost", "hostname mismatch"),
            ):
                with (
                    # At once: none of its timers runs out, and none has to.
                    standing_still(asyncio.get_running_loop()),
                    pytest.raises(GatewayUnreachableError, match=f"certificate is not trusted: {problem}"),
                ):
                    await Connection(host, port, "client", secure=True, settings=settings).open()
            anywhere = replace(QUICK, security=ClientSecurity(authority=certificate, any_name=True))
            async with Connection("127.0.0.1", port, "client", secure=True, settings=anywhere) as connection:
                assert connection.is_active

    asyncio.run(main())


def test_a_gateway_may_ask_for_certificates_of_clients(tmp_path: Path) -> None:
    async def main() -> None:
        mine, key = own_certificate(tmp_path / "client")
        gateways = own_certificate(tmp_path / "certificate")
        security = ServerSecurity(*gateways, client_authority=mine)
        async with gateway_with_broker(tmp_path, security=security) as gateway:
            with_one = trusting(tmp_path / "certificate", certificate=mine, private_key=key)
            known = await connected(gateway.address[1], "known", secure=True, settings=with_one)
            assert known.is_active
            await known.close()
            without = replace(trusting(tmp_path / "certificate"), connect_timeout_seconds=1.0)
            with pytest.raises(GatewayUnreachableError, match="alert"):
                await connected(gateway.address[1], "stranger", secure=True, settings=without)
            refused = [reason for reason in gateway.core.counters.rejected if "did not return" in reason]
            assert refused

    asyncio.run(main())


def test_a_sleeping_client_gets_what_came_meanwhile(tmp_path: Path) -> None:
    async def main() -> None:
        async with secure_gateway(tmp_path) as gateway:
            settings = trusting(tmp_path / "certificate")
            events: list[Event] = []
            port = gateway.address[1]
            sleeper = await connected(port, "sleeper", events, secure=True, settings=settings)
            await sleeper.subscribe("night", qos=1)
            await sleeper.sleep(60)
            publisher = await connected(port, "publisher", secure=True, settings=settings)
            for number in range(5):
                await publisher.publish("night", b"%d" % number, qos=1)
            assert not events
            await sleeper.check()
            assert [event.payload for event in events] == [b"%d" % number for number in range(5)]
            await sleeper.wake()
            await publisher.publish("night", b"morning", qos=1)
            await until(lambda: len(events) == 6)
            await sleeper.close()
            await publisher.close()

    asyncio.run(main())


def test_a_forged_alert_costs_a_handshake_at_most(tmp_path: Path) -> None:
    """Anyone can say that the gateway has lost the association; the client makes sure, and nothing is lost."""

    async def main() -> None:
        async with secure_gateway(tmp_path) as gateway:
            settings = trusting(tmp_path / "certificate")
            events: list[Event] = []
            port = gateway.address[1]
            subscriber = await connected(port, "subscriber", events, secure=True, settings=settings)
            await subscriber.subscribe("news", qos=1)
            publisher = await connected(port, "publisher", secure=True, settings=settings)
            assert gateway._socket is not None
            for number in range(60):
                for _ in range(20):
                    gateway._socket.sendto(no_association_alert(), subscriber.local_address)
                await publisher.publish("news", b"%d" % number, qos=1)
                await asyncio.sleep(0.04)
            await until(lambda: {event.payload for event in events} == {b"%d" % n for n in range(60)})
            assert gateway.core.counters.handshakes <= 2 + 5
            await subscriber.close()
            await publisher.close()

    asyncio.run(main())


def test_clients_come_back_by_themselves_after_a_gateway_was_killed(tmp_path: Path) -> None:
    """In the time that it takes without DTLS; sessions and messages are those of before."""
    broker = Mosquitto(tmp_path / "broker")
    certificate, key = own_certificate(tmp_path / "certificate")
    files = ("--tls-certificate", str(certificate), "--tls-key", str(key))
    gateway = GatewayProcess(tmp_path, "--broker", broker.url, "--state", str(tmp_path / "state"), *files)

    async def main() -> None:
        settings = trusting(tmp_path / "certificate")
        events: list[Event] = []
        subscriber = await connected(gateway.port, "subscriber", events, secure=True, settings=settings)
        publisher = await connected(gateway.port, "publisher", secure=True, settings=settings)
        await subscriber.subscribe("load", qos=2)
        await publisher.publish("load", b"before", qos=2)
        await until(lambda: len(events) == 1)
        await asyncio.to_thread(gateway.kill)
        away = [asyncio.create_task(publisher.publish("load", b"away%d" % n, qos=2)) for n in range(10)]
        await asyncio.sleep(0.3)
        await asyncio.to_thread(gateway.start)
        back = asyncio.get_running_loop().time()
        await asyncio.gather(*away)
        await until(lambda: len(events) == 11)
        # The longest pause between two attempts of QUICK is 0.5 s, and pings are 0.5 s apart.
        assert asyncio.get_running_loop().time() - back < 2.0
        assert set(Counter(event.payload for event in events).values()) == {1}
        await subscriber.close()
        await publisher.close()

    with ended(gateway, broker):
        asyncio.run(main())


def test_a_renewed_certificate_is_used_without_a_restart(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        async with secure_gateway(tmp_path) as gateway:
            port = gateway.address[1]
            before = trusting(tmp_path / "certificate")
            events: list[Event] = []
            subscriber = await connected(port, "subscriber", events, secure=True, settings=before)
            await subscriber.subscribe("news", qos=1)
            files = own_certificate(tmp_path / "certificate")
            # A key that does not fit is said aloud, and the old certificate stays.
            _, other_key = own_certificate(tmp_path / "other")
            files[1].write_bytes(other_key.read_bytes())
            await until(lambda: "the old one stays" in capfd.readouterr().err)
            publisher = await connected(port, "publisher", secure=True, settings=before)
            await publisher.publish("news", b"old", qos=1)
            for new, old in zip(own_certificate(tmp_path / "new"), files, strict=True):
                old.write_bytes(new.read_bytes())
            await until(lambda: "is in use" in capfd.readouterr().err)
            after = await connected(port, "later", secure=True, settings=trusting(tmp_path / "certificate"))
            with pytest.raises(GatewayUnreachableError, match="not trusted"):
                await connected(
                    port,
                    "trusts-the-old-one",
                    secure=True,
                    settings=replace(QUICK, security=old_trust),
                )
            await after.publish("news", b"new", qos=1)
            await publisher.publish("news", b"as before", qos=1)
            await until(lambda: len(events) == 3)
            assert subscriber.counters.connected == publisher.counters.connected == 1
            for connection in (after, publisher, subscriber):
                await connection.close()

    old_trust = ClientSecurity(authority=own_certificate(tmp_path / "certificate")[0])
    old_trust.load_once()
    asyncio.run(main())


def test_what_does_not_fit_into_a_record_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with secure_gateway(tmp_path) as gateway:
            settings = trusting(tmp_path / "certificate")
            publisher = await connected(gateway.address[1], "publisher", secure=True, settings=settings)
            await publisher.publish("large", bytes(16_000), qos=1)
            with pytest.raises(ParameterError, match="fit into a DTLS record"):
                await publisher.publish("large", bytes(17_000), qos=1)
            await publisher.close()

    asyncio.run(main())


def test_without_pyopenssl_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "OpenSSL", None)
    connection = Connection("127.0.0.1", 10_000, "client", secure=True)
    with pytest.raises(MissingDependencyError, match=r"pip install 'triagemq\[dtls\]'"):
        asyncio.run(connection.open())
