"""Where a broker is and how to log in: `mqtt://user:password@host:1883`, `mqtts://` for TLS."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

from triagemq.addresses import place
from triagemq.errors import ParameterError
from triagemq.hiding import without_password

_PORTS = {"mqtt": 1883, "tcp": 1883, "mqtts": 8883, "ssl": 8883}
_OPTIONS = {"ca", "certificate", "key", "verify", "version"}
_VERSIONS = {"3.1.1": 4, "5": 5}


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """One broker. `ca`, `certificate` and `key` are PEM files; `verify=no` accepts any certificate.

    `version` is the first number of MQTT to try, 4 for 3.1.1; a broker that does not know it is tried with the other.
    """

    host: str
    port: int = 1883
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    verify: bool = True
    version: int = 5

    @classmethod
    def parse(cls, url: str) -> BrokerAddress:
        """From a URL; TLS files go behind a question mark.

        >>> BrokerAddress.parse("mqtts://fire:s3cret@broker.example?ca=/etc/ca.pem").port
        8883
        >>> BrokerAddress.parse("http://broker")
        Traceback (most recent call last):
        triagemq.errors.ParameterError: broker: 'http://broker' is not mqtt://HOST[:PORT] or mqtts://HOST[:PORT]
        """
        shown = repr(without_password(url))
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            # What Python says about it may hold a part of the password.
            raise ParameterError("broker", f"{shown}: its host or port cannot be read") from None
        if parts.scheme not in _PORTS or not parts.hostname or parts.path not in ("", "/"):
            raise ParameterError("broker", f"{shown} is not mqtt://HOST[:PORT] or mqtts://HOST[:PORT]")
        options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        if unknown := sorted(options.keys() - _OPTIONS):
            known = ", ".join(sorted(_OPTIONS))
            raise ParameterError("broker", f"{shown}: unknown option {unknown[0]!r}; there are {known}")
        version = options.get("version", "5")
        if version not in _VERSIONS:
            raise ParameterError("broker", f"{shown}: version must be 3.1.1 or 5, is {version!r}")
        return cls(
            host=parts.hostname,
            port=_PORTS[parts.scheme] if port is None else port,
            user=None if parts.username is None else unquote(parts.username),
            password=None if parts.password is None else unquote(parts.password),
            tls=parts.scheme in ("mqtts", "ssl"),
            ca=options.get("ca"),
            certificate=options.get("certificate"),
            key=options.get("key"),
            verify=options.get("verify", "yes") != "no",
            version=_VERSIONS[version],
        )

    def __str__(self) -> str:
        """Without the password: this goes into logs and error messages."""
        return f"{'mqtts' if self.tls else 'mqtt'}://{place(self.host, self.port)}"

    def with_password(self) -> str:
        """The whole address, as `parse` reads it; for private files, never for messages.

        >>> BrokerAddress.parse(BrokerAddress("hall", 1883, "fire", "s3:cret@").with_password()).password
        's3:cret@'
        """
        login = ":".join(quote(word, safe="") for word in (self.user, self.password) if word is not None)
        options = {"ca": self.ca, "certificate": self.certificate, "key": self.key}
        given = {name: value for name, value in options.items() if value is not None}
        given |= {} if self.verify else {"verify": "no"}
        given |= {"version": "3.1.1"} if self.version == _VERSIONS["3.1.1"] else {}
        scheme, _, place = str(self).partition("://")
        return f"{scheme}://{login}{'@' if login else ''}{place}{'?' if given else ''}{urlencode(given)}"

    def ssl_context(self) -> ssl.SSLContext | None:
        """What TLS needs, or None for a plain connection."""
        if not self.tls:
            return None
        files = self.ca
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate is not None:
                files = self.certificate
                context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise ParameterError(
                "broker", f"{self}: TLS cannot use {files}: {error.strerror or error}"
            ) from error
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context
