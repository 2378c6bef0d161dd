"""Certificate files: one made for trying out, and those of others watched, so that a renewal needs no restart."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import re
import socket
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path

from triagemq.errors import MissingDependencyError, TriageError

LOOK_EVERY_SECONDS = 1.0
"""How often the owner of a RenewalWatch lets it look."""

_OWN_DAYS = 365
_TIME = rb"(?:\x17\x0d\d{12}Z|\x18\x0f\d{14}Z)"
_VALIDITY = re.compile(_TIME + rb"(?:\x17\x0d|\x18\x0f)(\d{12,14}Z)")
"""Two times in a row in DER: UTCTime (tag 23) or GeneralizedTime (tag 24), each with its length."""


def trust_only(certificate: str | Path | None) -> ssl.SSLContext | None:
    """For connections to a server with this very certificate, under whatever name; None where it has none."""
    if certificate is None:
        return None
    context = ssl.create_default_context(cafile=certificate)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.check_hostname = False
    return context


class RenewalWatch:
    """Loads files again when they have changed. `look` now and then; `report` gets a line about each renewal.

    A certificate and its key are replaced one after the other: they are loaded when nothing has changed between two
    looks. What cannot be loaded is left alone until it changes again, and what was loaded before stays in use.
    """

    def __init__(
        self, files: Sequence[str | Path], load: Callable[[], None], report: Callable[[str], None]
    ) -> None:
        self._files = tuple(files)
        self._load = load
        self._report = report
        self._loaded = self._seen = self._look()
        self.problem = ""
        """Why the files, as they are now, are not in use; empty if they are."""

    def look(self) -> None:
        """Has something changed?"""
        seen, self._seen = self._seen, self._look()
        if self._seen == self._loaded or self._seen != seen:
            return
        self._loaded = self._seen
        try:
            self._load()
        except (OSError, TriageError) as error:
            self.problem = str(error)
            self._report(f"the renewed certificate is not used, the old one stays: {error}")
        else:
            self.problem = ""
            self._report(f"the renewed certificate {self._files[0]} is in use")

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(file_identity(file) for file in self._files)


def expires_at(file: str | Path) -> float:
    """When the first certificate of a PEM file expires, in Unix seconds; ValueError if there is none.

    It is read with the standard library alone, from its DER octets: the second time of the validity.
    """
    text = Path(file).read_text(encoding="ascii", errors="replace")
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    first = text.partition(begin)[2].partition(end)[0]
    octets = ssl.PEM_cert_to_DER_cert(f"{begin}{first}{end}")
    found = _VALIDITY.search(octets)
    if found is None:
        raise ValueError(f"{file} holds no certificate")
    moment = found[1].decode()
    form = "%y%m%d%H%M%SZ" if len(moment) == len("yymmddHHMMSSZ") else "%Y%m%d%H%M%SZ"
    return datetime.datetime.strptime(moment, form).replace(tzinfo=datetime.UTC).timestamp()


def file_identity(file: str | Path) -> tuple[int, int, int] | None:
    """Changes with the file; None where there is none."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def own_certificate(directory: Path, hosts: Sequence[str] = ()) -> tuple[Path, Path]:
    """The files of a certificate that vouches for itself, and of its key; made if the directory has none.

    It is for trying out: clients that trust it need the file. It names this machine, and `hosts`.
    """
    certificate, private_key = directory / "certificate.pem", directory / "private_key.pem"
    if not certificate.exists() or not private_key.exists():
        key_text, certificate_text = _make([*dict.fromkeys(["localhost", "127.0.0.1", "::1", *hosts])])
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path, text in ((private_key, key_text), (certificate, certificate_text)):
            path.unlink(missing_ok=True)
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(text)
    return certificate, private_key


def _make(hosts: Sequence[str]) -> tuple[bytes, bytes]:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ImportError:
        raise MissingDependencyError("cryptography", "dtls") from None
    names: list[x509.GeneralName] = []
    with contextlib.suppress(UnicodeError, ValueError):
        names.append(x509.DNSName(socket.gethostname()))
    for host in hosts:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "TriageMQ, for trying out")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=_OWN_DAYS))
        .add_extension(x509.SubjectAlternativeName(list(dict.fromkeys(names))), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    return (
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
        certificate.public_bytes(serialization.Encoding.PEM),
    )
