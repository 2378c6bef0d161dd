"""Gateways with brokers of their own that take from each other what their clients want, with real brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from tests.client.loopback import QUICK, until
from tests.gateway.real import Mosquitto, ended

from triagemq.broker import BrokerAddress
from triagemq.broker.process import find_mosquitto
from triagemq.client import Event, Publisher, Subscriber
from triagemq.gateway import Gateway, GatewaySettings
from triagemq.gateway.core import GatewayCore, MqttSnCore
from triagemq.gateway.core.restoring import restore
from triagemq.gateway.store import GatewayStore
from triagemq.mqtt.session import Login

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")

NAMES = ("north", "south")


@asynccontextmanager
async def gateways(urls: dict[str, str], state: Path | None = None) -> AsyncIterator[dict[str, Gateway]]:
    """One beside each broker, each linked to the others'."""
    async with AsyncExitStack() as stack:
        made = {}
        for name, url in urls.items():
            settings = GatewaySettings(broker_client_id=f"gateway-{name}")
            made[name] = Gateway(
                settings,
                BrokerAddress.parse(url),
                ("127.0.0.1", 0),
                state=None if state is None else state / name,
            )
            await made[name].start()
            stack.push_async_callback(made[name].close)
        for name, gateway in made.items():
            others = {other: BrokerAddress.parse(url) for other, url in urls.items() if other != name}
            gateway.fit_peers(others, name)
            await until(
                lambda gateway=gateway: (
                    gateway.broker_is_connected
                    and all(peer.available for peer in gateway.core.peers.values())
                )
            )
        yield made


def address(gateway: Gateway) -> str:
    return "{}:{}".format(*gateway.address)


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_an_event_reaches_subscribers_of_every_gateway_once_and_in_order(
    tmp_path: Path, version: str
) -> None:
    async def scene(brokers: dict[str, Mosquitto]) -> None:
        urls = {name: f"{broker.url}?version={version}" for name, broker in brokers.items()}
        got: dict[str, list[Event]] = {name: [] for name in NAMES}
        async with gateways(urls) as made, AsyncExitStack() as stack:
            for name in NAMES:
                subscriber = Subscriber(
                    gateway=address(made[name]), on_event=got[name].append, settings=QUICK
                )
                await stack.enter_async_context(subscriber)
                # Filters that overlap: a broker may send a copy for each.
                await subscriber.subscribe("hall/+", qos=1)
                await subscriber.subscribe("hall/smoke", qos=1)
            publishers = {}
            for name in NAMES:
                publishers[name] = Publisher(gateway=address(made[name]), settings=QUICK)
                await stack.enter_async_context(publishers[name])
            for number in range(50):
                for name in NAMES:
                    await publishers[name].publish("hall/smoke", f"{name} {number}".encode(), qos=number % 2)
            await until(lambda: all(len(each) >= 100 for each in got.values()))
            await asyncio.sleep(0.2)
            # What nobody wants does not leave the broker that it was published at.
            before = {name: gateway.core.counters.broker_messages for name, gateway in made.items()}
            await publishers["north"].publish("yard/smoke", b"no", qos=1)
            await asyncio.sleep(0.2)
            assert {name: gateway.core.counters.broker_messages for name, gateway in made.items()} == before
        for events in got.values():
            for name in NAMES:
                mine = [event.payload.decode() for event in events if event.payload.startswith(name.encode())]
                for qos in (0, 1):
                    numbers = [int(text.split()[1]) for text in mine]
                    assert [number for number in numbers if number % 2 == qos] == list(range(qos, 50, 2))

    brokers = {name: Mosquitto(tmp_path / name) for name in NAMES}
    with ended(*brokers.values()):
        asyncio.run(scene(brokers))


def test_while_a_peer_is_away_clients_are_served_and_it_is_asked_again_when_it_is_back(
    tmp_path: Path,
) -> None:
    async def scene(brokers: dict[str, Mosquitto]) -> None:
        got: list[Event] = []
        urls = {name: broker.url for name, broker in brokers.items()}
        async with gateways(urls, tmp_path / "state") as made:
            brokers["south"].kill()
            await until(lambda: not made["north"].core.peers["south"].available)
            async with (
                Subscriber(gateway=address(made["north"]), on_event=got.append, settings=QUICK) as subscriber,
                Publisher(gateway=address(made["south"]), settings=QUICK) as publisher,
            ):
                await subscriber.subscribe("hall/smoke", qos=1)
                brokers["south"].start()
                await until(lambda: made["north"].core.peers["south"].available)
                await until(lambda: made["south"].broker_is_connected)
                await until(lambda: made["north"].core.peers["south"].filters["hall/smoke"].granted == 1)
                await publisher.publish("hall/smoke", b"there", qos=1)
                await until(lambda: [event.payload for event in got] == [b"there"])
                made["north"].fit_peers({}, "north")
                await publisher.publish("hall/smoke", b"gone", qos=1)
                await asyncio.sleep(0.2)
                assert len(got) == 1

    brokers = {name: Mosquitto(tmp_path / name) for name in NAMES}
    with ended(*brokers.values()):
        asyncio.run(scene(brokers))


def test_messages_of_qos_2_that_peers_brokers_send_again_are_known_after_a_restart(tmp_path: Path) -> None:
    """Packet ids are each broker's own, and every peer knows this gateway by one client id."""
    logins = {name: Login("triage-peer-north", session_expiry_seconds=3600) for name in ("hall", "labs")}

    def core() -> GatewayCore:
        made = MqttSnCore(GatewaySettings(), now_ns=1, stores=True)
        restore(made, store.load())
        made.fit_peers(logins)
        return made

    store = GatewayStore(tmp_path)
    before = core()
    for number, link in enumerate(before.peers.values()):
        lane = link.lanes[0]
        lane.owner.mqtt_receiving(lane, 7 + number, True)
    store.save(before.changes.take())
    after = core()
    assert [link.lanes[0].receiving for link in after.peers.values()] == [{7}, {8}]
    store.close()
