"""A simple MQTT-SN client that believes what it is told: a table from ids to names, and every message checked by it.

Payloads begin with the name of their topic, so that a message under a wrong meaning shows at once. The network between
client and gateway can hold datagrams back, in both directions, and lets them go in another order.
"""

from __future__ import annotations

from typing import Any

from tests.gateway.virtual import VirtualGateway

from triagemq.mqttsn import (
    ConnAck,
    Connect,
    MessageType,
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
    peek,
)

ADDRESS = ("10.0.0.9", 900)


class NamingClient:
    """`names` is the table, `heard` the payloads in order."""

    def __init__(self, gateway: VirtualGateway, client_id: str = "n") -> None:
        self._gateway = gateway
        self._client_id = client_id
        gateway._clients[ADDRESS] = self  # type: ignore[assignment]
        self.names: dict[int, str] = {}
        self.heard: list[bytes] = []
        self.registers = 0
        self.holds = False
        self._down: list[bytes] = []
        self._up: list[bytes] = []
        self._asked: dict[int, str] = {}
        self._published: dict[int, tuple[int, str]] = {}
        self._message_id = 0

    def connect(self) -> None:
        self.names.clear()
        self._say(Connect(self._client_id, 0))
        self._gateway.run()

    def subscribe(self, topic_filter: str, qos: int) -> None:
        self._say(Subscribe(TopicIdType.NORMAL, topic_filter, self._next(topic_filter), qos))
        self._gateway.run()

    def register(self, name: str) -> None:
        self._say(Register(0, self._next(name), name))
        self._gateway.run()

    def publish(self, number: int, qos: int, payload: bytes) -> None:
        """Under one of the ids that it knows."""
        if self.names:
            topic_id = sorted(self.names)[number % len(self.names)]
            name = self.names[topic_id]
            message_id = self._next(name) if qos > 0 else 0
            self._published[message_id] = (topic_id, name)
            self._say(
                Publish(
                    TopicIdType.NORMAL,
                    topic_id,
                    name.encode() + b"|" + payload,
                    qos=qos,
                    message_id=message_id,
                )
            )
            self._gateway.run()

    def hear(self, datagram: bytes) -> None:
        if self.holds:
            self._down.append(datagram)
        else:
            self._hear(datagram)

    def release(self, backwards: bool) -> None:
        """The network lets go: control packets overtake all others, and the rest comes in any order."""
        self.holds = False
        while self._down or self._up:
            down, self._down = self._down, []
            up, self._up = self._up, []
            for datagram in reversed(up) if backwards else up:
                self._gateway.core.datagram(ADDRESS, datagram)
            down.sort(key=lambda datagram: peek(datagram)[0] is MessageType.PUBLISH)
            for datagram in down:
                self._hear(datagram)
        self._gateway.run()

    def _next(self, name: str) -> int:
        self._message_id = self._message_id % 0xFFFF + 1
        self._asked[self._message_id] = name
        return self._message_id

    def _say(self, message: Any) -> None:
        if self.holds:
            self._up.append(encode(message))
        else:
            self._gateway.core.datagram(ADDRESS, encode(message))

    def _hear(self, datagram: bytes) -> None:
        match decode(datagram):
            case Register() as message:
                self.registers += 1
                self.names[message.topic_id] = message.topic_name
                self._say(RegAck(message.topic_id, message.message_id, ReturnCode.ACCEPTED))
            case RegAck(return_code=ReturnCode.ACCEPTED) as message:
                self.names[message.topic_id] = self._asked[message.message_id]
            case SubAck(return_code=ReturnCode.ACCEPTED) as message if message.topic_id:
                self.names[message.topic_id] = self._asked[message.message_id]
            case Publish() as message:
                self._published_to(message)
            case PubRel(message_id=message_id):
                self._say(PubComp(message_id))
            case PubRec(message_id=message_id):
                self._say(PubRel(message_id))
            case PubAck(return_code=ReturnCode.REJECTED_INVALID_TOPIC_ID) as message:
                topic_id, name = self._published.get(message.message_id, (0, ""))
                if self.names.get(topic_id) == name:
                    del self.names[topic_id]
            case ConnAck() as message:
                assert message.return_code is ReturnCode.ACCEPTED

    def _published_to(self, message: Publish) -> None:
        name = self.names.get(message.topic_id)
        if name is None:
            self._say(PubAck(message.topic_id, message.message_id, ReturnCode.REJECTED_INVALID_TOPIC_ID))
            return
        assert message.payload.partition(b"|")[0].decode() == name, f"{message} is taken for {name}"
        self.heard.append(message.payload)
        if message.qos == 1:
            self._say(PubAck(message.topic_id, message.message_id, ReturnCode.ACCEPTED))
        elif message.qos == 2:
            self._say(PubRec(message.message_id))
