"""Who can reach the front: TLS, certificates that are renewed, other machines, ports of its own beside the kernel's."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
from pathlib import Path

import pytest
from tests.gateway.front.paho_client import Paho, until
from tests.gateway.front.test_front_clients import Site
from tests.gateway.real import Mosquitto, ended

from triagemq.broker.process import find_mosquitto
from triagemq.certificates import own_certificate, trust_only
from triagemq.channel.orders import Orders
from triagemq.cli.gateway import GatewayOptions
from triagemq.errors import ParameterError
from triagemq.gateway.config import GatewayConfig
from triagemq.gateway.managed import ManagedGateway
from triagemq.mqtt.packets import encode_connect
from triagemq.plan.dataplane import SetFlow, SetPort

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")


def connect_over_tls(port: int, certificate: Path) -> bool:
    """Is a client let in that trusts this certificate alone?"""
    trusts = trust_only(certificate)
    assert trusts is not None
    with socket.create_connection(("127.0.0.1", port), 20.0) as plain:
        try:
            with trusts.wrap_socket(plain, server_hostname="localhost") as secure:
                secure.sendall(encode_connect(4, "secure", clean=True, keep_alive_seconds=0))
                return secure.recv(4) == bytes.fromhex("20020000")
        except ssl.SSLCertVerificationError:
            return False


def test_clients_come_over_tls_and_a_renewed_certificate_needs_no_restart(tmp_path: Path) -> None:
    certificate, key = own_certificate(tmp_path / "one")
    other, other_key = own_certificate(tmp_path / "two")
    with ended(site := Site(tmp_path / "site", "--front-tls", f"{certificate},{key}")):
        assert site.gateway.ready["front"] == f"mqtts://127.0.0.1:{site.front}"
        first = shutil.copy(certificate, tmp_path / "first.pem")
        assert connect_over_tls(site.front, Path(first))
        shutil.copy(other_key, key)
        shutil.copy(other, certificate)
        until(lambda: connect_over_tls(site.front, other))
        assert not connect_over_tls(site.front, Path(first))


@pytest.mark.parametrize(
    ("options", "lacks"),
    [
        ({}, "--front-tls CERT,KEY"),
        ({"broker": "mqtt://192.0.2.1"}, "of a broker that asks for users"),
    ],
)
def test_a_front_that_others_reach_is_protected_or_said_to_be_insecure(
    options: dict[str, str], lacks: str
) -> None:
    with pytest.raises(
        ParameterError, match=r"--front: 192\.0\.2\.7 is reached from other machines"
    ) as caught:
        GatewayOptions(front="192.0.2.7:1883", **options).check()
    assert lacks in str(caught.value)
    warnings = GatewayOptions(front="192.0.2.7:1883", insecure=True, **options).check()
    assert warnings[0].startswith("insecure: the front at 192.0.2.7 is reached from other machines without")


def test_files_that_are_no_pair_are_refused() -> None:
    with pytest.raises(ParameterError, match=r"must be CERT,KEY, two PEM files; 'key\.pem' is none"):
        GatewayOptions(front="127.0.0.1:0", front_tls=f"{__file__},key.pem").check()
    with pytest.raises(ParameterError, match="goes with --front"):
        GatewayOptions(front_tls="cert.pem,key.pem").check()


def test_beside_the_kernels_queues_the_front_has_ports_of_its_own(tmp_path: Path) -> None:
    orders = Orders(
        1,
        ports={"radio": SetPort("radio", 1e6, 100, 7)},
        flows={"panel~0": SetFlow("panel~0", "radio", 5, 3, 0.0)},
        topics={"panel": {"alarm": (0, 0.0), "bulk": (3, 1.0)}},
    )

    async def run(broker: Mosquitto) -> None:
        config = GatewayConfig(
            listen="127.0.0.1:0",
            broker=broker.url,
            state=str(tmp_path / "state"),
            control=str(tmp_path / "control.sock"),
            dataplane="none",
            front="127.0.0.1:0",
        )
        running = ManagedGateway(config)
        await running.start()
        try:
            running.gateway.change(lambda core: running._follow(orders))
            assert running.front is not None
            port = running.front.address[1]
            client = await asyncio.to_thread(lambda: Paho(port, "panel").connected().subscribe("#", 1))
            try:
                for topic in ("bulk", "alarm") * 5:
                    await asyncio.to_thread(client.publish, topic, topic.encode(), 1)
                assert await asyncio.to_thread(client.take, 5) == [b"alarm"] * 5
            finally:
                await asyncio.to_thread(client.end)
            counters = running.gateway.core.counters
            assert counters.planned_drops == {3: 5}
            assert counters.delivered == 5
        finally:
            await running.close()

    broker = Mosquitto(tmp_path / "broker")
    with ended(broker):
        asyncio.run(run(broker))
