"""The store: what is written is there after a restart, also after a kill, and one bad change spoils no other."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import Connection, event, insert, text
from tests.coordinator.coordinating import database_in

from triagemq.channel.orders import Orders
from triagemq.coordinator import store as tables
from triagemq.coordinator.access.tokens import Role, TokenBook, TokenRequest, new_token
from triagemq.coordinator.intents.registry import Record
from triagemq.coordinator.refusals import StoreError
from triagemq.coordinator.store import Store
from triagemq.errors import TriageError
from triagemq.intents import (
    PublicationIntent,
    PublisherIntent,
    SubscriberIntent,
    SubscriptionIntent,
    Utility,
)
from triagemq.plan import Decision
from triagemq.plan.dataplane import SetFlow, SetPort


def record(name: str, topic: str = "a/b") -> Record:
    return Record(
        SubscriberIntent((SubscriptionIntent(topic),), lease_seconds=7.5, name=name), "owner", "key"
    )


def decision(number: int) -> Decision:
    return Decision("kind", f"subject {number}", "before", "after", "reason")


OLD = {
    ("subscriber", "ff-7"): (
        '{"subscriptions":[{"topic":"floor3/#","utility":{"shape":"log","weight":1.0}},{"topic":"a/+","utility":'
        '{"shape":"step","weight":3.0,"threshold":0.5,"freshness_seconds":2.5},"max_latency_seconds":0.5,'
        '"max_separation_seconds":4.0,"qos":2,"max_latency_share":0.95}],"port":"radio","flows":3}',
        SubscriberIntent(
            (
                SubscriptionIntent("floor3/#"),
                SubscriptionIntent("a/+", Utility("step", 3.0, 0.5, 2.5), 0.5, 4.0, 2, 0.95),
            ),
            "radio",
            3,
            name="ff-7",
        ),
    ),
    ("publisher", "pump"): (
        '{"publications":[{"topic":"pump/1","rate_per_second":2.5,"size_bytes":40.0},{"topic":"pump/2"}]}',
        PublisherIntent((PublicationIntent("pump/1", 2.5, 40.0), PublicationIntent("pump/2")), name="pump"),
    ),
}
"""Rows as 0.1.0 has written them from the first, and what they mean."""


@pytest.mark.parametrize("key", OLD)
def test_what_was_stored_before_is_read_and_written_in_the_same_words(
    tmp_path: Path, key: tuple[str, str]
) -> None:
    text, intent = OLD[key]
    store = Store(database_in(tmp_path))
    with sqlite3.connect(tmp_path / "coordinator.sqlite") as database:
        database.execute(
            "insert into intents (kind, name, owner, session_key, lease_seconds, intent) "
            "values (?, ?, 'owner', 'key', 12.5, ?)",
            (*key, text),
        )
    (found,) = store.records()
    assert (found.intent, found.intent.lease_seconds, found.owner) == (intent, 12.5, "owner")
    store.write_now(tables.announce, [found])
    with sqlite3.connect(tmp_path / "coordinator.sqlite") as database:
        assert database.execute("select intent from intents").fetchall() == [(text,)]
    store.close_now()


def test_what_cannot_be_asked_for_is_named_and_keeps_nobody_else_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(database_in(tmp_path))
    store.write_now(tables.announce, [record("s")])
    with sqlite3.connect(tmp_path / "coordinator.sqlite") as database:
        database.execute(
            "insert into intents (kind, name, owner, session_key, lease_seconds, intent) "
            "values ('publisher', 'p', '', '', 10, '{\"publications\": 1}')"
        )
    assert store.records() == [record("s")]
    assert "intent of publisher 'p' is not valid (publications: " in caplog.text
    store.close_now()


def test_everything_is_there_again(tmp_path: Path) -> None:
    store = Store(database_in(tmp_path))
    publishing = Record(PublisherIntent((PublicationIntent("a", 2.5, None),), 3.0, name="p"), "", "")
    store.write_now(tables.announce, [record("s", "x/#"), publishing, record("gone")])
    store.write_now(tables.withdraw, [("subscriber", "gone")])
    store.write_now(tables.announce, [record("s", "y/#")])
    store.write_now(tables.set_bandwidth, "radio", 1e6)
    store.write_now(tables.set_bandwidth, "radio", 2e6)
    store.write_now(tables.store_measured, {"a": {"rate_per_second": 1.0}})
    store.write_now(tables.store_measured, {"b": {"rate_per_second": 2.5, "size_bytes": 40.0}})
    orders = Orders(
        7,
        {"radio": SetPort("radio", 1e6, float("inf"), 8)},
        {"s~0": SetFlow("s~0", "radio", 3, 1, 0.25)},
        {"s": {"y/1": (0, 0.5)}},
    )
    store.write_now(tables.decide, 5, 7, [decision(0), decision(1)], orders)
    secret, token = new_token(
        TokenRequest(label="l", roles=(Role.PUBLISHER,), publish=("a/#",), most_subscriptions=3)
    )
    store.write_now(tables.add_token, token)
    store.close_now()

    again = Store(database_in(tmp_path))
    assert {each.key: each for each in again.records()} == {
        each.key: each for each in (record("s", "y/#"), publishing)
    }
    assert [each.intent.lease_seconds for each in again.records()] == [3.0, 7.5]
    assert again.bandwidths() == {"radio": 2e6}
    assert again.measured() == {"b": {"rate_per_second": 2.5, "size_bytes": 40.0}}
    assert again.orders() == orders
    assert [each.subject for each in again.decisions()] == [decision(0).subject, decision(1).subject]
    assert [each.number for each in again.decisions(after=1)] == [2]
    assert again.tokens() == [token]
    assert TokenBook(again.tokens()).caller(secret).publish == ("a/#",)
    again.close_now()


def test_orders_of_another_version_are_left_and_said_to_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(database_in(tmp_path))
    store.write_now(tables.decide, 5, 7, [decision(0)])
    before = '{"generation":7,"ports":{},"flows":{"s~0":["radio",3,1,0.25]},"slots":{"s":{"a":0}}}'
    store.write_now(
        lambda connection: connection.execute(
            insert(tables.ORDERS).values(number=0, generation=7, orders=before)
        )
    )
    assert store.orders() == Orders(7)
    assert "all is planned anew: orders: " in caplog.text
    store.close_now()


def test_no_secret_is_in_the_file(tmp_path: Path) -> None:
    store = Store(database_in(tmp_path))
    secret, token = new_token(TokenRequest(label="l", roles=(Role.OPERATOR,)))
    store.write_now(tables.add_token, token)
    store.close_now()
    contents = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert token.prefix.encode() in contents
    assert secret[len(token.prefix) :].encode() not in contents


def test_changes_that_wait_are_committed_together(tmp_path: Path) -> None:
    async def run() -> int:
        store = Store(database_in(tmp_path))
        commits = 0
        commit = store._commit

        def counted(changes):  # type: ignore[no-untyped-def]
            nonlocal commits
            commits += 1
            return commit(changes)

        store._commit = counted  # type: ignore[method-assign]
        await asyncio.gather(*(store.write(tables.announce, [record(f"s{number}")]) for number in range(200)))
        assert len(store.records()) == 200
        await store.close()
        return commits

    assert asyncio.run(run()) <= 3


def test_one_bad_change_spoils_no_other(tmp_path: Path) -> None:
    async def run() -> None:
        store = Store(database_in(tmp_path))
        results = await asyncio.gather(
            store.write(tables.announce, [record("good")]),
            store.write(
                lambda connection: connection.execute(text("insert into nowhere values (1)")) and None
            ),
            store.write(tables.announce, [record("also")]),
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [type(None), StoreError, type(None)]
        assert {each.intent.name for each in store.records()} == {"good", "also"}
        await store.close()

    asyncio.run(run())


def test_ten_thousand_intents_in_one_change(tmp_path: Path) -> None:
    store = Store(database_in(tmp_path))
    many = [record(f"s{number}") for number in range(10_000)]
    store.write_now(tables.announce, many)
    store.write_now(tables.announce, many)
    store.write_now(tables.withdraw, [each.key for each in many[1:]])
    assert [each.key for each in store.records()] == [many[0].key]
    store.close_now()


def test_the_oldest_decisions_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "STORED_DECISIONS", 1_500)
    store = Store(database_in(tmp_path))
    for start in range(0, 5_000, 250):
        store.write_now(tables.decide, 1, 1, [decision(number) for number in range(start, start + 250)])
    kept = store.decisions(limit=10_000)
    assert 1_500 <= len(kept) < 3_500
    assert kept[-1].number == 5_000
    assert kept[-1].subject == "subject 4999"
    store.close_now()


def test_an_older_schema_gets_what_it_lacks_and_keeps_what_it_has(tmp_path: Path) -> None:
    _, token = new_token(TokenRequest(label="l", roles=(Role.OPERATOR,)))
    before = Store(database_in(tmp_path))
    before.write_now(tables.announce, [record("s")])
    before.write_now(tables.add_token, token)
    before.close_now()
    with sqlite3.connect(tmp_path / "coordinator.sqlite") as connection:
        connection.execute("update meta set value = 1 where key = 'schema_version'")
        connection.execute("drop table page_sessions")
        connection.execute("alter table tokens drop column revoked_ns")
    connection.close()
    after = Store(database_in(tmp_path))
    assert after.records() == [record("s")]
    after.write_now(tables.begin_page_session, "a", "sealed", 5, 10)
    assert (after.page_session("a", 9), after.page_session("a", 10)) == ("sealed", None)
    after.write_now(tables.revoke_token, token.token_id, 7)
    after.close_now()
    again = Store(database_in(tmp_path))
    assert [each.revoked_ns for each in again.tokens()] == [7]
    again.close_now()
    with sqlite3.connect(tmp_path / "coordinator.sqlite") as connection:
        found = connection.execute("select value from meta where key = 'schema_version'").fetchone()
    connection.close()
    assert found == (tables.SCHEMA_VERSION,)


def test_a_newer_schema_is_refused_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Store(database_in(tmp_path)).close_now()
    with sqlite3.connect(tmp_path / "coordinator.sqlite") as connection:
        connection.execute("update meta set value = 9 where key = 'schema_version'")
    connection.close()
    with pytest.raises(StoreError, match=r"newer TriageMQ \(schema 9, this one knows 2\)"):
        Store(database_in(tmp_path))


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite://", "needs a file"),
        ("sqlite:////no/such/directory/x.sqlite", "cannot be opened"),
        ("nonsense", "address cannot be used"),
        ("oracle9://user:hush@host/x", "address cannot be used"),
    ],
)
def test_a_database_that_cannot_be_used(url: str, words: str) -> None:
    with pytest.raises(TriageError, match=words) as caught:
        Store(url)
    assert "hush" not in str(caught.value)


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "coordinator.sqlite").write_bytes(b"something else entirely, for many bytes " * 100)
    with pytest.raises(StoreError, match="cannot be opened: file is not a database"):
        Store(database_in(tmp_path))


def test_the_schema_is_one_that_postgresql_takes() -> None:
    from sqlalchemy.dialects import postgresql
    from sqlalchemy.schema import CreateTable

    texts = [
        str(CreateTable(table).compile(dialect=postgresql.dialect()))  # type: ignore[no-untyped-call]
        for table in tables.META.metadata.sorted_tables
    ]
    assert len(texts) == 12
    assert any("BIGSERIAL" in each for each in texts)


def test_nobody_waits_for_ever_whatever_goes_wrong(tmp_path: Path) -> None:
    def mistake(connection: object) -> None:
        raise ZeroDivisionError("a mistake")

    def no_disk(connection: object) -> None:
        raise OSError(28, "No space left on device")

    async def run() -> None:
        store = Store(database_in(tmp_path))

        def good(connection: Connection) -> None:
            tables.announce(connection, [record("good")])

        results = await asyncio.wait_for(
            asyncio.gather(*map(store.write, (mistake, good, no_disk)), return_exceptions=True), 10.0
        )
        assert [type(result) for result in results] == [StoreError, type(None), StoreError]
        assert "No space left" in str(results[2])
        assert store.writing.ok, "the database works; two changes did not"
        with pytest.raises(StoreError, match="a mistake"):
            await store.write(mistake)
        assert not store.writing.ok
        await store.probe()
        assert store.writing.ok
        # The thread that writes is gone: that is said, too.
        store._writer.shutdown()
        with pytest.raises(StoreError, match="cannot be written"):
            await asyncio.wait_for(store.write(good), 30.0)
        assert "shutdown" in store.writing.reason
        assert [each.key[1] for each in store.records()] == ["good"]
        await store.close()

    asyncio.run(run())


def test_a_disk_that_is_full_is_said_and_recovers_when_there_is_room(tmp_path: Path) -> None:
    async def run() -> None:
        store = Store(database_in(tmp_path))
        most_pages = 0

        def limit(connection: sqlite3.Connection, *_: object) -> None:
            # SQLite then says what it says when the disk is full.
            connection.execute(f"PRAGMA max_page_count = {most_pages or 1_073_741_823}")

        event.listen(store._engine, "checkout", limit)
        await store.write(tables.announce, [record("before")])
        most_pages = 1
        with pytest.raises(StoreError, match="database or disk is full"):
            await store.write(tables.announce, [record(f"s{n}", "t" * 1000) for n in range(200)])
        assert "full" in store.writing.reason
        assert [each.key[1] for each in store.records()] == ["before"]
        most_pages = 0
        await store.write(tables.announce, [record("after")])
        assert store.writing.ok
        await store.close()

    asyncio.run(run())


CHILD = """
import sys
from triagemq.coordinator import store as tables
from triagemq.coordinator.store import Store
from triagemq.plan import Decision
store = Store(sys.argv[1])
number = 0
while True:
    store.write_now(tables.decide, 1, number, [Decision("k", str(number), "", "", "")])
    print(number, flush=True)
    number += 1
"""


def test_what_was_committed_survives_kill_9(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, database_in(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    last = -1
    for line in child.stdout:
        last = int(line)
        if last == 50:
            break
    child.kill()
    last = max([last, *(int(line) for line in child.stdout.read().split())])
    child.stdout.close()
    child.wait()
    store = Store(database_in(tmp_path))
    subjects = [each.subject for each in store.decisions(limit=10_000)]
    assert subjects[: last + 1] == [str(number) for number in range(last + 1)]
    assert len(subjects) <= last + 2
    store.close_now()
