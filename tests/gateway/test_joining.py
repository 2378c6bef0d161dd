"""Gateways that join a coordinator: who is served where, what each is told, and what is wrong with some."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import pytest
from tests.client.loopback import QUICK, until
from tests.coordinator.campus import campus
from tests.coordinator.coordinating import database_in, make_token
from tests.gateway.real import GATEWAY, Child, SnClient, ended

from triagemq.broker.process import find_mosquitto
from triagemq.client import Event, Publisher, Subscriber
from triagemq.gateway.config import GatewayConfig
from triagemq.gateway.managed import ManagedGateway
from triagemq.mqttsn import ConnAck, Connect, Disconnect, GwInfo, ReturnCode, SearchGw

LONG_SECONDS = 60.0

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")


def test_each_gateway_is_told_its_part_and_events_reach_everyone_once(tmp_path: Path) -> None:
    async def scene() -> None:
        async with campus(tmp_path, "north", "south") as there:
            await there.joined(2)
            got: dict[str, list[Event]] = {"ff-0": [], "ff-1": []}
            subscribers = [
                Subscriber(there.url, name=name, on_event=events.append, settings=QUICK)
                for name, events in got.items()
            ]
            publisher = Publisher(there.url, name="sensor", settings=QUICK)
            for subscriber in subscribers:
                await subscriber.open()
                await subscriber.subscribe("hall/smoke", qos=1)
            await publisher.open()
            await publisher.declare({"hall/smoke": (10.0, 50.0)})
            await there.running.settled()
            for number in range(20):
                await publisher.publish("hall/smoke", b"%d" % number, qos=number % 2)
            await until(lambda: all(len(events) == 20 for events in got.values()))
            rows = {row["name"]: row for row in await there.get("/v1/gateways")}
            assert {name: row["subscribers"] for name, row in rows.items()} == {"north": 1, "south": 1}
            assert rows["south"]["broker"] == there.brokers["south"].url
            # Each knows the flows of its own subscribers, and of no others.
            orders = {name: gateway.rules.orders for name, gateway in there.gateways.items()}
            assert sorted((*orders["north"].topics, *orders["south"].topics)) == ["ff-0", "ff-1"]
            assert list(orders["north"].peers) == ["south"]
            assert list(orders["south"].peers) == ["north"]
            # Every event is counted once, though two gateways have it.
            await there.running.until(
                lambda: there.running.coordinator.runtime.rates.publications("hall/smoke") >= 20
            )
            assert there.running.coordinator.runtime.rates.publications("hall/smoke") == 20
            for client in (*subscribers, publisher):
                await client.close()

    asyncio.run(scene())


def test_triage_gateway_joins_with_a_broker_of_its_own(tmp_path: Path) -> None:
    async def scene() -> None:
        async with campus(tmp_path, "north") as there:
            command = [sys.executable, "-c", GATEWAY, "--listen", "127.0.0.1:0", "--json", "--name", "south"]
            command += ["--join", there.url, "--state", str(tmp_path / "south")]
            child = Child(command, tmp_path / "south.log")
            with ended(child):
                ready = json.loads(await asyncio.to_thread(child.line, 60.0))
                await there.joined(2)
                [_, south] = await there.get("/v1/gateways")
                assert (south["address"], south["broker"]) == (ready["listen"], ready["broker"])
                got: list[Event] = []
                async with (
                    Subscriber(there.url, name="ff-0", on_event=got.append, settings=QUICK) as subscriber,
                    Publisher(there.url, name="sensor", settings=QUICK) as publisher,
                ):
                    await subscriber.subscribe("hall/smoke", qos=1)
                    assert {
                        str(subscriber.connection.address),
                        str(publisher._require_connection().address),
                    } == {"{}:{}".format(*there.gateways["north"].gateway.address), ready["listen"]}
                    await publisher.publish("hall/smoke", b"1", qos=1)
                    await until(lambda: len(got) == 1)

    asyncio.run(scene())


def test_a_token_of_another_role_or_name_does_not_let_a_gateway_join(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async def scene(token: str) -> None:
        async with campus(tmp_path, "north", "south", token=token, access=True) as there:
            async with asyncio.timeout(20):
                while "cannot join" not in (said := capfd.readouterr().err):
                    await asyncio.sleep(0.02)
            assert (
                f"gateway south cannot join {there.url}: the token does not allow a gateway of this name"
                in said
            )
            assert len(there.running.coordinator.runtime.gateways) == 1

    asyncio.run(scene(make_token(database_in(tmp_path), "gateway", names=("east",))))


def test_a_gateway_of_a_name_that_is_taken_is_refused_in_a_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async def scene() -> None:
        async with campus(tmp_path, "north", "south") as there:
            await there.joined(2)
            second = ManagedGateway(
                GatewayConfig(
                    listen="127.0.0.1:0",
                    broker=there.brokers["south"].url,
                    state=str(tmp_path / "second"),
                    control=str(tmp_path / "second.sock"),
                    name="south",
                    join=there.url,
                )
            )
            await second.start()
            async with asyncio.timeout(20):
                while "cannot join" not in (said := capfd.readouterr().err):
                    await asyncio.sleep(0.02)
            await second.close()
            assert "there is a gateway 'south' already; give this one another --name" in said
            await there.joined(2)

    asyncio.run(scene())


def test_an_unreachable_broker_serves_nobody_and_the_others_serve_all(tmp_path: Path) -> None:
    async def scene() -> None:
        async with campus(tmp_path, "north", "south") as there:
            there.brokers["south"].kill()
            await there.running.until(
                lambda: any(site.problem for site in there.running.coordinator.runtime.gateways.sites())
            )
            got: list[Event] = []
            async with (
                Subscriber(there.url, name="ff-0", on_event=got.append, settings=QUICK) as subscriber,
                Publisher(there.url, name="sensor", settings=QUICK) as publisher,
            ):
                await subscriber.subscribe("hall/smoke", qos=1)
                await publisher.publish("hall/smoke", b"1", qos=1)
                await until(lambda: len(got) == 1)
            [_, south] = await there.get("/v1/gateways")
            assert south["broker_connected"] is False
            assert "cannot be reached" in south["problem"]

    asyncio.run(scene())


def test_ways_to_brokers_and_clients_and_clocks_are_measured(tmp_path: Path) -> None:
    async def scene() -> None:
        async with campus(tmp_path, "north", "south") as there:
            await there.joined(2)

            async def is_measured() -> bool:
                rows = {row["name"]: row for row in await there.get("/v1/gateways")}
                found = [list(rows[name]["round_trip_seconds"]) for name in ("north", "south")]
                of_clients = [
                    list(row[f"{kind}_round_trip_seconds"])
                    for kind in ("publisher", "subscriber")
                    for row in rows.values()
                    if row[f"{kind}_round_trip_seconds"]
                ]
                return found == [["south"], ["north"]] and of_clients == [["sensor"], ["ff-0"]]

            async with (
                Subscriber(there.url, name="ff-0", settings=QUICK),
                Publisher(there.url, name="sensor", settings=QUICK),
            ):
                await there.running.until(is_measured)

    asyncio.run(scene())


def told_to_go(client: SnClient) -> bool:
    """Until it gets DISCONNECT."""
    deadline = time.monotonic() + LONG_SECONDS
    while (left := deadline - time.monotonic()) > 0:
        if isinstance(client.receive(left), Disconnect):
            return True
    return False


def test_plain_clients_of_a_gateway_whose_broker_died_are_told_to_look_for_another(tmp_path: Path) -> None:
    async def scene() -> None:
        async with campus(tmp_path, "north", "south") as there:
            await there.joined(2)
            north, south = (there.gateways[name].gateway.address[1] for name in ("north", "south"))
            plain, found = SnClient(south, "meter-7"), SnClient(north, "meter-7")
            await asyncio.to_thread(plain.connect)
            there.brokers["south"].kill()
            assert await asyncio.to_thread(told_to_go, plain)
            refused = await asyncio.to_thread(plain.ask, Connect("meter-7", 60), ConnAck)
            assert refused.return_code is ReturnCode.REJECTED_CONGESTION
            # A search reaches all gateways, and is answered by those that can serve.
            assert isinstance(await asyncio.to_thread(found.ask, SearchGw(), GwInfo), GwInfo)
            await asyncio.to_thread(found.connect)
            plain.end()
            found.end()
            # The client hears it before the coordinator is told that it was said.
            [sent] = await there.decided("sent away", 1)
            assert (sent["subject"], sent["before"]) == ("1 plain clients", "gateway south")
            assert "cannot be reached" in sent["reason"]

    asyncio.run(scene())


def test_an_operator_sends_plain_clients_away_and_nobody_else(tmp_path: Path) -> None:
    async def scene() -> None:
        async with campus(tmp_path, "north", "south") as there:
            await there.joined(2)
            async with Subscriber(there.url, name="ff-0", settings=QUICK) as subscriber:
                await subscriber.subscribe("hall/smoke")
                port = subscriber.connection.address.port
                home = next(name for name, each in there.gateways.items() if each.gateway.address[1] == port)
                plain = SnClient(port, "meter-7")
                await asyncio.to_thread(plain.connect)
                client = there.running.client
                answer = await client.post(f"/v1/gateways/{home}/sent-away", json={})
                assert answer.json() == {"disconnected": 1}
                assert await asyncio.to_thread(told_to_go, plain)
                plain.end()
                missing = await client.post("/v1/gateways/attic/sent-away", json={})
                assert missing.status_code == 404
                assert "there is no gateway 'attic'" in missing.text

    asyncio.run(scene())
