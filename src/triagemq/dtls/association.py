"""One side of one association: the handshake, lost flights, records in and out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from triagemq.dtls.records import APPLICATION_DATA, HANDSHAKE, HEADER, LONGEST_MESSAGE, in_datagrams
from triagemq.errors import MissingDependencyError

_MOST_REPEATS: Final = 8
_ROOM_BYTES: Final = LONGEST_MESSAGE + 256


def openssl() -> Any:
    """pyOpenSSL, or how to get it."""
    try:
        from OpenSSL import SSL
    except ImportError:
        raise MissingDependencyError("pyOpenSSL", "dtls") from None
    return SSL


class Association:
    """One side of one association. `receive` what comes; send what `take` gives; `seal` what is to go out."""

    __slots__ = (
        "_connection",
        "_error",
        "_flight",
        "_has_last_word",
        "_ready",
        "_repeats",
        "_repeats_left",
        "_want_read",
        "is_closed",
        "is_established",
        "problem",
        "seal",
    )

    def __init__(self, connection: Any, ssl: Any) -> None:
        self._connection = connection
        self._want_read: type[Exception] = ssl.WantReadError
        self._error: type[Exception] = ssl.Error
        self.is_established = False
        self.is_closed = False
        self.problem = ""
        """Why the handshake failed, or the association was ended by the other side."""
        # What was sent last, and whether the handshake ended with it: the other side may miss it without our notice.
        self._flight: list[bytes] = []
        self._has_last_word = False
        self._ready: list[bytes] = []
        self._repeats = False
        self._repeats_left = _MOST_REPEATS
        self.seal: Callable[[bytes], bytes] = _sealing(connection, ssl)
        """One message as one record. In the order of sending: receivers take what is much older for a replay."""

    def begin(self) -> list[bytes]:
        """Start the handshake: datagrams to send."""
        self._advance()
        return self.take()

    def _advance(self) -> bool:
        try:
            self._connection.do_handshake()
        except self._want_read:
            return False
        except self._error as error:
            self._fail(error)
            return False
        self.is_established = True
        return True

    def receive(self, datagram: bytes) -> list[bytes]:
        """What was inside. Nothing for a handshake (`take` what follows from it), a forgery, or a replay."""
        connection = self._connection
        connection.bio_write(datagram)
        found: list[bytes] = []
        if not self.is_established:
            if not self._advance():
                # The sender takes the handshake for complete, and does not know that we do not.
                if datagram[0] == APPLICATION_DATA:
                    self._repeat_unasked()
                return found
            self._ready = in_datagrams(self._waiting())
            self._has_last_word = bool(self._ready)
        try:
            found.append(connection.recv(LONGEST_MESSAGE))
            # One record a datagram is the rule; asking for a second costs as much as the first.
            if int.from_bytes(datagram[11:13]) + HEADER != len(datagram):
                while True:
                    found.append(connection.recv(LONGEST_MESSAGE))
        except self._want_read:
            if self._has_last_word and datagram[0] == HANDSHAKE and datagram[3:5] == b"\0\0":
                self._repeat_unasked()
        except self._error as error:
            self._fail(error)
        return found

    def repeat(self) -> None:
        """No answer has come: `take` gives what was sent last."""
        self._repeats = True

    def _repeat_unasked(self) -> None:
        """The other side has not got what was sent last; not for ever, or two could go on with each other."""
        if self._repeats_left > 0:
            self._repeats_left -= 1
            self._repeats = True

    def take(self) -> list[bytes]:
        """Handshake messages, alerts: what is to be sent now, in datagrams that fit into a frame."""
        datagrams = self._ready or in_datagrams(self._waiting())
        self._ready = []
        if datagrams:
            self._flight = datagrams
        elif self._repeats:
            datagrams = self._flight
        self._repeats = False
        return datagrams

    def _waiting(self) -> bytes:
        found = b""
        try:
            while True:
                found += self._connection.bio_read(65_536)
        except self._want_read:
            return found

    def retransmit(self) -> list[bytes]:
        """What is due again because no answer has come in time."""
        try:
            self._connection.DTLSv1_handle_timeout()
        except self._error as error:
            self._fail(error)
        return self.take()

    def close(self) -> list[bytes]:
        """Take leave: datagrams to send."""
        if self.is_established and not self.is_closed:
            try:
                self._connection.shutdown()
            except self._error:
                self.is_closed = True
        self.is_closed = True
        return self.take()

    @property
    def was_resumed(self) -> bool:
        """Was the handshake short, because both sides remembered an earlier one?"""
        return bool(openssl()._lib.SSL_session_reused(self._connection._ssl))

    @property
    def session(self) -> Any:
        """What makes the next handshake short."""
        return self._connection.get_session()

    @property
    def distrust(self) -> str:
        """Why the other side's certificate is not accepted; empty if it is, or none has come."""
        lib, ffi = openssl()._lib, openssl()._ffi
        code = lib.SSL_get_verify_result(self._connection._ssl)
        return "" if code == lib.X509_V_OK else ffi.string(lib.X509_verify_cert_error_string(code)).decode()

    def _fail(self, error: Exception) -> None:
        self.is_closed = True
        self.problem = self.problem or reason(error)


def _sealing(connection: Any, ssl: Any) -> Callable[[bytes], bytes]:
    """What `send` and `bio_read` of pyOpenSSL do, without what is around it: this is done for every delivery."""
    write, read = ssl._lib.SSL_write, ssl._lib.BIO_read
    inside, outside = connection._ssl, connection._from_ssl
    room, octets = _room(ssl)

    def seal(message: bytes) -> bytes:
        written = write(inside, message, len(message))
        if written <= 0:
            connection._raise_ssl_error(inside, written)
        sealed: bytes = octets[: read(outside, room, _ROOM_BYTES)]
        return sealed

    return seal


@functools.cache
def _room(ssl: Any) -> tuple[Any, Any]:
    """Where records are put together, one after the other."""
    room = ssl._ffi.new("char[]", _ROOM_BYTES)
    return room, ssl._ffi.buffer(room)


def reason(error: Exception) -> str:
    """The last part of OpenSSL's own words.

    >>> reason(Exception([("SSL routines", "", "certificate verify failed")]))
    'certificate verify failed'
    """
    if error.args and isinstance(error.args[0], list) and error.args[0]:
        return str(error.args[0][-1][-1])
    return str(error) or "the other side has ended it"
