"""How long it is to clients and back: PINGREQ to one after the other, and the time until its PINGRESP.

MQTT-SN has both sides ask (1.2, section 5.4.21). Clients that do not answer are none the worse for it. It is done where
gateways share clients, and the way to one decides who serves it. Pings are control packets: they wait in no queue.
"""

from __future__ import annotations

from triagemq.exchange.gateway.core import GatewayCore
from triagemq.exchange.gateway.model.sessions import Session, SessionState
from triagemq.mqttsn import PingReq, PingResp

_ROUND_SECONDS = 5.0
"""So often everyone is asked,"""
_TICK_SECONDS = 0.1
_MOST_AT_ONCE = 10
"""but no more than a hundred a second: where there are more than five hundred clients, less often."""
_REMEMBERED = 5
"""Answers, of which the quickest counts: others waited for a busy host."""


def begin_probing(gateway: GatewayCore) -> None:
    """Ask from now on, if nobody does yet, and as long as there are peers."""
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


def probe_answered(gateway: GatewayCore, session: Session, message: PingResp) -> None:
    """A client has answered; what it was not asked means nothing."""
    if session.probed_ns:
        seconds = (gateway.now_ns - session.probed_ns) * 1e-9
        session.round_trips = (*session.round_trips, seconds)[-_REMEMBERED:]
        session.probed_ns = 0
