"""A gateway in virtual time: clients are lists of messages, the broker is in memory, and waiting costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tests.gateway.memory_broker import MemoryBroker

from triagemq.gateway.core import GatewayCore, GatewaySettings, MqttSnCore
from triagemq.gateway.core.delivery import transmitted
from triagemq.gateway.core.restoring import restore
from triagemq.gateway.core.sessions import Identify, own_name
from triagemq.gateway.core.state import (
    Broadcast,
    CloseBroker,
    OpenBroker,
    SendControl,
    SendMany,
    SendPublish,
)
from triagemq.gateway.server import Storing
from triagemq.gateway.sockets import Sender
from triagemq.gateway.store import GatewayStore
from triagemq.mqtt.packets import MESSAGE_EXPIRY
from triagemq.mqtt.session import MqttSession
from triagemq.mqttsn import (
    ConnAck,
    Connect,
    Encapsulated,
    Message,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    RegAck,
    Register,
    ReturnCode,
    SubAck,
    Subscribe,
    TopicIdType,
    decode,
    encode,
)
from triagemq.trace import Outcome

Kind = TypeVar("Kind")
_START_NS = 1_700_000_000_000_000_000


class Client:
    """An MQTT-SN client. `answers` says whether it answers messages by itself, all but those with the payloads and
    topic names that it `ignores`; `topics` is what it has learnt.
    """

    def __init__(self, gateway: VirtualGateway, address: tuple[str, int], node: bytes | None = None) -> None:
        self._gateway = gateway
        self.address = address
        self.node = node
        self.received: list[Message] = []
        self.topics: dict[int, str] = {}
        self.answers = True
        self.ignores: set[bytes | str] = set()
        self._message_id = 0

    def send(self, message: Any) -> None:
        if self.node is not None:
            message = Encapsulated(self.node, message)
        self._gateway.core.datagram(self.address, encode(message))
        self._gateway.run()

    def take(self, kind: type[Kind]) -> list[Kind]:
        """The received messages of a kind; they are taken out."""
        taken = [message for message in self.received if isinstance(message, kind)]
        self.received = [message for message in self.received if not isinstance(message, kind)]
        return taken

    def payloads(self) -> list[bytes]:
        return [message.payload for message in self.take(Publish)]

    def connect(self, client_id: str = "c", *, clean: bool = False, duration: int = 0) -> Client:
        self.send(Connect(client_id, duration, clean_session=clean))
        assert self.take(ConnAck) == [ConnAck(ReturnCode.ACCEPTED)]
        return self

    def subscribe(self, topic: str | int, qos: int = 0) -> SubAck:
        kind = TopicIdType.NORMAL if isinstance(topic, str) else TopicIdType.PREDEFINED
        return self.subscribe_as(kind, topic, qos)

    def subscribe_as(self, kind: TopicIdType, topic: str | int, qos: int = 0) -> SubAck:
        self._message_id += 1
        self.send(Subscribe(kind, topic, self._message_id, qos))
        (answer,) = self.take(SubAck)
        assert answer.message_id == self._message_id
        return answer

    def register(self, topic: str) -> int:
        self.send(Register(0, 1, topic))
        (answer,) = self.take(RegAck)
        return answer.topic_id

    def hear(self, datagram: bytes) -> None:
        """A datagram of the gateway."""
        message = decode(datagram)
        if isinstance(message, Encapsulated):
            assert message.wireless_node_id == self.node
            message = message.message
        self.received.append(message)
        if isinstance(message, Register):
            self.topics[message.topic_id] = message.topic_name
        if not self.answers or _subject(message) in self.ignores:
            return
        if isinstance(message, Register):
            self.answer(RegAck(message.topic_id, message.message_id, ReturnCode.ACCEPTED))
        elif isinstance(message, Publish) and message.qos == 1:
            self.answer(PubAck(message.topic_id, message.message_id, ReturnCode.ACCEPTED))
        elif isinstance(message, Publish) and message.qos == 2:
            self.answer(PubRec(message.message_id))
        elif isinstance(message, PubRel):
            self.answer(PubComp(message.message_id))

    def answer(self, message: Any) -> None:
        if self.node is not None:
            message = Encapsulated(self.node, message)
        self._gateway.core.datagram(self.address, encode(message))


def _subject(message: Message) -> bytes | str | None:
    if isinstance(message, Publish):
        return message.payload
    return message.topic_name if isinstance(message, Register) else None


class VirtualGateway:
    """The core with everything around it replaced; `outlet` makes a real one, and clients are elsewhere then."""

    def __init__(
        self,
        broker: MemoryBroker | None = None,
        store: Path | None = None,
        *,
        now_ns: int = _START_NS,
        pieces: int = 1 << 30,
        identify: Identify = own_name,
        outlet: Callable[[GatewayCore], Sender] | None = None,
        **settings: Any,
    ) -> None:
        self._identify = identify
        self._make_outlet = outlet
        self._outlet: Sender | None = None
        self.broker = broker or MemoryBroker()
        self.broker_is_up = True
        self._store_path = store
        self._store = None if store is None else GatewayStore(store)
        self._settings = settings
        self._pieces = pieces
        self._clients: dict[Any, Client] = {}
        self._wanted: list[MqttSession] = []
        self.broadcasts: list[bytes] = []
        self.said: list[str] = []
        self.outcomes: list[tuple[str, bytes, Outcome]] = []
        self.publishers: list[tuple[str, bytes]] = []
        self._start(now_ns)

    def _start(self, now_ns: int) -> None:
        self.core = MqttSnCore(
            GatewaySettings(**self._settings),
            now_ns=now_ns,
            stores=self._store is not None,
            observer=self,
            identify=self._identify,
        )
        if self._make_outlet is not None:
            self._outlet = self._make_outlet(self.core)
        self._storing = None if self._store is None else Storing(self.core, self._store, self.said.append)
        if self._store is not None:
            restore(self.core, self._store.load())
        self.core.start()
        self.run()

    # As an Observer.
    def published(self, publication: Any, qos: int) -> None:
        self.publishers.append((publication.publisher, publication.payload))

    def fanned_out(self, group: Any, publication: Any, now_ns: int) -> None: ...

    def settled(self, copy: Any, outcome: Outcome, flow: Any, delivery: Any, now_ns: int) -> None:
        session, _, publication = copy
        self.outcomes.append((session.client_id, publication.payload, outcome))

    def client(self, port: int = 1000, node: bytes | None = None, *, host: str = "10.0.0.1") -> Client:
        address = (host, port)
        client = Client(self, address, node)
        self._clients[address if node is None else (*address, node)] = client
        return client

    def clients(self, count: int) -> Iterable[Client]:
        return [self.client(1000 + number) for number in range(count)]

    def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        *,
        retain: bool = False,
        expiry: int | None = None,
        properties: Sequence[tuple[int, Any]] = (),
    ) -> None:
        said = [*properties] if expiry is None else [(MESSAGE_EXPIRY, expiry), *properties]
        self.broker.publish(topic, payload, qos, retain, said)
        self.run()

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        end_ns = self.core.now_ns + round(seconds * 1e9)
        while (due_ns := self.core.next_deadline_ns) is not None and due_ns <= end_ns:
            self.core.advance(due_ns)
            self.run()
        self.core.advance(end_ns)
        self.run()

    def lose_broker(self) -> None:
        """The broker crashes and stays away until `broker_is_up` is set."""
        self.broker_is_up = False
        for session in self.broker.crash():
            session.owner.mqtt_lost(session)
        self.run()

    def return_broker(self) -> None:
        self.broker_is_up = True
        self.run()

    def kill(self) -> None:
        """kill -9 and restart: only what was stored and what the broker knows is left."""
        assert self._store is not None
        assert self._store_path is not None
        for session in list(self._wanted):
            self.broker.lose(session)
        self._wanted.clear()
        now_ns = self.core.now_ns
        self._store.close()
        self._store = GatewayStore(self._store_path)
        self._start(now_ns)

    def run(self) -> None:
        """Do everything that is to be done, in the order that the server keeps: store, then send."""
        while True:
            if self._storing is not None:
                self._storing.keep(self._wanted, self.core.now_ns)
            actions = self.core.take_actions()
            for action in actions:
                self._act(action)
            moved = False
            self.core.writers.clear()
            for session in self._wanted:
                if self.broker_is_up and not self.broker.is_connected(session):
                    self.broker.connect(session)
                    moved = True
            try:
                moved |= self.broker.exchange(self._pieces)
            except Exception as error:
                if "MQTT 5" not in str(error) and "refuses" not in str(error):
                    raise
                moved = True
            ended, self.broker.ended = self.broker.ended, []
            for session in ended:
                session.owner.mqtt_lost(session)
            if not actions and not moved:
                return

    def _act(self, action: Any) -> None:
        match action:
            case SendControl() if self._outlet is not None:
                self._outlet.control(action)
                self._outlet.flush()
            case SendPublish() if self._outlet is not None:
                self._outlet.publish(action)
                self._outlet.flush()
            case SendMany() if self._outlet is not None:
                self._outlet.publish_many(action)
                self._outlet.flush()
            case SendControl(endpoint, datagram):
                if endpoint in self._clients:
                    self._clients[endpoint].hear(datagram)
            case SendPublish(session, delivery, datagram):
                transmitted(self.core, session, delivery, Outcome.delivered, -1, -1)
                if session.endpoint in self._clients:
                    self._clients[session.endpoint].hear(datagram)
            case SendMany(group, _, datagram):
                for session, _ in group.members:
                    self.core.counters.sent += 1
                    self.core.counters.delivered += 1
                    if session.endpoint in self._clients:
                        self._clients[session.endpoint].hear(datagram)
            case Broadcast(datagram):
                self.broadcasts.append(datagram)
            case OpenBroker(session):
                if session not in self._wanted:
                    self._wanted.append(session)
            case CloseBroker(session):
                if session in self._wanted:
                    self._wanted.remove(session)
                session.leave()
                self.broker.exchange()
                self.broker.lose(session)
