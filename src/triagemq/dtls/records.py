"""What is to be seen of DTLS from outside: records and ClientHellos as octets, without OpenSSL."""

from __future__ import annotations

from typing import Final

RECORD_BYTES: Final = 37
"""What a record adds to a datagram: header 13, explicit nonce 8, tag 16 (AES-GCM; others less)."""

LONGEST_MESSAGE: Final = 16_384
"""The longest datagram that fits into a record."""

MTU: Final = 1_400
"""No datagram of a handshake is longer, on any path."""

HEADER: Final = 13
"""Octets of a record before its contents: type, version, epoch, number, length."""

HANDSHAKE: Final = 22
APPLICATION_DATA: Final = 23
_ALERT: Final = 21
_CLIENT_HELLO: Final = 1
_RANDOM: Final = slice(27, 59)  # of a datagram with a ClientHello: after both headers and the version


def client_random(datagram: bytes) -> bytes | None:
    """What tells one ClientHello (sent once or again) from another; None if the datagram does not begin with one."""
    if len(datagram) <= _RANDOM.stop or datagram[0] != HANDSHAKE or datagram[HEADER] != _CLIENT_HELLO:
        return None
    return datagram[_RANDOM] if datagram[3:5] == b"\0\0" else None


def as_sent_once(hello: bytes) -> bytes:
    """A ClientHello as if nothing had been sent again: record 0, or 1 if it has a cookie.

    OpenSSL answers the first with the number of its record and begins to count at 1 after the second: a client that has
    sent its first once more would take the ServerHello for a replay. What follows the record in its datagram is left
    out: it would stay in the listener, and be taken for the next stranger's.
    """
    session_length = hello[_RANDOM.stop]
    has_cookie = hello[_RANDOM.stop + 1 + session_length : _RANDOM.stop + 2 + session_length] > b"\0"
    end = HEADER + int.from_bytes(hello[11:13])
    return hello[:5] + bytes(5) + bytes([has_cookie]) + hello[11:end]


def no_association_alert() -> bytes:
    """The answer to a record that belongs to no association: a fatal alert (unexpected message), in clear.

    Anyone may have sent it, so it proves nothing: a client takes it as a hint that a new handshake is worth a try.
    """
    return b"\x15\xfe\xfd" + bytes(8) + b"\0\x02\x02\x0a"


def is_alert_without_association(datagram: bytes) -> bool:
    """Is this such an answer?

    >>> is_alert_without_association(no_association_alert())
    True
    """
    return len(datagram) == HEADER + 2 and datagram[0] == _ALERT and datagram[3:5] == b"\0\0"


def in_datagrams(octets: bytes) -> list[bytes]:
    """Records packed into datagrams that fit into a frame; a ClientHello is alone, for listeners look no further."""
    datagrams: list[bytes] = []
    begin = end = 0
    while end + HEADER <= len(octets):
        record = HEADER + int.from_bytes(octets[end + 11 : end + 13])
        is_full = end + record - begin > MTU
        if end > begin and (is_full or client_random(octets[begin:end]) is not None):
            datagrams.append(octets[begin:end])
            begin = end
        end += record
    if end > begin:
        datagrams.append(octets[begin:end])
    return datagrams
