"""Where switches and this process meet: it listens for them.

Whoever can connect could be any switch. So connections come from allowed addresses only, and beyond this machine over
TLS, where both sides show a certificate (SwitchTls).
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from triagemq.addresses import host_and_port
from triagemq.errors import NetworkError, ParameterError

Place = Path | tuple[str, int]
"""A unix socket, or an address and a TCP port."""

OnConnection = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Serves one connection, and returns when it has ended."""


def parse_place(text: str) -> Place:
    """
    >>> parse_place("tcp:127.0.0.1:6653")
    ('127.0.0.1', 6653)
    >>> parse_place("unix:/run/switch/core.mgmt")
    PosixPath('/run/switch/core.mgmt')
    """
    scheme, _, rest = text.partition(":")
    if scheme == "unix" and rest:
        return Path(rest)
    if scheme == "tcp":
        with contextlib.suppress(ParameterError):
            return host_and_port(rest, lowest_port=0)
    raise NetworkError(f"{text!r} is no place to meet switches; write tcp:127.0.0.1:6653 or unix:/path")


@dataclass(frozen=True, slots=True)
class SwitchTls:
    """Files: our certificate and its private key, and the authority that has signed the certificates of switches."""

    certificate: str | Path
    private_key: str | Path
    authority: str | Path

    def context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.authority)
            context.load_cert_chain(self.certificate, self.private_key)
        except (OSError, ssl.SSLError) as error:
            raise NetworkError(f"the certificates for switches cannot be used: {error}") from None
        context.verify_mode = ssl.CERT_REQUIRED
        return context


def parse_allowed(texts: Sequence[str]) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    """
    >>> parse_allowed(["10.0.0.7", "192.0.2.0/24"])
    [IPv4Network('10.0.0.7/32'), IPv4Network('192.0.2.0/24')]
    """
    try:
        return [ipaddress.ip_network(each) for each in texts]
    except ValueError as error:
        raise ParameterError("switch addresses", f"must be IP addresses or networks: {error}") from None


class Meeting:
    """Listens at some places until it is closed.

    `allowed` are the addresses and networks that TCP connections may come from; all may if there are none.
    """

    def __init__(
        self, on_connection: OnConnection, *, tls: SwitchTls | None = None, allowed: Sequence[str] = ()
    ) -> None:
        self._on_connection = on_connection
        self._context = None if tls is None else tls.context()
        self._allowed = parse_allowed(allowed)
        self.refused: Counter[str] = Counter()
        """Connections that were closed before a word was said, by reason."""
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.listening: list[Place] = []

    async def open(self, listen: Sequence[Place]) -> None:
        try:
            for place in listen:
                self._servers.append(await self._listen(place))
        except OSError as error:
            await self.close()
            raise NetworkError(f"cannot listen for switches at {place}: {error.strerror or error}") from None

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _listen(self, place: Place) -> asyncio.Server:
        if isinstance(place, Path):
            # A killed process leaves its socket behind.
            place.unlink(missing_ok=True)
            self.listening.append(place)
            return await asyncio.start_unix_server(self._serve, place)
        server = await asyncio.start_server(self._serve, *place, ssl=self._context)
        self.listening.append(server.sockets[0].getsockname()[:2])
        return server

    def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._is_allowed(writer.get_extra_info("peername")):
            self.refused["address not allowed"] += 1
            writer.close()
            return
        task = asyncio.ensure_future(self._on_connection(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _is_allowed(self, peer: object) -> bool:
        """A unix socket has its file's permissions, and no peer address."""
        if not self._allowed or not isinstance(peer, tuple):
            return True
        address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in network for network in self._allowed)
