"""A foreign web page in an operator's browser: what it may ask a coordinator without tokens."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.coordinator.coordinating import publisher, running, served
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin

EVIL = "http://evil.example"


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example", "[::1", "[x]"],
)
def test_a_name_that_a_stranger_points_here_is_refused_for_reading_and_changing(
    tmp_path: Path, host: str
) -> None:
    async def run() -> None:
        async with running(tmp_path) as here:
            headers = {"Host": host, "Origin": f"http://{host}"}
            for method, path in (
                ("GET", "/v1/health"),
                ("PUT", "/v1/publishers/p"),
                ("DELETE", "/v1/publishers/p"),
            ):
                answer = await here.client.request(method, path, headers=headers)
                assert answer.status_code == 421
                assert "--advertise" in answer.json()["detail"]

    asyncio.run(run())


@pytest.mark.parametrize(
    "host", ["localhost:8080", "127.0.0.1", "[::1]:8080", "192.0.2.7:8080", "hall.example"]
)
def test_its_own_names_and_addresses_are_answered(tmp_path: Path, host: str) -> None:
    async def run() -> None:
        async with running(tmp_path, host_names=["Hall.example"]) as here:
            own = {"Host": host, "Origin": f"http://{host}"}
            assert (await here.client.get("/v1/health", headers=own)).status_code == 200
            made = await here.client.post("/v1/publishers", json=publisher("p", "a"), headers=own)
            assert made.status_code == 201

    asyncio.run(run())


@pytest.mark.parametrize("origin", [EVIL, "null", "http://127.0.0.1:3000", "http://localhost"])
def test_a_page_of_another_origin_changes_nothing(tmp_path: Path, origin: str) -> None:
    async def run() -> None:
        async with running(tmp_path) as here:
            assert (await here.client.post("/v1/publishers", json=publisher("p", "a"))).status_code == 201
            foreign = {"Origin": origin, "Content-Type": "text/plain"}
            body = json.dumps(publisher("q", "a"))
            for method, path in (
                ("POST", "/v1/publishers"),
                ("PUT", "/v1/publishers/p"),
                ("DELETE", "/v1/publishers/p"),
            ):
                answer = await here.client.request(method, path, content=body, headers=foreign)
                assert answer.status_code == 403
            assert (await here.client.get("/v1/publishers")).json() == ["p"]

    asyncio.run(run())


def test_pages_open_neither_the_live_figures_nor_a_gateways_channel(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as here, served(here.app) as address:
            own, port = Origin(f"http://{address}"), int(address.rpartition(":")[2])
            for path, host, origin in (
                ("/v1/live", "127.0.0.1", EVIL),
                ("/v1/live", "127.0.0.1", "null"),
                ("/v1/live", "evil.example", None),
                ("/v1/live", "evil.example", f"http://evil.example:{port}"),
                ("/v1/gateways/evil/channel", "127.0.0.1", EVIL),
                ("/v1/gateways/evil/channel", "127.0.0.1", own),
                ("/v1/gateways/evil/channel", "evil.example", None),
            ):
                said = None if origin is None else Origin(origin)
                opening = connect(f"ws://{host}:{port}{path}", host="127.0.0.1", port=port, origin=said)
                with pytest.raises(InvalidStatus) as refused:
                    await opening
                assert refused.value.response.status_code == 403
            async with connect(f"ws://{address}/v1/live", origin=own):
                pass
            assert [each.name for each in here.coordinator.runtime.gateways] == ["gateway"]

    asyncio.run(run())


def test_answers_may_not_be_framed_by_others_nor_be_taken_for_something_else(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as here:
            for path in ("/v1/health", "/v1/nothing"):
                headers = (await here.client.get(path)).headers
                assert "frame-ancestors 'self'" in headers["content-security-policy"]
                assert headers["x-frame-options"] == "SAMEORIGIN"
                assert headers["x-content-type-options"] == "nosniff"

    asyncio.run(run())


def test_with_tokens_any_name_will_do_and_foreign_pages_still_change_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path, access=True) as here:
            named = {"Host": "hall.example"}
            assert (await here.client.get("/v1/health", headers=named)).status_code == 200
            answer = await here.client.post(
                "/v1/publishers", json=publisher("p", "a"), headers={"Origin": EVIL}
            )
            assert answer.status_code == 403

    asyncio.run(run())
