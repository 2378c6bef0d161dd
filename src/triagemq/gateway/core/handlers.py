"""The gateway without I/O: the tables of reactions to messages, and round-trip times.

Where gateways share clients, round-trip times decide who serves one: PINGREQ (MQTT-SN 1.2, section 5.4.21) goes to one
client after the other, and waits in no queue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from triagemq import mqttsn
from triagemq.gateway.core import delivery, fanout, lifecycle, requests
from triagemq.gateway.core.broker_link import GatewayCore
from triagemq.gateway.core.sessions import Endpoint, Session, SessionState
from triagemq.mqttsn import PingReq, PingResp

_TICK_SECONDS = 0.1
_TICKS_OF_A_ROUND = 50
"""Every client gets a PINGREQ in a round of 5 s,"""
_MOST_AT_ONCE = 10
"""but no more than a hundred do in a second: where there are more than five hundred clients, rounds are longer."""
_REMEMBERED = 5
"""Answers, of which the quickest counts: others waited for a busy host."""


def _search(gateway: GatewayCore, endpoint: Endpoint, message: mqttsn.SearchGw) -> None:
    if not gateway.is_elsewhere(endpoint):
        gateway.send(endpoint, mqttsn.GwInfo(gateway.settings.gateway_id))


def _nothing(gateway: GatewayCore, endpoint: Endpoint, message: mqttsn.PlainMessage) -> None:
    """Other gateways of the neighbourhood say that they are there.

    DISCONNECT is the answer to ours, or of one who has gone: an answer to that would go on for ever.
    """


# The time to clients and back.


def begin_probing(gateway: GatewayCore) -> None:
    """Measure from now on, as long as there are peers; idempotent."""
    if gateway.peers and not gateway.is_probing:
        _probe(gateway, [])


def _probe(gateway: GatewayCore, left: list[str | None]) -> None:
    """Ask the next clients, and in turn all that are there."""
    gateway.is_probing = bool(gateway.peers)
    if not gateway.is_probing:
        return
    if not left:
        clients = [each.client_id for each in gateway.by_endpoint.values() if each.slot == 0]
        left = [*[None] * (_TICKS_OF_A_ROUND - len(clients)), *clients]
    for _ in range(min(-(-len(gateway.by_endpoint) // _TICKS_OF_A_ROUND), _MOST_AT_ONCE, len(left)) or 1):
        session = gateway.sessions.get(left.pop() or "")
        if session is not None and session.state is SessionState.ACTIVE:
            session.probed_ns = gateway.now_ns
            gateway.send(session.endpoint, PingReq())
    gateway.after(_TICK_SECONDS, partial(_probe, gateway, left))


def _probe_answered(gateway: GatewayCore, session: Session, message: PingResp) -> None:
    """A client has answered; a PINGRESP without a PINGREQ means nothing."""
    if session.probed_ns:
        seconds = (gateway.now_ns - session.probed_ns) * 1e-9
        session.round_trips = (*session.round_trips, seconds)[-_REMEMBERED:]
        session.probed_ns = 0


_FROM_CLIENT: Mapping[type[mqttsn.PlainMessage], Callable[[GatewayCore, Session, Any], None]] = {
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
}
_FROM_ANYONE: Mapping[type[mqttsn.PlainMessage], Callable[[GatewayCore, Endpoint, Any], None]] = {
    mqttsn.Connect: lifecycle.connect,
    mqttsn.WillTopic: lifecycle.will_topic,
    mqttsn.WillMsg: lifecycle.will_message,
    mqttsn.SearchGw: _search,
}
_FROM_UNKNOWN: Mapping[type[mqttsn.PlainMessage], Callable[[GatewayCore, Endpoint, Any], None]] = {
    **_FROM_ANYONE,
    mqttsn.Publish: requests.publish_unconnected,
    mqttsn.Advertise: _nothing,
    mqttsn.GwInfo: _nothing,
    mqttsn.Disconnect: _nothing,
}


class MqttSnCore(GatewayCore):
    """The gateway without I/O: datagrams, octets of the broker and the time go in, actions come out.

    core.datagram(address, octets)      from the UDP socket
    session.receive(octets)             from a broker connection
    core.advance(now_ns)                when the moment of `next_deadline_ns` has come
    core.take_actions(), core.changes   what to do, and what to store before doing it
    """

    def start(self) -> None:
        """Connect to the broker and say that we are here."""
        self.link.open()
        self.advertise()

    def datagram(self, address: tuple[str, int], datagram: bytes) -> None:
        """React to a datagram from anywhere; any octets at all."""
        self.counters.datagrams_in += 1
        self.counters.datagram_bytes += len(datagram)
        try:
            message = mqttsn.decode(datagram)
        except mqttsn.DecodeError as error:
            # Not even one with a topic that is none: it never reaches the broker, whose connection all clients share.
            self.counters.rejected[str(error.reason)] += 1
            return
        if isinstance(message, mqttsn.Encapsulated):
            self._message((*address, message.wireless_node_id), message.message)
        else:
            self._message(address, message)

    def _message(self, endpoint: Endpoint, message: mqttsn.PlainMessage) -> None:
        kind = type(message)
        session = self.by_endpoint.get(endpoint)
        if session is not None and session.connected:
            session.heard_ns = self.now_ns
            if (of_client := _FROM_CLIENT.get(kind)) is not None:
                of_client(self, session, message)
            elif (of_anyone := _FROM_ANYONE.get(kind)) is not None:
                of_anyone(self, endpoint, message)
            else:
                self.counters.rejected[f"unexpected_{message.message_type.name.lower()}"] += 1
        elif (handler := _FROM_UNKNOWN.get(kind)) is not None:
            handler(self, endpoint, message)
        else:
            self.send_away(endpoint)

    fan_out = fanout.fan_out
    broker_answered = requests.broker_answered
    broker_released = requests.store_inbound
    refuse_filter = lifecycle.refuse_filter
    end_silence = lifecycle.end_silence
    end_wake_up = lifecycle.awake_served
