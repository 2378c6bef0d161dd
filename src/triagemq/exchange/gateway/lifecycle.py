"""How sessions begin, move, sleep and end: CONNECT, wills, keep-alive, DISCONNECT, expiry.

A client may be silent, go, stay away for too long, or be no longer allowed. What comes for one that sleeps (MQTT-SN
1.2, section 6.14) is stored, and sent once, when it wakes up.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from triagemq.exchange.gateway import broker_link, requests
from triagemq.exchange.gateway.core import GatewayCore, Gone, PendingConnect, SessionsById
from triagemq.exchange.gateway.delivery import finished, give_up, pump, store
from triagemq.exchange.gateway.messages import LastWill
from triagemq.exchange.gateway.sessions import BrokerLink, Endpoint, Session, SessionState
from triagemq.exchange.gateway.settings import BrokerLoss, Mode
from triagemq.exchange.gateway.topics import ClientTopics
from triagemq.exchange.mqtt.session import Login
from triagemq.mqttsn import (
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    ReturnCode,
    WillMsg,
    WillMsgReq,
    WillTopic,
    WillTopicReq,
    is_brokers_own,
)
from triagemq.trace.schema import Outcome

NOWHERE = ("0.0.0.0", 0)
"""The endpoint of a client that is expected, or whose address may be another's by now."""
# Who is looked at for each client that finds no room: the next one goes on where this one stopped.
_LOOKED_AT = 8


# Beginning.


def connect(gateway: GatewayCore, endpoint: Endpoint, message: Connect) -> None:
    """A client wants a session."""
    settings = gateway.settings
    if settings.policy.closed:
        _refuse(gateway, endpoint, ReturnCode.REJECTED_CONGESTION, "closed for now")
    elif gateway.is_elsewhere(message.client_id):
        _refuse(gateway, endpoint, ReturnCode.REJECTED_CONGESTION, "sent to another gateway")
    elif settings.policy.forbids_connection(message.client_id):
        _refuse(gateway, endpoint, ReturnCode.REJECTED_NOT_SUPPORTED, "not allowed")
    elif reason := _no_room(gateway, message.client_id, endpoint):
        _refuse(gateway, endpoint, ReturnCode.REJECTED_CONGESTION, reason)
    elif _broker_stays_away(gateway) and settings.mode is Mode.AGGREGATING:
        _refuse(gateway, endpoint, ReturnCode.REJECTED_CONGESTION, "no broker")
    elif message.will:
        _ask_for_will(gateway, endpoint, message)
    else:
        gateway.handshakes.end(endpoint)
        _establish(gateway, endpoint, message, None)


def _broker_stays_away(gateway: GatewayCore) -> bool:
    since_ns = gateway.link.is_down_since_ns
    if gateway.settings.broker_loss is BrokerLoss.KEEP or since_ns is None:
        return False
    return gateway.now_ns - since_ns >= gateway.settings.broker_grace_seconds * 1e9


def _establish(gateway: GatewayCore, endpoint: Endpoint, message: Connect, will: LastWill | None) -> None:
    if gateway.settings.policy.forbids_connection(message.client_id):
        # Since its CONNECT, which may have waited for a will.
        _refuse(gateway, endpoint, ReturnCode.REJECTED_NOT_SUPPORTED, "not allowed")
        return
    if reason := _no_room(gateway, message.client_id, endpoint):
        # Others may have come since.
        _refuse(gateway, endpoint, ReturnCode.REJECTED_CONGESTION, reason)
        return
    gateway.counters.connects += 1
    other = gateway.by_endpoint.get(endpoint)
    if other is not None and other.client_id != message.client_id:
        lose(gateway, other)
    session = gateway.sessions.get(message.client_id)
    if session is not None and (message.clean_session or session.clean):
        end(gateway, session, "session cleaned")
        session = None
    if session is None:
        session = begin(gateway, message.client_id, endpoint, message.clean_session, message.duration_seconds)
    else:
        session.duration_seconds = message.duration_seconds
        session.topics.new_connection()
        session.requeue()
        if session.link.is_closed:
            gateway.open(session.link)
            for message_id, inbound in list(session.inbound.items()):
                if inbound.packet_id:
                    requests.resume(gateway, session, message_id, inbound)
    if message.will:
        session.will = will
    move(gateway, session, endpoint)
    session.heard_ns = gateway.now_ns
    session.sleep_seconds = 0
    if gateway.settings.mode is Mode.TRANSPARENT and not session.link.available:
        session.state = SessionState.CONNECTING
        gateway.after(gateway.settings.connect_timeout_seconds, lambda: _connect_timeout(gateway, session))
        return
    connected(gateway, session)


def begin(
    gateway: GatewayCore,
    client_id: str,
    endpoint: Endpoint,
    clean: bool,
    duration_seconds: int,
    state: SessionState = SessionState.CONNECTING,
) -> Session:
    """A new session, from now on that of this client."""
    session = gateway.sessions[client_id] = Session(
        client_id,
        gateway.numbers.subscriber(client_id),
        endpoint,
        _link_for(gateway, client_id, clean),
        ClientTopics(gateway.topics, client_id),
        clean,
        duration_seconds,
        state,
        gateway.now_ns,
    )
    gateway.by_host.enter(session)
    gateway.name(session)
    return session


def connected(gateway: GatewayCore, session: Session) -> None:
    """The client may send and get messages from now on."""
    session.state = SessionState.ACTIVE
    session.link.routes.forget(session)
    gateway.changes.put("sessions", session.row())
    gateway.present(session)
    gateway.answer(session, ConnAck(ReturnCode.ACCEPTED))
    supervise(gateway, session, session.duration_seconds)
    if session.buffer:
        session.draining = True
        pump(gateway, session)


def _connect_timeout(gateway: GatewayCore, session: Session) -> None:
    if session.state is SessionState.CONNECTING:
        gateway.counters.refused["connect: no broker"] += 1
        gateway.send(session.endpoint, ConnAck(ReturnCode.REJECTED_CONGESTION))
        to_disconnected(gateway, session)


def _link_for(gateway: GatewayCore, client_id: str, clean: bool) -> BrokerLink:
    """The link to the broker for a client."""
    settings = gateway.settings
    if settings.mode is Mode.AGGREGATING:
        return gateway.link
    own = settings.credentials.get(client_id)
    login = Login(
        client_id,
        clean=clean,
        keep_alive_seconds=settings.broker_keep_alive_seconds,
        user=settings.user if own is None else own.user,
        password=settings.password if own is None else own.password,
    )
    link = gateway.links[client_id] = broker_link.new_link(gateway, client_id, login)
    gateway.open(link)
    return link


def _refuse(gateway: GatewayCore, endpoint: Endpoint, code: ReturnCode, reason: str) -> None:
    gateway.counters.refused[f"connect: {reason}"] += 1
    gateway.send(endpoint, ConnAck(code))


def _unexpected(gateway: GatewayCore, endpoint: Endpoint, message: WillTopic | WillMsg) -> None:
    gateway.counters.rejected[f"unexpected_{message.message_type.name.lower()}"] += 1
    if endpoint not in gateway.by_endpoint:
        gateway.send_away(endpoint)


# Room for one more.


def _no_room(gateway: GatewayCore, client_id: str, endpoint: Endpoint) -> str:
    """Why a client finds no room at an endpoint, or "": then there is room now.

    A client that has promised no keep-alive and is silent for long, and a session of an absent
    client that holds nothing, are given up when there is no room otherwise. No other is: a new client is refused then.
    """
    policy, host = gateway.settings.policy, endpoint[0]
    known = gateway.sessions.get(client_id)
    if known is None and policy.refuses_connection(client_id, len(gateway.sessions)):
        _make_room(gateway, gateway.sessions)
        if policy.refuses_connection(client_id, len(gateway.sessions)):
            return "policy"
    is_here = known is not None and known.endpoint[0] == host
    if not is_here and _is_full(gateway, gateway.by_host.at(host), policy.clients_per_address(host)):
        return "too many at one address"
    forwarder = endpoint[:2]
    is_behind = len(endpoint) == 2 or (known is not None and known.endpoint[:2] == forwarder)
    most = policy.maximum_clients_per_forwarder
    if not is_behind and _is_full(gateway, gateway.by_host.behind(forwarder), most):
        return "too many behind one forwarder"
    return ""


def _is_full(gateway: GatewayCore, sessions: SessionsById, most: int) -> bool:
    if not sessions or len(sessions) < most:
        return False
    _make_room(gateway, sessions)
    return len(sessions) >= most


def _make_room(gateway: GatewayCore, sessions: SessionsById) -> None:
    for _ in range(min(_LOOKED_AT, len(sessions))):
        client_id = next(iter(sessions))
        session = sessions.pop(client_id)
        sessions[client_id] = session
        if _is_idle(gateway, session):
            gateway.counters.refused["session: given up for another"] += 1
            if session.connected:
                lose(gateway, session)
            if gateway.sessions.get(client_id) is session:
                end(gateway, session, "given up for another")
            return


def _is_idle(gateway: GatewayCore, session: Session) -> bool:
    if session.state is SessionState.DISCONNECTED:
        return session.is_empty
    silent_ns = gateway.now_ns - session.heard_ns
    is_supervised = session.state is not SessionState.ACTIVE or session.duration_seconds > 0
    return not is_supervised and silent_ns >= gateway.settings.silent_seconds * 1e9


# Wills are requested in two steps: few at a time, cheap, and the oldest goes when there are too many.


def _ask_for_will(gateway: GatewayCore, endpoint: Endpoint, message: Connect) -> None:
    """It takes the place of an older one, at first of the same client or address."""
    gateway.handshakes.end(endpoint)
    settings, host = gateway.settings, endpoint[0]
    gateway.handshakes.make_room(
        host, most_there=settings.handshakes_per_address(host), most=settings.handshakes
    )
    _expect_will(gateway, endpoint, PendingConnect(message))
    gateway.send(endpoint, WillTopicReq())


def _expect_will(gateway: GatewayCore, endpoint: Endpoint, pending: PendingConnect) -> None:
    gateway.handshakes.put(endpoint, pending, gateway.now_ns + int(gateway.settings.retry_seconds * 1e9))
    _set_timer(gateway)


def _set_timer(gateway: GatewayCore) -> None:
    handshakes = gateway.handshakes
    if handshakes.timer is None and (due_ns := handshakes.next_due_ns) is not None:
        handshakes.timer = gateway.schedule(due_ns, lambda: _ask_again(gateway))


def _ask_again(gateway: GatewayCore) -> None:
    gateway.handshakes.timer = None
    for endpoint, pending in gateway.handshakes.due(gateway.now_ns):
        gateway.handshakes.end(endpoint)
        if pending.attempts <= gateway.settings.retries:
            pending.attempts += 1
            gateway.counters.retries += 1
            _expect_will(gateway, endpoint, pending)
            gateway.send(endpoint, WillTopicReq() if pending.topic is None else WillMsgReq())
    _set_timer(gateway)


def will_topic(gateway: GatewayCore, endpoint: Endpoint, message: WillTopic) -> None:
    """The first half of the will, or word that there is none."""
    pending = gateway.handshakes.get(endpoint)
    if pending is None:
        _unexpected(gateway, endpoint, message)
    elif message.topic_name is None:
        gateway.handshakes.end(endpoint)
        _establish(gateway, endpoint, pending.message, None)
    elif is_brokers_own(message.topic_name) or gateway.settings.policy.forbids_publication(
        pending.message.client_id, message.topic_name
    ):
        gateway.handshakes.end(endpoint)
        _refuse(gateway, endpoint, ReturnCode.REJECTED_NOT_SUPPORTED, "will not allowed")
    else:
        pending.topic = message
        pending.attempts = 1
        gateway.send(endpoint, WillMsgReq())


def will_message(gateway: GatewayCore, endpoint: Endpoint, message: WillMsg) -> None:
    """The second half of the will: the client is connected."""
    pending = gateway.handshakes.get(endpoint)
    topic = None if pending is None else pending.topic
    if pending is None or topic is None or topic.topic_name is None:
        _unexpected(gateway, endpoint, message)
        return
    gateway.handshakes.end(endpoint)
    will = LastWill(topic.topic_name, message.payload, topic.qos, topic.retain)
    _establish(gateway, endpoint, pending.message, will)


# Leaving.


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
    requests.publish_will(gateway, session)
    to_disconnected(gateway, session)


def to_disconnected(gateway: GatewayCore, session: Session) -> None:
    """The connection is over; a session that is not clean goes on, and its QoS 1 and 2 messages stay."""
    if session.clean:
        end(gateway, session, "disconnected")
        return
    session.state = SessionState.DISCONNECTED
    broker_link.withdraw(gateway, session)
    session.link.routes.forget(session)
    if gateway.by_endpoint.get(session.endpoint) is session:
        del gateway.by_endpoint[session.endpoint]
    session.requeue()
    waiting = session.buffer.clear()
    session.buffer.push_front(delivery for delivery in waiting if delivery.qos)
    for delivery in waiting:
        if not delivery.qos:
            give_up(gateway, session, delivery, Outcome.subscriber_gone, "disconnected")
    gateway.changes.put("sessions", session.row())
    gateway.act(Gone(session.client_id))
    if session.link is not gateway.link:
        gateway.close(session.link)
        session.publishing.clear()
    expire_later(gateway, session)
    superfluous = gateway.by_host.left_behind(session)
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
    gateway.by_host.leave(session)
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
    session.topics.clear()
    for message_id in list(session.abandoned or ()):
        finished(gateway, session, message_id)
    for topic_filter in session.subscriptions:
        gateway.changes.remove("subscriptions", (client_id, topic_filter))
        gateway.numbers.unsubscribed(client_id, topic_filter)
    for message_id in list(session.inbound):
        requests.drop_inbound(gateway, session, message_id)
        gateway.changes.remove("arrivals", (client_id, message_id))
    gateway.changes.remove("sessions", client_id)
    gateway.numbers.left(client_id)
    if session.link is not gateway.link:
        gateway.close(session.link)
        gateway.links.pop(client_id, None)


def send_elsewhere(gateway: GatewayCore, client_ids: Iterable[str], seconds: float) -> int:
    """Have clients look for another gateway by the protocol's own means; how many did.

    They get DISCONNECT, and for some time neither GWINFO nor a session here. A client that knows no other gateway is
    served again after that. It is no fault of theirs: no will is published.
    """
    until_ns, sent = gateway.now_ns + int(seconds * 1e9), 0
    past = [each for each, until in gateway.elsewhere_until_ns.items() if until <= gateway.now_ns]
    for each in past:
        del gateway.elsewhere_until_ns[each]
    for client_id in client_ids:
        session = gateway.sessions.get(client_id)
        if session is None or not session.connected:
            continue
        sent += 1
        gateway.elsewhere_until_ns |= {client_id: until_ns, session.endpoint: until_ns}
        gateway.send(session.endpoint, Disconnect())
        to_disconnected(gateway, session)
    return sent


def policy_changed(gateway: GatewayCore) -> None:
    """The policy has changed: end sessions that it forbids, and subscriptions and wills of the others.

    While it is closed, clients are sent away and what is stored for them stays: they may well be allowed.
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
                lane.outbox.withdraw(client_id)
            continue
        for topic_filter in [
            one for one in session.subscriptions if policy.forbids_subscription(client_id, one)
        ]:
            gateway.counters.refused["subscription: no longer allowed"] += 1
            requests.drop(gateway, session, topic_filter)
        if session.will is not None and policy.forbids_publication(client_id, session.will.topic):
            session.will = None
            gateway.changes.put("sessions", session.row())


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
    gateway.changes.put("sessions", session.row())
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
    alone must not take another client's session. Only one that sleeps, and whose id is a secret, is believed at once.
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
    gateway.changes.put("sessions", session.row())
    gateway.present(session)
    ping(gateway, session, message)


def silent(gateway: GatewayCore, session: Session) -> None:
    """It has left everything unanswered for as long as all retries take."""
    if session.state is SessionState.AWAKE:
        back_to_sleep(gateway, session)
    else:
        lose(gateway, session)


def awake_served(gateway: GatewayCore, session: Session) -> None:
    """PINGRESP when the client has everything that was stored for it: it sleeps again."""
    if session.in_flight or session.unregistered or session.pump_is_due:
        return
    if session.buffer and session.awake_budget > 0:
        return
    gateway.send(session.endpoint, PingResp())
    back_to_sleep(gateway, session)


def back_to_sleep(gateway: GatewayCore, session: Session) -> None:
    """Awake no more; what was not answered waits for the next time."""
    session.requeue()
    session.state = SessionState.ASLEEP
    supervise(gateway, session, session.sleep_seconds)


# Other addresses.


def move(gateway: GatewayCore, session: Session, endpoint: Endpoint) -> None:
    """A client is at this endpoint now, wherever it was before."""
    if gateway.by_endpoint.get(session.endpoint) is session and session.endpoint != endpoint:
        del gateway.by_endpoint[session.endpoint]
        gateway.counters.clients_moved += 1
    gateway.by_host.leave(session)
    session.endpoint = endpoint
    gateway.by_host.enter(session)
    gateway.by_endpoint[endpoint] = session
    session.link.routes.forget(session)


def detach_sessions_at(gateway: GatewayCore, address: tuple[str, int]) -> None:
    """Another client may be at this address now: sessions there, behind a forwarder or not, wait for their CONNECT.

    Until then they are nowhere: nothing is sent to the address on their behalf, and nothing from there is theirs.
    """
    gateway.handshakes.end(address)
    there = gateway.by_endpoint.get(address)
    for session in ([] if there is None else [there]) + list(gateway.by_host.behind(address).values()):
        gateway.by_endpoint.pop(session.endpoint, None)
        gateway.by_host.leave(session)
        session.endpoint = (*NOWHERE, session.endpoint[2]) if len(session.endpoint) == 3 else NOWHERE
        gateway.by_host.enter(session)
        session.link.routes.forget(session)
        gateway.act(Gone(session.client_id))
