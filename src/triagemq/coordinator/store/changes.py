"""Changes of the store, each a function of a connection: the same on every database, run by the store's writer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update

from triagemq.coordinator.access.tokens import Token, token_to_json
from triagemq.coordinator.decide.orders import Orders, dump_orders
from triagemq.coordinator.intents.registry import Key, Record
from triagemq.coordinator.store.schema import (
    DECISIONS,
    INTENTS,
    MEASURED_PORTS,
    META,
    ORDERS,
    PORTS,
    TOKENS,
    TOPICS,
)
from triagemq.plan import Decision

__all__ = [
    "Change",
    "adding_token",
    "announcing",
    "deciding",
    "keeping_orders",
    "measuring",
    "measuring_ports",
    "revoking_token",
    "setting_bandwidth",
    "touching",
    "withdrawing",
]

KEPT_DECISIONS = 100_000
"""The newest decisions stay, at least this many."""

MOST_KEPT_TOPICS = 200_000
_PRUNED_EVERY = 1_000
_ROWS_AT_ONCE = 500

Change = Callable[[Connection], None]


def announcing(records: Iterable[Record]) -> Change:
    records = tuple(records)
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

    def change(connection: Connection) -> None:
        withdrawing([record.key for record in records])(connection)
        if rows:
            connection.execute(insert(INTENTS), rows)

    return change


def withdrawing(keys: Iterable[Key]) -> Change:
    gone: dict[str, list[str]] = {}
    for kind, name in keys:
        gone.setdefault(kind, []).append(name)

    def change(connection: Connection) -> None:
        for kind, names in gone.items():
            for start in range(0, len(names), _ROWS_AT_ONCE):
                few = names[start : start + _ROWS_AT_ONCE]
                connection.execute(delete(INTENTS).where(INTENTS.c.kind == kind, INTENTS.c.name.in_(few)))

    return change


def deciding(decided_ns: int, generation: int, decisions: Sequence[Decision]) -> Change:
    """New decisions, and the generation they belong to; the oldest go when there are far too many."""
    rows = [
        {
            "decided_ns": decided_ns,
            "generation": generation,
            "kind": each.kind,
            "subject": each.subject,
            "before": each.before,
            "after": each.after,
            "reason": each.reason,
        }
        for each in decisions
    ]

    def change(connection: Connection) -> None:
        connection.execute(
            update(META).where(META.c.key == "generation", META.c.value < generation).values(value=generation)
        )
        if not rows:
            return
        connection.execute(insert(DECISIONS), rows)
        newest = int(connection.execute(select(func.max(DECISIONS.c.id))).scalar() or 0)
        if newest % _PRUNED_EVERY < len(rows):
            connection.execute(delete(DECISIONS).where(DECISIONS.c.id <= newest - KEPT_DECISIONS))

    return change


def keeping_orders(orders: Orders) -> Change:
    """The orders that come into force; very large ones are not kept, and slots are then given anew after a restart."""
    size = sum(len(topics) for topics in orders.slots.values())

    def change(connection: Connection) -> None:
        connection.execute(delete(ORDERS))
        if size <= MOST_KEPT_TOPICS:
            text = dump_orders(orders)
            connection.execute(insert(ORDERS).values(number=0, generation=orders.generation, orders=text))

    return change


def setting_bandwidth(port: str, bandwidth_bps: float) -> Change:
    def change(connection: Connection) -> None:
        connection.execute(delete(PORTS).where(PORTS.c.name == port))
        connection.execute(insert(PORTS).values(name=port, bandwidth_bps=bandwidth_bps))

    return change


def touching() -> Change:
    """Writes what is there: for finding out whether anything can be written."""

    def change(connection: Connection) -> None:
        connection.execute(update(META).where(META.c.key == "generation").values(value=META.c.value))

    return change


def measuring(measured: Mapping[str, Any]) -> Change:
    """What was measured of topics, in place of what was stored before."""
    rows = [
        {
            "topic_hash": hashlib.sha256(topic.encode()).hexdigest(),
            "topic": topic,
            "measured": json.dumps(known, allow_nan=False),
        }
        for topic, known in measured.items()
    ]

    def change(connection: Connection) -> None:
        connection.execute(delete(TOPICS))
        if rows:
            connection.execute(insert(TOPICS), rows)

    return change


def measuring_ports(measured: Mapping[str, Any]) -> Change:
    """What was measured of ports and overrules what is stated, in place of what was stored before."""
    rows = [
        {"name": port, "measured": json.dumps(known, allow_nan=False)} for port, known in measured.items()
    ]

    def change(connection: Connection) -> None:
        connection.execute(delete(MEASURED_PORTS))
        if rows:
            connection.execute(insert(MEASURED_PORTS), rows)

    return change


def adding_token(token: Token) -> Change:
    rights = token_to_json(token)
    columns = {column.name: rights.pop(column.name) for column in TOKENS.c if column.name in rights}

    def change(connection: Connection) -> None:
        connection.execute(insert(TOKENS).values(**columns, rights=json.dumps(rights)))
        _tokens_changed(connection)

    return change


def revoking_token(token_id: str, revoked_ns: int) -> Change:
    def change(connection: Connection) -> None:
        connection.execute(
            update(TOKENS)
            .where(TOKENS.c.token_id == token_id, TOKENS.c.revoked_ns.is_(None))
            .values(revoked_ns=revoked_ns)
        )
        _tokens_changed(connection)

    return change


def _tokens_changed(connection: Connection) -> None:
    connection.execute(update(META).where(META.c.key == "tokens_version").values(value=META.c.value + 1))
