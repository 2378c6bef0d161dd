"""The gateway's store: older versions are migrated, newer ones refused, and a state has a client id of its own."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from pathlib import Path

import pytest
from tests.exchange.virtual import VirtualGateway

from triagemq.errors import GatewayError
from triagemq.exchange.broker.address import BrokerAddress
from triagemq.exchange.gateway import GatewaySettings
from triagemq.exchange.server import Gateway
from triagemq.exchange.store import GatewayStore
from triagemq.mqttsn import Publish, Register

# What each version wrote, but for tables that have not changed since.
_OF_VERSION = {
    1: """
        CREATE TABLE topics (topic_id INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL);
        CREATE TABLE registrations (client_id TEXT, topic_id INTEGER, PRIMARY KEY (client_id, topic_id));
        CREATE TABLE receiving (broker_client_id TEXT, packet_id INTEGER,
            PRIMARY KEY (broker_client_id, packet_id));
        INSERT INTO topics VALUES (7, 'a');
        INSERT INTO registrations VALUES ('c', 7);
        INSERT INTO receiving VALUES ('triage-gateway', 1);
    """,
    2: """
        CREATE TABLE topics (topic_id INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL);
        CREATE TABLE registrations (client_id TEXT, topic_id INTEGER, PRIMARY KEY (client_id, topic_id));
        CREATE TABLE receiving (broker_client_id TEXT, packet_id INTEGER, digest INTEGER, finished INTEGER,
            PRIMARY KEY (broker_client_id, packet_id));
        INSERT INTO topics VALUES (7, 'a');
        INSERT INTO registrations VALUES ('c', 7);
        INSERT INTO receiving VALUES ('triage-gateway', 1, 5, 1);
    """,
    3: """
        CREATE TABLE client_topics (client_id TEXT, topic_id INTEGER, name TEXT, flags INTEGER,
            PRIMARY KEY (client_id, topic_id));
        CREATE TABLE receiving (broker_client_id TEXT, packet_id INTEGER, digest INTEGER, finished INTEGER,
            PRIMARY KEY (broker_client_id, packet_id));
        INSERT INTO client_topics VALUES ('c', 7, 'a', 1);
        INSERT INTO receiving VALUES ('triage-gateway', 1, 5, 1);
    """,
}


def _written_by(version: int, directory: Path) -> Path:
    """The state of a client that is connected, has registered a topic and has a QoS 1 message to get."""
    store = GatewayStore(directory)
    store.save(
        {
            "sessions": {"c": ("c", "10.0.0.1", 1000, None, 1, 0, 6000, 0, None, None, 0, 0)},
            "subscriptions": {("c", "a"): ("c", "a", 1, 0, 0)},
            "deliveries": {("c", 1): ("c", 1, "a", "a", b"kept", 1, 1, 1, 0, 0, 0, 0)},
        }
    )
    store.close()
    database = sqlite3.connect(directory / "gateway.sqlite")
    database.executescript("DROP TABLE client_topics; DROP TABLE receiving; DROP TABLE identity;")
    database.executescript(_OF_VERSION[version] + f"PRAGMA user_version={version};")
    database.close()
    return directory


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_state_of_an_older_version_goes_on(tmp_path: Path, version: int) -> None:
    gateway = VirtualGateway(store=_written_by(version, tmp_path))
    client = gateway.client()
    gateway.wait(20)
    assert {message.payload for message in client.take(Publish)} == {b"kept"}
    assert {(message.topic_id, message.topic_name) for message in client.take(Register)} <= {(7, "a")}
    gateway.publish("a", b"new", 1)
    assert client.payloads() == [b"new"]
    gateway.kill()
    assert set(gateway.core.sessions) == {"c"}


def test_a_state_of_a_newer_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    GatewayStore(tmp_path).close()
    database = sqlite3.connect(tmp_path / "gateway.sqlite")
    database.execute("PRAGMA user_version=1000")
    database.close()
    with pytest.raises(GatewayError, match=r"newer version of triagemq .*; install that version") as error:
        GatewayStore(tmp_path)
    assert "remove" not in str(error.value)


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
    assert _client_id(_written_by(3, tmp_path / "former")) == "triage-gateway-1"
    assert _client_id(tmp_path / "new", boot=tmp_path / "boot") == "triage-gateway-1"
