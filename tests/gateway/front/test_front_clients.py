"""paho and mosquitto_sub through the front: the same as at the broker directly."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.gateway.front.paho_client import Paho, until
from tests.gateway.real import GatewayProcess, Mosquitto, ended
from tests.ports import own_port

from triagemq.broker.process import find_mosquitto

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")
VERSIONS = pytest.mark.parametrize("version", ["3.1.1", "5"])


class Site:
    """A broker and a gateway with a front."""

    def __init__(self, folder: Path, *options: str, suffix: str = "") -> None:
        self.broker = Mosquitto(folder / "broker")
        self.front = own_port()
        address = f"127.0.0.1:{self.front}"
        self.gateway = GatewayProcess(
            folder / "gateway", "--broker", self.broker.url + suffix, "--front", address, *options
        )

    def end(self) -> None:
        self.gateway.end()
        self.broker.end()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    found = Site(tmp_path_factory.mktemp("site"))
    with ended(found):
        yield found


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_come_once_and_in_order_by_wildcards(site: Site, version: str, qos: int) -> None:
    topic = f"order/{version}/{qos}"
    subscriber = Paho(site.front, f"sub-{version}-{qos}", version).connected().subscribe(f"{topic}/+/#", qos)
    publisher = Paho(site.front, f"pub-{version}-{qos}", version).connected()
    with ended(subscriber, publisher):
        payloads = [b"%d" % number for number in range(200)]
        for payload in payloads[:-1]:
            publisher.client.publish(f"{topic}/a/b", payload, qos)
        publisher.publish(f"{topic}/a/b", payloads[-1], qos)
        assert subscriber.take(200) == payloads
        assert {message.qos for message in subscriber.messages} == {qos}


@VERSIONS
def test_retained_messages_come_with_the_subscription(site: Site, version: str) -> None:
    publisher = Paho(site.broker.port, f"retaining-{version}", version).connected()
    publisher.publish(f"kept/{version}", b"on", 1, retain=True)
    subscriber = Paho(site.front, f"late-{version}", version).connected().subscribe(f"kept/{version}", 1)
    with ended(publisher, subscriber):
        assert subscriber.take(1) == [b"on"]
        assert subscriber.messages[0].retain


@VERSIONS
def test_a_will_is_published_when_a_client_breaks_off_and_not_when_it_leaves(
    site: Site, version: str
) -> None:
    watcher = Paho(site.broker.port, f"watcher-{version}").connected().subscribe(f"will/{version}/#", 1)
    leaving = Paho(site.front, f"leaving-{version}", version, will=(f"will/{version}/a", b"left"))
    breaking = Paho(site.front, f"breaking-{version}", version, will=(f"will/{version}/b", b"broke"))
    with ended(watcher, leaving, breaking):
        leaving.connected().end()
        breaking.connected().cut()
        assert watcher.take(1) == [b"broke"]


@VERSIONS
def test_a_session_outlives_its_connection(site: Site, version: str) -> None:
    client_id = f"away-{version}"
    first = Paho(site.front, client_id, version, clean=False).connected().subscribe(f"away/{version}", 1)
    first.end()
    publisher = Paho(site.broker.port, f"meanwhile-{version}").connected()
    for number in range(50):
        publisher.publish(f"away/{version}", b"%d" % number, 1)
    again = Paho(site.front, client_id, version, clean=False).connected()
    with ended(publisher, again):
        assert again.session_present == [True]
        assert again.take(50) == [b"%d" % number for number in range(50)]


def test_shared_subscriptions_share(site: Site) -> None:
    both = [
        Paho(site.front, f"share-{name}", "5").connected().subscribe("$share/g/share/#", 1) for name in "ab"
    ]
    publisher = Paho(site.broker.port, "share-pub").connected()
    with ended(*both, publisher):
        for number in range(40):
            publisher.publish("share/x", b"%d" % number, 1)
        for client in both:
            client.take(1)
        until(lambda: sum(len(client.messages) for client in both) >= 40)
        assert all(client.messages for client in both)
        assert sorted(int(p) for client in both for p in client.payloads) == list(range(40))


@VERSIONS
def test_a_megabyte_passes_both_ways_and_small_messages_with_it(site: Site, version: str) -> None:
    subscriber = (
        Paho(site.front, f"large-sub-{version}", version).connected().subscribe(f"large/{version}/#", 1)
    )
    publisher = Paho(site.front, f"large-pub-{version}", version).connected()
    large = bytes(range(256)) * 4096
    with ended(subscriber, publisher):
        publisher.client.publish(f"large/{version}/a", large, 1)
        for number in range(20):
            publisher.client.publish(f"large/{version}/b", b"%d" % number, 1)
        publisher.publish(f"large/{version}/a", large, 1)
        found = subscriber.take(22)
        assert found.count(large) == 2
        assert [each for each in found if each != large] == [b"%d" % number for number in range(20)]


def test_two_clients_of_one_id_are_the_brokers_decision(site: Site) -> None:
    first = Paho(site.front, "twice").connected()
    first.client.reconnect_delay_set(600, 600)
    second = Paho(site.front, "twice").connected().subscribe("twice", 1)
    publisher = Paho(site.broker.port, "twice-pub").connected()
    with ended(first, second, publisher):
        publisher.publish("twice", b"to the second", 1)
        assert second.take(1) == [b"to the second"]
        assert first.wait(lambda: not first.client.is_connected(), 10.0) or not first.client.is_connected()


@pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"])
def test_mosquitto_sub_and_mosquitto_pub(site: Site, version: str) -> None:
    command = [
        "mosquitto_sub",
        "-p",
        str(site.front),
        "-V",
        version,
        "-t",
        f"tools/{version}",
        "-q",
        "2",
        "-C",
        "1",
        "-W",
        "20",
    ]
    publish = [
        "mosquitto_pub",
        "-p",
        str(site.front),
        "-V",
        version,
        "-t",
        f"tools/{version}",
        "-q",
        "2",
        "-m",
        "x",
        "-r",
    ]
    subprocess.run(publish, check=True, timeout=20)
    found = subprocess.run(command, check=True, timeout=30, capture_output=True)
    assert found.stdout == b"x\n"


def test_a_small_window_of_the_client_is_kept_to(site: Site) -> None:
    subscriber = Paho(site.front, "window", "5", receive_maximum=3).connected().subscribe("window", 2)
    publisher = Paho(site.broker.port, "window-pub").connected()
    with ended(subscriber, publisher):
        for number in range(100):
            publisher.client.publish("window", b"%d" % number, 2)
        assert subscriber.take(100) == [b"%d" % number for number in range(100)]


def test_a_broker_of_3_1_1_serves_clients_of_3_1_1(tmp_path: Path) -> None:
    found = Site(tmp_path, suffix="?version=3.1.1")
    with ended(found):
        client = Paho(found.front, "old", clean=False).connected().subscribe("old", 2)
        with ended(client):
            client.publish("old", b"x", 2)
            assert client.take(1) == [b"x"]


@pytest.mark.parametrize("count", [3_000, pytest.param(65_000, marks=pytest.mark.slow)])
def test_all_messages_of_a_flood_at_qos_1_come_as_at_the_broker_itself(site: Site, count: int) -> None:
    through = Paho(site.front, "flood-front").connected().subscribe(f"flood/{count}", 1)
    directly = Paho(site.broker.port, "flood-broker").connected().subscribe(f"flood/{count}", 1)
    publisher = Paho(site.front, "flood-pub").connected()
    with ended(through, directly, publisher):
        for number in range(count - 1):
            publisher.client.publish(f"flood/{count}", b"%d" % number, 1)
        publisher.client.publish(f"flood/{count}", b"%d" % (count - 1), 1).wait_for_publish(120)
        assert through.take(count, 120.0) == directly.take(count, 120.0) == [b"%d" % n for n in range(count)]
