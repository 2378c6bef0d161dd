"""A gateway in a page: answers what the test allows, and nothing else."""

from __future__ import annotations

import asyncio

from triagemq.mqttsn import (
    ConnAck,
    Connect,
    Disconnect,
    Message,
    PingReq,
    PingResp,
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
    UnsubAck,
    Unsubscribe,
    decode,
    encode,
)

Address = tuple[str, int]


class StubGateway(asyncio.DatagramProtocol):
    """`silent_to` are the kinds of messages that it does not answer; `got` are those of the clients."""

    def __init__(self) -> None:
        self.silent_to: tuple[type[object], ...] = ()
        self.connect_code = ReturnCode.ACCEPTED
        self.got: list[Message] = []
        self.clients: set[Address] = set()
        self._transport: asyncio.DatagramTransport | None = None
        self._topics: list[str] = []

    async def __aenter__(self) -> StubGateway:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=("127.0.0.1", 0))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._transport is not None
        self._transport.close()
        # It closes its socket in the next round of the loop.
        await asyncio.sleep(0)

    @property
    def address(self) -> str:
        assert self._transport is not None
        return "{}:{}".format(*self._transport.get_extra_info("sockname"))

    @property
    def published(self) -> list[Publish]:
        return [each for each in self.got if isinstance(each, Publish)]

    def send(self, message: Message, client: Address | None = None) -> None:
        assert self._transport is not None
        for each in [client] if client else self.clients:
            self._transport.sendto(encode(message), each)

    def datagram_received(self, data: bytes, client: Address) -> None:
        message = decode(data)
        self.got.append(message)
        if isinstance(message, Connect):
            self.clients.add(client)
        answer = None if isinstance(message, self.silent_to) else self._answer(message)
        if answer is not None:
            self.send(answer, client)

    def _answer(self, message: Message) -> Message | None:
        match message:
            case Connect():
                return ConnAck(self.connect_code)
            case Disconnect():
                return Disconnect(None)
            case PingReq():
                return PingResp()
            case Register():
                return RegAck(self._id(message.topic_name), message.message_id, ReturnCode.ACCEPTED)
            case Subscribe():
                return SubAck(0, message.message_id, ReturnCode.ACCEPTED, message.qos)
            case Unsubscribe():
                return UnsubAck(message.message_id)
            case Publish() if message.qos == 1:
                return PubAck(message.topic_id, message.message_id, ReturnCode.ACCEPTED)
            case Publish() if message.qos == 2:
                return PubRec(message.message_id)
            case PubRel():
                return PubComp(message.message_id)
        return None

    def _id(self, name: str) -> int:
        if name not in self._topics:
            self._topics.append(name)
        return 1 + self._topics.index(name)
