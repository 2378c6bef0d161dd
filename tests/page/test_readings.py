"""What pages show is gathered once for all of them: of live figures, forecasts and decisions."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.coordinator.coordinating import make_token, publisher, running, subscriber

from triagemq.channel.messages import Measured
from triagemq.channel.orders import Orders
from triagemq.client.coordinator import Assignment
from triagemq.coordinator.decide.network import Network
from triagemq.coordinator.loop.figures import Live, Received
from triagemq.coordinator.refusals import ForbiddenError, UnauthorisedError
from triagemq.page.context import COOKIE, Sessions
from triagemq.page.frame import render, sparkline, style_sheet
from triagemq.page.pages.network import network_map
from triagemq.page.pages.situation import chosen, responders
from triagemq.page.readings import Reading, Readings
from triagemq.page.values import LatestValues, Value, situation
from triagemq.plan.dataplane import PortCounters, QueueCounters


def test_figures_of_a_class_are_those_of_the_last_seconds_together() -> None:
    async def run() -> list[dict[str, Any]]:
        live, before = Live(), _measured(0, 0, 0)
        reports = [Received(30, 3.0, 0.2, {1: 30}), None, Received(10, 4.0, 0.4, {1: 10})]
        for second, (offered, sent, report) in enumerate(
            zip((10, 40, 40), (10, 20, 20), reports, strict=True)
        ):
            if report is not None:
                live.received(Assignment(1, {"t": 0}, {"t": 0.0}), {"t": report})
            now = _measured(second + 1, offered, sent)
            forecast = {"classes": [{"priority_class": 0, "success_rate": 0.5}]}
            live.publish_second(before, now, Orders(), {}, forecast)
            before = now
        assert live.latest is not None
        classes: list[dict[str, Any]] = live.latest["classes"]
        return classes

    (found,) = asyncio.run(run())
    assert found["offered_per_second"] == pytest.approx(40 / 3)
    assert found["sent_share"] == 0.5
    assert found["mean_latency_seconds"] == pytest.approx((0.1 * 30 + 0.4 * 10) / 40)
    assert found["max_latency_seconds"] == 0.4
    assert found["forecast_success_rate"] == 0.5


def _measured(seconds: int, offered: int, sent: int) -> Measured:
    queues = (QueueCounters(packets_in=offered, packets_out=sent),)
    ports = {"port": PortCounters(queues, QueueCounters())}
    return Measured("epoch", seconds * 1_000_000_000, {}, {}, ports, {}, 0, 0, True)


def test_a_reading_holds_what_is_forecast_with_and_without_triage_and_what_was_decided(
    tmp_path: Path,
) -> None:
    async def run() -> tuple[Reading, int, Any]:
        async with running(tmp_path, network=Network.plain(2e5)) as here:
            topics = [f"hall/{number}" for number in range(4)]
            await here.client.post("/v1/publishers", json=publisher("sensors", *topics, rate=60.0))
            for name, weight in (("crew", 50), ("press", 1)):
                body = subscriber(name)
                body["subscriptions"] = [{"topic": topic, "utility": f"linear:{weight}"} for topic in topics]
                await here.client.post("/v1/subscribers", json=body)
            await here.settled()
            readings = Readings(here.coordinator)
            readings.look()
            readings.look()
            await here.until(
                lambda: (
                    readings.latest is not None
                    and readings.latest.without_triage is not None
                    and readings.latest.planned is not None
                )
            )
            listeners = here.coordinator.live.listeners
            await readings.close()
            assert readings.latest is not None
            assert here.coordinator.runtime.decided is not None
            drawn = network_map(here.coordinator.runtime.decided, readings.latest.ports)
            people, total = responders(here.coordinator)
            assert ([each.name for each in people], total) == (["crew", "press"], 2)
            assert people[1].thinned == 4
            assert len(people[1].most_thinned) == 3
            assert all(0 < lost <= 1 for _, lost in people[1].most_thinned)
            assert responders(here.coordinator, "RES")[1] == 1
            listed = render("situation_responders.html", rows=people, total=total)
            assert "and 1 more" in listed
            return readings.latest, listeners, drawn

    reading, listeners, drawn = asyncio.run(run())
    # However many look, one listens.
    assert listeners == 1
    assert reading.planned is not None
    assert reading.without_triage is not None
    assert reading.planned > reading.without_triage
    assert {row.kind for row in reading.decisions} >= {"replanned", "port_overloaded"}
    assert [(port["name"], port["subscribers"]) for port in drawn["ports"]] == [("port", 2)]


def test_rights_are_those_of_the_token_and_end_with_it(tmp_path: Path) -> None:
    class Asking:
        def __init__(self, number: str) -> None:
            self.cookies = {COOKIE: number}

    async def run() -> None:
        database = f"sqlite:///{tmp_path / 'coordinator.sqlite'}"
        async with running(tmp_path, access=True) as here:
            tokens = {role: make_token(database, role) for role in ("operator", "viewer", "subscriber")}
            sessions = Sessions(here.coordinator.service)
            with pytest.raises(UnauthorisedError):
                await sessions.sign_in("triage_nonsense")
            with pytest.raises(ForbiddenError):
                await sessions.sign_in(tokens["subscriber"])
            viewer = await sessions.of(Asking(await sessions.sign_in(tokens["viewer"])))  # type: ignore[arg-type]
            operator = await sessions.of(Asking(await sessions.sign_in(tokens["operator"])))  # type: ignore[arg-type]
            assert (viewer.may_change, operator.may_change) == (False, True)
            with pytest.raises(ForbiddenError, match="look and not change"):
                await sessions.require_operator(viewer)
            assert tokens["viewer"] not in repr(viewer)
            caller = await sessions.require_operator(operator)
            await here.coordinator.service.revoke_token(caller.owner)
            with pytest.raises(UnauthorisedError):
                await sessions.require_operator(operator)
            with pytest.raises(UnauthorisedError):
                await sessions.of(Asking("somebody else's"))  # type: ignore[arg-type]

    asyncio.run(run())


def test_who_has_signed_in_is_so_after_a_restart_until_signing_out(tmp_path: Path) -> None:
    class Asking:
        def __init__(self, number: str) -> None:
            self.cookies = {COOKIE: number}

    async def run() -> None:
        async with running(tmp_path, access=True) as here:
            token = make_token(f"sqlite:///{tmp_path / 'coordinator.sqlite'}", "operator")
            number = await Sessions(here.coordinator.service).sign_in(token)
        # Nobody who reads the file gets in by it.
        stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
        assert number.encode() not in stored
        assert token.encode() not in stored
        async with running(tmp_path, access=True) as here:
            sessions, asking = Sessions(here.coordinator.service), Asking(number)
            found = await sessions.of(asking)  # type: ignore[arg-type]
            assert (found.secret, found.may_change) == (token, True)
            await sessions.sign_out(asking)  # type: ignore[arg-type]
            with pytest.raises(UnauthorisedError):
                await sessions.of(asking)  # type: ignore[arg-type]

    asyncio.run(run())


def test_late_and_missing_topics_are_told_from_those_that_are_awaited() -> None:
    values = {"floor-1/smoke": Value(100.0, b"0.1", 3), "floor-2/smoke": Value(109.5, b"0.2", 3)}
    rates = {"floor-1/smoke": 1.0, "floor-2/smoke": 1.0, "floor-2/noise": 2.0, "yard": 0.01}
    rows = situation(values, rates, since=100.0, now=110.0)
    assert {row.topic: row.state for row in rows} == {
        "floor-1/smoke": "late",
        "floor-2/smoke": "fresh",
        "floor-2/noise": "missing",
        "yard": "awaited",
    }
    assert [row.topic for row in chosen(rows, "floor-2", "everything", False)] == [
        "floor-2/noise",
        "floor-2/smoke",
    ]
    assert [row.topic for row in chosen(rows, "everything", "smoke", True)] == ["floor-1/smoke"]


def test_a_message_of_the_broker_is_the_latest_value_of_its_topic() -> None:
    class Message:
        topic, payload = b"hall/smoke", b"0.25"

    values = LatestValues()
    values.mqtt_message(None, Message)  # type: ignore[arg-type]
    Message.payload = bytes(20)
    values.mqtt_message(None, Message)  # type: ignore[arg-type]
    assert values.by_topic["hall/smoke"].text == "20 bytes"


def test_the_page_has_the_colours_of_the_report_for_light_and_dark() -> None:
    sheet = style_sheet()
    assert sheet.count("--level-0: ") == 2
    assert "body.body--dark" in sheet


def test_a_line_of_one_value_is_no_line() -> None:
    assert "path" not in sparkline([1.0, None])
