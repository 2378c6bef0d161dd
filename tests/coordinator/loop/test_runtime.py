"""The control loop at work: plans come into force and survive what happens to the gateway and the coordinator."""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.coordinator.coordinating import (
    LONG_SECONDS,
    Clock,
    FakeLink,
    Running,
    bearer,
    database_in,
    make_token,
    publisher,
    running,
    subscriber,
)
from tests.coordinator.managed import ManagedProcess
from tests.gateway.real import Child, Mosquitto

from triagemq.certificates import own_certificate
from triagemq.channel.messages import DesiredState
from triagemq.coordinator import service as service_module
from triagemq.coordinator.decide.decide import PlannerSettings
from triagemq.coordinator.intents.book import IntentBook
from triagemq.coordinator.loop.measuring import FLOWS_EVERY
from triagemq.coordinator.refusals import StoreError


async def decisions(here: Running) -> list[dict[str, Any]]:
    answer = await here.client.get("/v1/decisions?limit=1000")
    found: list[dict[str, Any]] = answer.json()["decisions"]
    return found


async def announce_both(here: Running, **more: Any) -> None:
    await here.client.post("/v1/publishers", json=publisher("p", "a", "b", rate=20.0, **more))
    await here.client.post("/v1/subscribers", json=subscriber("s", "a", "b", **more))
    await here.settled()


def test_a_plan_is_stored_told_and_traced(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as here:
            await announce_both(here)
            orders = here.link.told_orders[-1]
            assert orders.generation == here.coordinator.runtime.generation
            assert set(orders.topics["s"]) == {"a", "b"}
            assert here.coordinator.service.store.orders() == orders
            made = [row for row in await decisions(here) if row["kind"] == "replanned"]
            assert made[-1]["generation"] == orders.generation
            assert "subscriber s announced" in made[-1]["reason"]
            await here.until(lambda: any(row["kind"] == "replanned" for row in here.link.told_decisions))
            assert here.link.told_grants[-1] == (False, {})

    asyncio.run(run())


def test_while_the_gateway_is_away_everything_goes_on(tmp_path: Path) -> None:
    async def run() -> None:
        link = FakeLink()
        link.connected = False
        async with running(tmp_path, link=link) as here:
            await here.client.post("/v1/publishers", json=publisher("p", "a"))
            answer = await here.client.post("/v1/subscribers", json=subscriber("s", "a"))
            assert answer.status_code == 201
            await here.until(lambda: here.coordinator.runtime.planned_generation > 0)
            health = (await here.client.get("/v1/health")).json()
            assert health["gateway_connected"] is False
            assert "away" in health["status"]
            assert (await here.client.get("/v1/subscribers/s")).json()["in_force"] is False
            assert (await here.client.get("/v1/forecast")).status_code == 200
            link.connected = True
            await here.coordinator.gateway_connected()
            await here.settled()
            assert "a" in link.told_orders[-1].topics["s"]
            assert link.told_decisions, "what was decided meanwhile is in the trace"
            # A gateway that comes back with all it had is told nothing; one that has lost it, everything.
            told, had = len(link.told_orders), link.state
            await here.coordinator.gateway_connected()
            assert (len(link.told_orders), link.state) == (told, had)
            link.state = DesiredState()
            await here.coordinator.gateway_connected()
            assert (len(link.told_orders), link.state.orders) == (told + 1, had.orders)
            assert link.state.version > had.version
            # One that refuses does not end anything.
            link.refuses_orders = True
            await here.client.post("/v1/subscribers", json=subscriber("t", "a"))
            await here.until(
                lambda: here.coordinator.runtime.gateways["gateway"].reconciler.problem is not None
            )
            assert (await here.client.get("/v1/subscribers/t")).json()["in_force"] is False
            link.refuses_orders = False
            await here.client.post("/v1/subscribers", json=subscriber("u", "a"))
            await here.settled()
            assert {"s", "t", "u"} <= set(link.told_orders[-1].topics)

    asyncio.run(run())


def test_a_lease_that_ends_gives_the_bandwidth_to_others(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as here:
            await here.client.post("/v1/publishers", json=publisher("p", "a", rate=100.0, lease_seconds=3600))
            stays = subscriber("stays", "a", lease_seconds=3600)
            await here.client.post("/v1/subscribers", json=stays)
            gone = {
                "subscribers": [subscriber(f"gone-{number}", "a", lease_seconds=1) for number in range(10)]
            }
            await here.client.post("/v1/intents", json={"announce": gone})
            await here.until(
                lambda: here.coordinator.runtime.generation and "gone-9" in here.link.told_orders[-1].topics
            )
            crowded = here.coordinator.runtime.assignments.of("stays").drop_rates["a"]
            await here.until(lambda: set(here.link.told_orders[-1].topics) == {"stays"})
            assert here.coordinator.runtime.assignments.of("stays").drop_rates["a"] < crowded
            ended = [row for row in await decisions(here) if row["kind"] == "lease ended"]
            assert {row["subject"] for row in ended} == {f"subscriber gone-{number}" for number in range(10)}
            assert (await here.client.get("/v1/subscribers")).json() == ["stays"]
            assert here.coordinator.service.store.records()[-1].intent.name == "stays"
            assert "triage_leases_ended_total 10" in (await here.client.get("/metrics")).text

    asyncio.run(run())


def test_heartbeats_keep_a_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(service_module, "time", clock)

    async def run() -> None:
        async with running(tmp_path) as here:
            await here.client.post("/v1/subscribers", json=subscriber("s", "a", lease_seconds=1.5))
            for _ in range(6):
                await here.client.post("/v1/subscribers", json=subscriber("silent", "a", lease_seconds=1))
                clock.seconds += 1
                # When the silent one has gone, leases were looked at in this second.
                await here.until(lambda: here.coordinator.service.registry.count("subscriber") == 1)
                assert (await here.client.post("/v1/subscribers/s/heartbeat", json={})).status_code == 200

    asyncio.run(run())


def test_a_restart_continues_and_changes_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as here:
            await announce_both(here, lease_seconds=4)
            before, records = here.link.told_orders[-1], here.coordinator.service.store.records()
            earlier = await decisions(here)
        await asyncio.sleep(4.2)  # longer than the lease: nobody could be heard meanwhile
        async with running(tmp_path) as here:
            assert here.coordinator.service.store.records() == records
            assert here.link.told_orders[0] == before, "the gateway is told at once, before the first plan"
            await here.until(lambda: here.coordinator.runtime.decided is not None)
            assert here.coordinator.runtime.decided is not None
            assert here.coordinator.runtime.decided.orders.topics == before.topics
            assert here.coordinator.runtime.generation == before.generation
            assert (await decisions(here))[: len(earlier)] == earlier
            assert (await here.client.post("/v1/subscribers/s/heartbeat")).status_code == 200
            await here.until(lambda: here.coordinator.service.registry.count("publisher") == 0)

    asyncio.run(run())


def test_a_rate_that_leaves_its_band_is_planned_for(tmp_path: Path) -> None:
    async def run() -> None:
        link = FakeLink()
        async with running(tmp_path, link=link) as here:
            await here.client.post("/v1/publishers", json=publisher("p", "a", rate=None, lease_seconds=600))
            await here.client.post("/v1/subscribers", json=subscriber("s", "a", lease_seconds=600))
            await here.settled()
            assert not here.link.told_orders[-1].topics.get("s")
            started = time.monotonic()

            async def publish() -> None:
                while True:
                    count = round(200 * (time.monotonic() - started))
                    link.topics = {"a": (count, 100 * count)}
                    await asyncio.sleep(0.05)

            publishing = asyncio.create_task(publish())
            await here.until(lambda: here.coordinator.runtime.rates.rates().per_second.get("a", 0) > 100)
            await here.until(lambda: here.link.told_orders[-1].topics.get("s"))
            publishing.cancel()
            rows = await decisions(here)
            assert any("rate of topic a from 0 to" in row["reason"] for row in rows), rows
            topics = (await here.client.get("/v1/topics")).json()
            assert topics[0]["measured"] is True
            await here.coordinator.runtime.measuring.store()
            assert here.coordinator.service.store.measured()["a"]["rate_per_second"] > 100

    asyncio.run(run())


def test_a_plan_that_cannot_be_made_leaves_the_one_before(tmp_path: Path) -> None:
    async def run() -> None:
        settings = PlannerSettings(drops="tests.coordinator.no_such_module:drops")
        async with running(tmp_path, planner=settings) as here:
            answer = await here.client.post("/v1/subscribers", json=subscriber("s", "a"))
            assert answer.status_code == 201

            async def refused() -> list[dict[str, Any]]:
                return [row for row in await decisions(here) if row["kind"] == "refused"]

            rows = await here.until(refused)
            assert "no_such_module" in rows[0]["reason"]
            health = (await here.client.get("/v1/health")).json()
            assert "no_such_module" in health["last_plan_error"]
            assert here.link.told_orders == []
            assert (await here.client.get("/v1/forecast")).status_code == 404

    asyncio.run(run())


def test_a_storm_of_changes_makes_few_plans(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as here:
            await here.client.post("/v1/publishers", json=publisher("p", "a"))
            await here.settled()
            plans, started = here.coordinator.runtime.metrics.plans, time.monotonic()
            answers = await asyncio.gather(
                *(
                    here.client.post("/v1/subscribers", json=subscriber(f"s{each}", "a"))
                    for each in range(200)
                )
            )
            assert {answer.status_code for answer in answers} == {201}
            await here.settled()
            seconds = time.monotonic() - started
            assert here.coordinator.runtime.metrics.plans - plans <= 2 + 2 * seconds
            assert len(here.link.told_orders[-1].topics) == 200

    asyncio.run(run())


def test_who_waits_is_woken_by_what_concerns_it_only(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as here:
            said = publisher("p", "a", "b", rate=1.0)
            await here.client.post("/v1/publishers", json=said)
            both = {"announce": {"subscribers": [subscriber("s", "a"), subscriber("t", "b")]}}
            await here.client.post("/v1/intents", json=both)
            await here.settled()
            known = (await here.client.get("/v1/subscribers/s/assignment")).json()["generation"]
            path = f"/v1/subscribers/s/assignment?after={known}&wait_seconds=60"
            waiting = asyncio.create_task(here.client.get(path))
            await asyncio.sleep(0.1)
            # Somebody else's change that leaves the assignment as it is.
            await here.client.post("/v1/subscribers", json=subscriber("u", "nobody/publishes/this"))
            await here.settled()
            assert not waiting.done()
            await here.client.post("/v1/subscribers", json=subscriber("s", "a", "b"))
            assert set((await asyncio.wait_for(waiting, LONG_SECONDS)).json()["classes"]) == {"a", "b"}
            # Whoever is withdrawn learns of that too.
            known = (await here.client.get("/v1/subscribers/t/assignment")).json()["generation"]
            path = f"/v1/subscribers/t/assignment?after={known}&wait_seconds=60"
            waiting = asyncio.create_task(here.client.get(path))
            await asyncio.sleep(0.1)
            await here.client.delete("/v1/subscribers/t")
            assert (await asyncio.wait_for(waiting, LONG_SECONDS)).status_code == 404
            # And time that is up is up.
            path = "/v1/subscribers/s/assignment?after=1000000&wait_seconds=0.05"
            assert (await here.client.get(path)).status_code == 200

    asyncio.run(run())


def test_what_cannot_be_stored_has_not_happened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with running(tmp_path) as here:
            await announce_both(here)
            store = here.coordinator.service.store

            async def full(change: object, *arguments: object) -> None:
                raise StoreError("the database cannot be written: disk full")

            with monkeypatch.context() as patch:
                patch.setattr(store, "write", full)
                answer = await here.client.post("/v1/subscribers", json=subscriber("new", "a"))
                assert answer.status_code == 503
                assert "nothing was changed" in answer.json()["detail"]
                changed = await here.client.put("/v1/subscribers/s", json={"subscriptions": []})
                assert changed.status_code == 503
                assert (await here.client.delete("/v1/subscribers/s")).status_code == 503
            assert (await here.client.get("/v1/subscribers")).json() == ["s"]
            assert len((await here.client.get("/v1/subscribers/s")).json()["subscriptions"]) == 2
            assert (await here.client.delete("/v1/subscribers/s")).status_code == 204

    asyncio.run(run())


def test_intents_are_planned_for_though_planning_failed_by_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with running(tmp_path) as here:
            await announce_both(here)
            book, replanner = IntentBook.announce, here.coordinator.runtime._replanner
            mistakes = 0

            def fails_once(self: IntentBook, intent: Any) -> None:
                nonlocal mistakes
                mistakes += 1
                if mistakes == 1:
                    raise ZeroDivisionError("a mistake in the book")
                book(self, intent)

            monkeypatch.setattr(IntentBook, "announce", fails_once)
            both = {"announce": {"subscribers": [subscriber("t", "a"), subscriber("u", "b")]}}
            await here.client.post("/v1/intents", json=both)
            await here.until(lambda: not here.coordinator.runtime.planning.ok)
            await here.until(lambda: "u" in here.link.told_orders[-1].topics)
            await here.settled()
            assert "t" in here.link.told_orders[-1].topics, "what was taken from the list is not lost"
            monkeypatch.setattr(IntentBook, "announce", book)

            take, takes = replanner.take, 0

            def no_take(*steps: Any) -> Any:
                nonlocal takes
                takes += 1
                if takes == 1:
                    raise MemoryError("none left")
                return take(*steps)

            monkeypatch.setattr(replanner, "take", no_take)
            await here.client.post("/v1/subscribers", json=subscriber("v", "a"))
            await here.until(lambda: not here.coordinator.runtime.planning.ok)
            await here.settled()
            assert "v" in here.link.told_orders[-1].topics, "planning goes on by itself"
            assert here.coordinator.runtime.planning.ok

    asyncio.run(run())


def test_a_second_that_cannot_be_worked_out_ends_no_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with running(tmp_path) as here:
            runtime, looks = here.coordinator.runtime, 0

            async def fails(before: Any, now: Any) -> None:
                raise ZeroDivisionError("a figure")

            def looked(*_: Any) -> tuple[()]:
                nonlocal looks
                looks += 1
                return ()

            monkeypatch.setattr(runtime, "_on_second", fails)
            monkeypatch.setattr(runtime.port_watch, "observe", looked)
            await here.until(lambda: looks >= 2 * FLOWS_EVERY)

    asyncio.run(run())


def test_health_is_about_what_works_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with running(tmp_path) as here:

            async def health() -> dict[str, Any]:
                return dict((await here.client.get("/v1/health")).json())

            async def is_ok() -> bool:
                return (await health())["status"] == "ok"

            await announce_both(here)
            await here.until(is_ok)
            found = await health()
            assert found["checks"].keys() == {
                "gateway",
                "broker",
                "writes",
                "planning",
                "planned",
                "rights",
                "orders",
            }
            assert all(each["ok"] and each["reason"] is None for each in found["checks"].values())

            store = here.coordinator.service.store
            begin = store._engine.begin

            def no_disk() -> Any:
                raise OSError(30, "Read-only file system")

            monkeypatch.setattr(store._engine, "begin", no_disk)
            answer = await here.client.post("/v1/subscribers", json=subscriber("new", "a"))
            assert answer.status_code == 503
            assert "Read-only file system; nothing was changed" in answer.json()["detail"]
            found = await health()
            assert found["status"] == "the database cannot be written; nothing new is taken"
            assert "Read-only" in found["checks"]["writes"]["reason"]
            assert found["checks"]["planning"]["ok"]
            await asyncio.sleep(0.1)
            assert (await health())["checks"]["writes"]["for_seconds"] >= 0.1
            monkeypatch.setattr(store._engine, "begin", begin)
            await here.until(is_ok)  # by itself: nobody has to write anything
            assert (await here.client.get("/v1/subscribers")).json() == ["s"]
            assert [each.key[1] for each in store.records()] == ["p", "s"]

            here.link.broker_connected = False
            await here.until(lambda: here.coordinator.runtime.measuring.latest)
            await here.until(lambda: not here.coordinator.runtime.measuring.checks()["broker"].ok)
            assert (await health())["status"] == "the gateway has no broker"
            here.link.connected = False
            found = await health()
            assert found["status"].startswith("the gateway is away")
            assert not found["checks"]["gateway"]["ok"]
            assert "not known" in found["checks"]["broker"]["reason"]

    asyncio.run(run())


class Process:
    """A coordinator process; `ask` is a plain HTTP request."""

    def __init__(self, directory: Path, gateway_socket: Path, **settings: Any) -> None:
        config = directory / "config.json"
        config.write_text(
            json.dumps(
                {
                    "port": 0,
                    "database": database_in(directory),
                    "gateway_socket": str(gateway_socket),
                    "gateway_address": "127.0.0.1:10000",
                    "bandwidth_bps": 1e5,
                    **settings,
                }
            )
        )
        self.log = directory / "coordinator.log"
        command = [sys.executable, "-m", "triagemq.coordinator.serve", str(config)]
        self._child = Child(command, self.log)
        self.address = json.loads(self._child.line(LONG_SECONDS))["address"]
        self.kill, self.end = self._child.kill, self._child.end

    def ask(self, method: str, path: str, body: Any = None, token: str | None = None) -> Any:
        headers = {"Content-Type": "application/json"} | ({} if token is None else bearer(token))
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=LONG_SECONDS) as answer:
            return json.loads(answer.read() or b"null")


def until(what: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + LONG_SECONDS
    while not (found := what()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return found


def test_killed_and_started_again_everything_is_there_with_a_real_gateway(tmp_path: Path) -> None:
    token = make_token(database_in(tmp_path), "operator")
    with ExitStack() as stack:
        broker = Mosquitto(tmp_path / "broker")
        stack.callback(broker.end)
        gateway = ManagedProcess(tmp_path / "gateway", broker.url)
        stack.callback(gateway.end)
        first = Process(tmp_path, gateway.socket, access=True)
        stack.callback(first.end)
        made = first.ask("POST", "/v1/tokens", {"roles": ["subscriber"], "subscribe": ["#"]}, token)
        own = {"subscriptions": [{"topic": "b"}], "lease_seconds": 600}
        many = {
            "publishers": [publisher("p", "a", "b", lease_seconds=600)],
            "subscribers": [subscriber(f"s{number}", "a", lease_seconds=600) for number in range(200)],
        }
        first.ask("POST", "/v1/intents", {"announce": many}, token)
        first.ask("PUT", "/v1/subscribers/own", own, made["token"])
        first.ask("PUT", "/v1/ports/port", {"bandwidth_bps": 2e5}, token)
        until(lambda: first.ask("GET", "/v1/subscribers/own", None, made["token"])["in_force"])
        until(lambda: gateway.ask(lambda link: link.current()).ports["port"].bandwidth_bps == 2e5)
        rows = first.ask("GET", "/v1/decisions?limit=1000", None, token)["decisions"]
        first.kill()
        before = gateway.ask(lambda link: link.current())
        assert len(before.topics) == 201, "the gateway goes on without a coordinator"

        second = Process(tmp_path, gateway.socket, access=True)
        stack.callback(second.end)
        assert len(second.ask("GET", "/v1/subscribers", None, token)) == 201
        assert second.ask("GET", "/v1/subscribers/own", None, made["token"])["subscriptions"]
        again = second.ask("GET", "/v1/decisions?limit=1000", None, token)["decisions"]
        assert again[: len(rows)] == rows
        assert second.ask("GET", "/v1/ports", None, token)[0]["bandwidth_bps"] == 2e5
        until(lambda: second.ask("GET", "/v1/subscribers/own", None, made["token"])["in_force"])
        after = gateway.ask(lambda link: link.current())
        assert (after.topics, after.flows) == (before.topics, before.flows), (
            "nothing moves because of a restart"
        )

        # A gateway that is killed is told everything again.
        gateway.kill()
        until(lambda: not second.ask("GET", "/v1/health")["gateway_connected"])
        second.ask("PUT", "/v1/subscribers/late", own, token)
        gateway.start()
        until(lambda: second.ask("GET", "/v1/subscribers/late", None, token)["in_force"])
        assert gateway.ask(lambda link: link.current()).topics["late"].keys() == {"b"}
        second.end()
        assert not any(secret in second.log.read_text() for secret in (token, made["token"]))


def test_tls_and_a_unix_socket(tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=localhost "
        f"-addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {certificate}"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    token = make_token(database_in(tmp_path), "operator")
    process = Process(
        tmp_path,
        tmp_path / "no.sock",
        host="0.0.0.0",
        access=True,
        tls_certificate=str(certificate),
        tls_key=str(key),
        unix_socket=str(tmp_path / "rest.sock"),
    )
    try:
        assert process.address.startswith("https://0.0.0.0:")
        address = process.address.replace("0.0.0.0", "127.0.0.1")
        trusting = ssl.create_default_context(cafile=str(certificate))
        with httpx.Client(verify=trusting, base_url=address) as client:
            assert client.get("/v1/health").json()["gateway_connected"] is False
            assert client.get("/v1/tokens").status_code == 401
            assert client.get("/v1/tokens", headers=bearer(token)).status_code == 200
        inside = httpx.HTTPTransport(uds=str(tmp_path / "rest.sock"), verify=trusting)
        with httpx.Client(transport=inside, base_url="https://127.0.0.1") as client:
            assert client.get("/v1/tokens").status_code == 401, "a socket of this machine needs a token too"
            assert client.get("/v1/tokens", headers=bearer(token)).status_code == 200
        assert (tmp_path / "rest.sock").stat().st_mode & 0o077 == 0
    finally:
        process.end()


def test_a_process_that_cannot_start_says_why_in_one_line(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    settings = {"database": database_in(tmp_path), "gateway_socket": "x", "gateway_address": "y"}
    for more, words in (
        ({"host": "0.0.0.0"}, "host: 0.0.0.0 is reached from other machines"),
        ({"host": "192.0.2.77", "insecure": True, "access": True}, "cannot listen on 192.0.2.77"),
    ):
        config.write_text(json.dumps(settings | more))
        ended = subprocess.run(
            [sys.executable, "-m", "triagemq.coordinator.serve", str(config)],
            capture_output=True,
            text=True,
            timeout=LONG_SECONDS,
        )
        assert ended.returncode == 2
        assert words in ended.stderr
        assert len(ended.stderr.strip().splitlines()) == 1


def test_a_renewed_certificate_serves_new_connections_and_the_old_ones_go_on(tmp_path: Path) -> None:
    certificate, key = own_certificate(tmp_path / "certificate")
    old, others = certificate.read_text(), own_certificate(tmp_path / "others")
    process = Process(tmp_path, tmp_path / "none.sock", tls_certificate=str(certificate), tls_key=str(key))
    with ExitStack() as stack:
        stack.callback(process.end)
        host, port = "127.0.0.1", int(process.address.rpartition(":")[2])
        assert process.address.startswith("https://")
        early = http.client.HTTPSConnection(
            host, port, context=ssl.create_default_context(cafile=str(certificate)), timeout=LONG_SECONDS
        )
        stack.callback(early.close)

        def answers() -> bool:
            early.request("GET", "/v1/health")
            return bool(early.getresponse().read())

        def presented() -> str:
            return ssl.get_server_certificate((host, port), timeout=LONG_SECONDS)

        assert answers()
        # The new key alone does not fit, which is said; what was there stays.
        key.write_bytes(others[1].read_bytes())
        until(lambda: "the old one stays" in process.log.read_text())
        assert presented().split() == old.split()
        certificate.write_bytes(others[0].read_bytes())
        until(lambda: "is in use" in process.log.read_text())
        assert presented().split() == others[0].read_text().split() != old.split()
        assert answers()
