"""The table by which the core chooses who does something about what comes in, and what is done about the rest.

That is: malformed requests, news of the broker (it lets clients in or not, stays away, takes a filter no longer), and
the time to clients and back. MQTT-SN has both sides ask for that (1.2, section 5.4.21): where gateways share
clients, the route to one decides who serves it. PINGREQ goes to one after the other, and waits in no queue.
"""

from __future__ import annotations

from triagemq import mqttsn
from triagemq.exchange.gateway import broker_link, delivery, lifecycle, requests
from triagemq.exchange.gateway.core import GatewayCore, Handlers
from triagemq.exchange.gateway.sessions import BrokerLink, Endpoint, Session, SessionState
from triagemq.exchange.gateway.settings import BrokerLoss
from triagemq.exchange.mqtt.packets import ConnectAnswer
from triagemq.mqttsn import ConnAck, Disconnect, PingReq, PingResp, ReturnCode

_ROUND_SECONDS = 5.0
"""The interval between PINGREQs to a client,"""
_TICK_SECONDS = 0.1
_MOST_AT_ONCE = 10
"""but no more than a hundred a second: where there are more than five hundred clients, less often."""
_REMEMBERED = 5
"""Answers, of which the quickest counts: others waited for a busy host."""

_ABOUT_TOPICS = {
    mqttsn.RejectionReason.NOT_UTF8,
    mqttsn.RejectionReason.NUL_CHARACTER,
    mqttsn.RejectionReason.CONTROL_CHARACTER,
    mqttsn.RejectionReason.NON_CHARACTER,
    mqttsn.RejectionReason.TOO_MANY_LEVELS,
    mqttsn.RejectionReason.EMPTY_TOPIC,
    mqttsn.RejectionReason.WILDCARD_IN_TOPIC_NAME,
    mqttsn.RejectionReason.INVALID_TOPIC_FILTER,
}
_NO = ReturnCode.REJECTED_NOT_SUPPORTED


def _malformed(
    gateway: GatewayCore, address: tuple[str, int], datagram: bytes, error: mqttsn.DecodeError
) -> None:
    """A request with a topic that is none, or that brokers end a connection over: answered with a return code.

    It never reaches the broker, whose connection all clients share. A client that got no answer would send it again.
    """
    if error.reason not in _ABOUT_TOPICS:
        return
    endpoint: Endpoint = address
    message_type, start = mqttsn.peek(datagram)
    if message_type is mqttsn.MessageType.ENCAPSULATED:
        endpoint = (*address, datagram[3:start])
        datagram = datagram[start:]
        message_type, start = mqttsn.peek(datagram)
    if message_type is mqttsn.MessageType.WILLTOPIC:
        if gateway.handshakes.end(endpoint) is not None:
            gateway.send(endpoint, mqttsn.ConnAck(_NO))
        return
    session = gateway.by_endpoint.get(endpoint)
    reply = _reply(message_type, datagram[start:])
    if session is not None and session.connected and reply is not None:
        gateway.send(endpoint, reply)


def _reply(message_type: mqttsn.MessageType, fields: bytes) -> mqttsn.PlainMessage | None:
    match message_type:
        case mqttsn.MessageType.REGISTER:
            return mqttsn.RegAck(0, int.from_bytes(fields[2:4]), _NO)
        case mqttsn.MessageType.SUBSCRIBE:
            return mqttsn.SubAck(0, int.from_bytes(fields[1:3]), _NO)
        case mqttsn.MessageType.UNSUBSCRIBE:
            # It has no return code: what cannot be subscribed to is not subscribed to.
            return mqttsn.UnsubAck(int.from_bytes(fields[1:3]))
        case mqttsn.MessageType.PUBLISH if fields[0] & 0x60 != 0x60:
            return mqttsn.PubAck(int.from_bytes(fields[1:3]), int.from_bytes(fields[3:5]), _NO)
        case mqttsn.MessageType.WILLTOPICUPD:
            return mqttsn.WillTopicResp(_NO)
        case _:
            return None


def _search(gateway: GatewayCore, endpoint: Endpoint, message: mqttsn.SearchGw) -> None:
    if not gateway.is_elsewhere(endpoint):
        gateway.send(endpoint, mqttsn.GwInfo(gateway.settings.gateway_id))


def _nothing(gateway: GatewayCore, endpoint: Endpoint, message: mqttsn.PlainMessage) -> None:
    """Other gateways of the neighbourhood say that they are there.

    DISCONNECT is the answer to ours, or of one who has gone: an answer to that would go on for ever.
    """


# News of the broker.


def _broker_reached(gateway: GatewayCore, link: BrokerLink) -> None:
    """Transparent mode: a client that waited for its broker connection is connected now."""
    session = gateway.sessions.get(link.key)
    if session is not None and session.link is link and session.state is SessionState.CONNECTING:
        lifecycle.connected(gateway, session)


def _broker_refused(gateway: GatewayCore, link: BrokerLink, answer: ConnectAnswer) -> None:
    """Transparent mode: the broker does not let this client in."""
    gateway.counters.refused[f"connect: broker, {answer.refusal}"] += 1
    session = gateway.sessions.get(link.key)
    if session is None or session.link is not link:
        return
    if session.state is SessionState.CONNECTING:
        gateway.send(session.endpoint, ConnAck(ReturnCode.REJECTED_NOT_SUPPORTED))
    elif session.connected:
        gateway.send(session.endpoint, Disconnect())
    lifecycle.to_disconnected(gateway, session)


def _broker_lost(gateway: GatewayCore, link: BrokerLink) -> None:
    """Clients get DISCONNECT when the broker stays away for longer than a restart takes."""
    gateway.counters.broker_losses += 1
    since_ns = link.is_down_since_ns

    def disconnect_clients() -> None:
        if link.is_down_since_ns != since_ns:
            return
        for session in [one for one in gateway.sessions.values() if one.link is link]:
            if session.state is SessionState.ACTIVE:
                gateway.send(session.endpoint, Disconnect())
                lifecycle.to_disconnected(gateway, session)

    if gateway.settings.broker_loss is BrokerLoss.DISCONNECT:
        gateway.after(gateway.settings.broker_grace_seconds, disconnect_clients)


def _filter_refused(gateway: GatewayCore, session: Session, topic_filter: str) -> None:
    """The broker has refused a filter that it took before.

    MQTT-SN has no message for that: the client is sent away, and hears it when it comes back and subscribes.
    """
    gateway.counters.refused["subscribe: broker"] += 1
    requests.drop(gateway, session, topic_filter)
    if session.connected:
        gateway.send(session.endpoint, Disconnect())
        lifecycle.to_disconnected(gateway, session)


# The time to clients and back.


def begin_probing(gateway: GatewayCore) -> None:
    """Measure from now on, as long as there are peers; idempotent."""
    if gateway.peers and not gateway.is_probing:
        gateway.is_probing = True
        _round(gateway)


def _round(gateway: GatewayCore) -> None:
    gateway.is_probing = bool(gateway.peers)
    if gateway.is_probing:
        everyone = [each.client_id for each in gateway.by_endpoint.values() if each.slot == 0]
        _ask_some(gateway, everyone, gateway.now_ns + int(_ROUND_SECONDS * 1e9))


def _ask_some(gateway: GatewayCore, left: list[str], ends_ns: int) -> None:
    ticks = max(1, round((ends_ns - gateway.now_ns) * 1e-9 / _TICK_SECONDS))
    for _ in range(min(-(-len(left) // ticks), _MOST_AT_ONCE)):
        session = gateway.sessions.get(left.pop())
        if session is not None and session.state is SessionState.ACTIVE:
            session.probed_ns = gateway.now_ns
            gateway.send(session.endpoint, PingReq())
    if left and gateway.peers:
        gateway.after(_TICK_SECONDS, lambda: _ask_some(gateway, left, ends_ns))
    else:
        gateway.schedule(max(ends_ns, gateway.now_ns), lambda: _round(gateway))


def _probe_answered(gateway: GatewayCore, session: Session, message: PingResp) -> None:
    """A client has answered; a PINGRESP without a PINGREQ means nothing."""
    if session.probed_ns:
        seconds = (gateway.now_ns - session.probed_ns) * 1e-9
        session.round_trips = (*session.round_trips, seconds)[-_REMEMBERED:]
        session.probed_ns = 0


HANDLERS = Handlers(
    from_client={
        mqttsn.Publish: requests.publish,
        mqttsn.PubAck: delivery.pub_ack,
        mqttsn.PubRec: delivery.pub_rec,
        mqttsn.PubComp: delivery.pub_comp,
        mqttsn.PubRel: requests.pub_rel,
        mqttsn.PingReq: lifecycle.ping,
        mqttsn.PingResp: _probe_answered,
        mqttsn.RegAck: delivery.reg_ack,
        mqttsn.Register: requests.register,
        mqttsn.Subscribe: requests.subscribe,
        mqttsn.Unsubscribe: requests.unsubscribe,
        mqttsn.Disconnect: lifecycle.disconnect,
        mqttsn.WillTopicUpd: requests.update_will_topic,
        mqttsn.WillMsgUpd: requests.update_will_message,
    },
    from_stranger={
        mqttsn.Publish: requests.from_stranger,
        mqttsn.PingReq: lifecycle.ping_from_elsewhere,
        mqttsn.Advertise: _nothing,
        mqttsn.GwInfo: _nothing,
        mqttsn.Disconnect: _nothing,
    },
    from_anyone={
        mqttsn.Connect: lifecycle.connect,
        mqttsn.WillTopic: lifecycle.will_topic,
        mqttsn.WillMsg: lifecycle.will_message,
        mqttsn.SearchGw: _search,
    },
    malformed=_malformed,
    new_link=broker_link.new_link,
    broker_reached=_broker_reached,
    broker_refused=_broker_refused,
    broker_lost=_broker_lost,
    filter_refused=_filter_refused,
    broker_answered=requests.broker_answered,
    broker_holds=requests.broker_holds,
    client_silent=lifecycle.silent,
    awake_served=lifecycle.awake_served,
)
