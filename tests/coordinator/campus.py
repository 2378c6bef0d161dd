"""Several real brokers with a managed gateway beside each, and one coordinator that leads them, in one event loop."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.coordinator.coordinating import Running, running, served
from tests.gateway.real import Mosquitto
from tests.ports import own_port

from triagemq.coordinator.decide.network import Network
from triagemq.gateway.config import GatewayConfig
from triagemq.gateway.managed import ManagedGateway


@dataclass
class TestedCampus:
    """`url` is the coordinator's; brokers and gateways are by name."""

    __test__ = False

    url: str
    running: Running
    brokers: dict[str, Mosquitto]
    gateways: dict[str, ManagedGateway]
    configs: dict[str, GatewayConfig]

    async def stop(self, name: str) -> None:
        """A gateway is away; what it has stored it will have again."""
        await self.gateways[name].close()

    async def start(self, name: str) -> None:
        """It is back."""
        self.gateways[name] = ManagedGateway(self.configs[name])
        await self.gateways[name].start()

    def port(self, name: str) -> int:
        """Where clients find it."""
        return self.gateways[name].gateway.address[1]

    async def get(self, path: str) -> Any:
        return (await self.running.client.get(path)).json()

    async def joined(self, count: int) -> None:
        """Until so many gateways follow what they are told, and reach all brokers."""

        async def all_there() -> bool:
            found = await self.get("/v1/gateways")
            return len(found) == count and all(
                each["broker_connected"] and each["in_force_version"] == each["wanted_version"]
                for each in found
            )

        await self.running.until(all_there)
        for gateway in self.gateways.values():
            await self.running.until(
                lambda gateway=gateway: (
                    len(gateway.gateway.core.peers) == count - 1
                    and all(peer.available for peer in gateway.gateway.core.peers.values())
                )
            )

    async def move(self, to: str, *subscribers: str, publishers: Sequence[str] = ()) -> int:
        body = {"subscribers": list(subscribers), "publishers": list(publishers)}
        answer = await self.running.client.post(f"/v1/gateways/{to}/clients", json=body)
        assert answer.status_code == 200, answer.text
        return int(answer.json()["moved"])

    async def moved(self) -> list[dict[str, Any]]:
        """The decisions about clients that were sent elsewhere."""
        return await self.decided("moved", 0)

    async def decided(self, kind: str, least: int) -> list[dict[str, Any]]:
        """The decisions of a kind, as soon as there are so many."""
        found: list[dict[str, Any]] = []

        async def enough() -> bool:
            decisions = (await self.get("/v1/decisions?limit=1000"))["decisions"]
            found[:] = [each for each in decisions if each["kind"] == kind]
            return len(found) >= least

        await self.running.until(enough)
        return found


@asynccontextmanager
async def campus(
    directory: Path, *names: str, token: str | None = None, **options: Any
) -> AsyncIterator[TestedCampus]:
    """The first gateway is led by its control socket, the others join."""
    async with AsyncExitStack() as stack:
        brokers: dict[str, Mosquitto] = {}
        gateways: dict[str, ManagedGateway] = {}
        configs: dict[str, GatewayConfig] = {}
        for name in names:
            brokers[name] = Mosquitto(directory / name / "broker")
            stack.callback(brokers[name].end)

        async def start(name: str, **more: Any) -> None:
            configs[name] = GatewayConfig(
                listen=f"127.0.0.1:{own_port(kind=socket.SOCK_DGRAM)}",
                broker=brokers[name].url,
                state=str(directory / name / "state"),
                control=str(directory / name / "control.sock"),
                name=name,
                **more,
            )
            gateways[name] = ManagedGateway(configs[name])
            await gateways[name].start()
            stack.push_async_callback(lambda: gateways[name].close())

        await start(names[0])
        options.setdefault("network", Network.plain(1e8))
        address = "{}:{}".format(*gateways[names[0]].gateway.address)
        led = await stack.enter_async_context(
            running(
                directory,
                gateway=directory / names[0] / "control.sock",
                gateway_name=names[0],
                gateway_address=address,
                **options,
            )
        )
        url = "http://" + await stack.enter_async_context(served(led.app))
        for name in names[1:]:
            await start(name, join=url, token=token)
        yield TestedCampus(url, led, brokers, gateways, configs)
