"""The front of a gateway: the port where MQTT clients connect instead of at the broker."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import ssl
import sys
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from triagemq.addresses import place
from triagemq.broker.address import BrokerAddress
from triagemq.certificates import LOOK_EVERY_SECONDS, RenewalWatch
from triagemq.channel.messages import ObservedClient
from triagemq.errors import GatewayError
from triagemq.gateway.core.messages import RecentPublications
from triagemq.gateway.core.sessions import Identify
from triagemq.gateway.core.state import Gone, Present
from triagemq.gateway.front.broker_leg import BrokerLeg
from triagemq.gateway.front.connection import ClientConnection
from triagemq.gateway.front.downlink import HEADER_BYTES, MTU_BYTES
from triagemq.gateway.sockets import StreamToken
from triagemq.plan.dataplane import FlowKey, OutgoingPacket, SetPort
from triagemq.trace.schema import Outcome
from triagemq.waiting import Tasks

if TYPE_CHECKING:
    from triagemq.gateway.core import GatewayCore
    from triagemq.plan.dataplane import Egress, TransmitOutcome

_SEGMENT_SECONDS, _PACKED_SECONDS = 0.005, 0.010
_MOST_HALF_OPEN = 1_000
_FEWEST_WAITING = 8
_DIAL_SECONDS = _HANDSHAKE_SECONDS = 10.0
_BACKLOG = 1_024
_LOST_LINE = (
    "the broker does not speak MQTT 5: of clients of the front it sends a few unacknowledged messages at a time only, "
    "so that important ones may wait in it behind others"
)


class Front:
    """`start`, then `close`. It is used in the event loop of its gateway, whose `core` counts and records.

    `presence` gets the addresses of its clients, `plane` the packets to them, whose `settled` it calls (or the
    gateway's); without one they leave at once. `port_of` finds the output port of a client. With `marks_control` they
    bear the mark of control packets: what paces them is here, not in the queues behind the gateway.
    """

    def __init__(
        self,
        core: GatewayCore,
        broker: BrokerAddress,
        listen: tuple[str, int],
        *,
        tick: Callable[[], None],
        presence: Callable[[Present | Gone], None],
        identify: Identify,
        plane: Egress | None = None,
        port_of: Callable[[FlowKey], SetPort | None] = lambda key: None,
        marks_control: bool = False,
        certificate: tuple[str, str] | None = None,
        most_packet_bytes: int = 16 << 20,
    ) -> None:
        self.core = core
        self.tick = tick
        self.broker_version = broker.version
        self.marks_control = marks_control
        self.most_packet_bytes = most_packet_bytes
        self._listen = listen
        # Users are the clients' own.
        self._broker = replace(broker, user=None, password=None)
        self._presence = presence
        self._identify = identify
        self.plane = plane
        self.port_of = port_of
        self._certificate = certificate
        self._tasks = Tasks()
        self._server: asyncio.Server | None = None
        self._context: ssl.SSLContext | None = None
        self._connections: dict[ClientConnection, None] = {}
        self._half_open: dict[ClientConnection, None] = {}
        self._at_host: Counter[str] = Counter()
        self._clients: dict[str, ClientConnection] = {}
        # How many are at each output port; None until that is looked up again.
        self._at_port: Counter[str] | None = None
        self._free_numbers: list[int] = []
        self._packets: list[OutgoingPacket] = []
        self._writing: list[ClientConnection] = []
        self._flush_is_due = self._is_flushing = False

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        assert self._server is not None
        host, port, *_ = self._server.sockets[0].getsockname()
        return host, port

    @property
    def clients(self) -> Collection[ClientConnection]:
        """Those that the broker has let in."""
        return self._clients.values()

    @property
    def round_trips(self) -> dict[str, float]:
        """Seconds to clients and back, by client id, as TCP measures them."""
        found = ((client_id, client.round_trip_seconds) for client_id, client in self._clients.items())
        return {client_id: seconds for client_id, seconds in found if seconds is not None}

    async def start(self) -> None:
        """Listen; GatewayError if the address is not to be had or the certificate cannot be used."""
        host, port = self._listen
        _raise_descriptor_limit()
        loop = asyncio.get_running_loop()
        self._broker_context = self._broker.ssl_context()
        if self._certificate is not None:
            self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            self._load()
            watch = RenewalWatch(self._certificate, self._load, _log)
            self._tasks.start(_keep_looking(watch))
        try:
            self._server = await loop.create_server(
                lambda: ClientConnection(self),
                host,
                port,
                ssl=self._context,
                backlog=_BACKLOG,
                ssl_handshake_timeout=None if self._context is None else _HANDSHAKE_SECONDS,
            )
        except OSError as error:
            raise GatewayError(
                f"cannot listen on {place(host, port)}: {error.strerror or error}; choose another --front HOST:PORT"
            ) from error
        self.core.publications.recent = RecentPublications()

    async def close(self) -> None:
        """Stop: clients of MQTT 5 get DISCONNECT, and all may come back."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.shut()
        await self._tasks.close()

    def rerank(self) -> None:
        """A new plan is in force."""
        self._at_port = None
        for connection in self._connections:
            connection.rerank()

    def identify_again(self) -> None:
        """Client ids have come to mean other names."""
        for client_id, client in self._clients.items():
            client.subscriber = self._identify(client_id)[0]

    def _load(self) -> None:
        assert self._context is not None
        assert self._certificate is not None
        try:
            self._context.load_cert_chain(*self._certificate)
        except (OSError, ssl.SSLError) as error:
            raise GatewayError(
                f"TLS cannot use {' and '.join(self._certificate)}: {error.strerror or error}"
            ) from error

    # For connections.

    def made(self, connection: ClientConnection) -> bool:
        """A client has connected; False if there is no room for it."""
        host, policy = connection.endpoint[0], self.core.settings.policy
        self._connections[connection] = None
        connection.number = self._free_numbers.pop() if self._free_numbers else len(self._connections)
        self._at_host[host] += 1
        if (
            self._at_host[host] > policy.clients_per_address(host)
            or len(self._connections) > policy.maximum_clients
        ):
            self.core.counters.rejected["mqtt_too_many_clients"] += 1
            return False
        self._half_open[connection] = None
        if len(self._half_open) > _MOST_HALF_OPEN:
            self.core.counters.rejected["mqtt_half_open"] += 1
            next(iter(self._half_open)).abort()
        return True

    def accepted(self, connection: ClientConnection) -> None:
        """The broker has let a client in; one with the same id is out."""
        self._half_open.pop(connection, None)
        self._clients[connection.client_id] = connection
        connection.subscriber = self._identify(connection.client_id)[0]
        self.core.counters.connects += 1
        self.filters_changed(connection)

    def filters_changed(self, connection: ClientConnection) -> None:
        """What a client subscribes to is something else."""
        self._at_port = None
        if self._clients.get(connection.client_id) is connection and connection.session.is_accepted:
            self._presence(Present(connection.client_id, connection.endpoint, connection.subscribes))

    def observed(self, news: Present) -> ObservedClient:
        """A client that is there, with its filters and what it says that they are worth."""
        connection = self._clients[news.client_id]
        request, filters = connection.session.request, connection.session.filters
        user = "" if request is None else request.user
        return ObservedClient(
            news.client_id, news.endpoint[0], user, {name: each.intent for name, each in filters.items()}
        )

    def ended(self, connection: ClientConnection) -> None:
        """A client is gone."""
        if connection not in self._connections:
            return
        self._at_port = None
        del self._connections[connection]
        self._half_open.pop(connection, None)
        self._free_numbers.append(connection.number)
        self._at_host[connection.endpoint[0]] -= 1
        if not self._at_host[connection.endpoint[0]]:
            del self._at_host[connection.endpoint[0]]
        if self._clients.get(connection.client_id) is connection:
            del self._clients[connection.client_id]
            self._presence(Gone(connection.client_id))

    def broker_is_old(self) -> None:
        """The broker does not speak MQTT 5."""
        if self.broker_version == 5:
            self.broker_version = 4
            _log(_LOST_LINE)

    def start_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._tasks.start(work)

    async def connect(self, leg: BrokerLeg) -> None:
        """To the broker; OSError if there is none."""
        async with asyncio.timeout(_DIAL_SECONDS):
            transport, _ = await asyncio.get_running_loop().create_connection(
                lambda: leg, self._broker.host, self._broker.port, ssl=self._broker_context
            )
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def segment_bytes(self, key: FlowKey) -> int:
        """What the port of a client sends in a few milliseconds."""
        port = self.port_of(key)
        if port is None or port.bandwidth_bps == float("inf"):
            return 64 << 10
        return max(MTU_BYTES, int(port.bandwidth_bps / 8 * _SEGMENT_SECONDS))

    def most_waiting(self, key: FlowKey) -> float:
        """So many messages at QoS 0 wait for a client: a share of those that its port has room for."""
        most, port = self.core.settings.buffer_messages, self.port_of(key)
        if port is None:
            return most
        if self._at_port is None:
            ports = (self.port_of(FlowKey(*client.endpoint)) for client in self.clients)
            self._at_port = Counter(each.port for each in ports if each is not None)
        return min(most, max(_FEWEST_WAITING, port.buffer_packets / max(1, self._at_port[port.port])))

    def packed_bytes(self, key: FlowKey) -> int:
        """So many octets of several messages go in one packet."""
        port = self.port_of(key)
        if port is None or port.bandwidth_bps == float("inf"):
            return MTU_BYTES
        return min(MTU_BYTES, int(port.bandwidth_bps / 8 * _PACKED_SECONDS) - HEADER_BYTES)

    # Packets.

    def send(self, packet: OutgoingPacket) -> None:
        """Into the output port of its client, with all others of the moment."""
        self._packets.append(packet)
        self._flush_soon()

    def writes(self, connection: ClientConnection) -> None:
        """A client has octets to be written."""
        self._writing.append(connection)
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flush_is_due and not self._is_flushing:
            self._flush_is_due = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Hand everything over: packets to ports, octets to sockets."""
        self._flush_is_due = False
        if self._is_flushing:
            return
        self._is_flushing = True
        try:
            while self._packets or self._writing:
                packets, self._packets = self._packets, []
                if packets:
                    self._send(packets)
                writing, self._writing = self._writing, []
                for connection in writing:
                    connection.write_out()
        finally:
            self._is_flushing = False

    def _send(self, packets: list[OutgoingPacket]) -> None:
        if self.plane is not None:
            self.plane.send(packets)
            return
        packets.sort(key=lambda packet: -1 if packet.treatment is None else packet.treatment.priority_class)
        for packet in packets:
            if packet.connection is not None:
                packet.connection.transmit(packet)
        self.settled([(packet.token, Outcome.delivered, None, None) for packet in packets if packet.token])

    def settled(self, outcomes: Sequence[TransmitOutcome]) -> None:
        """What a data plane of the front's own did with some packets."""
        self.tick()
        for token, outcome, enqueued_ns, dequeued_ns in outcomes:
            if isinstance(token, StreamToken):
                token.settled(
                    outcome,
                    -1 if enqueued_ns is None else enqueued_ns,
                    -1 if dequeued_ns is None else dequeued_ns,
                )


def _raise_descriptor_limit() -> None:
    """Each client takes two descriptors, and the usual limit is 1,024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _keep_looking(watch: RenewalWatch) -> None:
    while True:
        await asyncio.sleep(LOOK_EVERY_SECONDS)
        watch.look()


def _log(text: str) -> None:
    # The log may be on the disk that is full.
    with contextlib.suppress(OSError):
        print(f"front: {text}", file=sys.stderr, flush=True)
