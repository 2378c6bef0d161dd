"""How sessions begin: CONNECT, room for one more client, its will asked for in two steps, and the way to the broker."""

from __future__ import annotations

from triagemq.exchange.gateway import broker_link, leaving, naming, publishing
from triagemq.exchange.gateway.core import GatewayCore
from triagemq.exchange.gateway.delivering import pump
from triagemq.exchange.gateway.model import rows
from triagemq.exchange.gateway.model.limits import PendingConnect, SessionsById
from triagemq.exchange.gateway.model.messages import LastWill
from triagemq.exchange.gateway.model.sessions import BrokerLink, Endpoint, Session, SessionState
from triagemq.exchange.gateway.model.topics import ClientTopics
from triagemq.exchange.gateway.settings import BrokerLoss, Mode
from triagemq.exchange.mqtt.session import Login
from triagemq.mqttsn import (
    ConnAck,
    Connect,
    ReturnCode,
    WillMsg,
    WillMsgReq,
    WillTopic,
    WillTopicReq,
    is_brokers_own,
)

# Who is looked at for each client that finds no room: the next one goes on where this one stopped.
_LOOKED_AT = 8


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
        leaving.lose(gateway, other)
    session = gateway.sessions.get(message.client_id)
    if session is not None and (message.clean_session or session.clean):
        leaving.end(gateway, session, "session cleaned")
        session = None
    if session is None:
        number = gateway.numbers.subscriber(message.client_id)
        link = link_for(gateway, message.client_id, message.clean_session)
        session = Session(
            message.client_id,
            number,
            endpoint,
            link,
            ClientTopics(gateway.topics),
            message.clean_session,
            message.duration_seconds,
        )
        gateway.sessions[message.client_id] = session
        gateway.places.enter(session)
        gateway.name(session)
    else:
        session.duration_seconds = message.duration_seconds
        naming.new_connection(gateway, session)
        session.requeue()
        if session.link.is_closed:
            gateway.open(session.link)
            for message_id, arrival in list(session.arrivals.items()):
                if arrival.packet_id:
                    publishing.resume(gateway, session, message_id, arrival)
    if message.will:
        session.will = will
    leaving.move(gateway, session, endpoint)
    session.heard_ns = gateway.now_ns
    session.sleep_seconds = 0
    if gateway.settings.mode is Mode.TRANSPARENT and not session.link.available:
        session.state = SessionState.CONNECTING
        gateway.after(gateway.settings.connect_timeout_seconds, lambda: _connect_timeout(gateway, session))
        return
    connected(gateway, session)


def connected(gateway: GatewayCore, session: Session) -> None:
    """The client may send and get messages from now on."""
    session.state = SessionState.ACTIVE
    session.link.routes.forget(session)
    gateway.changes.put("sessions", rows.session(session))
    gateway.present(session)
    gateway.answer(session, ConnAck(ReturnCode.ACCEPTED))
    leaving.supervise(gateway, session, session.duration_seconds)
    if session.buffer:
        session.draining = True
        pump(gateway, session)


def _connect_timeout(gateway: GatewayCore, session: Session) -> None:
    if session.state is SessionState.CONNECTING:
        gateway.counters.refused["connect: no broker"] += 1
        gateway.send(session.endpoint, ConnAck(ReturnCode.REJECTED_CONGESTION))
        leaving.to_disconnected(gateway, session)


def link_for(gateway: GatewayCore, client_id: str, clean: bool) -> BrokerLink:
    """The way to the broker for a client."""
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

    A client that has promised no keep-alive and is silent for long, and a session that is kept for nobody knows whom
    and holds nothing, are given up when there is no room otherwise. Nobody else is: a new client is refused then.
    """
    policy, host = gateway.settings.policy, endpoint[0]
    known = gateway.sessions.get(client_id)
    if known is None and policy.refuses_connection(client_id, len(gateway.sessions)):
        _make_room(gateway, gateway.sessions)
        if policy.refuses_connection(client_id, len(gateway.sessions)):
            return "policy"
    is_here = known is not None and known.endpoint[0] == host
    if not is_here and _is_full(gateway, gateway.places.at(host), policy.clients_per_address(host)):
        return "too many at one address"
    forwarder = endpoint[:2]
    is_behind = len(endpoint) == 2 or (known is not None and known.endpoint[:2] == forwarder)
    most = policy.maximum_clients_per_forwarder
    if not is_behind and _is_full(gateway, gateway.places.behind(forwarder), most):
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
                leaving.lose(gateway, session)
            if gateway.sessions.get(client_id) is session:
                leaving.end(gateway, session, "given up for another")
            return


def _is_idle(gateway: GatewayCore, session: Session) -> bool:
    if session.state is SessionState.DISCONNECTED:
        return session.is_empty
    silent_ns = gateway.now_ns - session.heard_ns
    is_supervised = session.state is not SessionState.ACTIVE or session.duration_seconds > 0
    return not is_supervised and silent_ns >= gateway.settings.silent_seconds * 1e9


# Wills are asked for in two steps: few at a time, cheap, and the oldest goes when there are too many.


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
