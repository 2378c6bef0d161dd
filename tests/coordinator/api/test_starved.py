"""What gets nothing, and ports that are full while nothing is planned: known to health, metrics and forecast."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.coordinator.coordinating import FakeLink, bearer, make_token, publisher, running, subscriber

from triagemq.certificates import expires_at, own_certificate
from triagemq.channel.messages import Measured
from triagemq.coordinator import control_plane as module
from triagemq.coordinator.decide.network import Network
from triagemq.page.frame import render
from triagemq.plan.dataplane import PortCounters, QueueCounters


def _wanting(name: str, topic: str, utility: str) -> dict[str, Any]:
    return subscriber(name) | {"subscriptions": [{"topic": topic, "utility": utility}]}


def test_every_subscription_that_gets_nothing_is_named_to_those_who_may_know(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path, access=True, network=Network.plain(1e5)) as here:
            operator = bearer(make_token(f"sqlite:///{tmp_path / 'coordinator.sqlite'}", "operator"))
            await here.client.post(
                "/v1/publishers", json=publisher("p", "smoke", "camera", rate=90.0), headers=operator
            )
            for body in (
                _wanting("commander", "smoke", "linear:100"),
                _wanting("press", "camera", "linear:0.001"),
            ):
                assert (
                    await here.client.post("/v1/subscribers", json=body, headers=operator)
                ).status_code == 201
            await here.until(lambda: here.coordinator.starved())
            health = (await here.client.get("/v1/health", headers=operator)).json()
            assert health["starved"] == 1
            [named] = health["starved_subscriptions"]
            assert (named["subscriber"], named["topic"], named["share"]) == ("press", "camera", 0.0)
            assert "port port is offered" in named["reason"]
            shown = render("overview_starved.html", now={"health": health})
            assert f"P{named['reason'][1:]}" in shown
            told = render("health.html", health=health, reason="", beat=1)
            assert "1 subscription gets nothing" in told
            assert "All works" not in told
            assert (await here.client.get("/v1/health")).json()["starved_subscriptions"] == []
            figures = (await here.client.get("/v1/forecast", headers=operator)).json()
            assert [each["subscriber"] for each in figures["starved"]] == ["press"]
            metrics = (await here.client.get("/metrics", headers=operator)).text
            assert "triage_starved_subscriptions 1" in metrics
            [line] = [
                each for each in metrics.splitlines() if each.startswith("triage_starved_subscription_share{")
            ]
            assert f'reason="{named["reason"]}",subscriber="press",topic="camera"' in line

    asyncio.run(run())


class _FullLink(FakeLink):
    """Its port sends as much as it can, of what no client has announced."""

    sent_bytes = 0

    async def measure(self, *, flows: bool = True, topics: bool = True, after: str = "") -> Measured:
        measured = await super().measure(flows=flows, topics=topics, after=after)
        self.sent_bytes += 1_000_000
        queue = QueueCounters(bytes_out=self.sent_bytes, backlog_bytes=99_900, backlog_packets=999)
        measured.ports["port"] = PortCounters((queue,), QueueCounters())
        return measured


def test_a_full_port_without_a_plan_is_a_matter_of_health(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_UNPLANNED_SECONDS", 0.1)

    async def run() -> None:
        async with running(tmp_path, link=_FullLink()) as here:
            health: dict[str, Any] = {}

            async def status() -> str:
                health.update((await here.client.get("/v1/health")).json())
                return str(health["status"])

            await here.until(lambda: _is(status, "nothing is planned"))
            assert not health["checks"]["planned"]["ok"]
            assert 'triage_check_ok{check="planned"} 0' in (await here.client.get("/metrics")).text
            await here.client.post("/v1/publishers", json=publisher("p", "a"))
            await here.client.post("/v1/subscribers", json=subscriber("s", "a"))
            await here.settled()
            await here.until(lambda: _is(status, "ok"))

    asyncio.run(run())


def test_a_plan_that_takes_long_is_a_matter_of_health(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LONGEST_PLAN_SECONDS", 0.1)

    async def run() -> None:
        async with running(tmp_path) as here:
            replanner, may_end = here.coordinator.runtime._replanner, threading.Event()
            plan = replanner.plan

            def slow(*arguments: Any) -> Any:
                may_end.wait()
                return plan(*arguments)

            monkeypatch.setattr(replanner, "plan", slow)

            async def status() -> str:
                return str((await here.client.get("/v1/health")).json()["status"])

            await here.client.post("/v1/subscribers", json=subscriber("s", "a"))
            await here.until(lambda: _is(status, "the last plan failed"))
            may_end.set()
            await here.until(lambda: _is(status, "ok"))

    asyncio.run(run())


async def _is(status: Any, words: str) -> bool:
    return words in await status()


def test_metrics_tell_when_the_certificate_expires_and_how_much_disk_is_free(tmp_path: Path) -> None:
    certificate, _ = own_certificate(tmp_path / "certificate")
    assert 364 * 86_400 < expires_at(certificate) - time.time() < 366 * 86_400

    async def run() -> str:
        async with running(tmp_path) as here:
            there = replace(
                here.coordinator.settings,
                gateway_socket=str(tmp_path / "control.sock"),
                tls_certificate=str(certificate),
            )
            here.coordinator.settings = there
            text = (await here.client.get("/metrics")).text
            here.coordinator.settings = replace(there, tls_certificate=str(tmp_path / "gone.pem"))
            assert (await here.client.get("/metrics")).status_code == 200
            return text

    text = asyncio.run(run())
    assert "\ntriage_state_free_bytes " in text
    assert 'triage_certificate_expires_seconds{file="' in text
    assert 'triage_gateway_up{gateway="gateway"} 1' in text
