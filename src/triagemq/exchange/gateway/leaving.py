"""How clients leave: to another address, to sleep, for a while, or for ever.

A client may be silent, go, stay away for too long, or be no longer allowed. What comes for one that sleeps (MQTT-SN
1.2, section 6.14) is kept, and given once, when it wakes up.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from triagemq.exchange.gateway import broker_link, naming, publishing, subscribing
from triagemq.exchange.gateway.actions import Gone
from triagemq.exchange.gateway.core import GatewayCore
from triagemq.exchange.gateway.delivering import finished, give_up, pump, store
from triagemq.exchange.gateway.model import rows
from triagemq.exchange.gateway.model.sessions import Endpoint, Session, SessionState
from triagemq.mqttsn import Disconnect, PingReq, PingResp
from triagemq.trace.schema import Outcome

_NOWHERE = ("0.0.0.0", 0)


def supervise(gateway: GatewayCore, session: Session, seconds: float) -> None:
    """Lose the client when it is silent for longer than it promised; 0 promises nothing."""
    gateway.timers.cancel(session.timer)
    session.timer = None
    if seconds > 0:
        allowed_ns = int(seconds * gateway.settings.keep_alive_tolerance * 1e9)
        session.timer = gateway.schedule(
            session.heard_ns + allowed_ns, partial(_check, gateway, session, allowed_ns)
        )


def _check(gateway: GatewayCore, session: Session, allowed_ns: int) -> None:
    if gateway.now_ns - session.heard_ns >= allowed_ns:
        lose(gateway, session)
    else:
        due_ns = session.heard_ns + allowed_ns
        session.timer = gateway.schedule(due_ns, partial(_check, gateway, session, allowed_ns))


def lose(gateway: GatewayCore, session: Session) -> None:
    """A client is gone without a word: its will is published."""
    gateway.counters.clients_lost += 1
    publishing.publish_will(gateway, session)
    to_disconnected(gateway, session)


def to_disconnected(gateway: GatewayCore, session: Session) -> None:
    """The connection is over; a session that is not clean goes on, and QoS 1 and 2 messages are kept for it."""
    if session.clean:
        end(gateway, session, "disconnected")
        return
    session.state = SessionState.DISCONNECTED
    session.publishing.clear()
    broker_link.withdraw(gateway, session)
    session.link.routes.forget(session)
    if gateway.by_endpoint.get(session.endpoint) is session:
        del gateway.by_endpoint[session.endpoint]
    session.requeue()
    kept = session.buffer.clear()
    session.buffer.push_front(delivery for delivery in kept if delivery.qos)
    for delivery in kept:
        if not delivery.qos:
            give_up(gateway, session, delivery, Outcome.subscriber_gone, "disconnected")
    gateway.changes.put("sessions", rows.session(session))
    gateway.act(Gone(session.client_id))
    if session.link is not gateway.link:
        gateway.close(session.link)
    expire_later(gateway, session)
    superfluous = gateway.places.kept(session)
    if superfluous is not None:
        end(gateway, superfluous, "empty session")


def expire_later(gateway: GatewayCore, session: Session) -> None:
    """Forget a client that stays away: it must not take a place for ever."""
    gateway.timers.cancel(session.timer)
    session.timer = gateway.after(
        gateway.settings.session_expiry_seconds, partial(end, gateway, session, "session expired")
    )


def end(gateway: GatewayCore, session: Session, reason: str) -> None:
    """The session is over, with everything that belongs to it."""
    client_id = session.client_id
    del gateway.sessions[client_id]
    gateway.timers.cancel(session.timer)
    session.timer = None
    gateway.places.leave(session)
    if gateway.by_endpoint.get(session.endpoint) is session:
        del gateway.by_endpoint[session.endpoint]
    if session.connected:
        gateway.act(Gone(client_id))
    session.state = SessionState.DISCONNECTED
    gateway.unname(session)
    broker_link.leave(gateway, session)
    session.requeue()
    for delivery in session.buffer.clear():
        give_up(gateway, session, delivery, Outcome.subscriber_gone, reason)
    naming.forget(gateway, session)
    for message_id in list(session.abandoned or ()):
        finished(gateway, session, message_id)
    for topic_filter in session.subscriptions:
        gateway.changes.remove("subscriptions", (client_id, topic_filter))
        gateway.numbers.unsubscribed(client_id, topic_filter)
    for message_id in list(session.arrivals):
        publishing.forget(gateway, session, message_id)
        gateway.changes.remove("arrivals", (client_id, message_id))
    gateway.changes.remove("sessions", client_id)
    gateway.numbers.left(client_id)
    if session.link is not gateway.link:
        gateway.close(session.link)
        gateway.links.pop(client_id, None)


def send_elsewhere(gateway: GatewayCore, client_ids: Iterable[str], seconds: float) -> int:
    """Have clients look for another gateway by the protocol's own means; how many were told.

    They get DISCONNECT, and for some time neither GWINFO nor a session here. Whoever knows no other is served again
    after that. It is no fault of theirs: no will is published.
    """
    until_ns, told = gateway.now_ns + int(seconds * 1e9), 0
    past = [each for each, until in gateway.elsewhere_until_ns.items() if until <= gateway.now_ns]
    for each in past:
        del gateway.elsewhere_until_ns[each]
    for client_id in client_ids:
        session = gateway.sessions.get(client_id)
        if session is None or not session.connected:
            continue
        told += 1
        gateway.elsewhere_until_ns |= {client_id: until_ns, session.endpoint: until_ns}
        gateway.send(session.endpoint, Disconnect())
        to_disconnected(gateway, session)
    return told


def policy_changed(gateway: GatewayCore) -> None:
    """The policy has changed: end sessions that it forbids, and subscriptions and wills of the others.

    While it is closed, clients are sent away and what is kept for them stays: they may well be allowed.
    """
    policy = gateway.settings.policy
    for session in list(gateway.sessions.values()):
        client_id = session.client_id
        if policy.closed:
            if session.connected:
                gateway.send(session.endpoint, Disconnect())
                to_disconnected(gateway, session)
            continue
        if policy.forbids_connection(client_id):
            if session.connected:
                gateway.send(session.endpoint, Disconnect())
            gateway.counters.refused["session: no longer allowed"] += 1
            end(gateway, session, "no longer allowed")
            for lane in session.link.lanes:
                lane.withdraw(client_id)
            continue
        for topic_filter in [
            one for one in session.subscriptions if policy.forbids_subscription(client_id, one)
        ]:
            gateway.counters.refused["subscription: no longer allowed"] += 1
            subscribing.drop(gateway, session, topic_filter)
        if session.will is not None and policy.forbids_publication(client_id, session.will.topic):
            session.will = None
            gateway.changes.put("sessions", rows.session(session))


# Sleep.


def disconnect(gateway: GatewayCore, session: Session, message: Disconnect) -> None:
    """A client leaves, or goes to sleep for a while."""
    gateway.answer(session, Disconnect())
    if not message.duration_seconds:
        to_disconnected(gateway, session)
        return
    session.sleep_seconds = message.duration_seconds
    session.state = SessionState.ASLEEP
    session.link.routes.forget(session)
    session.requeue()
    for delivery in session.buffer:
        store(gateway, session, delivery)
    gateway.changes.put("sessions", rows.session(session))
    supervise(gateway, session, session.sleep_seconds)


def ping(gateway: GatewayCore, session: Session, message: PingReq) -> None:
    """A client shows that it is alive; one that sleeps, that it listens now."""
    if message.client_id is not None and message.client_id != session.client_id:
        ping_from_elsewhere(gateway, session.endpoint, message)
    elif session.state is SessionState.ASLEEP and message.client_id is not None:
        session.state = SessionState.AWAKE
        # No more than there is now: otherwise a busy topic would keep the client awake for ever.
        session.awake_budget = session.waiting
        pump(gateway, session)
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
        gateway.send_away(endpoint)
        return
    former = gateway.by_endpoint.get(endpoint)
    if former is not None and former is not session:
        lose(gateway, former)
    move(gateway, session, endpoint)
    session.heard_ns = gateway.now_ns
    gateway.changes.put("sessions", rows.session(session))
    gateway.present(session)
    ping(gateway, session, message)


def awake_served(gateway: GatewayCore, session: Session) -> None:
    """PINGRESP when the client has everything that was kept for it: it sleeps again."""
    if session.in_flight or session.unregistered or session.pump_is_due:
        return
    if session.buffer and session.awake_budget > 0:
        return
    gateway.send(session.endpoint, PingResp())
    back_to_sleep(gateway, session)


def back_to_sleep(gateway: GatewayCore, session: Session) -> None:
    """Awake no more; what was not answered is kept for the next time."""
    session.requeue()
    session.state = SessionState.ASLEEP
    supervise(gateway, session, session.sleep_seconds)


# Other addresses.


def move(gateway: GatewayCore, session: Session, endpoint: Endpoint) -> None:
    """A client is at this endpoint now, wherever it was before."""
    if gateway.by_endpoint.get(session.endpoint) is session and session.endpoint != endpoint:
        del gateway.by_endpoint[session.endpoint]
        gateway.counters.clients_moved += 1
    gateway.places.leave(session)
    session.endpoint = endpoint
    gateway.places.enter(session)
    gateway.by_endpoint[endpoint] = session
    session.link.routes.forget(session)


def estrange(gateway: GatewayCore, address: tuple[str, int]) -> None:
    """Somebody else may be at this address now: sessions there, behind a forwarder or not, wait for their CONNECT.

    Until then they are nowhere: nothing is sent to the address on their behalf, and nothing from there is theirs.
    """
    gateway.handshakes.end(address)
    there = gateway.by_endpoint.get(address)
    for session in ([] if there is None else [there]) + list(gateway.places.behind(address).values()):
        gateway.by_endpoint.pop(session.endpoint, None)
        gateway.places.leave(session)
        session.endpoint = (*_NOWHERE, session.endpoint[2]) if len(session.endpoint) == 3 else _NOWHERE
        gateway.places.enter(session)
        session.link.routes.forget(session)
        gateway.act(Gone(session.client_id))
