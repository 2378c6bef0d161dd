"""How far clients are: PINGREQ of the gateway, and the time until their PINGRESP."""

from __future__ import annotations

from tests.gateway.virtual import VirtualGateway

from triagemq.gateway.core.handlers import begin_probing
from triagemq.mqtt.session import Login
from triagemq.mqttsn import PingReq, PingResp

PEERS = {"south": Login("triage-peer-north", session_expiry_seconds=3600)}


def test_clients_are_asked_where_gateways_share_them_and_the_quickest_answer_counts() -> None:
    gateway = VirtualGateway()
    client = gateway.client()
    client.connect("pump-7")
    gateway.wait(10)
    assert not client.take(PingReq)
    gateway.core.fit_peers(PEERS)
    begin_probing(gateway.core)
    for seconds in (0.3, 0.2, 0.25):
        while not client.take(PingReq):
            gateway.wait(0.1)
        gateway.wait(seconds)
        client.send(PingResp())
    # What nobody has asked for says nothing.
    client.send(PingResp())
    session = gateway.core.sessions["pump-7"]
    assert len(session.round_trips) == 3
    assert abs(min(session.round_trips) - 0.2) < 1e-6


def test_who_does_not_answer_is_asked_again_and_nobody_is_when_the_peers_are_gone() -> None:
    gateway = VirtualGateway()
    client = gateway.client()
    client.connect("pump-7")
    gateway.core.fit_peers(PEERS)
    begin_probing(gateway.core)
    gateway.wait(30)
    assert len(client.take(PingReq)) > 2
    assert not gateway.core.sessions["pump-7"].round_trips
    gateway.core.fit_peers({})
    gateway.wait(30)
    assert not client.take(PingReq)
