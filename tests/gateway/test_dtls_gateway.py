"""A gateway with DTLS as others meet it: OpenSSL's own client, strangers on its port, classes in its queues."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.client.loopback import QUICK, connected, until
from tests.gateway.planned import ByClient
from tests.gateway.real import GatewayProcess, Mosquitto, ended

from triagemq.broker import BrokerAddress
from triagemq.broker.process import find_mosquitto
from triagemq.certificates import own_certificate
from triagemq.client.events import Event
from triagemq.dtls import RECORD_BYTES, ClientSecurity, ServerSecurity
from triagemq.gateway import Gateway, GatewaySettings
from triagemq.mqttsn import ConnAck, Connect, Disconnect, PingReq, PingResp, ReturnCode, decode, encode
from triagemq.network import UDP_OVER_ETHERNET_BYTES, DatagramSender, EmbeddedDataPlane
from triagemq.plan.dataplane import FlowKey, SetFlow, SetPort, Treatment

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")


@contextlib.contextmanager
def gateway_process(directory: Path) -> Iterator[tuple[GatewayProcess, Path]]:
    certificate, key = own_certificate(directory / "certificate")
    broker = Mosquitto(directory / "broker")
    with ended(broker):
        files = ("--tls-certificate", str(certificate), "--tls-key", str(key))
        gateway = GatewayProcess(directory, "--broker", broker.url, *files)
        with ended(gateway):
            yield gateway, certificate


def test_the_client_of_openssl_connects_and_is_answered(tmp_path: Path) -> None:
    with gateway_process(tmp_path) as (gateway, certificate):
        assert gateway.ready["listen"] == f"mqttsns://127.0.0.1:{gateway.port}"
        to = ("-connect", f"127.0.0.1:{gateway.port}", "-CAfile", str(certificate), "-verify_return_error")
        with subprocess.Popen(
            ["openssl", "s_client", "-dtls1_2", "-quiet", *to],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as client:
            assert client.stdin is not None
            assert client.stdout is not None
            for message, answer in (
                (Connect("openssl", 60, clean_session=True), ConnAck(ReturnCode.ACCEPTED)),
                (PingReq(), PingResp()),
                (Disconnect(), Disconnect()),
            ):
                client.stdin.write(encode(message))
                client.stdin.flush()
                assert select.select([client.stdout], [], [], 30.0)[0]
                assert decode(client.stdout.read1(100)) == answer  # type: ignore[attr-defined]
            client.stdin.close()
            client.terminate()
        counters = gateway.counters()
        assert (counters["handshakes"], counters["connects"]) == (1, 1)


def test_datagrams_in_clear_and_garbage_are_counted_and_ignored(tmp_path: Path) -> None:
    with (
        gateway_process(tmp_path) as (gateway, _),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger,
    ):
        stranger.connect(("127.0.0.1", gateway.port))
        for octets in (encode(Connect("plain", 60)), b"\x16\xfe", bytes(60), b"\x17\xfe\xfd" + bytes(40)):
            stranger.send(octets)
        stranger.settimeout(20.0)
        # The last one looks like a record: its sender is told that there is no association, and nobody else anything.
        assert stranger.recv(100)[0] == 21
        time.sleep(0.2)
        counters = gateway.counters()
        assert counters["rejected"] == {"dtls_no_record": 3, "dtls_no_association": 1}
        assert counters["sessions"] == 0
        assert counters["datagrams_in"] == 0


def test_classes_are_served_in_their_order_and_records_are_accounted_for(tmp_path: Path) -> None:
    """A slow port: what is of class 0 leaves before what waits in class 1, and every record can be opened."""
    certificate, key = own_certificate(tmp_path)
    planes: list[EmbeddedDataPlane] = []

    def make_plane(udp_socket: Any, on_transmitted: Any, clock: Any) -> EmbeddedDataPlane:
        sender = DatagramSender(udp_socket, seal=gateway.seal)
        planes.append(
            EmbeddedDataPlane(
                sender,
                on_transmitted,
                clock=clock,
                control_sender=sender.control,
                overhead_bytes_per_packet=UDP_OVER_ETHERNET_BYTES + RECORD_BYTES,
            )
        )
        return planes[0]

    broker = Mosquitto(tmp_path / "broker")
    gateway = Gateway(
        GatewaySettings(policy=ByClient(treated={"class1": Treatment(1)})),
        BrokerAddress.parse(broker.url),
        ("127.0.0.1", 0),
        make_plane=make_plane,
        security=ServerSecurity(certificate, key),
    )

    async def main() -> None:
        await gateway.start()
        assert await gateway.wait_for_broker(20)
        settings = replace(QUICK, security=ClientSecurity(authority=certificate))
        events: list[Event] = []
        port = gateway.address[1]
        clients = [
            await connected(port, f"class{number}", events, secure=True, settings=settings)
            for number in range(2)
        ]
        publisher = await connected(port, "publisher", secure=True, settings=settings)
        for client in clients:
            await client.subscribe("burst")
        keys = [FlowKey("127.0.0.1", client.local_address[1]) for client in clients]
        flows = [SetFlow(key, "port", number, number, 0.0) for number, key in enumerate(keys)]
        # So slow that all are there before the third leaves; then fast.
        planes[0].apply([SetPort("port", 1_000, 1_000, 8), *flows])
        for _ in range(100):
            await publisher.publish("burst", bytes(20))
        await until(
            lambda: sum(queue.packets_in for queue in planes[0].counters().ports["port"].queues) == 200
        )
        planes[0].apply([SetPort("port", 400_000, 1_000, 8)])
        await until(lambda: sum(client.counters.received for client in clients) == 200)
        assert clients[0].counters.malformed == clients[1].counters.malformed == 0
        counters = planes[0].counters().ports["port"]
        of_one = 20 + 7 + RECORD_BYTES + UDP_OVER_ETHERNET_BYTES
        assert [queue.bytes_out for queue in counters.queues[:2]] == [100 * of_one, 100 * of_one]
        for client in (publisher, *clients):
            await client.close()
        await gateway.close()

    order: list[int] = []
    with ended(broker), pytest.MonkeyPatch.context() as patch:
        seal = type(gateway).seal.fget  # type: ignore[attr-defined]

        def noting(self: Gateway) -> Any:
            sealing = seal(self)

            def note(address: tuple[str, int], message: bytes) -> bytes | None:
                if len(message) == 27:
                    order.append(address[1])
                sealed: bytes | None = sealing(address, message)
                return sealed

            return None if sealing is None else note

        patch.setattr(Gateway, "seal", property(noting))
        asyncio.run(main())
    first, last = order[50], order[150]
    assert order.count(first) == order.count(last) == 100
    assert max(place for place, port in enumerate(order) if port == first) < 105
