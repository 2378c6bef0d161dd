"""A disk that fills up: messages are delivered, nothing is promised that cannot be kept, and it is said."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.virtual import VirtualGateway

from triagemq.errors import GatewayError
from triagemq.gateway.store import GatewayStore, RowChanges
from triagemq.mqttsn import (
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Register,
    ReturnCode,
    SubAck,
    Subscribe,
    TopicIdType,
    UnsubAck,
    Unsubscribe,
)
from triagemq.trace import Trace, TraceWriter


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the disk is full now: its last element."""
    now = [False]
    save = GatewayStore.save

    def save_if_there_is_room(store: GatewayStore, changes: object) -> None:
        if now[-1] and changes:
            raise GatewayError("gateway.sqlite: cannot be written: disk full; make room on the disk")
        save(store, changes)  # type: ignore[arg-type]

    monkeypatch.setattr(GatewayStore, "save", save_if_there_is_room)
    return now


def test_a_full_disk_stops_promises_but_not_deliveries(tmp_path: Path, full: list[bool]) -> None:
    gateway = VirtualGateway(store=tmp_path)
    subscriber, publisher = gateway.clients(2)
    subscriber.connect("reader", clean=False)
    subscriber.subscribe("a", 1)
    publisher.connect("writer")
    publisher_id = publisher.register("a")
    full.append(True)
    publisher.send(Publish(TopicIdType.NORMAL, publisher_id, b"two", qos=2, message_id=5))
    assert publisher.take(PubRec) == []
    gateway.publish("a", b"zero")
    gateway.publish("a", b"one", 1)
    assert subscriber.payloads() == [b"zero", b"one"]
    publisher.send(Publish(TopicIdType.NORMAL, publisher_id, b"two", qos=2, message_id=6))
    assert [each.return_code for each in publisher.take(PubAck)] == [ReturnCode.REJECTED_CONGESTION]
    assert gateway.core.counters.refused["publish: cannot be stored"] == 1
    assert gateway.core.counters.storage_failures == 1
    assert len(gateway.said) == 1
    assert "disk full" in gateway.said[0]
    full.append(False)
    gateway.wait(1)
    # What came before the failure was known is stored by now, and so it is promised.
    assert [each.message_id for each in publisher.take(PubRec)] == [5]
    publisher.send(PubRel(5))
    assert [each.message_id for each in publisher.take(PubComp)] == [5]
    assert subscriber.payloads() == [b"two"]
    assert len(gateway.said) == 2


def test_what_could_not_be_stored_comes_again_from_the_broker_after_a_kill(
    tmp_path: Path, full: list[bool]
) -> None:
    gateway = VirtualGateway(store=tmp_path)
    subscriber = gateway.client().connect("reader", clean=False, duration=600)
    subscriber.subscribe("a", 1)
    subscriber.answers = False
    full.append(True)
    gateway.publish("a", b"one", 1)
    gateway.publish("a", b"two", 1)
    full.append(False)
    gateway.kill()
    gateway.wait(30)
    assert set(subscriber.payloads()) == {b"one", b"two"}


def test_qos_2_is_not_released_at_the_broker_before_it_is_stored_that_the_broker_has_it(
    tmp_path: Path, full: list[bool]
) -> None:
    """After PUBREL the broker takes the message for a new one: a kill would have it published twice."""
    gateway = VirtualGateway(store=tmp_path)
    client = gateway.client().connect()
    topic_id = client.register("a")
    gateway.broker.holds_acknowledgements = True
    client.send(Publish(TopicIdType.NORMAL, topic_id, b"x", qos=2, message_id=1))
    client.send(PubRel(1))
    full.append(True)
    gateway.broker.holds_acknowledgements = False
    lane = gateway.core.link.lanes[0]
    for _ in range(2):
        gateway.broker.lose(lane)
        lane.owner.mqtt_lost(lane)
        gateway.run()
    full.append(False)
    gateway.kill()
    assert gateway.broker.published == [("a", b"x", 2, False)]
    assert client.take(PubComp) == [PubComp(1)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB, which only root can make."""
    if os.getuid() != 0:
        pytest.skip("mounting a small disk needs root; run `make test` as root")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_live_trace_pauses_while_the_disk_is_full_and_says_so(small_disk: Path) -> None:
    with TraceWriter(
        small_disk / "run",
        scenario_text="",
        plan_text=None,
        producer="test",
        rotate_seconds=0.05,
        pauses=True,
    ) as trace:
        _publications(trace, 0)
        _wait(lambda: trace.shown("publications") == 10)
        filler = small_disk / "filler"
        with pytest.raises(OSError, match="No space"):
            filler.write_bytes(bytes(2 << 20))
        _publications(trace, 10)
        _wait(lambda: trace.lost_rows == 10)
        filler.unlink()
        _publications(trace, 20)
        _wait(lambda: trace.shown("publications") == 30)
        manifest = trace.finish(measured_from_ns=0)
    (gap,) = manifest.extra["gaps"]
    assert (gap["table"], gap["parts"], gap["rows"]) == ("publications", 1, 10)
    assert gap["from_ns"] < gap["until_ns"]
    rows = Trace.open(small_disk / "run").table("publications").column("publication_id").to_pylist()
    assert rows == [*range(10), *range(20, 30)]


def _publications(trace: TraceWriter, first: int) -> None:
    numbers = list(range(first, first + 10))
    trace.publications(
        {
            "publication_id": numbers,
            "topic_id": [0] * 10,
            "publisher_id": [0] * 10,
            "published_ns": numbers,
            "size_bytes": [100] * 10,
        }
    )


def _wait(what: object) -> None:
    assert callable(what)
    deadline = time.monotonic() + 20
    while not what():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


_KEYS = st.sampled_from(["one", "other"])


@given(st.lists(st.tuples(st.sampled_from(["put", "remove", "store", "fail"]), _KEYS), max_size=30))
def test_after_any_failures_the_store_holds_what_was_put_and_nothing_that_was_removed(
    steps: list[tuple[str, str]],
) -> None:
    changes = RowChanges(enabled=True)
    stored: dict[str, object] = {}
    expected: dict[str, object] = {}
    for number, (step, key) in enumerate([*steps, ("store", "")]):
        if step == "put":
            changes.put("boots", (key, number))
            expected[key] = (key, number)
        elif step == "remove":
            changes.remove("boots", key)
            expected.pop(key, None)
        else:
            taken = changes.take()
            if step == "fail":
                changes.give_back(taken)
                continue
            for changed, row in taken.get("boots", {}).items():
                assert isinstance(changed, str)
                stored.pop(changed, None)
                if row is not None:
                    stored[changed] = row
            changes.committed(taken)
    assert stored == expected


def test_what_is_answered_on_a_full_disk_is_so_after_a_kill(tmp_path: Path, full: list[bool]) -> None:
    gateway = VirtualGateway(store=tmp_path)
    stays, leaves, comes = gateway.clients(3)
    stays.connect("stays", duration=6000)
    stays.subscribe("old", 1)
    leaves.connect("leaves", clean=True, duration=6000).subscribe("a", 1)
    full.append(True)
    gateway.publish("a", b"the disk is found to be full", 1)
    stays.send(Subscribe(TopicIdType.NORMAL, "a", 77, 1))
    stays.send(Unsubscribe(TopicIdType.NORMAL, "old", 78))
    leaves.send(Disconnect())
    comes.send(Connect("comes", 6000, clean_session=False))
    # The disk does not have it, and so no client relies on it.
    assert not [*stays.take(SubAck), *stays.take(UnsubAck), *leaves.take(Disconnect), *comes.take(ConnAck)]
    full.append(False)
    gateway.wait(1)
    assert [each.message_id for each in (*stays.take(SubAck), *stays.take(UnsubAck))] == [77, 78]
    assert leaves.take(Disconnect) == [Disconnect()]
    assert comes.take(ConnAck) == [ConnAck(ReturnCode.ACCEPTED)]
    leaves.received.clear()
    stays.received.clear()
    gateway.kill()
    gateway.publish("a", b"after", 1)
    gateway.publish("old", b"not any more", 1)
    assert stays.payloads() == [b"after"]
    assert leaves.received == []
    assert set(gateway.core.sessions) == {"stays", "comes"}


def test_a_session_that_ended_on_a_full_disk_does_not_return(tmp_path: Path, full: list[bool]) -> None:
    gateway = VirtualGateway(store=tmp_path)
    client, other = gateway.clients(2)
    other.connect("other", duration=6000)
    client.connect("c", duration=6000).subscribe("a", 1)
    full.append(True)
    # A clean CONNECT ends it, and DISCONNECT the one that this began; the disk is tried in between.
    client.send(Connect("c", 6000, clean_session=True))
    gateway.wait(2)
    client.send(Disconnect())
    gateway.wait(2)
    assert client.take(ConnAck) == []
    full.append(False)
    gateway.wait(2)
    assert client.take(ConnAck) == [ConnAck(ReturnCode.ACCEPTED)]
    gateway.kill()
    assert set(gateway.core.sessions) == {"other"}


def test_a_clean_session_begins_while_the_disk_is_full(tmp_path: Path, full: list[bool]) -> None:
    gateway = VirtualGateway(store=tmp_path)
    first, second = gateway.clients(2)
    first.connect("first", duration=6000)
    full.append(True)
    first.send(Register(0, 1, "a"))
    second.connect("second", clean=True).subscribe("a")
    gateway.wait(2)
    second.subscribe("b")
    gateway.publish("a", b"x")
    assert second.payloads() == [b"x"]
    gateway.kill()
    # It is unknown now, and hears it at once: it subscribes anew.
    second.send(PingReq())
    assert second.take(Disconnect) == [Disconnect()]
