"""Sleeping clients (MQTT-SN 1.2, section 6.14): what comes meanwhile is kept, and given once, when they wake up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from triagemq.exchange.gateway import connecting, ending, rows
from triagemq.exchange.gateway.model import Endpoint, Session, SessionState
from triagemq.mqttsn import Disconnect, PingReq, PingResp

if TYPE_CHECKING:
    from triagemq.exchange.gateway.core import GatewayCore

__all__ = ["back_to_sleep", "disconnect", "finish_awake", "ping", "ping_from_elsewhere"]


def disconnect(gateway: GatewayCore, session: Session, message: Disconnect) -> None:
    """A client leaves, or goes to sleep for a while."""
    gateway.send(session.endpoint, Disconnect())
    if not message.duration_seconds:
        ending.to_disconnected(gateway, session)
        return
    session.sleep_seconds = message.duration_seconds
    session.state = SessionState.ASLEEP
    session.link.routes.forget(session)
    gateway.deliver.requeue(session)
    gateway.slots.hand_back(session, ended=False)
    for delivery in session.buffer:
        gateway.deliver.store(session, delivery)
    gateway.changes.put("sessions", *rows.session(session))
    ending.supervise(gateway, session, session.sleep_seconds)


def ping(gateway: GatewayCore, session: Session, message: PingReq) -> None:
    """A client shows that it is alive; one that sleeps, that it listens now."""
    if message.client_id is not None and message.client_id != session.client_id:
        ping_from_elsewhere(gateway, session.endpoint, message)
    elif session.state is SessionState.ASLEEP and message.client_id is not None:
        session.state = SessionState.AWAKE
        # No more than there is now: otherwise a busy topic would keep the client awake for ever.
        session.awake_budget = session.waiting
        gateway.deliver.pump(session)
    elif session.state is not SessionState.AWAKE:
        gateway.send(session.endpoint, PingResp())


def ping_from_elsewhere(gateway: GatewayCore, endpoint: Endpoint, message: PingReq) -> None:
    """A client calls from an address that is not the one we know: a router has given it another, or it is a liar.

    DISCONNECT makes a client whose address has changed connect anew at once, and nothing is lost by that; a client id
    alone must not take somebody else's session. Only one that sleeps, and whose id is a secret, is believed at once.
    """
    session = None if message.client_id is None else gateway.sessions.get(message.client_id)
    sleeps = session is not None and session.state in (SessionState.ASLEEP, SessionState.AWAKE)
    if session is None or not (sleeps and gateway.settings.policy.client_ids_are_secret()):
        gateway.counters.unknown_senders += 1
        gateway.send(endpoint, Disconnect())
        return
    former = gateway.by_endpoint.get(endpoint)
    if former is not None and former is not session:
        ending.lose(gateway, former)
    connecting.move(gateway, session, endpoint)
    session.heard_ns = gateway.now_ns
    gateway.changes.put("sessions", *rows.session(session))
    gateway.present(session)
    ping(gateway, session, message)


def finish_awake(gateway: GatewayCore, session: Session) -> None:
    """PINGRESP when the client has everything that was kept for it: it sleeps again."""
    if session.in_flight or session.unregistered or session.pump_is_due:
        return
    if session.buffer and session.awake_budget > 0:
        return
    gateway.send(session.endpoint, PingResp())
    back_to_sleep(gateway, session)


def back_to_sleep(gateway: GatewayCore, session: Session) -> None:
    """Awake no more; what was not answered is kept for the next time."""
    gateway.deliver.requeue(session)
    session.state = SessionState.ASLEEP
    ending.supervise(gateway, session, session.sleep_seconds)
