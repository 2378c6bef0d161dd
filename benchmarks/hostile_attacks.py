"""The attacks of hostile.py: endless streams of datagrams, from strangers and from the holder of a small token; and of
connections to REST, from strangers and from web pages that an operator has open."""

from __future__ import annotations

import contextlib
import random
import resource
import socket
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count

from triagemq.mqttsn import (
    Connect,
    Disconnect,
    Encapsulated,
    Message,
    PingReq,
    PlainMessage,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    RegAck,
    Register,
    ReturnCode,
    SearchGw,
    Subscribe,
    TopicIdType,
    Unsubscribe,
    WillMsg,
    WillMsgUpd,
    WillTopic,
    WillTopicUpd,
    decode,
    encode,
)

__all__ = ["ATTACKS", "CONNECTIONS_PER_SECOND", "OVER_REST", "Attacker"]

_SOCKETS = 8
_HOLDER = 0
"""The socket of the one with a token; strangers have the others."""
_REST = -1
"""Instead of a socket: a new connection to REST."""
_OPEN_CONNECTIONS = 1_200
CONNECTIONS_PER_SECOND = 200

Sending = Iterator[tuple[int, bytes]]


class Attacker:
    """Some sockets, and what their owners know: the holder's client id, and (overheard) that of a victim."""

    def __init__(
        self,
        gateway: tuple[str, int],
        rest: tuple[str, int],
        holder: str,
        victim: str,
        chance: random.Random,
    ) -> None:
        self.holder, self.victim, self.chance = holder, victim, chance
        self.answers = 0
        self.reply: Callable[[bytes], bytes | None] = lambda datagram: None
        """What an attack answers to a datagram of the gateway."""
        self.let_in = 0
        """Answers of REST that did what was asked."""
        self._rest = rest
        self._connections: deque[socket.socket] = deque()
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self._sockets = []
        for _ in range(_SOCKETS):
            one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            one.connect(gateway)
            one.setblocking(False)
            self._sockets.append(one)

    def send(self, number: int, datagram: bytes) -> None:
        if number == _REST:
            self._request(datagram)
            return
        with contextlib.suppress(OSError):
            self._sockets[number % _SOCKETS].send(datagram)

    def _request(self, octets: bytes) -> None:
        with contextlib.suppress(OSError):
            connection = socket.create_connection(self._rest, timeout=1.0)
            self._connections.append(connection)
            connection.sendall(octets)
            connection.setblocking(False)
        if len(self._connections) > _OPEN_CONNECTIONS:
            self._close_oldest()

    def _close_oldest(self) -> None:
        with self._connections.popleft() as one, contextlib.suppress(OSError):
            if octets := one.recv(65535):
                self.answers += 1
                self.let_in += octets.startswith((b"HTTP/1.1 2", b"HTTP/1.1 101"))

    def close(self) -> None:
        while self._connections:
            self._close_oldest()

    def drain(self) -> None:
        for one in self._sockets:
            with contextlib.suppress(OSError):
                while datagram := one.recv(65535):
                    self.answers += 1
                    if (reply := self.reply(datagram)) is not None:
                        one.send(reply)

    def identity(self, number: int) -> str:
        """The holder's own id on its socket, anything on the others."""
        return f"{self.holder}~0" if number % _SOCKETS == _HOLDER else f"stranger-{number}"


def _raw(message_type: int, head: bytes, text: bytes) -> bytes:
    body = bytes((message_type,)) + head + text
    return bytes((len(body) + 1,)) + body if len(body) < 255 else b"\1" + (len(body) + 3).to_bytes(2) + body


_POISON = (
    b"sensor/1/\x01",
    b"sensor/1/\x7f",
    "sensor/1/\x85".encode(),
    "sensor/1/\uffff".encode(),
    "sensor/1/\ufdd0".encode(),
    b"sensor/1/\xed\xa0\x80",
    b"sensor/1/\x00",
    b"sensor/1" + b"/x" * 250,
    b"sensor/1/" + b"/" * 600,
)


def poisonous_topics(attacker: Attacker) -> Sending:
    """What a broker drops the connection for: in REGISTER, SUBSCRIBE and wills, then published at every QoS."""
    for number in range(_SOCKETS):
        yield number, encode(Connect(attacker.identity(number), 60, clean_session=True))
    for number in count():
        topic = _POISON[number % len(_POISON)]
        message_id = (number % 0xFFFF + 1).to_bytes(2)
        yield number, _raw(0x0A, b"\0\0" + message_id, topic)
        yield number, _raw(0x12, bytes(((number % 3) << 5,)) + message_id, topic)
        yield number, _raw(0x1A, bytes((0x20,)), topic)
        for qos in range(3):
            topic_id = attacker.chance.randrange(1, 40)
            own_id = 1 + number % 60_000 if qos else 0
            yield (
                number,
                encode(Publish(TopicIdType.NORMAL, topic_id, b"x", qos=qos, message_id=own_id)),
            )
            short = attacker.chance.randbytes(2)
            yield (
                number,
                _raw(0x0C, bytes((qos << 5 | TopicIdType.SHORT,)) + short + own_id.to_bytes(2), b"x"),
            )
            yield number, encode(PubRel(1 + number % 60_000))


def unsupported_messages(attacker: Attacker) -> Sending:
    """QoS 2 and retained messages, finished and not, which some brokers do not take; under ids of any characters."""
    for number in range(_SOCKETS):
        name = attacker.identity(number) if number % _SOCKETS == _HOLDER else f"stranger-{number}\x01\ufffe"
        yield number, encode(Connect(name, 60, clean_session=True))
        yield number, encode(Register(0, 1, "sensor/1/large"))
    for number in count():
        own_id = 1 + number % 60_000
        payload = bytes(attacker.chance.choice((0, 10, 1400)))
        for topic_id in range(1, 5):
            yield (
                number,
                encode(Publish(TopicIdType.NORMAL, topic_id, payload, qos=2, message_id=own_id, retain=True)),
            )
        yield number, encode(PubRel(own_id))


def refused_topic_ids(attacker: Attacker) -> Sending:
    """Every PUBLISH of the gateway is answered with "invalid topic id", whatever REGISTER said before."""

    def refuse(datagram: bytes) -> bytes | None:
        message = decode(datagram)
        if isinstance(message, Register):
            return encode(RegAck(message.topic_id, message.message_id, ReturnCode.ACCEPTED))
        if isinstance(message, Publish):
            invalid = ReturnCode.REJECTED_INVALID_TOPIC_ID
            return encode(PubAck(message.topic_id, message.message_id, invalid))
        return None

    attacker.reply = refuse
    for number in range(_SOCKETS):
        yield number, encode(Connect(attacker.identity(number), 60, clean_session=True))
        yield number, encode(Subscribe(TopicIdType.NORMAL, "sensor/1/#", 1, 1 + number % 2))
        yield number, encode(Register(0, 2, "sensor/1/a"))
    for number in count():
        yield (
            number,
            encode(Publish(TopicIdType.NORMAL, 1 + number % 4, b"x", qos=1, message_id=1 + number % 60_000)),
        )


def empty_messages(attacker: Attacker) -> Sending:
    """Messages without a payload, at every QoS, on topics that their subscriber values beyond all measure."""
    for number in range(_SOCKETS):
        yield number, encode(Connect(attacker.identity(number), 60, clean_session=True))
        yield number, encode(Subscribe(TopicIdType.NORMAL, "sensor/1/#", 1, qos=number % 2))
        for place in range(3):
            yield number, encode(Register(0, 2 + place, f"sensor/1/{place}"))
    for number in count():
        qos = number % 3
        payload = bytes(attacker.chance.choice((0, 0, 0, 20)))
        own_id = 1 + number % 60_000 if qos else 0
        yield (
            number,
            encode(Publish(TopicIdType.NORMAL, 1 + number % 4, payload, qos=qos, message_id=own_id)),
        )
        if qos == 2:
            yield number, encode(PubRel(own_id))


def topic_ids(attacker: Attacker) -> Sending:
    """As many topic ids as can be had."""
    for number in range(_SOCKETS):
        yield number, encode(Connect(attacker.identity(number), 60, clean_session=True))
    for number in count():
        yield (
            number,
            encode(Register(0, 1 + number % 60_000, f"sensor/1/{number}")),
        )


def sessions(attacker: Attacker) -> Sending:
    """A session for each of endless wireless nodes, none of which promises to be heard again."""
    for number in count():
        node = number.to_bytes(4)
        yield number, encode(Encapsulated(node, Connect(f"node-{number}", 0)))
        yield number, encode(Encapsulated(node, Connect(f"{attacker.holder}~{number % 50}", 0)))


def handshakes(attacker: Attacker) -> Sending:
    """CONNECTs whose wills never come, from unknown, known and overheard ids."""
    for number in count():
        node = number.to_bytes(4)
        for client_id in (f"node-{number}", f"{attacker.holder}~0", attacker.victim):
            yield number, encode(Encapsulated(node, Connect(client_id, 60, will=True)))


def takeover(attacker: Attacker) -> Sending:
    """Everything but a CONNECT in somebody else's name, from elsewhere."""
    for number in count(1):
        yield number, encode(PingReq(attacker.victim))
        yield number, encode(Disconnect())
        yield number, encode(Subscribe(TopicIdType.NORMAL, "#", 1 + number % 60_000, 1))
        yield number, encode(Disconnect(60))
        yield number, encode(PubAck(1, 1 + number % 60_000, ReturnCode.ACCEPTED))
        yield number, encode(Encapsulated(b"n", PingReq(attacker.victim)))


def random_octets(attacker: Attacker) -> Sending:
    """Anything, and messages with some octets changed."""
    seeds = [encode(message) for message in _odd_messages(attacker, 0)]
    for number in range(_SOCKETS):
        yield number, encode(Connect(attacker.identity(number), 60, clean_session=True))
    chance = attacker.chance
    for number in count():
        if number % 2:
            yield number, chance.randbytes(chance.randrange(1, 80))
            continue
        datagram = bytearray(chance.choice(seeds))
        for _ in range(chance.randint(1, 3)):
            datagram[chance.randrange(len(datagram))] = chance.randrange(256)
        yield number, bytes(datagram)


def odd_messages(attacker: Attacker) -> Sending:
    """Well-formed messages with odd contents, in odd orders."""
    chance = attacker.chance
    for number in count():
        yield number, encode(chance.choice(_odd_messages(attacker, number)))


def _odd_messages(attacker: Attacker, number: int) -> list[Message]:
    chance = attacker.chance
    message_id = chance.choice((0, 1, 0xFFFF, chance.randrange(0x10000)))
    topic_id = chance.choice((1, 2, 0x7FFF, 0xFFFE))
    who = attacker.identity(number)
    plain: list[PlainMessage] = [
        Connect(who, chance.choice((0, 1, 0xFFFF)), clean_session=chance.random() < 0.5),
        Connect(who, 1, clean_session=True, will=True),
        WillTopic("sensor/1/will", qos=chance.randrange(3), retain=True),
        WillTopic(None),
        WillMsg(chance.randbytes(chance.randrange(200))),
        WillTopicUpd("sensor/1/will", qos=1),
        WillTopicUpd(None),
        WillMsgUpd(b""),
        Register(0, message_id, f"sensor/1/{chance.randrange(1000)}"),
        RegAck(topic_id, message_id, chance.choice(tuple(ReturnCode))),
        Publish(TopicIdType.NORMAL, topic_id, b"", qos=1, message_id=message_id, dup=True),
        Publish(TopicIdType.PREDEFINED, topic_id, bytes(1000), qos=2, message_id=message_id, retain=True),
        Publish(TopicIdType.SHORT, 0x6162, b"x", qos=-1),
        PubAck(topic_id, message_id, chance.choice(tuple(ReturnCode))),
        PubRec(message_id),
        PubRel(message_id),
        PubComp(message_id),
        Subscribe(
            TopicIdType.NORMAL,
            chance.choice(("#", "+/+", "sensor/1/#", "$SYS/#")),
            message_id,
            chance.randrange(3),
        ),
        Subscribe(TopicIdType.PREDEFINED, topic_id, message_id, 1),
        Unsubscribe(TopicIdType.NORMAL, "sensor/1/#", message_id),
        PingReq(chance.choice((None, who, attacker.victim))),
        Disconnect(chance.choice((None, 1, 0xFFFF))),
        SearchGw(chance.randrange(256)),
    ]
    return [*plain, Encapsulated(chance.randbytes(chance.randrange(1, 20)), chance.choice(plain))]


def subscription_cycles(attacker: Attacker) -> Sending:
    """SUBSCRIBE and UNSUBSCRIBE, with another filter each time."""
    for number in range(_SOCKETS):
        yield number, encode(Connect(attacker.identity(number), 60, clean_session=True))
    for number in count():
        topic = f"sensor/1/{number}"
        yield number, encode(Subscribe(TopicIdType.NORMAL, topic, 1 + number % 60_000, 1))
        yield number, encode(Unsubscribe(TopicIdType.NORMAL, topic, 1 + (number + 1) % 60_000))


def kept_session_cycles(attacker: Attacker) -> Sending:
    """CONNECT and DISCONNECT of sessions that are to be kept."""
    for number in count():
        yield number, encode(Connect(attacker.identity(number), 60))
        yield number, encode(Disconnect())


def long_session_cycles(attacker: Attacker) -> Sending:
    """Clean CONNECTs that promise a sign of life in many hours."""
    for number in count():
        yield number, encode(Connect(attacker.identity(number), 0xFFFF, clean_session=True))


def sleep_cycles(attacker: Attacker) -> Sending:
    """To sleep and awake again."""
    for number in count():
        yield number, encode(Connect(attacker.identity(number % _SOCKETS), 60))
        yield number, encode(Disconnect(0xFFFF))
        yield number, encode(PingReq(attacker.identity(number % _SOCKETS)))


def half_open_requests(_attacker: Attacker) -> Sending:
    """Requests to REST of which the rest never comes: of headers, of bodies, and of nothing at all."""
    head = b"POST /v1/publishers HTTP/1.1\r\nHost: localhost\r\n"
    for number in count():
        yield _REST, (head + b"X-", head + b"Content-Length: 1000\r\n\r\n{", b"")[number % 3]


def foreign_pages(_attacker: Attacker) -> Sending:
    """What a web page in an operator's browser could send, with a name of its own for this machine and without."""
    upgrade = (
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
    )
    body = '{"bandwidth_bps": 1}'
    change = f"Content-Type: text/plain\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    requests = (
        ("PUT /v1/ports/port", change),
        ("POST /v1/subscribers", change),
        ("DELETE /v1/subscribers/listener", "\r\n"),
        ("GET /v1/live", upgrade),
        ("GET /v1/gateways/evil/channel", upgrade),
        ("GET /page/_nicegui_ws/socket.io/?EIO=4&transport=websocket", upgrade),
    )
    for number in count():
        line, rest = requests[number % len(requests)]
        host = ("evil.example", "localhost")[number // len(requests) % 2]
        if "_nicegui" in line:
            # By another name, where there are tokens, a visitor may open the page: he has no cookie, and is signed out.
            host = "localhost"
        yield _REST, f"{line} HTTP/1.1\r\nHost: {host}\r\nOrigin: http://evil.example\r\n{rest}".encode()


OVER_REST = ("half open requests", "foreign pages")

ATTACKS: dict[str, Callable[[Attacker], Sending]] = {
    attack.__name__.replace("_", " "): attack
    for attack in (
        poisonous_topics,
        unsupported_messages,
        refused_topic_ids,
        empty_messages,
        topic_ids,
        sessions,
        handshakes,
        takeover,
        random_octets,
        odd_messages,
        subscription_cycles,
        kept_session_cycles,
        long_session_cycles,
        sleep_cycles,
        half_open_requests,
        foreign_pages,
    )
}
