"""Who does something about what comes in: the table by which the core chooses."""

from __future__ import annotations

from triagemq import mqttsn
from triagemq.exchange.gateway import (
    broker_events,
    broker_link,
    connecting,
    delivering,
    leaving,
    probing,
    publishing,
    retrying,
    subscribing,
)
from triagemq.exchange.gateway.core import GatewayCore, Handlers
from triagemq.exchange.gateway.model.sessions import Endpoint

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
_NO = mqttsn.ReturnCode.REJECTED_NOT_SUPPORTED


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


HANDLERS = Handlers(
    from_client={
        mqttsn.Publish: publishing.publish,
        mqttsn.PubAck: delivering.pub_ack,
        mqttsn.PubRec: delivering.pub_rec,
        mqttsn.PubComp: delivering.pub_comp,
        mqttsn.PubRel: publishing.pub_rel,
        mqttsn.PingReq: leaving.ping,
        mqttsn.PingResp: probing.probe_answered,
        mqttsn.RegAck: delivering.reg_ack,
        mqttsn.Register: subscribing.register,
        mqttsn.Subscribe: subscribing.subscribe,
        mqttsn.Unsubscribe: subscribing.unsubscribe,
        mqttsn.Disconnect: leaving.disconnect,
        mqttsn.WillTopicUpd: publishing.update_will_topic,
        mqttsn.WillMsgUpd: publishing.update_will_message,
    },
    from_stranger={
        mqttsn.Publish: publishing.from_stranger,
        mqttsn.PingReq: leaving.ping_from_elsewhere,
        mqttsn.Advertise: _nothing,
        mqttsn.GwInfo: _nothing,
        mqttsn.Disconnect: _nothing,
    },
    from_anyone={
        mqttsn.Connect: connecting.connect,
        mqttsn.WillTopic: connecting.will_topic,
        mqttsn.WillMsg: connecting.will_message,
        mqttsn.SearchGw: _search,
    },
    malformed=_malformed,
    new_link=broker_link.new_link,
    broker_reached=broker_events.reached,
    broker_refused=broker_events.refused,
    broker_lost=broker_events.lost,
    filter_refused=broker_events.filter_refused,
    broker_answered=publishing.broker_answered,
    broker_holds=publishing.broker_holds,
    ids_rested=delivering.ids_rested,
    answer_due=retrying.answer_due,
    awake_served=leaving.awake_served,
    policy_changed=leaving.policy_changed,
)
