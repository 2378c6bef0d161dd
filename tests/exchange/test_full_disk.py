"""A disk that fills up: messages are delivered, nothing is promised that cannot be kept, and it is said."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.exchange.virtual import VirtualGateway

from triagemq.errors import GatewayError
from triagemq.exchange.store import GatewayStore
from triagemq.mqttsn import PubAck, PubComp, Publish, PubRec, PubRel, ReturnCode, TopicIdType
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
