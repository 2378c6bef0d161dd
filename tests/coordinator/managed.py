"""The managed gateway as a process, with its control channel, for tests in real time."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tests.gateway.real import Child
from tests.ports import own_port

from triagemq.channel.grants import Grant, Grants
from triagemq.channel.link import GatewayLink
from triagemq.channel.messages import DesiredState, encode_line, reachable
from triagemq.channel.orders import Orders

Found = TypeVar("Found")


class ManagedProcess:
    """`python -m triagemq.gateway.process` on a fixed port; `kill` and `start` as often as wanted."""

    def __init__(self, directory: Path, broker: str, **config: Any) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.port = own_port(kind=socket.SOCK_DGRAM)
        self.directory = directory
        self.socket = directory / "control.sock"
        self._config = directory / "config.json"
        self._config.write_text(
            json.dumps(
                {
                    "listen": f"127.0.0.1:{self.port}",
                    "broker": broker,
                    "state": str(directory / "state"),
                    "control": str(self.socket),
                    **config,
                }
            )
        )
        self._version = 0
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "triagemq.gateway.process", str(self._config)]
        self.child = Child(command, self.directory / "gateway.log")
        self.ready = json.loads(self.child.line(60.0))
        assert self.ready["ready"]
        assert self.ready["broker_reached"]

    def kill(self) -> None:
        self.child.kill()

    def end(self) -> None:
        self.child.end()

    def log(self) -> str:
        return (self.directory / "gateway.log").read_text()

    def grant(self, grants: Mapping[str, Grant], *, required: bool = True) -> None:
        """Tell it who may do what, over a connection of its own."""
        self._version += 1
        state = DesiredState("tests", self._version, None, Grants(required, grants))
        self.ask(lambda link: link.send_state(None, state))

    def ask(self, what: Callable[[GatewayLink], Awaitable[Found]]) -> Found:
        """One question over a connection of its own."""

        async def run() -> Found:
            link = GatewayLink(self.socket)
            link.start()
            try:
                assert await link.wait_connected(30.0)
                return await what(link)
            finally:
                await link.close()

        return asyncio.run(run())


class Control:
    """A blocking client of the control channel."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(60.0)
        with reachable(path) as name:
            self._socket.connect(name)
        self._lines = self._socket.makefile("rb")
        self.events: list[dict[str, Any]] = []
        self._version = 0

    def ask(self, what: str, **arguments: Any) -> dict[str, Any]:
        self._socket.sendall(encode_line({"id": 1, "do": what, **arguments}))
        while "id" not in (answer := self.line()):
            self.events.append(answer)
        return answer

    def line(self) -> dict[str, Any]:
        return dict(json.loads(self._lines.readline()))

    def state(self, **parts: Any) -> dict[str, Any]:
        """Tell it whole orders or grants, or a change with its `base`."""
        self._version += 1
        return self.ask("state", author="test", version=self._version, **parts)

    def orders(self, orders: Orders) -> None:
        assert self.state(orders=orders)["ok"]
        assert self.ask("measure")["generation"] == orders.generation

    def end(self) -> None:
        self._lines.close()
        self._socket.close()
