"""A blocking MQTT 3.1.1 client that logs in, for tests of who may do what at a broker."""

from __future__ import annotations

import socket
import ssl
import time

from triagemq.mqtt.packets import (
    PacketStream,
    PacketType,
    encode_connect,
    encode_publish,
    encode_subscribe,
    parse_publish,
)


class Guest:
    """Connects at once; `code` is what CONNACK says, None if the connection was closed instead."""

    def __init__(
        self,
        port: int,
        user: str | None,
        password: str | None,
        *,
        client_id: str = "guest",
        clean: bool = True,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        if trust is not None:
            self._socket = trust.wrap_socket(self._socket, server_hostname="127.0.0.1")
        self._stream = PacketStream()
        self.published: list[bytes] = []
        self.closed = False
        self._socket.sendall(
            encode_connect(4, client_id, clean=clean, keep_alive_seconds=0, user=user, password=password)
        )
        packet = self._until(PacketType.CONNACK)
        self.code = None if packet is None else packet[1]

    def subscribe(self, topic_filter: str, qos: int = 0) -> None:
        self._socket.sendall(encode_subscribe(4, 1, topic_filter, qos))
        self._until(PacketType.SUBACK)

    def publish(self, topic: str, payload: bytes) -> None:
        self._socket.sendall(encode_publish(4, topic.encode(), payload, qos=0, retain=False, packet_id=0))

    def collect(self, seconds: float, count: int = 1) -> list[bytes]:
        """Payloads that have come, as soon as there are so many, or when the time is over."""
        deadline = time.monotonic() + seconds
        while len(self.published) < count and not self.closed and (left := deadline - time.monotonic()) > 0:
            self._receive(left)
        return self.published

    def end(self) -> None:
        self._socket.close()

    def _until(self, kind: PacketType) -> bytes | None:
        deadline = time.monotonic() + 30
        while not self.closed and (left := deadline - time.monotonic()) > 0:
            for first, body in self._receive(left):
                if first >> 4 == kind:
                    return body
        return None

    def _receive(self, seconds: float) -> list[tuple[int, bytes]]:
        self._socket.settimeout(max(seconds, 0.0001))
        try:
            data = self._socket.recv(65_536)
        except TimeoutError:
            return []
        except OSError:
            data = b""
        self.closed = not data
        packets = [(first, bytes(body)) for first, body in self._stream.feed(data)]
        for first, body in packets:
            if first >> 4 == PacketType.PUBLISH:
                self.published.append(parse_publish(4, first, body).payload)
        return packets
