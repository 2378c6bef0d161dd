"""The gateway with its sockets, its clock and its files: everything that the core leaves to others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import socket
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triagemq.broker.address import BrokerAddress
from triagemq.clock import unix_clock
from triagemq.datagrams import Seal
from triagemq.errors import GatewayError
from triagemq.gateway.associations import DtlsListener
from triagemq.gateway.core import GatewayCore, GatewaySettings, MqttSnCore
from triagemq.gateway.core.broker_link import BrokerLink
from triagemq.gateway.core.delivery import rerank
from triagemq.gateway.core.handlers import begin_probing
from triagemq.gateway.core.restoring import restore
from triagemq.gateway.core.sessions import Identify, own_name
from triagemq.gateway.core.state import (
    Broadcast,
    CloseBroker,
    Gone,
    LogLine,
    OpenBroker,
    Present,
    SendControl,
    SendMany,
    SendPublish,
)
from triagemq.gateway.sockets import Sender, SocketPlane, bind_udp, received
from triagemq.gateway.store import GatewayStore
from triagemq.mqtt.connection import MqttConnection
from triagemq.mqtt.session import MqttSession
from triagemq.waiting import Tasks

if TYPE_CHECKING:
    from triagemq.dtls import ServerSecurity
    from triagemq.gateway.live_trace import LiveTrace
    from triagemq.plan.dataplane import Egress, OnTransmitted, TransmitOutcome

MakePlane = Callable[[socket.socket, "OnTransmitted", Callable[[], int]], "Egress"]
"""Makes a data plane that sends from this socket, reports to that, and takes the time from there."""

Presence = Callable[[Present | Gone], None]
"""Gets the endpoints of clients, before anything is sent there."""

_TRACE_EVERY_SECONDS = 0.5
_LOOK_EVERY_SECONDS = 0.5
_SYNC_EVERY_SECONDS = 0.2
_TRY_AGAIN_SECONDS = 0.5


class Gateway:
    """One gateway in the running event loop: `start`, then `wait` until it fails or is cancelled, then `close`.

    With `security` it speaks DTLS with its clients, and does not listen to those who do not. `listen_option` is the
    option that says where it listens.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        broker: BrokerAddress,
        listen: tuple[str, int],
        *,
        listen_option: str = "--listen",
        state: Path | None = None,
        trace: LiveTrace | None = None,
        make_plane: MakePlane | None = None,
        broadcast: tuple[str, int] | None = None,
        identify: Identify = own_name,
        presence: Presence | None = None,
        broker_boot: Path | None = None,
        security: ServerSecurity | None = None,
    ) -> None:
        self.clock = unix_clock()
        self._listen = (*listen, listen_option)
        self._broker = broker
        self._broadcast = broadcast
        self._trace = trace
        self._make_plane = make_plane
        self._store = None if state is None else GatewayStore(state)
        client_id = settings.broker_client_id
        if broker_boot is None:
            # Others may use the same broker. One of our own has given us an id that no other client has.
            unique = f"{client_id}-{secrets.token_hex(4)}"
            client_id = unique if self._store is None else self._store.broker_client_id(client_id, unique)
        self.core = MqttSnCore(
            replace(
                settings,
                broker_client_id=client_id,
                mqtt_version=broker.version,
                user=broker.user,
                password=broker.password,
            ),
            now_ns=self.clock(),
            stores=self._store is not None,
            observer=trace,
            identify=identify,
        )
        self.queue_rates: dict[str, list[int]] = {}
        """Of controlled ports, as they were in force last."""
        self._storing = None if self._store is None else Storing(self.core, self._store, _log)
        self._presence = presence
        self._peers: Mapping[str, BrokerAddress] = {}
        self.security = security
        self._dtls: DtlsListener | None = None
        self._boot = lambda: _text_of(broker_boot)
        self._connections: dict[MqttSession, tuple[MqttConnection, asyncio.Task[None]]] = {}
        self._tasks = Tasks()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._busy = False
        self._socket: socket.socket | None = None
        self._sender = Sender(self.core)
        self._failed: asyncio.Future[None] | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        assert self._socket is not None
        host, port, *_ = self._socket.getsockname()
        return host, port

    @property
    def seal(self) -> Seal | None:
        """With DTLS: makes of a datagram what leaves for an address, in the order of leaving."""
        return None if self._dtls is None else self._dtls.associations.seal

    @property
    def broker_is_connected(self) -> bool:
        """Can the broker be reached now?"""
        return self.core.link.available

    @property
    def storage_problem(self) -> str:
        """Why its state cannot be stored now, if that is so."""
        return "" if self._storing is None else self._storing.problem

    @property
    def broker_problem(self) -> str:
        """A sentence about what is wrong with the broker now; empty while it is there and stays."""
        connection = self._connection(self.core.link)
        problem = "" if connection is None else connection.problem
        if not problem:
            return ""
        at = f"the broker at {self._broker.host}:{self._broker.port}"
        if problem.startswith("the broker "):
            return at + problem.removeprefix("the broker")
        return f"{at} cannot be reached: {problem}"

    async def report_broker_problems(self, report: Callable[[str], None]) -> None:
        """Report what is wrong with the broker whenever that changes; until cancelled."""
        reported = ""
        while True:
            problem = self.broker_problem
            if problem != reported and (problem or self.broker_is_connected):
                report(f"{problem}; still trying" if problem else "the broker is there again")
                reported = problem
            await asyncio.sleep(_LOOK_EVERY_SECONDS)

    async def start(self) -> None:
        """Take the sessions up again, listen, and connect to the broker, now or as soon as it is there."""
        loop = asyncio.get_running_loop()
        self._failed = loop.create_future()
        self._socket = bind_udp(*self._listen)
        if self.security is not None:
            self._dtls = DtlsListener(self.security, self.core, self._socket)
        tables = {} if self._store is None else self._store.load()
        self.queue_rates = {port: json.loads(rates) for port, rates in tables.pop("queue_rates", ())}
        if self._make_plane is None:
            marks = self.core.settings.marks_classes
            plane = SocketPlane(self._socket, self._settled, seal=self.seal, marks_classes=marks)
            self._sender.attach(plane)
        else:
            self._sender.attach(self._make_plane(self._socket, self._settled, self.clock))
        if self._store is not None:
            restore(self.core, tables)
            if self._trace is not None:
                self._trace.store_outcomes_in(self.core.changes, tables["outcomes"])
        self.core.start()
        loop.add_reader(self._socket, self._readable)
        if self._trace is not None:
            self._start(_keep_tracing(self._trace))
        if self._store is not None:
            self._start(_keep_syncing(self._store))
        self._do()

    async def wait_for_broker(self, seconds: float) -> bool:
        """Wait until the broker has been reached."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.broker_is_connected:
                    await asyncio.sleep(0.01)
        return self.broker_is_connected

    async def wait(self) -> None:
        """Run until something fails that cannot be put right."""
        assert self._failed is not None
        # Shielded: a cancelled wait must not make it look as if it had failed.
        await asyncio.shield(self._failed)

    async def close(self, *, tell_clients: bool = False) -> None:
        """Stop. Sessions are stored and go on with the next start, unless clients get DISCONNECT."""
        if self._socket is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket)
        if tell_clients:
            self.core.stop()
        self._do()
        if self._timer is not None:
            self._timer.cancel()
        for session in list(self._connections):
            await self._disconnect(session)
        await self._tasks.close()
        self._sender.close()
        if self._dtls is not None:
            await self._dtls.close()
        self._socket.close()
        self._socket = None
        if self._failed is not None and self._failed.done() and not self._failed.cancelled():
            # Read here, so that the event loop does not report it as lost.
            self._failed.exception()
        try:
            if self._trace is not None:
                self._trace.finish(self.core)
        finally:
            if self._store is not None:
                with contextlib.closing(self._store):
                    self._store.save(self.core.changes.take())

    def change(self, how: Callable[[GatewayCore], None]) -> None:
        """Change something from outside, and do what follows from it."""
        self.tick()
        try:
            how(self.core)
        finally:
            self._do()

    def store_queue_rates(self, ports: Mapping[str, Sequence[int]]) -> None:
        """Those that are in force from now on are in force after a restart, too."""
        changed = {name: [*rates] for name, rates in ports.items() if self.queue_rates.get(name) != [*rates]}
        if not changed:
            return
        self.queue_rates |= changed

        def put(core: GatewayCore) -> None:
            for name, rates in changed.items():
                core.changes.put("queue_rates", (name, json.dumps(rates)))

        self.change(put)

    def fit_peers(self, addresses: Mapping[str, BrokerAddress], own_name: str) -> None:
        """Take what clients want from the brokers of other gateways, too; `own_name` is how they know this one."""
        self._peers = dict(addresses)
        logins = {
            name: self.core.login(f"triage-peer-{own_name}", address.user, address.password)
            for name, address in addresses.items()
        }
        self.change(lambda core: core.fit_peers(logins))
        self.change(begin_probing)

    @property
    def broker_round_trips(self) -> dict[str, float]:
        """Seconds to the brokers of other gateways and back, where that is known."""
        found = {}
        for name, link in self.core.peers.items():
            connection = self._connection(link)
            if connection is not None and (seconds := connection.round_trip_seconds) is not None:
                found[name] = seconds
        return found

    @property
    def client_round_trips(self) -> dict[str, float]:
        """Seconds to clients and back, by client id, where that is known."""
        return {
            session.client_id: min(session.round_trips)
            for session in self.core.by_endpoint.values()
            if session.round_trips
        }

    def _readable(self) -> None:
        assert self._socket is not None
        core = self.core
        self.tick()
        arrived = received(self._socket)
        for address, datagram in arrived if self._dtls is None else self._dtls.opened(arrived):
            try:
                core.datagram(address, datagram)
            except Exception as error:
                # One client's datagram must not end the service of all others; the loop's handler reports it.
                core.counters.rejected["internal_error"] += 1
                # Not its octets: a client id may be a key.
                kind = f"{len(datagram)} octets, {datagram[:1].hex()}"
                context = {"message": f"a datagram ({kind}...) from {address}", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)
        self._do()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Have something done in a task; what it cannot put right ends the gateway."""

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and isinstance(error := task.exception(), Exception):
                self._fail(error)

        task = self._tasks.start(work)
        task.add_done_callback(ended)
        return task

    def _connect(self, session: MqttSession, peer: str) -> None:
        if session not in self._connections:
            elsewhere = self._peers.get(peer)
            connection = MqttConnection(
                elsewhere or self._broker,
                session,
                before=self.tick,
                changed=self._changed,
                boot=self._boot if elsewhere is None else lambda: "",
            )
            self._connections[session] = connection, self._start(connection.run())

    async def _disconnect(self, session: MqttSession) -> None:
        connection, task = self._connections.pop(session)
        await connection.close()
        task.cancel()

    def _connection(self, link: BrokerLink) -> MqttConnection | None:
        connection, _ = self._connections.get(link.lanes[0], (None, None))
        return connection

    def _changed(self, connection: MqttConnection) -> None:
        if not connection.session.connected:
            connection.session.owner.mqtt_lost(connection.session)
        self._do()

    def tick(self) -> None:
        """Let the core know what time it is."""
        self.core.advance(self.clock())

    def _settled(self, outcomes: Sequence[TransmitOutcome]) -> None:
        self.tick()
        self._sender.settled(outcomes)
        self._do()

    def _due(self) -> None:
        self._timer = None
        self.tick()
        self._do()

    def _do(self) -> None:
        """Store what changed, then do what follows from it; in this order, or kill -9 would lose something."""
        if self._busy:
            return
        self._busy = True
        try:
            self._do_all()
        except Exception as error:
            self._fail(error)
        finally:
            self._busy = False

    def rerank(self) -> None:
        """A new plan is in force: what waits goes in the order that it wants."""
        for session in self.core.sessions.values():
            rerank(self.core, session)
        self._sender.rerank()

    def _do_all(self) -> None:
        core, sender = self.core, self._sender
        while True:
            if self._storing is not None:
                self._storing.keep(self._connections, core.now_ns)
            actions = core.take_actions()
            for action in actions:
                match action:
                    case SendMany():
                        sender.publish_many(action)
                    case SendPublish():
                        sender.publish(action)
                    case SendControl():
                        sender.control(action)
                    case OpenBroker(session, peer):
                        self._connect(session, peer)
                    case CloseBroker(session):
                        if session in self._connections:
                            self._start(self._disconnect(session))
                    case Broadcast(datagram):
                        if self._broadcast is not None and self._socket is not None:
                            with contextlib.suppress(OSError):
                                self._socket.sendto(datagram, self._broadcast)
                    case LogLine(text):
                        _log(text)
                    case Present() | Gone():
                        if self._presence is not None:
                            self._presence(action)
            sender.flush()
            if not actions:
                break
        if core.writers:
            writers, core.writers = core.writers, []
            for session in writers:
                if session in self._connections:
                    self._connections[session][0].flush()
        self._set_timer()

    def _set_timer(self) -> None:
        due_ns = self.core.next_deadline_ns
        if due_ns is None or (self._timer is not None and self._timer_ns <= due_ns):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = due_ns
        delay = max(0.0, (due_ns - self.clock()) / 1e9)
        self._timer = asyncio.get_running_loop().call_later(delay, self._due)

    def _fail(self, error: Exception) -> None:
        """Nothing that could be put right: `wait` raises it."""
        if self._failed is not None and not self._failed.done():
            self._failed.set_exception(error)


async def _keep_tracing(trace: LiveTrace) -> None:
    while True:
        await asyncio.sleep(_TRACE_EVERY_SECONDS)
        trace.write()


async def _keep_syncing(store: GatewayStore) -> None:
    """Write what is saved to the disk itself, in a thread: events do not wait for it."""
    problem = ""
    while True:
        await asyncio.sleep(_SYNC_EVERY_SECONDS)
        if not store.is_on_disk:
            before, problem = problem, ""
            try:
                await asyncio.to_thread(store.sync)
            except GatewayError as error:
                problem = str(error)
            if problem != before:
                _log(problem or "the state is on the disk again")


def _log(text: str) -> None:
    # The log may be on the disk that is full.
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _text_of(path: Path | None) -> str:
    """What a small file says; nothing if it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        if path is not None:
            return path.read_text(encoding="ascii").strip()
    return ""


class Storing:
    """Stores what has changed before anything is promised, and goes on without promises while the disk is full.

    What could not be stored stays in memory and is tried again, together with what has changed since.

    Until then messages are delivered, but clients do not get PUBREC and the broker no acknowledgement: each keeps what
    it has sent, and a kill loses nothing that a client relies on. `report` gets a line at both ends.
    """

    def __init__(self, core: GatewayCore, store: GatewayStore, report: Callable[[str], None]) -> None:
        self.problem = ""
        """Why nothing can be stored now."""
        self._core = core
        self._store = store
        self._report = report
        self._next_ns = 0

    def keep(self, sessions: Iterable[MqttSession], now_ns: int) -> None:
        """Store what has changed; `sessions` are those with the broker."""
        core = self._core
        if not core.can_store and now_ns < self._next_ns:
            return
        changes = core.changes.take()
        try:
            self._store.save(changes)
        except GatewayError as error:
            core.changes.give_back(changes)
            self._next_ns = now_ns + round(_TRY_AGAIN_SECONDS * 1e9)
            for session in sessions:
                session.holds_acknowledgements = True
            if core.can_store:
                core.can_store = False
                core.counters.storage_failures += 1
                # A timer has to look when nothing else happens.
                self._look_again()
                self._report(f"{error}; until then nothing is acknowledged that would have to be stored")
            self.problem = str(error)
            return
        core.changes.committed(changes)
        if not core.can_store:
            core.can_store = True
            self.problem = ""
            for session in sessions:
                session.holds_acknowledgements = False
                core.writers.append(session)
            self._report("the state can be stored again")

    def _look_again(self) -> None:
        def look() -> None:
            if not self._core.can_store:
                self._look_again()

        self._core.after(_TRY_AGAIN_SECONDS, look)
