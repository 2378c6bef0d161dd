"""The gateway's store: the version before is migrated, others are refused, and a state has a client id of its own."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.gateway.virtual import VirtualGateway

from triagemq.broker.address import BrokerAddress
from triagemq.errors import GatewayError
from triagemq.gateway.core import GatewaySettings
from triagemq.gateway.server import Gateway
from triagemq.gateway.store import GatewayStore
from triagemq.mqttsn import Publish


@pytest.mark.parametrize(("version", "kind"), [(2, "an older"), (1000, "a newer")])
def test_a_state_of_another_version_is_refused_with_what_to_do(
    tmp_path: Path, version: int, kind: str
) -> None:
    GatewayStore(tmp_path).close()
    database = sqlite3.connect(tmp_path / "gateway.sqlite")
    database.execute(f"PRAGMA user_version={version}")
    database.close()
    with pytest.raises(GatewayError, match=rf"{kind} version of triagemq .*; install that version") as error:
        GatewayStore(tmp_path)
    assert "remove" not in str(error.value)


def test_a_state_of_before_deliveries_expired_is_read(tmp_path: Path) -> None:
    GatewayStore(tmp_path).close()
    message = ("c", 1, "a", "a", b"x", 5, 6, 1, 0, 0, 0, 0)
    with closing(sqlite3.connect(tmp_path / "gateway.sqlite")) as database:
        database.execute("ALTER TABLE deliveries DROP COLUMN expires_ns")
        database.execute(f"INSERT INTO deliveries VALUES ({', '.join('?' * 12)})", message)
        database.execute("PRAGMA user_version=4")
        database.commit()
    for _ in range(2):
        store = GatewayStore(tmp_path)
        assert store.load()["deliveries"] == [(*message, None)]
        store.close()


def _written_by_the_version_before(directory: Path) -> Path:
    """The state of a client that is connected, has registered a topic and has a QoS 1 message to get."""
    store = GatewayStore(directory)
    store.save(
        {
            "sessions": {"c": ("c", "10.0.0.1", 1000, None, 1, 0, 6000, 0, None, None, 0, 0)},
            "subscriptions": {("c", "a"): ("c", "a", 1, 0, 0)},
            "client_topics": {("c", 7): ("c", 7, "a", 1)},
            "deliveries": {("c", 1): ("c", 1, "a", "a", b"stored", 1, 1, 1, 0, 0, 0, 0, None)},
            "receiving": {("triage-gateway", 1): ("triage-gateway", 1, 5, 1)},
        }
    )
    store.close()
    database = sqlite3.connect(directory / "gateway.sqlite")
    database.executescript(
        "DROP TABLE identity; DROP TABLE outcomes; ALTER TABLE deliveries DROP COLUMN expires_ns; "
        "PRAGMA user_version=3;"
    )
    database.close()
    return directory


def test_a_state_of_the_version_before_goes_on(tmp_path: Path) -> None:
    gateway = VirtualGateway(store=_written_by_the_version_before(tmp_path))
    client = gateway.client()
    gateway.wait(20)
    assert {message.payload for message in client.take(Publish)} == {b"stored"}
    gateway.publish("a", b"new", 1)
    assert client.payloads() == [b"new"]
    gateway.kill()
    assert set(gateway.core.sessions) == {"c"}


def test_a_state_of_the_version_before_has_the_client_id_that_all_gateways_shared(tmp_path: Path) -> None:
    _written_by_the_version_before(tmp_path)
    for _ in range(2):
        store = GatewayStore(tmp_path)
        assert store.broker_client_id("triage-gateway", "unique") == "triage-gateway"
        store.close()


def test_a_state_in_use_can_be_read_for_a_copy(tmp_path: Path) -> None:
    store = GatewayStore(tmp_path)
    store.save({"boots": {"a": ("a", "b")}})
    with closing(sqlite3.connect(tmp_path / "gateway.sqlite")) as reader:
        assert reader.execute("SELECT * FROM boots").fetchall() == [("a", "b")]
        store.save({"boots": {"a": ("a", "c")}})
    store.close()


def test_what_is_stored_is_on_the_disk_itself_a_moment_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr("os.fdatasync", lambda file: synced.append(os.readlink(f"/proc/self/fd/{file}")))

    async def run() -> None:
        gateway = Gateway(
            GatewaySettings(), BrokerAddress("127.0.0.1", 9), ("127.0.0.1", 0), state=tmp_path / "state"
        )
        await gateway.start()
        gateway.change(lambda core: core.changes.put("boots", ("a", "b")))
        async with asyncio.timeout(20):
            while not synced:
                await asyncio.sleep(0.01)
        await gateway.close()

    asyncio.run(run())
    assert synced[0].endswith("gateway.sqlite-wal")
    # 1 is NORMAL: a power failure at any moment leaves a file that is whole.
    store = GatewayStore(tmp_path / "state")
    assert store._database.execute("PRAGMA synchronous").fetchone() == (1,)
    store.close()


def _client_id(state: Path | None, *, boot: Path | None = None) -> str:
    async def run() -> str:
        gateway = Gateway(
            GatewaySettings(broker_client_id="triage-gateway-1"),
            BrokerAddress("127.0.0.1", 9),
            ("127.0.0.1", 0),
            state=state,
            broker_boot=boot,
        )
        await gateway.start()
        await gateway.close()
        return gateway.core.link.lanes[0].login.client_id

    return asyncio.run(run())


def test_each_state_has_a_client_id_of_its_own_at_a_broker_that_others_use(tmp_path: Path) -> None:
    one, other = _client_id(tmp_path / "one"), _client_id(tmp_path / "other")
    assert len({one, other, _client_id(None), _client_id(None), "triage-gateway-1"}) == 5
    assert _client_id(tmp_path / "one") == one
    # Its session at the broker is under the id of before.
    former = GatewayStore(tmp_path / "former")
    former._database.execute("INSERT INTO identity VALUES ('broker_client_id', '')")
    former.close()
    assert _client_id(tmp_path / "former") == "triage-gateway-1"
    assert _client_id(tmp_path / "new", boot=tmp_path / "boot") == "triage-gateway-1"
