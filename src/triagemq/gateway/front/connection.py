"""The sockets of one MQTT client: its own connection, and the one to the broker in its name.

The queue is in the downlink, not in the client's socket: little waits there that was not sent, and while there is more,
or the client does not read, the downlink is blocked.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import os
import socket
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from triagemq.datagrams import CONTROL_DSCP, dscp_mark
from triagemq.gateway.core.delivery import drop_as_planned, interval_ns
from triagemq.gateway.core.fanout import publication_of
from triagemq.gateway.core.messages import Delivery, Publication, Subscription
from triagemq.gateway.core.sessions import Copy as RecipientCopy
from triagemq.gateway.core.thinning import Thinning
from triagemq.gateway.front.broker_leg import BrokerLeg
from triagemq.gateway.front.downlink import Downlink, Waiting
from triagemq.gateway.front.session import (
    Accepted,
    Acknowledged,
    Close,
    Copy,
    Dial,
    Event,
    FiltersChanged,
    FrontSession,
    SpeaksOld,
    ToBroker,
    ToClient,
)
from triagemq.mqtt.connection import tcp_round_trip_seconds
from triagemq.mqtt.packets import ReasonCode
from triagemq.mqttsn import TopicIdType, matches
from triagemq.plan.dataplane import FlowKey, OutgoingPacket, Treatment
from triagemq.trace.schema import Outcome

if TYPE_CHECKING:
    from triagemq.gateway.core import GatewayCore

NOT_SENT_BYTES = 16 << 10
"""What may wait in a client's socket without having been sent."""

_CONNECT_SECONDS = 10.0
_CLOSE_SECONDS = 2.0
_TRY_AGAIN_SECONDS = 0.02
_MOST_UNREAD_BYTES = 256 << 10
_MOST_FILTERS_LOOKED_AT = 1_000
# Linux: SIOCOUTQNSD and TCP_NOTSENT_LOWAT.
_UNSENT = 0x894B
_NOTSENT_LOWAT = 25


class ConnectionOwner(Protocol):
    """What a connection needs of the front: the broker, the ports, and room."""

    core: GatewayCore
    tick: Callable[[], None]
    broker_version: int
    marks_control: bool
    most_packet_bytes: int

    def made(self, connection: ClientConnection) -> bool: ...

    def accepted(self, connection: ClientConnection) -> None: ...

    def filters_changed(self, connection: ClientConnection) -> None: ...

    def ended(self, connection: ClientConnection) -> None: ...

    def writes(self, connection: ClientConnection) -> None: ...

    def broker_is_old(self) -> None: ...

    def start_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]: ...

    async def connect(self, leg: BrokerLeg) -> None: ...

    def segment_bytes(self, key: FlowKey) -> int: ...

    def most_waiting(self, key: FlowKey) -> float: ...

    def packed_bytes(self, key: FlowKey) -> int: ...

    def send(self, packet: OutgoingPacket) -> None: ...

    def flush(self) -> None: ...


class ClientConnection(asyncio.Protocol):
    """A client, from its first octet to its last; a DownlinkOwner and a Recipient."""

    def __init__(self, front: ConnectionOwner) -> None:
        self.number = 0
        """Among the connections to the broker that there are now."""
        self.subscriber = ""
        self.endpoint: tuple[str, int] = ("", 0)
        self.is_present = False
        self.session = FrontSession(
            broker_version=front.broker_version, most_packet_bytes=front.most_packet_bytes
        )
        self._front = front
        self._core = front.core
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        # A duplicate of its descriptor, while this waits for the socket: the other is the transport's.
        self._descriptor = -1
        self._broker: BrokerLeg | None = None
        self._dialing: asyncio.Task[None] | None = None
        self._to_broker = bytearray()
        self._out: list[bytes] = []
        self._downlink: Downlink | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._thinning = Thinning[tuple[Copy, Publication]](
            self._call_at, asyncio.TimerHandle.cancel, self._interval_ended
        )
        # What the client has been sent at QoS 1 and 2, by packet id, with its times in the port.
        self._unacknowledged: dict[int, tuple[Waiting, int, int]] = {}
        # By topic and QoS, as they were looked up.
        self._subscriptions: dict[tuple[str, int], Subscription] = {}
        self._is_closed = False
        self._is_congested = False

    @property
    def client_id(self) -> str:
        return self.session.client_id

    @property
    def subscribes(self) -> bool:
        """Does it get messages?"""
        return bool(self.session.filters) or self._has_session

    _has_session = False

    # The client's socket.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(0)
        found = transport.get_extra_info("socket")
        peer = transport.get_extra_info("peername")
        if peer is None:
            # It has left already.
            self.abort()
            return
        host, port = peer[:2]
        self.endpoint = host, port
        self._socket = found
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):
            found.setsockopt(socket.IPPROTO_TCP, _NOTSENT_LOWAT, NOT_SENT_BYTES)
            if self._front.marks_control:
                for mark in dscp_mark(found.family, CONTROL_DSCP):
                    found.setsockopt(*mark)
        key = FlowKey(host, port)
        self._downlink = Downlink(
            self,
            key,
            most_waiting=lambda: self._front.most_waiting(key),
            segment_bytes=lambda: self._front.segment_bytes(key),
            packed_bytes=lambda: self._front.packed_bytes(key),
        )
        self._timer = self._loop.call_later(_CONNECT_SECONDS, self._no_connect)
        if not self._front.made(self):
            self.abort()

    def data_received(self, data: bytes) -> None:
        self._front.tick()
        self._guarded(self.session.client_octets(data))

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._front.tick()
        self._transport = None
        self._end()

    def pause_writing(self) -> None:
        self._is_congested = True
        self._unblock()

    def resume_writing(self) -> None:
        self._is_congested = False
        self._unblock()

    def _unblock(self) -> None:
        """Is the client's socket ready for more?"""
        downlink, transport = self._downlink, self._transport
        if downlink is None or transport is None:
            return
        downlink.is_blocked = self._is_congested or self._descriptor >= 0
        if not downlink.is_blocked:
            downlink.pump()
        self._fit_reading()

    def _fit_reading(self) -> None:
        """A client that does not read its answers, or whose broker does not read, is not read either."""
        if self._transport is None or self._transport.is_closing():
            return
        unread = self._transport.get_write_buffer_size() > _MOST_UNREAD_BYTES
        if unread or (self._broker is not None and self._broker.is_congested):
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _socket_ready(self) -> None:
        self._stop_waiting()
        self._front.tick()
        self._unblock()

    def _stop_waiting(self) -> None:
        if self._descriptor >= 0:
            self._loop.remove_writer(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def write_out(self) -> None:
        """Write what has left the port."""
        out, self._out = self._out, []
        if self._transport is None or not out:
            return
        self._transport.write(out[0] if len(out) == 1 else b"".join(out))
        if self._descriptor >= 0 or self._is_congested or self._socket is None:
            self._fit_reading()
            return
        unsent = array.array("i", [0])
        with contextlib.suppress(OSError):
            fcntl.ioctl(self._socket.fileno(), _UNSENT, unsent)
            if unsent[0] > NOT_SENT_BYTES:
                self._descriptor = os.dup(self._socket.fileno())
                self._loop.add_writer(self._descriptor, self._socket_ready)
                self._unblock()

    @property
    def round_trip_seconds(self) -> float | None:
        """To the client and back, as TCP measures it; None if it is not known."""
        return None if self._socket is None else tcp_round_trip_seconds(self._socket)

    # The broker's side.

    def broker_made(self, leg: BrokerLeg) -> None:
        if self._broker is not leg:
            leg.abort()
        elif self._to_broker:
            leg.write(bytes(self._to_broker))
            self._to_broker.clear()

    def broker_data(self, leg: BrokerLeg, data: bytes) -> None:
        if leg is self._broker:
            self._front.tick()
            self._guarded(self.session.broker_octets(data))

    def broker_lost(self, leg: BrokerLeg) -> None:
        if leg is self._broker:
            self._broker = None
            self._front.tick()
            self._guarded(self.session.broker_lost())

    def broker_congested(self, leg: BrokerLeg) -> None:
        if leg is self._broker:
            self._fit_reading()

    def _dial(self) -> None:
        if self._broker is not None:
            self._broker.abort()
        self._to_broker.clear()
        self._broker = leg = BrokerLeg(self)
        self._dialing = self._front.start_task(self._connect(leg))

    async def _connect(self, leg: BrokerLeg) -> None:
        try:
            await self._front.connect(leg)
        except OSError:
            if leg is self._broker:
                self._broker = None
                self._front.tick()
                self._guarded(self.session.broker_unreachable())

    # What follows.

    def _guarded(self, events: list[Event]) -> None:
        try:
            self._do(events)
        except Exception as error:
            # One client's packet must not end the service of all others; the loop's handler reports it.
            self._core.counters.rejected["internal_error"] += 1
            context = {"message": f"an MQTT packet from {self.endpoint[0]}", "exception": error}
            self._loop.call_exception_handler(context)
            self.abort()

    def _do(self, events: list[Event]) -> None:
        upstream = bytearray()
        for event in events:
            match event:
                case Copy():
                    self._arrived(event)
                case ToBroker(octets):
                    upstream += octets
                case ToClient(octets):
                    if self._downlink is not None:
                        self._downlink.control(octets)
                case Acknowledged(packet_id):
                    self._acknowledged(packet_id)
                case Dial():
                    upstream.clear()
                    self._dial()
                case Accepted(_, session_present):
                    self._accepted(session_present)
                case FiltersChanged():
                    self._subscriptions.clear()
                    self._front.filters_changed(self)
                case SpeaksOld():
                    self._front.broker_is_old()
                case Close():
                    self._write_up(upstream)
                    upstream.clear()
                    self._close(event)
        self._write_up(upstream)

    def _write_up(self, octets: bytearray) -> None:
        if not octets or self._broker is None:
            return
        if self._broker.is_open:
            self._broker.write(bytes(octets))
        else:
            self._to_broker += octets

    def _accepted(self, session_present: bool) -> None:
        assert self._downlink is not None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._downlink.window = self.session.window
        self._has_session = session_present
        self._front.accepted(self)

    def _arrived(self, copy: Copy) -> None:
        """A message of the broker."""
        core, message = self._core, copy.message
        core.counters.broker_messages += 1
        core.counters.broker_bytes += len(message.payload)
        publication = publication_of(core, self.number, copy.topic, message)
        treatment = self.treatment(copy.topic)
        length_ns = 0 if message.retain else interval_ns(treatment)
        if length_ns and not self._thinning.passes(copy.topic, length_ns, core.now_ns):
            thinned = self._thinning.hold(copy.topic, (copy, publication))
            if thinned is not None:
                self._give_up(*thinned, treatment, Outcome.thinned, "max_rate_per_second")
            return
        self._offer(copy, publication, treatment)

    def _offer(self, copy: Copy, publication: Publication, treatment: Treatment) -> None:
        core, downlink = self._core, self._downlink
        assert downlink is not None
        if treatment.drop_rate > 0.0 and not copy.message.dup and core.draw() < treatment.drop_rate:
            drop_as_planned(core, self._copy(copy, publication), treatment)
            self._do(self.session.discard(copy.message))
            return
        downlink.offer(copy, publication, treatment)
        if downlink.is_overfull:
            self._do(self.session.refuse("too_much_waits", ReasonCode.QUOTA_EXCEEDED))

    def _interval_ended(self, newest: tuple[Copy, Publication]) -> int:
        """The newest of an interval goes on, as the plan of now wants it; how long the next one is."""
        treatment = self.treatment(newest[0].topic)
        self._offer(*newest, treatment)
        return interval_ns(treatment)

    def _call_at(self, due_ns: int, what: Callable[[int], None]) -> asyncio.TimerHandle:
        def call() -> None:
            self._front.tick()
            what(self._core.now_ns)

        return self._loop.call_later((due_ns - self._core.now_ns) / 1e9, call)

    def _give_up(
        self, copy: Copy, publication: Publication, treatment: Treatment, outcome: Outcome, reason: str
    ) -> None:
        """The client does not get a copy, by the terms of its subscription."""
        self._settled(Waiting(copy, publication, treatment, 0), outcome, reason)
        self._do(self.session.discard(copy.message))

    def _acknowledged(self, packet_id: int) -> None:
        found = self._unacknowledged.pop(packet_id, None)
        if found is None or self._downlink is None:
            return
        self._settled(found[0], Outcome.delivered, "", *found[1:])
        self._downlink.acknowledged(packet_id)
        self._downlink.pump()

    def _copy(self, copy: Copy, publication: Publication) -> RecipientCopy:
        return self, self._subscription(copy), publication

    def _subscription(self, copy: Copy) -> Subscription:
        """By which it gets a message, as far as that is known: a session may be older than its connection."""
        key = copy.topic, copy.message.qos
        known = self._subscriptions.get(key)
        if known is None:
            found, filters = copy.topic, self.session.filters
            if copy.topic not in filters and len(filters) <= _MOST_FILTERS_LOOKED_AT:
                found = next((each for each in filters if matches(each, copy.topic)), copy.topic)
            if len(self._subscriptions) >= _MOST_FILTERS_LOOKED_AT:
                self._subscriptions.clear()
            known = self._subscriptions[key] = Subscription(found, copy.message.qos, TopicIdType.NORMAL)
        return known

    def _settled(
        self, waiting: Waiting, outcome: Outcome, reason: str, enqueued_ns: int = -1, dequeued_ns: int = -1
    ) -> None:
        copy = self._copy(waiting.copy, waiting.publication)
        treatment = waiting.treatment
        delivery = Delivery(
            0,
            waiting.publication,
            copy[1],
            waiting.qos,
            False,
            treatment.priority_class,
            enqueued_ns=enqueued_ns,
            dequeued_ns=dequeued_ns,
            flow=(treatment.flow_id, treatment.priority_class),
        )
        self._core.settle(copy, outcome, reason, delivery)

    # As a DownlinkOwner.

    def transmit(self, packet: OutgoingPacket) -> None:
        if self._downlink is not None and (octets := self._downlink.take(packet)):
            if not self._out:
                self._front.writes(self)
            self._out.append(octets)

    def send(self, packet: OutgoingPacket) -> None:
        self._front.send(packet)

    def settle(self, waiting: Waiting, outcome: Outcome, enqueued_ns: int, dequeued_ns: int) -> None:
        if outcome is Outcome.delivered and self._is_closed:
            self._settled(waiting, Outcome.subscriber_gone, "not connected", enqueued_ns, dequeued_ns)
        elif outcome is Outcome.delivered:
            self._core.counters.sent += 1
            if waiting.qos:
                times = waiting, enqueued_ns, dequeued_ns
                self._unacknowledged[waiting.copy.message.packet_id] = times
            else:
                self._settled(waiting, outcome, "", enqueued_ns, dequeued_ns)
        else:
            reason = _TERMS.get(outcome) or ("output port" if enqueued_ns >= 0 else "buffer full")
            self._settled(waiting, outcome, reason, enqueued_ns, dequeued_ns)
            if outcome in _TERMS and not self._is_closed:
                self._do(self.session.discard(waiting.copy.message))

    @property
    def now_ns(self) -> int:
        return self._core.now_ns

    def treatment(self, topic: str) -> Treatment:
        return self._core.settings.policy.treatment(self.session.client_id, topic)

    def try_again_soon(self) -> None:
        if self._retry is None:
            self._retry = self._loop.call_later(_TRY_AGAIN_SECONDS, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        if self._downlink is not None and not self._is_closed:
            self._front.tick()
            self._downlink.resume()

    def rerank(self) -> None:
        """A new plan is in force."""
        if self._downlink is not None:
            self._thinning.fit(lambda topic: interval_ns(self.treatment(topic)), self._core.now_ns)
            self._downlink.rerank()

    # The end.

    def _no_connect(self) -> None:
        self._timer = None
        self._guarded(self.session.refuse("no_connect_in_time", ReasonCode.SERVER_UNAVAILABLE))

    def shut(self) -> None:
        """The gateway ends."""
        self._guarded(self.session.refuse("stopped", ReasonCode.SERVER_SHUTTING_DOWN))

    def _close(self, event: Close) -> None:
        if event.reason not in _ORDERLY:
            self._core.counters.rejected[f"mqtt_{event.reason}"] += 1
        self._front.flush()
        transport = self._transport
        if transport is not None:
            # Not into the middle of a message.
            if event.farewell and self._downlink is not None and not self._downlink.is_amid_message:
                transport.write(event.farewell)
            transport.close()
            self._loop.call_later(_CLOSE_SECONDS, transport.abort)
        self._end()

    def abort(self) -> None:
        """Without a word."""
        if self._transport is not None:
            self._transport.abort()
        self._end()

    def _end(self) -> None:
        """Everything that it had is given back."""
        if self._is_closed:
            return
        self._is_closed = self.session.is_closed = True
        for timer in (self._timer, self._retry):
            if timer is not None:
                timer.cancel()
        if self._broker is not None:
            # What the client has said is written; without a DISCONNECT of its own the broker publishes its will.
            self._broker.close()
            self._broker = None
        elif self._dialing is not None:
            self._dialing.cancel()
        self._stop_waiting()
        self._socket = None
        if self._downlink is not None:
            held = [Waiting(*each, self.treatment(each[0].topic), 0) for each in self._thinning.clear()]
            for waiting in (*held, *self._downlink.close()):
                self._settled(waiting, Outcome.subscriber_gone, "not connected")
        for waiting, *times in self._unacknowledged.values():
            self._settled(waiting, Outcome.subscriber_gone, "not connected", *times)
        self._unacknowledged.clear()
        self._front.ended(self)


_TERMS = {Outcome.expired: "expires_seconds", Outcome.superseded: "newest_only"}
_ORDERLY = {"broker_closed", "disconnected_by_broker", "refused_by_broker", "stopped"}
