"""Planned drops through the gateway and the embedded data plane, in virtual time: once for each message."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.gateway.planned import DROP_RATE, OneDropRate, is_as_planned
from tests.gateway.virtual import Client, VirtualGateway
from tests.network.virtual_time import VirtualTime

from triagemq.gateway.core import GatewayCore
from triagemq.gateway.sockets import Sender
from triagemq.mqttsn import Connect, PingReq, Publish, Subscribe, TopicIdType
from triagemq.network import EmbeddedDataPlane
from triagemq.plan.dataplane import FlowKey, SetFlow, SetPort
from triagemq.trace import Outcome

PUBLISHED = 2000


class Exchange:
    """A gateway whose datagrams go through an embedded data plane to one client, whose flow is to be dropped."""

    def __init__(self, **settings: Any) -> None:
        self.time = VirtualTime()
        self.gateway = VirtualGateway(
            outlet=self._outlet, policy=OneDropRate(), seed=1, in_flight_messages=10_000, **settings
        )
        self.client = self.gateway.client()
        self.plane.apply(
            [SetPort("radio", 1e9, 1e6, 8), SetFlow(FlowKey(*self.client.address), "radio", 0, 0, DROP_RATE)]
        )

    def _outlet(self, core: GatewayCore) -> Sender:
        outlet = Sender(core)
        self.plane = EmbeddedDataPlane(
            self._deliver, outlet.settled, clock=self.time.clock, alarm=self.time.alarm
        )
        outlet.attach(self.plane)
        return outlet

    def _deliver(self, datagrams: Any, *classes: Any) -> list[Any]:
        for _, datagram in datagrams:
            self.client.hear(datagram)
        return []

    def settle(self) -> None:
        while self.time._alarms[0].is_set:
            self.time.run_until_quiet()
            self.gateway.run()

    def connect(self, qos: int) -> Client:
        for message in (Connect("c", 60), Subscribe(TopicIdType.NORMAL, "smoke", 1, qos)):
            self.client.send(message)
            self.settle()
        return self.client

    def publish(self, qos: int, count: int = PUBLISHED) -> None:
        for number in range(count):
            self.gateway.publish("smoke", b"%d" % number, qos)
            self.settle()

    def wait(self, seconds: float) -> None:
        self.gateway.wait(seconds)
        self.settle()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_planned_share_is_delivered_at_every_qos(qos: int) -> None:
    exchange = Exchange()
    client = exchange.connect(qos)
    exchange.publish(qos)
    for _ in range(12):
        exchange.wait(10)
        client.send(PingReq())
    payloads = client.payloads()
    assert len(set(payloads)) == len(payloads)
    assert is_as_planned(len(payloads), PUBLISHED)
    assert exchange.gateway.core.counters.clients_lost == 0
    outcomes = Counter(outcome for _, _, outcome in exchange.gateway.outcomes)
    assert outcomes == {
        Outcome.delivered: len(payloads),
        Outcome.dropped_by_policy: PUBLISHED - len(payloads),
    }


def test_message_that_was_spared_is_never_dropped_when_it_is_sent_again() -> None:
    exchange = Exchange(retries=20)
    client = exchange.connect(1)
    client.answers = False
    exchange.publish(1, 100)
    first = client.take(Publish)
    for _ in range(10):
        exchange.wait(10)
        client.send(PingReq())
        again = client.take(Publish)
        assert sorted(one.payload for one in again) == sorted(one.payload for one in first)
        assert all(one.dup for one in again)


def test_the_same_seed_drops_the_same_messages() -> None:
    heard = []
    for _ in range(2):
        exchange = Exchange()
        client = exchange.connect(1)
        exchange.publish(1, 200)
        heard.append(client.payloads())
    assert heard[0] == heard[1]
