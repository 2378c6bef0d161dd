"""Changes of the store, each a function of a connection: the same on every database, run by the store's writer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update

from triagemq.coordinator.access.tokens import Token, token_to_json
from triagemq.coordinator.decide.orders import Orders, dump_orders
from triagemq.coordinator.intents.registry import Key, Record
from triagemq.coordinator.store.schema import (
    DECISIONS,
    DROPS,
    GATEWAYS,
    INTENTS,
    MEASURED_PORTS,
    META,
    ORDERS,
    PAGE_SESSIONS,
    PORTS,
    TOKENS,
    TOPICS,
)
from triagemq.plan import Decision

KEPT_DECISIONS = 100_000
"""The newest decisions stay, at least this many."""

MOST_KEPT_TOPICS = 200_000
MOST_PAGE_SESSIONS = 1_000
_PRUNED_EVERY = 1_000
_ROWS_AT_ONCE = 500


def announce(connection: Connection, records: Sequence[Record], withdrawn: Sequence[Key] = ()) -> None:
    """In place of what was announced under their names; what others have withdrawn goes as well."""
    withdraw(connection, [*(record.key for record in records), *withdrawn])
    rows = [
        {
            "kind": record.key[0],
            "name": record.key[1],
            "owner": record.owner,
            "session_key": record.session_key,
            "lease_seconds": record.intent.lease_seconds,
            "intent": json.dumps(record.intent.as_json(), separators=(",", ":"), allow_nan=False),
        }
        for record in records
    ]
    if rows:
        connection.execute(insert(INTENTS), rows)


def withdraw(connection: Connection, keys: Sequence[Key]) -> None:
    gone: dict[str, list[str]] = {}
    for kind, name in keys:
        gone.setdefault(kind, []).append(name)
    for kind, names in gone.items():
        for start in range(0, len(names), _ROWS_AT_ONCE):
            few = names[start : start + _ROWS_AT_ONCE]
            connection.execute(delete(INTENTS).where(INTENTS.c.kind == kind, INTENTS.c.name.in_(few)))


def decide(
    connection: Connection,
    decided_ns: int,
    generation: int,
    decisions: Sequence[Decision],
    orders: Orders | None = None,
) -> None:
    """New decisions, and the generation they belong to; the oldest go when there are far too many.

    With them the orders that come into force; of very large ones promises alone are kept, and all is planned
    anew after a restart.
    """
    connection.execute(
        update(META).where(META.c.key == "generation", META.c.value < generation).values(value=generation)
    )
    if decisions:
        rows = [{"decided_ns": decided_ns, "generation": generation, **asdict(each)} for each in decisions]
        connection.execute(insert(DECISIONS), rows)
        newest = int(connection.execute(select(func.max(DECISIONS.c.id))).scalar() or 0)
        if newest % _PRUNED_EVERY < len(rows):
            connection.execute(delete(DECISIONS).where(DECISIONS.c.id <= newest - KEPT_DECISIONS))
    if orders is not None:
        connection.execute(delete(ORDERS))
        if sum(len(topics) for topics in orders.topics.values()) > MOST_KEPT_TOPICS:
            orders = replace(orders, ports={}, flows={}, topics={})
        text = dump_orders(orders)
        connection.execute(insert(ORDERS).values(number=0, generation=orders.generation, orders=text))


def set_bandwidth(connection: Connection, port: str, bandwidth_bps: float) -> None:
    connection.execute(delete(PORTS).where(PORTS.c.name == port))
    connection.execute(insert(PORTS).values(name=port, bandwidth_bps=bandwidth_bps))


def set_gateways(connection: Connection, names: Sequence[str]) -> None:
    """The gateways that have joined, in place of those that were stored before."""
    connection.execute(delete(GATEWAYS))
    if names:
        connection.execute(insert(GATEWAYS), [{"name": name} for name in names])


def set_drops(connection: Connection, policy: str, instead_of: str) -> None:
    connection.execute(delete(DROPS))
    connection.execute(insert(DROPS).values(number=0, policy=policy, instead_of=instead_of))


def touch(connection: Connection) -> None:
    """Writes what is there: for finding out whether anything can be written."""
    connection.execute(update(META).where(META.c.key == "generation").values(value=META.c.value))


def keep_measured(connection: Connection, measured: Mapping[str, Any]) -> None:
    """What was measured of topics, in place of what was stored before."""
    rows = [
        {
            "topic_hash": hashlib.sha256(topic.encode()).hexdigest(),
            "topic": topic,
            "measured": json.dumps(known, allow_nan=False),
        }
        for topic, known in measured.items()
    ]
    connection.execute(delete(TOPICS))
    if rows:
        connection.execute(insert(TOPICS), rows)


def keep_measured_ports(connection: Connection, measured: Mapping[str, Any]) -> None:
    """What was measured of ports and overrules what is stated, in place of what was stored before."""
    rows = [
        {"name": port, "measured": json.dumps(known, allow_nan=False)} for port, known in measured.items()
    ]
    connection.execute(delete(MEASURED_PORTS))
    if rows:
        connection.execute(insert(MEASURED_PORTS), rows)


def add_token(connection: Connection, token: Token) -> None:
    rights = token_to_json(token)
    columns = {column.name: rights.pop(column.name) for column in TOKENS.c if column.name in rights}
    connection.execute(insert(TOKENS).values(**columns, rights=json.dumps(rights)))
    _tokens_changed(connection)


def revoke_token(connection: Connection, token_id: str, revoked_ns: int) -> None:
    connection.execute(
        update(TOKENS)
        .where(TOKENS.c.token_id == token_id, TOKENS.c.revoked_ns.is_(None))
        .values(revoked_ns=revoked_ns)
    )
    _tokens_changed(connection)


def begin_page_session(
    connection: Connection, number_sha256: str, sealed_token: str, now_ns: int, until_ns: int
) -> None:
    """Somebody has signed in to the page; sessions that have ended go, and the oldest if there are too many."""
    connection.execute(
        insert(PAGE_SESSIONS).values(
            number_sha256=number_sha256, sealed_token=sealed_token, until_ns=until_ns
        )
    )
    ends = PAGE_SESSIONS.c.until_ns
    last = select(ends).order_by(ends.desc()).offset(MOST_PAGE_SESSIONS).limit(1)
    oldest = connection.execute(last).scalar() or 0
    connection.execute(delete(PAGE_SESSIONS).where(ends <= max(now_ns, oldest)))


def end_page_session(connection: Connection, number_sha256: str) -> None:
    connection.execute(delete(PAGE_SESSIONS).where(PAGE_SESSIONS.c.number_sha256 == number_sha256))


def _tokens_changed(connection: Connection) -> None:
    connection.execute(update(META).where(META.c.key == "tokens_version").values(value=META.c.value + 1))
