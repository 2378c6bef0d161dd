"""The control channel on a real Unix socket: answers, refusals, garbage, slow readers, a gateway that comes back."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from triagemq.channel import link as control_server
from triagemq.channel.grants import Grant, Grants
from triagemq.channel.link import ControlServer, GatewayLink
from triagemq.channel.messages import (
    ControlError,
    DesiredState,
    GatewayNews,
    GatewayRefusalError,
    PresentClient,
    encode_line,
    parse_state,
    reachable,
)
from triagemq.channel.orders import Orders
from triagemq.plan.dataplane import SetFlow, SetPort


class Gateway:
    """Answers as a gateway would, and remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.sessions: list[PresentClient] = []
        self.state = DesiredState()

    async def answer(self, what: str, request: dict[str, Any], line: bytes) -> dict[str, Any]:
        self.told.append((what, request))
        match what:
            case "state":
                self.state = parse_state(request).after(self.state)
                return {"version": self.state.version}
            case "version":
                return {"author": self.state.author, "version": self.state.version}
            case "sessions":
                return {"sessions": self.sessions}
            case "save_broker":
                await asyncio.sleep(3600)
            case "large":
                return {"octets": "x" * 1_000_000}
        if what == "decisions":
            return {}
        raise ControlError(f"{what!r} is nothing that a gateway does")


def run(what: Callable[[Path], Awaitable[None]], directory: Path) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(100):
            await what(directory / "control.sock")

    asyncio.run(bounded())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def test_orders_of_ninety_thousand_flows_arrive_whole(tmp_path: Path) -> None:
    orders = Orders(
        7,
        {"radio": SetPort("radio", 1e9, float("inf"), 8)},
        {
            name: SetFlow(name, "radio", number, number % 8, 1 / (number + 1))
            for number, name in enumerate(f"subscriber-{n}~0" for n in range(90_000))
        },
        {f"subscriber-{n}": {"building/3/smoke": (0, 0.5)} for n in range(90_000)},
    )

    async def check(path: Path) -> None:
        gateway = Gateway()
        server = ControlServer(path, gateway.answer)
        await server.start()
        link = GatewayLink(path)
        link.start()
        assert await link.wait_connected(10)
        grants = Grants(True, {"ff-7.k3y": Grant(subscribe=("a/#",), name="ff-7")})
        first = DesiredState("me", 1, orders, grants)
        await link.send_state(None, first)
        assert gateway.state == first
        # What follows is told as a change, and not on what somebody else has told meanwhile.
        topics = {**orders.topics, "subscriber-7": {"building/3/smoke": (1, 0.0)}}
        del topics["subscriber-9"]
        second = replace(first, version=2, orders=replace(orders, generation=8, topics=topics))
        await link.send_state(first, second)
        assert gateway.state == second
        assert gateway.told[-1][1]["orders"] == {
            "generation": 8,
            "ports": None,
            "flows": {},
            "topics": {"subscriber-7": {"building/3/smoke": [1, 0.0]}, "subscriber-9": None},
            "copies": {},
            "limiters": {},
            "promised": None,
            "direct": {},
            "peers": None,
            "filters": {},
            "terms": {},
        }
        third = replace(second, version=3, grants=Grants(True, {"pump.k3y": Grant(publish=("b",))}))
        await link.send_state(second, third)
        assert gateway.state == third
        assert set(gateway.told[-1][1]) == {"id", "do", "author", "version", "base", "grants"}
        gateway.state = replace(third, author="somebody else")
        with pytest.raises(GatewayRefusalError, match="follows another state"):
            await link.send_state(third, replace(third, version=4))
        assert await link.following() == ("somebody else", 3)
        await link.send_state(None, first)
        assert gateway.state == first
        await link.close()
        await server.close()
        assert not path.exists()

    run(check, tmp_path)


def test_a_refusal_is_an_error_in_words_and_the_link_goes_on(tmp_path: Path) -> None:
    async def check(path: Path) -> None:
        gateway = Gateway()
        server = ControlServer(path, gateway.answer)
        await server.start()
        link = GatewayLink(path)
        with pytest.raises(ControlError, match="not there"):
            await link.measure()
        link.start()
        assert await link.wait_connected(10)
        with pytest.raises(ControlError, match="nothing that a gateway does"):
            await link.measure()
        await link.decisions([{"decided_ns": 1, "kind": "k", "subject": "s", "reason": "r"}])
        assert gateway.told[-1][0] == "decisions"
        await link.close()
        await server.close()

    run(check, tmp_path)


def test_a_gateway_that_does_not_answer_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    async def check(path: Path) -> None:
        server = ControlServer(path, Gateway().answer)
        await server.start()
        link = GatewayLink(path, timeout_seconds=0.2)
        link.start()
        assert await link.wait_connected(10)
        with pytest.raises(ControlError, match="did not answer"):
            await link.save_broker()
        await link.close()
        await server.close()

    run(check, tmp_path)


def test_the_link_comes_back_and_says_so(tmp_path: Path) -> None:
    async def check(path: Path) -> None:
        connections: list[tuple[str, int]] = []

        async def on_connect() -> None:
            connections.append(await link.following())

        link = GatewayLink(path)
        link.start(on_connect)
        seen: list[GatewayNews | None] = []

        async def watch() -> None:
            while True:
                seen.append(await link.news(seen[-1] if seen else None))

        watching = asyncio.create_task(watch())
        for number in range(1, 4):
            gateway = Gateway()
            server = ControlServer(path, gateway.answer)
            server.push(GatewayNews("epoch", number))
            await server.start()
            await until(lambda number=number: len(connections) == number and len(seen) == 3 * number - 2)  # type: ignore[misc]
            assert link.connected
            asking = asyncio.create_task(link.save_broker())
            await until(lambda gateway=gateway: gateway.told[-1][0] == "save_broker")  # type: ignore[misc]
            server.push(GatewayNews("epoch", number, 7))
            await until(lambda number=number: len(seen) == 3 * number - 1)  # type: ignore[misc]
            assert await link.news(seen[-1], 0.01) == seen[-1]
            await server.close()
            with pytest.raises(ControlError, match="lost"):
                await asking
            await until(lambda number=number: len(seen) == 3 * number)  # type: ignore[misc]
            assert not link.connected
        assert seen == [
            news
            for number in range(1, 4)
            for news in (GatewayNews("epoch", number), GatewayNews("epoch", number, 7), None)
        ]
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await link.close()

    run(check, tmp_path)


@pytest.mark.parametrize(
    "line", [b"garbage", b"[]", b'{"id": 1}', b'{"do": 7}', b"\xff\xfe", b"[" * 100_000, b"", b"null"]
)
def test_garbage_is_answered_and_harms_nobody(tmp_path: Path, line: bytes) -> None:
    async def check(path: Path) -> None:
        server = ControlServer(path, Gateway().answer)
        await server.start()
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(line + b"\n" + encode_line({"id": 9, "do": "sessions"}))
        assert json.loads(await reader.readline())["ok"] is False
        assert json.loads(await reader.readline()) == {"id": 9, "ok": True, "sessions": []}
        writer.close()
        await server.close()

    run(check, tmp_path)


def test_a_line_without_end_costs_its_sender_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_server, "LARGEST_LINE_BYTES", 10_000)

    async def check(path: Path) -> None:
        server = ControlServer(path, Gateway().answer)
        await server.start()
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b"x" * 100_000)
        assert json.loads(await reader.readline())["error"] == "the line is too long"
        assert await reader.read() == b""
        writer.close()
        await server.close()

    run(check, tmp_path)


def test_who_does_not_read_delays_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_server, "_MOST_UNREAD_BYTES", 100_000)

    async def check(path: Path) -> None:
        server = ControlServer(path, Gateway().answer)
        await server.start()
        lazy = []
        for what in ("version", "large"):
            one = socket.socket(socket.AF_UNIX)
            with reachable(path) as name:
                one.connect(name)
            one.setblocking(False)
            one.send(encode_line({"id": 1, "do": what}) * (1 if what == "version" else 50))
            lazy.append(one)
        link = GatewayLink(path)
        link.start()
        assert await link.wait_connected(10)
        await until(lambda: len(server._clients) == 3)
        for number in range(10_000):
            server.push(GatewayNews("x" * 100, number))
            await asyncio.sleep(0)
        last = GatewayNews("x" * 100, 9_999)
        while await link.news(None) != last:
            await asyncio.sleep(0)
        assert len(server._clients) == 1
        assert not (await link.sessions()).sessions
        await link.close()
        await server.close()
        for one in lazy:
            one.close()

    run(check, tmp_path)


def test_a_path_too_long_for_a_socket_will_do(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 80) / ("e" * 80)
    deep.mkdir(parents=True)

    async def check(path: Path) -> None:
        server = ControlServer(path, Gateway().answer)
        await server.start()
        link = GatewayLink(path)
        link.start()
        assert await link.wait_connected(10)
        assert not (await link.sessions()).sessions
        assert path.stat().st_mode & 0o777 == 0o600
        await link.close()
        await server.close()
        with pytest.raises(ControlError, match="control socket"):
            await ControlServer(path / "nowhere" / "socket", Gateway().answer).start()

    run(check, deep)
