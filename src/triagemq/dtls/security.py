"""Certificates and trust: how gateways prove what they are, and how clients make sure of it."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from triagemq.dtls.association import Association, openssl, reason
from triagemq.dtls.records import MTU, as_sent_once
from triagemq.errors import ParameterError

_DTLS_1_2: Final = 0xFEFD
_COOKIE_BYTES: Final = 32
_LONGEST_HELLO: Final = 4_096
_MOST_SESSIONS: Final = 1_000
# Forward secrecy and authenticated encryption only.
_CIPHERS: Final = b"ECDHE+AESGCM:ECDHE+CHACHA20"


def _load_certificate(context: Any, ssl: Any, certificate: str | Path, private_key: str | Path) -> None:
    for path in (certificate, private_key):
        try:
            Path(path).read_bytes()
        except OSError as error:
            raise ParameterError(str(path), error.strerror or str(error)) from None
    try:
        context.use_certificate_chain_file(str(certificate))
        context.use_privatekey_file(str(private_key))
        context.check_privatekey()
    except ssl.Error as error:
        raise ParameterError(
            str(certificate), f"cannot be used with key {private_key}: {reason(error)}"
        ) from None


def _load_authority(context: Any, ssl: Any, authority: str | Path) -> None:
    try:
        Path(authority).read_bytes()
        context.load_verify_locations(str(authority))
    except OSError as error:
        raise ParameterError(str(authority), error.strerror or str(error)) from None
    except ssl.Error as error:
        raise ParameterError(str(authority), f"holds no certificate: {reason(error)}") from None


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
        # Whose datagram is being looked at: cookies are bound to addresses.
        self._address = b""
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
        self._context = context

    def listener(self) -> Listener:
        """Answers strangers with the certificate that was loaded last."""
        return Listener(self)

    def connection(self) -> Any:
        """An association to be."""
        connection = self._ssl.Connection(self._context, None)
        connection.set_accept_state()
        connection.set_ciphertext_mtu(MTU)
        return connection

    def listen(self, connection: Any, address: tuple[str, int], datagram: bytes) -> Association | None:
        """The association, if the datagram is a ClientHello with the cookie of its address."""
        self._address = repr(address).encode()
        connection.bio_write(as_sent_once(datagram))
        try:
            connection.DTLSv1_listen()
        except self._ssl.WantReadError:
            return None
        return Association(connection, self._ssl)

    @property
    def error(self) -> type[Exception]:
        """What `listen` raises for octets that are nothing of the kind."""
        found: type[Exception] = self._ssl.Error
        return found

    def _cookie(self) -> bytes:
        return hmac.digest(self._secret, self._address, hashlib.sha256)[:_COOKIE_BYTES]

    def _is_right(self, cookie: bytes) -> bool:
        right = hmac.compare_digest(cookie, self._cookie())
        self.wrong_cookies += not right
        return right


class Listener:
    """Answers ClientHellos of strangers, and keeps nothing of them: only who returns his cookie gets an association."""

    def __init__(self, security: ServerSecurity) -> None:
        self._security = security
        self._connection: Any = None

    def renew(self) -> None:
        """The certificate has changed."""
        self._connection = None

    def hello(self, address: tuple[str, int], datagram: bytes) -> tuple[Association | None, list[bytes]]:
        """A ClientHello from an address: an association if it has the right cookie, and datagrams to send."""
        security = self._security
        if len(datagram) > _LONGEST_HELLO:
            return None, []
        if self._connection is None:
            self._connection = security.connection()
        connection = self._connection
        try:
            found = security.listen(connection, address, datagram)
        except security.error:
            self._connection = None
            return None, []
        if found is None:
            return None, Association(connection, security._ssl).take()
        self._connection = None
        return found, found.begin()


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
