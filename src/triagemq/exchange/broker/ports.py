"""Where a broker of ours listens: at the same address again after every start, which its directory remembers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triagemq.errors import BrokerError
from triagemq.exchange.broker.address import BrokerAddress
from triagemq.exchange.private_files import write_private

_FILE = "listens.json"
# One that was killed a moment ago may still have it.
_PATIENCE_SECONDS = 2.0
_PAUSE_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class FurtherListener:
    """Where a broker of ours is reached by others; with a certificate (PEM files) it speaks TLS there.

    Mosquitto takes a renewed certificate into use at once, the embedded broker when it is started again.
    """

    host: str
    port: int
    certificate: str | None = None
    private_key: str | None = None

    @property
    def address(self) -> BrokerAddress:
        """For those others."""
        return BrokerAddress(self.host, self.port, tls=self.certificate is not None)


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def had_before(directory: Path) -> tuple[int | None, tuple[str, int] | None]:
    """The gateway's own port and where others reached it, of the broker with this directory; None for what is unknown.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     remember(Path(folder), 40123, FurtherListener("127.0.0.1", 1883))
    ...     had_before(Path(folder)), had_before(Path(folder) / "new")
    ((40123, ('127.0.0.1', 1883)), (None, None))
    """
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        known: dict[str, Any] = json.loads((directory / _FILE).read_text(encoding="utf-8"))
        others = known["others"]
        return int(known["port"]), None if others is None else (str(others[0]), int(others[1]))
    return None, None


def remember(directory: Path, port: int, further: FurtherListener | None) -> None:
    """For the next start."""
    others = None if further is None else (further.host, further.port)
    write_private(directory / _FILE, json.dumps({"port": port, "others": others}))


async def to_be_had(host: str, port: int, given_by: str) -> None:
    """BrokerError if something else listens there and stays; `given_by` is the option that says where."""
    deadline = asyncio.get_running_loop().time() + _PATIENCE_SECONDS
    while True:
        try:
            family, kind, protocol, _, place = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            with socket.socket(family, kind, protocol) as probe:
                # As brokers do: connections of before that are ending do not matter.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(place)
            return
        except OSError as error:
            if asyncio.get_running_loop().time() > deadline:
                raise BrokerError(
                    f"cannot listen on {host}:{port}: {error.strerror or error}; "
                    f"choose another {given_by} HOST:PORT"
                ) from None
        await asyncio.sleep(_PAUSE_SECONDS)
