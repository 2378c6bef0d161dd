"""The other end of an OpenFlow connection, under the test's control: it says what the test makes it say."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from triagemq.network.openflow import encoding
from triagemq.network.openflow.decoding import PacketIn, PortDescription
from triagemq.network.openflow.rules import Rule
from triagemq.network.openflow.session import SessionTimes, SwitchSession

HELLO, ERROR, ECHO_REQUEST, ECHO_REPLY, FEATURES_REQUEST, FEATURES_REPLY = 0, 1, 2, 3, 5, 6
PACKET_IN, PORT_STATUS, MULTIPART_REQUEST, MULTIPART_REPLY, BARRIER_REQUEST, BARRIER_REPLY = (
    *(10, 12, 18, 19, 20, 21),
)
PORT = struct.Struct("!I4x6s2x16s8I")
QUICK = SessionTimes(answer_seconds=30, echo_seconds=0.05, silence_seconds=30)


def message(kind: int, body: bytes = b"", transaction: int = 0, version: int = 4) -> bytes:
    return struct.pack("!BBHI", version, kind, 8 + len(body), transaction) + body


def port(number: int, *, up: bool = True) -> bytes:
    return PORT.pack(number, bytes(6), b"veth%d" % number, 0, 0 if up else 1, 0, 0, 0, 0, 0, 0)


def flow_entry(rule: Rule, cookie: int, meter: int | None) -> bytes:
    """What a switch reports after it was told to put a rule: the same match and instructions."""
    match_and_instructions = encoding.flow_mod(rule, cookie, meter)[48:]
    head = struct.pack(
        "!HBxIIHHHH4xQQQ",
        *(48 + len(match_and_instructions), rule.table, 0, 0, rule.priority, 0, 0, 0, cookie, 5, 500),
    )
    return head + match_and_instructions


class Told:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.packets: list[PacketIn] = []
        self.ports: list[tuple[bool, PortDescription]] = []
        self.ends = 0

    def packet_in(self, session: SwitchSession, packet: PacketIn) -> None:
        self.packets.append(packet)

    def port_changed(self, session: SwitchSession, gone: bool, port: PortDescription) -> None:
        self.ports.append((gone, port))

    def closed(self, session: SwitchSession) -> None:
        self.ends += 1


class FakeSwitch:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def say(self, octets: bytes) -> None:
        self.writer.write(octets)

    async def hear(self) -> tuple[int, int, bytes]:
        """The next message: type, transaction, body."""
        _, kind, length, transaction = struct.unpack("!BBHI", await self.reader.readexactly(8))
        return kind, transaction, await self.reader.readexactly(length - 8)

    async def hear_kind(self, wanted: int) -> tuple[int, bytes]:
        while True:
            kind, transaction, body = await self.hear()
            if kind == wanted:
                return transaction, body

    async def shake_hands(self, datapath_id: int = 7, ports: bytes = b"") -> None:
        self.say(message(HELLO))
        transaction, _ = await self.hear_kind(FEATURES_REQUEST)
        self.say(message(FEATURES_REPLY, struct.pack("!QIBB2xII", datapath_id, 0, 254, 0, 0, 0), transaction))
        transaction, _ = await self.hear_kind(MULTIPART_REQUEST)
        self.say(message(MULTIPART_REPLY, struct.pack("!HH4x", 13, 0) + ports, transaction))


@asynccontextmanager
async def connection() -> AsyncIterator[tuple[tuple[asyncio.StreamReader, asyncio.StreamWriter], FakeSwitch]]:
    """Both ends of a TCP connection: streams for a session, and a switch."""
    arrived: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
    arrived = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.set_result((reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    switch = FakeSwitch(*await asyncio.open_connection(*server.sockets[0].getsockname()))
    streams = await arrived
    try:
        yield streams, switch
    finally:
        switch.writer.close()
        streams[1].close()
        server.close()
        await server.wait_closed()


@asynccontextmanager
async def session(
    ports: bytes = b"", times: SessionTimes = QUICK
) -> AsyncIterator[tuple[SwitchSession, FakeSwitch, Told, Counter[str]]]:
    async with connection() as (streams, switch):
        told, counters = Told(), Counter[str]()
        opened, _ = await asyncio.gather(
            SwitchSession(*streams, told, counters, times).open(), switch.shake_hands(ports=ports)
        )
        try:
            yield opened, switch, told, counters
        finally:
            opened.close()


class AnsweringSwitch(FakeSwitch):
    """Answers every request: it has no rules, no meters and these ports, and refuses messages of `refused` types."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        datapath_id: int = 7,
        ports: bytes = b"",
        refused: Collection[int] = (),
    ) -> None:
        super().__init__(reader, writer)
        self.heard: Counter[int] = Counter()
        self.hung = False
        self._datapath_id, self._ports, self._refused = datapath_id, ports, refused

    async def run(self) -> None:
        """Until the controller closes the connection."""
        self.say(message(HELLO))
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                kind, transaction, body = await self.hear()
                self.heard[kind] += 1
                if not self.hung:
                    self._answer(kind, transaction, body)

    def _answer(self, kind: int, transaction: int, body: bytes) -> None:
        if kind in self._refused:
            self.say(message(ERROR, struct.pack("!HH", 1, 11), transaction))
        elif kind == FEATURES_REQUEST:
            features = struct.pack("!QIBB2xII", self._datapath_id, 0, 254, 0, 0, 0)
            self.say(message(FEATURES_REPLY, features, transaction))
        elif kind == ECHO_REQUEST:
            self.say(message(ECHO_REPLY, body, transaction))
        elif kind == BARRIER_REQUEST:
            self.say(message(BARRIER_REPLY, transaction=transaction))
        elif kind == MULTIPART_REQUEST:
            (part,) = struct.unpack_from("!H", body)
            content = {13: self._ports, 11: struct.pack("!IIIBB2x", 0, 0, 0, 0, 0)}.get(part, b"")
            self.say(message(MULTIPART_REPLY, struct.pack("!HH4x", part, 0) + content, transaction))
