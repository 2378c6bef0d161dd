"""DTLS 1.2 (RFC 6347) without sockets: datagrams go in and come out; the caller sends them and has the clock.

Records                what is to be seen from outside, as octets
Association            one side of one association: the handshake, lost flights, records in and out
ServerSecurity         a gateway's certificate, and the cookies that senders must return before anything is stored
ClientSecurity         whom a client trusts, how it proves itself, and the sessions that it remembers, so that the next
                       handshake is short

pyOpenSSL does the work (`pip install 'triagemq[dtls]'`); it is imported when the first certificate is loaded.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from triagemq.errors import MissingDependencyError, ParameterError

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
    """The random octets of a ClientHello, the same each time it is sent; None if the datagram begins otherwise."""
    if len(datagram) <= _RANDOM.stop or datagram[0] != HANDSHAKE or datagram[HEADER] != _CLIENT_HELLO:
        return None
    return datagram[_RANDOM] if datagram[3:5] == b"\0\0" else None


def as_sent_once(hello: bytes) -> bytes:
    """A ClientHello as if nothing had been sent again: record 0, or 1 if it has a cookie.

    OpenSSL answers the first with the number of its record and begins to count at 1 after the second: a client that has
    sent its first once more would take the ServerHello for a replay. What follows the record in its datagram is left
    out: it would stay in the listener, and be taken for the next sender's.
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


# One side of an association.

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


# Certificates and trust.

_DTLS_1_2: Final = 0xFEFD
_COOKIE_BYTES: Final = 32
_LONGEST_HELLO: Final = 4_096
_MOST_SESSIONS: Final = 1_000
# Forward secrecy and authenticated encryption only.
_CIPHERS: Final = b"ECDHE+AESGCM:ECDHE+CHACHA20"


@contextlib.contextmanager
def _explained(path: str | Path, ssl: Any, problem: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ParameterError(str(path), error.strerror or str(error)) from None
    except ssl.Error as error:
        raise ParameterError(str(path), f"{problem}: {reason(error)}") from None


def _load_certificate(context: Any, ssl: Any, certificate: str | Path, private_key: str | Path) -> None:
    for path in (certificate, private_key):
        with _explained(path, ssl, "cannot be read"):
            Path(path).read_bytes()
    with _explained(certificate, ssl, f"cannot be used with key {private_key}"):
        context.use_certificate_chain_file(str(certificate))
        context.use_privatekey_file(str(private_key))
        context.check_privatekey()


def _load_authority(context: Any, ssl: Any, authority: str | Path) -> None:
    with _explained(authority, ssl, "holds no certificate"):
        Path(authority).read_bytes()
        context.load_verify_locations(str(authority))


class ServerSecurity:
    """The certificate of a gateway. With `client_authority`, clients need one that it has signed."""

    def __init__(
        self,
        certificate: str | Path,
        private_key: str | Path,
        *,
        client_authority: str | Path | None = None,
    ) -> None:
        self.files: Sequence[str | Path] = (
            (certificate, private_key)
            if client_authority is None
            else (certificate, private_key, client_authority)
        )
        self._secret = secrets.token_bytes(32)
        self._ssl = openssl()
        # The address of the present datagram: cookies are bound to addresses.
        self._address = b""
        # Answers senders without a cookie, one after the other.
        self._listening: Any = None
        self.wrong_cookies = 0
        self.load()

    def load(self) -> None:
        """Use the files as they are now for handshakes from now on; ParameterError, and no change, if that fails."""
        ssl = self._ssl
        context = ssl.Context(ssl.DTLS_SERVER_METHOD)
        context.set_min_proto_version(_DTLS_1_2)
        context.set_options(ssl.OP_COOKIE_EXCHANGE | ssl.OP_NO_QUERY_MTU | ssl.OP_NO_RENEGOTIATION)
        context.set_mode(ssl._lib.SSL_MODE_RELEASE_BUFFERS)
        context.set_cipher_list(_CIPHERS)
        # Resumption by tickets: clients keep what the gateway would have to.
        context.set_session_cache_mode(ssl.SESS_CACHE_OFF)
        context.set_session_id(b"triagemq")
        context.set_cookie_generate_callback(lambda connection: self._cookie())
        context.set_cookie_verify_callback(lambda connection, cookie: self._is_right(cookie))
        _load_certificate(context, ssl, self.files[0], self.files[1])
        if len(self.files) > 2:
            _load_authority(context, ssl, self.files[2])
            context.set_verify(ssl.VERIFY_PEER | ssl.VERIFY_FAIL_IF_NO_PEER_CERT)
        self._context, self._listening = context, None

    def hello(self, address: tuple[str, int], datagram: bytes) -> tuple[Association | None, list[bytes]]:
        """A ClientHello from an address: an association if it has the right cookie, and datagrams to send.

        Nothing is stored of a sender without a cookie.
        """
        if len(datagram) > _LONGEST_HELLO:
            return None, []
        connection, self._listening = self._listening or self._connection(), None
        self._address = repr(address).encode()
        connection.bio_write(as_sent_once(datagram))
        association = Association(connection, self._ssl)
        try:
            connection.DTLSv1_listen()
        except self._ssl.WantReadError:
            self._listening = connection
            return None, association.take()
        except self._ssl.Error:
            return None, []
        return association, association.begin()

    def _connection(self) -> Any:
        connection = self._ssl.Connection(self._context, None)
        connection.set_accept_state()
        connection.set_ciphertext_mtu(MTU)
        return connection

    def _cookie(self) -> bytes:
        return hmac.digest(self._secret, self._address, hashlib.sha256)[:_COOKIE_BYTES]

    def _is_right(self, cookie: bytes) -> bool:
        right = hmac.compare_digest(cookie, self._cookie())
        self.wrong_cookies += not right
        return right


def _require_name(lib: Any, connection: Any, host: str) -> None:
    parameters = lib.SSL_get0_param(connection._ssl)
    try:
        packed = ipaddress.ip_address(host).packed
    except ValueError:
        name = host.encode("idna")
        connection.set_tlsext_host_name(name)
        done = lib.X509_VERIFY_PARAM_set1_host(parameters, name, len(name))
    else:
        done = lib.X509_VERIFY_PARAM_set1_ip(parameters, packed, len(packed))
    if done != 1:
        raise ParameterError("gateway", f"{host!r} is no name that a certificate could have")


class ClientSecurity:
    """Whom a client trusts: `authority` (a PEM file), else the system's; `certificate` proves who it is itself.

    The authority may be the gateway's own certificate. `any_name` waives that it names the requested host,
    which only those can do without who were given that very certificate.
    """

    def __init__(
        self,
        *,
        authority: str | Path | None = None,
        certificate: str | Path | None = None,
        private_key: str | Path | None = None,
        any_name: bool = False,
    ) -> None:
        if (certificate is None) != (private_key is None):
            raise ParameterError("certificate", "and private_key belong together: give both or none")
        self._authority = authority
        self._own = None if certificate is None or private_key is None else (certificate, private_key)
        self._any_name = any_name
        self._context: Any = None
        self._sessions: dict[tuple[str, int], Any] = {}

    def load(self) -> None:
        """Read the files; ParameterError if they cannot be used, MissingDependencyError without pyOpenSSL."""
        ssl = openssl()
        context = ssl.Context(ssl.DTLS_CLIENT_METHOD)
        context.set_min_proto_version(_DTLS_1_2)
        context.set_options(ssl.OP_NO_QUERY_MTU | ssl.OP_NO_RENEGOTIATION)
        context.set_cipher_list(_CIPHERS)
        context.set_verify(ssl.VERIFY_PEER)
        if self._authority is None:
            context.set_default_verify_paths()
        else:
            _load_authority(context, ssl, self._authority)
            context.get_cert_store().set_flags(ssl._lib.X509_V_FLAG_PARTIAL_CHAIN)
        if self._own is not None:
            _load_certificate(context, ssl, *self._own)
        self._context = context

    def load_once(self) -> None:
        """The same, if that has not been done yet."""
        if self._context is None:
            self.load()

    def association(self, host: str, port: int) -> Association:
        """A new one with that gateway, whose certificate must name that host; `begin` it."""
        self.load_once()
        ssl = openssl()
        connection = ssl.Connection(self._context, None)
        connection.set_connect_state()
        connection.set_ciphertext_mtu(MTU)
        if not self._any_name:
            _require_name(ssl._lib, connection, host)
        session = self._sessions.get((host, port))
        if session is not None:
            connection.set_session(session)
        return Association(connection, ssl)

    def remember(self, host: str, port: int, association: Association) -> None:
        """The next association with that gateway begins where this one began."""
        if len(self._sessions) >= _MOST_SESSIONS:
            self._sessions.clear()
        self._sessions[host, port] = association.session

    def forget(self, host: str, port: int) -> None:
        """The next handshake is a full one."""
        self._sessions.pop((host, port), None)
