"""How sessions begin, move, sleep and end: CONNECT, wills, keep-alive, DISCONNECT, expiry.

A client may be silent, go, stay away for too long, or be no longer allowed. What comes for one that sleeps (MQTT-SN
1.2, section 6.14) is stored, and sent once, when it wakes up.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from triagemq import mqttsn
from triagemq.gateway.core import requests
from triagemq.gateway.core.broker_link import GatewayCore
from triagemq.gateway.core.delivery import give_up, pump, store
from triagemq.gateway.core.messages import LastWill
from triagemq.gateway.core.sessions import Endpoint, Session, SessionState
from triagemq.gateway.core.state import Gone, PendingConnect
from triagemq.gateway.core.topics import ClientTopics
from triagemq.mqttsn import ReturnCode, is_brokers_own
from triagemq.trace.schema import Outcome

NOWHERE = ("0.0.0.0", 0)
"""The endpoint of a client that is expected, or whose address may be another's by now."""
# Who is looked at for each client that finds no room: the next one goes on where this one stopped.
_LOOKED_AT = 8


# Beginning.


def connect(gateway: GatewayCore, endpoint: Endpoint, message: mqttsn.Connect) -> None:
    """A client requests a session."""
    if gateway.settings.policy.closed:
        _refuse(gateway, endpoint, ReturnCode.REJECTED_CONGESTION, "closed for now")
    elif gateway.is_elsewhere(message.client_id):
        _refuse(gateway, endpoint, ReturnCode.REJECTED_CONGESTION, "sent to another gateway")
    elif _is_refused(gateway, endpoint, message.client_id):
        return
    elif message.will:
        _ask_for_will(gateway, endpoint, message)
    else:
        gateway.handshakes.discard(endpoint)
        _establish(gateway, endpoint, message, None)


def _is_refused(gateway: GatewayCore, endpoint: Endpoint, client_id: str) -> bool:
    """Refuse a client that the policy forbids, or that finds no room; a CONNECT with a will is checked twice."""
    if gateway.settings.policy.forbids_connection(client_id):
        _refuse(gateway, endpoint, ReturnCode.REJECTED_NOT_SUPPORTED, "not allowed")
    elif reason := _no_room(gateway, client_id, endpoint):
        _refuse(gateway, endpoint, ReturnCode.REJECTED_CONGESTION, reason)
    else:
        return False
    return True


def _establish(
    gateway: GatewayCore, endpoint: Endpoint, message: mqttsn.Connect, will: LastWill | None
) -> None:
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
    if message.will:
        session.will = will
    move(gateway, session, endpoint)
    session.heard_ns = gateway.now_ns
    session.sleep_seconds = 0
    session.state = SessionState.ACTIVE
    gateway.changes.put("sessions", session.row())
    gateway.present(session)
    gateway.answer(session, mqttsn.ConnAck(ReturnCode.ACCEPTED))
    supervise(gateway, session, session.duration_seconds)
    resume_delivery(gateway, session)


def begin(
    gateway: GatewayCore,
    client_id: str,
    endpoint: Endpoint,
    clean: bool,
    duration_seconds: int,
    state: SessionState = SessionState.ACTIVE,
) -> Session:
    """A new session, from now on that of this client."""
    session = gateway.sessions[client_id] = Session(
        client_id,
        endpoint,
        ClientTopics(gateway.topics, client_id),
        clean,
        duration_seconds,
        state,
        gateway.now_ns,
    )
    gateway.place(session, endpoint)
    gateway.name(session)
    return session


def resume_delivery(gateway: GatewayCore, session: Session) -> None:
    """Send a client that is there what was stored for it."""
    if session.buffer:
        session.draining = True
        pump(gateway, session)


def _refuse(gateway: GatewayCore, endpoint: Endpoint, code: ReturnCode, reason: str) -> None:
    gateway.counters.refused[f"connect: {reason}"] += 1
    gateway.send(endpoint, mqttsn.ConnAck(code))


def _unexpected(gateway: GatewayCore, endpoint: Endpoint, message: mqttsn.WillTopic | mqttsn.WillMsg) -> None:
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
    if known is None and _is_full(gateway, gateway.sessions, policy.maximum_clients):
        return "policy"
    is_here = known is not None and known.endpoint[0] == host
    if not is_here and _is_full(gateway, gateway.at_host.of(host), policy.clients_per_address(host)):
        return "too many at one address"
    return ""


def _is_full(gateway: GatewayCore, sessions: dict[Any, Session], most: int) -> bool:
    if len(sessions) < most:
        return False
    _make_room(gateway, sessions)
    return len(sessions) >= most


def _make_room(gateway: GatewayCore, sessions: dict[Any, Session]) -> None:
    for _ in range(min(_LOOKED_AT, len(sessions))):
        key = next(iter(sessions))
        session = sessions[key] = sessions.pop(key)
        if _is_idle(gateway, session):
            gateway.counters.refused["session: given up for another"] += 1
            if session.connected:
                lose(gateway, session)
            if gateway.sessions.get(session.client_id) is session:
                end(gateway, session, "given up for another")
            return


def _is_idle(gateway: GatewayCore, session: Session) -> bool:
    if session.state is SessionState.DISCONNECTED:
        return session.is_empty
    silent_ns = gateway.now_ns - session.heard_ns
    is_supervised = session.state is not SessionState.ACTIVE or session.duration_seconds > 0
    return not is_supervised and silent_ns >= gateway.settings.silent_seconds * 1e9


# Wills are requested in two steps: few at a time, cheap, and the oldest goes when there are too many.


def _ask_for_will(gateway: GatewayCore, endpoint: Endpoint, message: mqttsn.Connect) -> None:
    """It takes the place of an older one, at first of the same client or address."""
    handshakes, settings, host = gateway.handshakes, gateway.settings, endpoint[0]
    handshakes.discard(endpoint)
    if len(neighbours := handshakes.of(host)) >= settings.handshakes_per_address(host):
        handshakes.discard(next(iter(neighbours)))
    elif len(handshakes) >= settings.handshakes:
        handshakes.discard(next(iter(handshakes)))
    handshakes[endpoint] = PendingConnect(message)
    gateway.send(endpoint, mqttsn.WillTopicReq())


def will_topic(gateway: GatewayCore, endpoint: Endpoint, message: mqttsn.WillTopic) -> None:
    """The first half of the will, or word that there is none."""
    pending = gateway.handshakes.get(endpoint)
    if pending is None:
        _unexpected(gateway, endpoint, message)
    elif message.topic_name is None:
        gateway.handshakes.discard(endpoint)
        if not _is_refused(gateway, endpoint, pending.message.client_id):
            _establish(gateway, endpoint, pending.message, None)
    elif is_brokers_own(message.topic_name) or gateway.settings.policy.forbids_publication(
        pending.message.client_id, message.topic_name
    ):
        gateway.handshakes.discard(endpoint)
        _refuse(gateway, endpoint, ReturnCode.REJECTED_NOT_SUPPORTED, "will not allowed")
    else:
        pending.topic = message
        gateway.send(endpoint, mqttsn.WillMsgReq())


def will_message(gateway: GatewayCore, endpoint: Endpoint, message: mqttsn.WillMsg) -> None:
    """The second half of the will: the client is connected."""
    pending = gateway.handshakes.get(endpoint)
    topic = None if pending is None else pending.topic
    if pending is None or topic is None or topic.topic_name is None:
        _unexpected(gateway, endpoint, message)
        return
    gateway.handshakes.discard(endpoint)
    if not _is_refused(gateway, endpoint, pending.message.client_id):
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


def end_silence(gateway: GatewayCore, session: Session) -> None:
    """A client has left everything unanswered for as long as all retries take."""
    if session.state is SessionState.AWAKE:
        back_to_sleep(gateway, session)
    else:
        lose(gateway, session)


def refuse_filter(gateway: GatewayCore, session: Session, topic_filter: str) -> None:
    """The broker refuses a filter that it took before.

    MQTT-SN has no message for that: the client is disconnected, and gets the refusal when it subscribes again.
    """
    gateway.counters.refused["subscribe: broker"] += 1
    requests.drop(gateway, session, topic_filter)
    if session.connected:
        gateway.send(session.endpoint, mqttsn.Disconnect())
        to_disconnected(gateway, session)


def to_disconnected(gateway: GatewayCore, session: Session) -> None:
    """The connection is over; a session that is not clean goes on, and its QoS 1 and 2 messages stay."""
    if session.clean:
        end(gateway, session, "disconnected")
        return
    session.state = SessionState.DISCONNECTED
    gateway.withdraw(session)
    gateway.routes.forget(session)
    if gateway.by_endpoint.get(session.endpoint) is session:
        del gateway.by_endpoint[session.endpoint]
    session.requeue()
    waiting = session.buffer.clear()
    session.buffer.push_front([delivery for delivery in waiting if delivery.qos])
    for delivery in waiting:
        if not delivery.qos:
            give_up(gateway, session, delivery, Outcome.subscriber_gone, "disconnected")
    gateway.changes.put("sessions", session.row())
    gateway.act(Gone(session.client_id))
    expire_later(gateway, session)


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
    gateway.displace(session)
    if session.connected:
        gateway.act(Gone(client_id))
    session.state = SessionState.DISCONNECTED
    gateway.unname(session)
    gateway.routes.forget(session)
    gateway.withdraw(session)
    for topic_filter in list(session.subscriptions):
        gateway.unsubscribe(session, topic_filter)
    session.requeue()
    for delivery in session.buffer.clear():
        give_up(gateway, session, delivery, Outcome.subscriber_gone, reason)
    session.topics.clear()
    for topic_filter in session.subscriptions:
        gateway.changes.remove("subscriptions", (client_id, topic_filter))
    for message_id in list(session.inbound):
        requests.drop_inbound(gateway, session, message_id)
    gateway.changes.remove("sessions", client_id)


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
        gateway.send(session.endpoint, mqttsn.Disconnect())
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
                gateway.send(session.endpoint, mqttsn.Disconnect())
                to_disconnected(gateway, session)
            continue
        if policy.forbids_connection(client_id):
            if session.connected:
                gateway.send(session.endpoint, mqttsn.Disconnect())
            gateway.counters.refused["session: no longer allowed"] += 1
            requests.withdraw(gateway, session)
            end(gateway, session, "no longer allowed")
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


def disconnect(gateway: GatewayCore, session: Session, message: mqttsn.Disconnect) -> None:
    """A client leaves, or goes to sleep for a while."""
    gateway.answer(session, mqttsn.Disconnect())
    if not message.duration_seconds:
        to_disconnected(gateway, session)
        return
    session.sleep_seconds = message.duration_seconds
    session.state = SessionState.ASLEEP
    gateway.routes.forget(session)
    session.requeue()
    for delivery in session.buffer:
        store(gateway, session, delivery)
    gateway.changes.put("sessions", session.row())
    supervise(gateway, session, session.sleep_seconds)


def ping(gateway: GatewayCore, session: Session, message: mqttsn.PingReq) -> None:
    """A client shows that it is alive; one that sleeps, that it listens now."""
    if message.client_id is not None and message.client_id != session.client_id:
        gateway.send_away(session.endpoint)
    elif session.state is SessionState.ASLEEP and message.client_id is not None:
        session.state = SessionState.AWAKE
        # No more than there is now: otherwise a busy topic would keep the client awake for ever.
        session.awake_budget = session.waiting
        pump(gateway, session)
    elif session.state is not SessionState.AWAKE:
        gateway.send(session.endpoint, mqttsn.PingResp())


def awake_served(gateway: GatewayCore, session: Session) -> None:
    """PINGRESP when the client has everything that was stored for it: it sleeps again."""
    if session.in_flight or session.registering or session.pump_is_due:
        return
    if session.buffer and session.awake_budget > 0:
        return
    gateway.send(session.endpoint, mqttsn.PingResp())
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
        gateway.counters.clients_moved += 1
    gateway.place(session, endpoint)
    gateway.by_endpoint[endpoint] = session


def detach_sessions_at(gateway: GatewayCore, address: tuple[str, int]) -> None:
    """Another client may be at this address now: sessions there, behind a forwarder or not, wait for their CONNECT.

    Until then they are nowhere: nothing is sent to the address on their behalf, and nothing from there is theirs.
    """
    gateway.handshakes.discard(address)
    there = gateway.by_endpoint.get(address)
    for session in ([] if there is None else [there]) + list(gateway.behind.of(address).values()):
        gateway.place(session, (*NOWHERE, session.endpoint[2]) if len(session.endpoint) == 3 else NOWHERE)
        gateway.act(Gone(session.client_id))
