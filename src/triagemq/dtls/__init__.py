"""DTLS 1.2 (RFC 6347) without sockets: datagrams go in and come out; the caller sends them and has the clock.

records        what is to be seen from outside, as octets
association    Association: one side of one association
security       ServerSecurity: a gateway's certificate, and the cookies that strangers must return before anything of
               them is stored; ClientSecurity: whom a client trusts, how it proves itself, and the sessions that it
               remembers, so that the next handshake is short

pyOpenSSL does the work (`pip install 'triagemq[dtls]'`); it is imported when the first certificate is loaded.
"""

from triagemq.dtls.association import Association
from triagemq.dtls.records import (
    LONGEST_MESSAGE,
    RECORD_BYTES,
    client_random,
    is_alert_without_association,
    no_association_alert,
)
from triagemq.dtls.security import ClientSecurity, Listener, ServerSecurity

__all__ = [
    "LONGEST_MESSAGE",
    "RECORD_BYTES",
    "Association",
    "ClientSecurity",
    "Listener",
    "ServerSecurity",
    "client_random",
    "is_alert_without_association",
    "no_association_alert",
]
