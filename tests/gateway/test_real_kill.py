"""kill -9 of gateway and broker under load, with real processes: nothing acknowledged is lost, recovery is quick."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import pytest
from tests.gateway.real import GatewayProcess, Mosquitto, Publisher, SnClient, ended

from triagemq.broker.process import find_mosquitto
from triagemq.mqttsn import ConnAck, Connect, Disconnect, PingReq, PingResp, PubAck, Publish, TopicIdType

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")


class MqttLoad(threading.Thread):
    """Publishes numbers at QoS 1 over MQTT, connecting again when the broker goes; remembers what was acknowledged."""

    def __init__(self, port: int, rate: float) -> None:
        super().__init__(daemon=True)
        self.acknowledged: set[bytes] = set()
        self.stopped = threading.Event()
        self._port, self._rate = port, rate

    def run(self) -> None:
        number = 0
        while not self.stopped.is_set():
            with contextlib.suppress(OSError, IndexError), contextlib.ExitStack() as stack:
                publisher = Publisher(self._port, "load")
                stack.callback(publisher.end)
                sent: dict[int, bytes] = {}
                while not self.stopped.is_set():
                    payload = b"mqtt%d" % number
                    sent[publisher.publish("load", payload, 1)] = payload
                    number += 1
                    time.sleep(1 / self._rate)
                    for packet_id in publisher.answers(0):
                        self.acknowledged.add(sent.pop(packet_id))
                for _ in range(20):
                    for packet_id in publisher.answers(0.1):
                        self.acknowledged.add(sent.pop(packet_id))
            time.sleep(0.05)


class SnLoad(threading.Thread):
    """Publishes numbers at QoS 1 over MQTT-SN, one after the other, sending again until each is acknowledged."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.acknowledged: set[bytes] = set()
        self.stopped = threading.Event()
        self._client = SnClient(port, "sn-load")
        self._client.connect(duration=600)
        self._topic_id = self._client.register("load")

    def run(self) -> None:
        number = 0
        while not self.stopped.is_set():
            number += 1
            payload = b"sn%d" % number
            message_id = number % 0xFFFF + 1
            for attempt in range(100):
                message = Publish(
                    TopicIdType.NORMAL, self._topic_id, payload, qos=1, dup=attempt > 0, message_id=message_id
                )
                self._client.send(message)
                answer = self._client.receive(0.3)
                if isinstance(answer, Disconnect):
                    self._client.ask(Connect("sn-load", 600), ConnAck, attempts=60, each=0.2)
                if isinstance(answer, PubAck) and answer.message_id == message_id:
                    self.acknowledged.add(payload)
                    break
                if self.stopped.is_set():
                    break
            time.sleep(0.002)

    def end(self) -> None:
        self.stopped.set()
        self.join(5)
        self._client.end()


def _listen(client: SnClient, seconds: float) -> None:
    """Receive; connect again when told that the connection is over."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if isinstance(client.receive(min(left, 0.2)), Disconnect):
            with contextlib.suppress(AssertionError):
                client.ask(Connect(client.client_id, 600), ConnAck, attempts=3, each=0.3)


def _first_after(client: SnClient, seconds: float) -> float:
    """How long until the next message comes."""
    started = time.monotonic()
    count = len(client.messages)
    while len(client.messages) == count and time.monotonic() - started < seconds:
        _listen(client, 0.02)
    return time.monotonic() - started


def test_nothing_acknowledged_is_lost_when_gateway_and_broker_are_killed_in_turn(tmp_path: Path) -> None:
    broker = Mosquitto(tmp_path / "broker")
    gateway = GatewayProcess(tmp_path, "--broker", broker.url, "--state", str(tmp_path / "state"))
    clients = [SnClient(gateway.port, f"subscriber{number}") for number in range(2)]
    with ended(gateway, *clients, broker):
        for client in clients:
            client.connect(duration=600).subscribe("load", 1)
        # What BrokerProcess does after every subscription.
        broker.save()
        time.sleep(0.2)
        mqtt, sn = MqttLoad(broker.port, 500), SnLoad(gateway.port)
        mqtt.start()
        sn.start()
        recoveries = []
        for victim in (gateway, broker, gateway, broker):
            for client in clients:
                _listen(client, 0.4)
            victim.kill()
            started = time.monotonic()
            victim.start()
            for client in clients:
                client.receive(0.01)
            recoveries.append(time.monotonic() - started + _first_after(clients[0], 10))
        mqtt.stopped.set()
        mqtt.join(10)
        sn.end()
        for client in clients:
            deadline = time.monotonic() + 45
            acknowledged = mqtt.acknowledged | sn.acknowledged
            while time.monotonic() < deadline:
                _listen(client, 0.3)
                if acknowledged <= {message.payload for message in client.messages}:
                    break
            missing = acknowledged - {message.payload for message in client.messages}
            assert not missing, f"{len(missing)} of {len(acknowledged)} lost: {sorted(missing)[:5]}"
        assert len(mqtt.acknowledged) > 200
        assert len(sn.acknowledged) > 50
        assert max(recoveries) < 5, recoveries


def test_sleeping_client_gets_a_thousand_messages_once_each_by_class_over_a_gateway_restart(
    tmp_path: Path,
) -> None:
    (tmp_path / "priorities.yaml").write_text("class/0: 0\nclass/1: 1\nclass/2: 2\n")
    broker = Mosquitto(tmp_path / "broker")
    options = ("--broker", broker.url, "--state", str(tmp_path / "state"))
    gateway = GatewayProcess(tmp_path, *options, "--priorities", str(tmp_path / "priorities.yaml"))
    client = SnClient(gateway.port, "sleeper")
    publisher = Publisher(broker.port)
    with ended(gateway, client, publisher, broker):
        client.connect(duration=60)
        client.subscribe("class/+", 1)
        client.ask(Disconnect(600), Disconnect)
        for number in range(1000):
            publisher.publish(f"class/{number % 4}", b"%d" % number, number % 2)
            if number == 600:
                publisher.wait()
                _wait_until_received(gateway, 601)
                gateway.kill()
                gateway.start()
        publisher.wait()
        _wait_until_received(gateway, 399)
        assert client.receive(0.1) is None
        gateway.kill()
        gateway.start()
        client.ask(PingReq("sleeper"), PingResp, attempts=1, each=20)
        numbers = [int(message.payload) for message in client.messages]
        assert numbers == [number for start in range(4) for number in range(start, 1000, 4)]
        client.messages.clear()
        client.ask(PingReq("sleeper"), PingResp)
        assert client.messages == []


def _wait_until_received(gateway: GatewayProcess, count: int) -> None:
    deadline = time.monotonic() + 30
    while gateway.counters()["broker_messages"] < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)
