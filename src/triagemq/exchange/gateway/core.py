"""The gateway without I/O: datagrams, octets of the broker and the time go in, actions come out.

core.datagram(address, octets)      from the UDP socket
session.receive(octets)             from a broker connection; sessions report to their Link, it to this
core.advance(now_ns)                when the moment of `next_deadline_ns` has come
core.take_actions(), core.changes   what to do, and what to store before doing it
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from triagemq.errors import DecodeError
from triagemq.exchange.gateway import (
    connecting,
    ending,
    malformed,
    publishing,
    sleeping,
    subscribing,
    wills,
)
from triagemq.exchange.gateway.actions import Action, Broadcast, Present, SendControl
from triagemq.exchange.gateway.changes import Changes
from triagemq.exchange.gateway.counters import GatewayCounters
from triagemq.exchange.gateway.delivering import Deliverer
from triagemq.exchange.gateway.handshakes import Handshakes
from triagemq.exchange.gateway.link import Link
from triagemq.exchange.gateway.model import Delivery, Endpoint, Publication, Session, Subscription
from triagemq.exchange.gateway.observer import Numbers, Observer
from triagemq.exchange.gateway.places import Places
from triagemq.exchange.gateway.quarantine import Quarantine
from triagemq.exchange.gateway.settings import GatewaySettings
from triagemq.exchange.gateway.slots import Identify, Slots, own_name
from triagemq.exchange.gateway.spreading import Spreader
from triagemq.exchange.gateway.timers import Timer, Timers
from triagemq.exchange.gateway.topics import TopicTable
from triagemq.exchange.mqtt.owner import Login
from triagemq.exchange.mqtt.session import MqttSession
from triagemq.mqttsn import (
    Advertise,
    Connect,
    Disconnect,
    Encapsulated,
    GwInfo,
    PingReq,
    PlainMessage,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    RegAck,
    Register,
    SearchGw,
    Subscribe,
    Unsubscribe,
    WillMsg,
    WillMsgUpd,
    WillTopic,
    WillTopicUpd,
    decode,
    encapsulation_header,
    encode,
)

if TYPE_CHECKING:
    from triagemq.trace.schema import Outcome

__all__ = ["GatewayCore"]

_NS = 1_000_000_000


class GatewayCore:
    """All state of a gateway, and what it does at each event."""

    def __init__(
        self,
        settings: GatewaySettings,
        *,
        now_ns: int,
        stores: bool = False,
        numbers: Numbers | None = None,
        observer: Observer | None = None,
        identify: Identify = own_name,
    ) -> None:
        self.settings = settings
        self.now_ns = now_ns
        self.sessions: dict[str, Session] = {}
        self.by_endpoint: dict[Endpoint, Session] = {}
        self.handshakes = Handshakes(self)
        self.places = Places(self)
        self.links: dict[str, Link] = {}
        self.topics = TopicTable(
            settings.predefined_topics, settings.last_topic_id, settings.topic_ids_in_all
        )
        self.counters = GatewayCounters()
        self.changes = Changes(enabled=stores)
        self.numbers = numbers or Numbers()
        self.observer = observer
        # Called when the broker has taken or dropped a subscription: a broker that we run saves it then.
        self.on_subscriptions: Callable[[], None] = lambda: None
        # False while the store cannot be written: then nothing is promised that a kill would lose.
        self.can_store = True
        self._promised: list[tuple[Endpoint, PlainMessage]] = []
        # Of QoS 2 messages from clients that the broker does not have.
        self.arrival_bytes = 0
        # Broker sessions with octets to write after the changes have been stored.
        self.writers: list[MqttSession] = []
        self.spread = Spreader(self)
        self.deliver = Deliverer(self)
        self.slots = Slots(self, identify)
        # A number from 0 to 1, to decide what is dropped on purpose.
        self.draw = random.Random(settings.seed).random
        self.quarantine = Quarantine(self)
        self._actions: list[Action] = []
        self.timers = Timers()
        self.link = Link(
            self,
            "",
            Login(
                settings.broker_client_id,
                clean=False,
                fresh=not stores,
                keep_alive_seconds=settings.broker_keep_alive_seconds,
                user=settings.user,
                password=settings.password,
            ),
        )

    def start(self) -> None:
        """Connect to the broker and say that we are here."""
        self.link.open()
        self._advertise()

    def stop(self) -> None:
        """Tell the clients that we go; what is stored stays."""
        for session in list(self.by_endpoint.values()):
            if session.connected:
                self.send(session.endpoint, Disconnect())

    # What comes out.

    def act(self, action: Action) -> None:
        """Have something done."""
        self._actions.append(action)

    def take_actions(self) -> list[Action]:
        """Everything to be done since the last call, in order."""
        if self._promised and self.can_store:
            promised, self._promised = self._promised, []
            for endpoint, message in promised:
                self.send(endpoint, message)
        actions = self._actions
        if actions:
            self._actions = []
        return actions

    def present(self, session: Session) -> None:
        """Say where a client is, and whether messages will go there."""
        self._actions.append(Present(session.client_id, session.endpoint, bool(session.subscriptions)))

    def send(self, endpoint: Endpoint, message: PlainMessage) -> None:
        """Send anything but a PUBLISH."""
        self._actions.append(SendControl(endpoint, self.framed(endpoint, encode(message))))

    def promise(self, endpoint: Endpoint, message: PlainMessage) -> None:
        """Send it as soon as all that has changed until now is stored."""
        self._promised.append((endpoint, message))

    def framed(self, endpoint: Endpoint, datagram: bytes) -> bytes:
        """A datagram as it goes to an endpoint: encapsulated if a forwarder carries it."""
        return encapsulation_header(endpoint[2], 0) + datagram if len(endpoint) == 3 else datagram

    def settle(
        self,
        session: Session,
        subscription: Subscription,
        publication: Publication,
        outcome: Outcome,
        reason: str = "",
        delivery: Delivery | None = None,
    ) -> None:
        """A copy is delivered or given up: count it, and tell the Trace."""
        if reason:
            self.counters.undelivered[f"{outcome.name}: {reason}"] += 1
        else:
            self.counters.delivered += 1
        if self.observer is not None:
            self.observer.settled(session, subscription, publication, outcome, delivery, self.now_ns)

    def policy_changed(self) -> None:
        """What the policy forbids now ends now."""
        ending.revoke(self)

    # Time.

    def schedule(self, due_ns: int, what: Callable[[], None]) -> Timer:
        """Have something called by `advance` when its time has come, unless it is called off before."""
        return self.timers.add(due_ns, what)

    def after(self, seconds: float, what: Callable[[], None]) -> Timer:
        """The same, from now on."""
        return self.schedule(self.now_ns + int(seconds * _NS), what)

    @property
    def next_deadline_ns(self) -> int | None:
        """When `advance` has to be called next."""
        return self.timers.next_due_ns

    def advance(self, now_ns: int) -> None:
        """Time has passed."""
        self.now_ns = max(self.now_ns, now_ns)
        while (what := self.timers.take_due(self.now_ns)) is not None:
            what()

    def _advertise(self) -> None:
        seconds = self.settings.advertise_seconds
        if seconds > 0:
            self.act(Broadcast(encode(Advertise(self.settings.gateway_id, seconds))))
            self.after(seconds, self._advertise)

    # What comes in.

    def datagram(self, address: tuple[str, int], datagram: bytes) -> None:
        """A datagram from somewhere; any octets at all."""
        self.counters.datagrams_in += 1
        try:
            message = decode(datagram)
        except DecodeError as error:
            self.counters.rejected[str(error.reason)] += 1
            malformed.answer(self, address, datagram, error)
            return
        if isinstance(message, Encapsulated):
            self._message((*address, message.wireless_node_id), message.message)
        else:
            self._message(address, message)

    def _message(self, endpoint: Endpoint, message: PlainMessage) -> None:
        session = self.by_endpoint.get(endpoint)
        if session is not None and session.connected:
            self._from_client(session, endpoint, message)
        else:
            self._from_stranger(endpoint, message)

    def _from_stranger(self, endpoint: Endpoint, message: PlainMessage) -> None:
        match message:
            case Publish(qos=-1):
                publishing.without_connection(self, message)
            case PingReq(client_id=str()):
                sleeping.ping_from_elsewhere(self, endpoint, message)
            case Advertise() | GwInfo():
                pass  # Other gateways of the neighbourhood; nothing for us.
            case Disconnect():
                # The answer to ours, or of one who has gone: an answer to that would go on for ever.
                pass
            case _ if not self._from_anyone(endpoint, message):
                self.counters.unknown_senders += 1
                self.send(endpoint, Disconnect())

    def _from_client(self, session: Session, endpoint: Endpoint, message: PlainMessage) -> None:
        session.heard_ns = self.now_ns
        match message:
            case Publish():
                publishing.publish(self, session, message)
            case PubAck():
                self.deliver.pub_ack(session, message)
            case PubRec():
                self.deliver.pub_rec(session, message)
            case PubComp():
                self.deliver.pub_comp(session, message)
            case PubRel():
                publishing.pub_rel(self, session, message)
            case PingReq():
                sleeping.ping(self, session, message)
            case RegAck():
                self.deliver.reg_ack(session, message)
            case Register():
                subscribing.register(self, session, message)
            case Subscribe():
                subscribing.subscribe(self, session, message)
            case Unsubscribe():
                subscribing.unsubscribe(self, session, message)
            case Disconnect():
                sleeping.disconnect(self, session, message)
            case WillTopicUpd():
                wills.update_topic(self, session, message)
            case WillMsgUpd():
                wills.update_message(self, session, message)
            case _ if not self._from_anyone(endpoint, message):
                self.counters.rejected[f"unexpected_{message.message_type.name.lower()}"] += 1

    def _from_anyone(self, endpoint: Endpoint, message: PlainMessage) -> bool:
        """What may come from strangers and from clients alike; False if this is nothing of the kind."""
        match message:
            case Connect():
                connecting.connect(self, endpoint, message)
            case WillTopic():
                connecting.will_topic(self, endpoint, message)
            case WillMsg():
                connecting.will_message(self, endpoint, message)
            case SearchGw():
                self.send(endpoint, GwInfo(self.settings.gateway_id))
            case _:
                return False
        return True
