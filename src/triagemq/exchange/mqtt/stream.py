"""From a TCP stream to whole MQTT packets, wherever the stream is cut."""

from __future__ import annotations

from collections.abc import Iterator

from triagemq.errors import MqttError

__all__ = ["PacketStream"]


class PacketStream:
    """Collects octets until they make packets.

    >>> stream = PacketStream()
    >>> list(stream.feed(bytes.fromhex("d0"))), list(stream.feed(bytes.fromhex("00 4002 0007 40")))
    ([], [(208, b''), (64, b'\\x00\\x07')])
    """

    __slots__ = ("_needed", "_rest")

    def __init__(self) -> None:
        self._rest = bytearray()
        # How long `_rest` has to be before parsing it again makes sense: a large packet that arrives in many
        # pieces is looked at once, not once a piece.
        self._needed = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The packets that `data` completes: first octet (type and flags) and everything behind the length."""
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needed:
                return
            data = bytes(self._rest)
            self._rest = bytearray()
        self._needed = 0
        position = 0
        size = len(data)
        while size - position >= 2:
            length = data[position + 1]
            start = position + 2
            if length & 0x80:
                length &= 0x7F
                shift = 7
                while True:
                    if start >= size:
                        self._rest = bytearray(data[position:])
                        return
                    octet = data[start]
                    start += 1
                    length |= (octet & 0x7F) << shift
                    if not octet & 0x80:
                        break
                    shift += 7
                    if shift > 21:
                        raise MqttError("a packet of the broker has a malformed length")
            end = start + length
            if end > size:
                self._needed = end - position
                break
            first = data[position]
            position = end
            yield first, data[start:end]
        if position < size:
            self._rest = bytearray(data[position:])
