"""Load for gateway_speed.py: a raw MQTT publisher, and subscribers that cost little for each message."""

from __future__ import annotations

import ctypes
import socket
import struct
import time
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from triagemq.dtls import Association, ClientSecurity
from triagemq.mqtt.packets import encode_connect, encode_subscribe
from triagemq.mqttsn import Connect, Disconnect, Subscribe, TopicIdType, encode

__all__ = ["PAYLOAD_BYTES", "MqttSink", "Publisher", "UdpSink", "free_port", "shake_hands"]

PAYLOAD_BYTES = 100
TOPIC = b"bench"
_SLOT_BYTES = 256
_SLOTS = 64

Times = npt.NDArray[np.int64]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _times(octets: npt.NDArray[np.uint8]) -> Times:
    times: Times = octets.copy().view(">i8").ravel().astype(np.int64)
    return times


class Publisher:
    """Publishes at a rate, or as fast as the broker takes it. Payloads begin with the time, in nanoseconds."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(encode_connect(4, "load", clean=True, keep_alive_seconds=0))
        assert self._socket.recv(4)[3] == 0

    def publish(self, count: int, rate: float | None, qos: int = 0) -> int:
        head = bytes((0x30 | qos << 1,))
        body = len(TOPIC).to_bytes(2) + TOPIC
        head += bytes((len(body) + 2 * (qos > 0) + PAYLOAD_BYTES,)) + body
        rest = b"x" * (PAYLOAD_BYTES - 8)
        pack = struct.Struct(">Q").pack
        begin_ns = time.monotonic_ns()
        sent = 0
        while sent < count:
            now_ns = time.monotonic_ns()
            due = count if rate is None else min(count, int((now_ns - begin_ns) * rate / 1e9) + 1)
            due = min(due, sent + 200)
            stamp = pack(now_ns)
            if qos:
                packets = b"".join(
                    head + (number % 0xFFFF + 1).to_bytes(2) + stamp + rest for number in range(sent, due)
                )
            else:
                packets = (head + stamp + rest) * (due - sent)
            self._socket.sendall(packets)
            sent = due
            if rate is not None and sent < count:
                time.sleep(max(0.0, (begin_ns + sent * 1e9 / rate - time.monotonic_ns()) / 1e9))
        return sent

    def close(self) -> None:
        self._socket.sendall(b"\xe0\0")
        self._socket.shutdown(socket.SHUT_WR)
        while self._socket.recv(65536):
            pass
        self._socket.close()


class _Piece(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _Header(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint32),
        ("pieces", ctypes.c_void_p),
        ("piece_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class _Message(ctypes.Structure):
    _fields_ = (("header", _Header), ("received_length", ctypes.c_uint))


class UdpSink:
    """MQTT-SN subscribers on consecutive UDP ports that read many datagrams with one recvmmsg.

    With the `certificate` of a gateway that speaks DTLS each has an association of its own.
    """

    FIRST_PORT: ClassVar = 21_000

    def __init__(self, port: int, subscribers: int, qos: int = 0, certificate: str | None = None) -> None:
        self._qos = qos
        self.sockets = []
        self._associations: list[Association] = []
        security = None if certificate is None else ClientSecurity(authority=certificate)
        for number in range(subscribers):
            one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
            one.bind(("127.0.0.1", self.FIRST_PORT + number))
            one.connect(("127.0.0.1", port))
            one.settimeout(5.0)
            if security is not None:
                self._associations.append(shake_hands(one, security, port))
            for message, kind in (
                (Connect(f"sink{number}", 600, clean_session=True), 0x05),
                (Subscribe(TopicIdType.NORMAL, TOPIC.decode(), 1, qos), 0x13),
            ):
                self._send(number, one, encode(message))
                answer = one.recv(1_500)
                if self._associations:
                    (answer,) = self._associations[number].receive(answer)
                assert answer[1] == kind
            one.setblocking(False)
            self.sockets.append(one)
        self._slots = np.zeros((_SLOTS, _SLOT_BYTES), dtype=np.uint8)
        begin = self._slots.ctypes.data
        self._pieces = (_Piece * _SLOTS)()
        self._messages = (_Message * _SLOTS)()
        for number in range(_SLOTS):
            self._pieces[number] = _Piece(begin + number * _SLOT_BYTES, _SLOT_BYTES)
            header = self._messages[number].header
            header.pieces = ctypes.addressof(self._pieces) + number * ctypes.sizeof(_Piece)
            header.piece_count = 1
        self._recvmmsg: Any = ctypes.CDLL(None).recvmmsg

    def take(self, number: int) -> Times:
        """The times in the messages that are there."""
        one = self.sockets[number]
        count = self._recvmmsg(one.fileno(), ctypes.byref(self._messages), _SLOTS, socket.MSG_DONTWAIT, None)
        if count <= 0:
            return np.zeros(0, dtype=np.int64)
        if self._associations:
            return self._opened(number, count)
        slots = self._slots[:count]
        slots = slots[slots[:, 1] == 0x0C]
        if self._qos == 1:
            for slot in slots:
                one.send(b"\x07\x0d" + slot[3:7].tobytes() + b"\0")
        return _times(slots[:, 7:15])

    def _opened(self, number: int, count: int) -> Times:
        receive = self._associations[number].receive
        found = [
            message[7:15]
            for slot in range(count)
            for message in receive(self._slots[slot, : self._messages[slot].received_length].tobytes())
            if message[1] == 0x0C
        ]
        return np.frombuffer(b"".join(found), dtype=">i8").astype(np.int64)

    def _send(self, number: int, one: socket.socket, datagram: bytes) -> None:
        one.send(self._associations[number].seal(datagram) if self._associations else datagram)

    def close(self) -> None:
        for number, one in enumerate(self.sockets):
            self._send(number, one, encode(Disconnect()))
            one.close()


def shake_hands(one: socket.socket, security: ClientSecurity, port: int) -> Association:
    """An association over a connected socket that waits."""
    association = security.association("127.0.0.1", port)
    flight = association.begin()
    while not association.is_established:
        for datagram in flight:
            one.send(datagram)
        association.receive(one.recv(65_535))
        flight = association.take()
    for datagram in flight:
        one.send(datagram)
    security.remember("127.0.0.1", port, association)
    return association


class MqttSink:
    """MQTT 3.1.1 subscribers over TCP; all packets have the same size, so that they need no parsing."""

    _PACKET_BYTES: ClassVar = 2 + 2 + len(TOPIC) + PAYLOAD_BYTES

    def __init__(self, port: int, subscribers: int) -> None:
        self.sockets = []
        self._rest = [b""] * subscribers
        for number in range(subscribers):
            one = socket.create_connection(("127.0.0.1", port))
            one.sendall(encode_connect(4, f"sink{number}", clean=True, keep_alive_seconds=0))
            assert len(one.recv(4)) == 4
            one.sendall(encode_subscribe(4, 1, TOPIC.decode(), 0))
            assert len(one.recv(5)) == 5
            one.setblocking(False)
            self.sockets.append(one)

    def take(self, number: int) -> Times:
        """The times in the messages that are there."""
        data = self._rest[number] + self.sockets[number].recv(1 << 18)
        whole = len(data) // self._PACKET_BYTES * self._PACKET_BYTES
        self._rest[number] = data[whole:]
        packets = np.frombuffer(data, dtype=np.uint8, count=whole).reshape(-1, self._PACKET_BYTES)
        begin = 4 + len(TOPIC)
        return _times(packets[:, begin : begin + 8])

    def close(self) -> None:
        for one in self.sockets:
            one.close()
