"""What the store holds: its tables, a row of each kind, and which rows have changed since the last time.

A row that appears and goes again in between is never written: most QoS 1 messages cost the disk nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Final

from triagemq.exchange.gateway.model.messages import Arrival, Delivery, DeliveryStage, Subscription
from triagemq.exchange.gateway.model.sessions import Session
from triagemq.exchange.gateway.model.topics import FORMER, KnownTopic

Row = tuple[Any, ...]

TABLES: Final[dict[str, tuple[str, int]]] = {
    "sessions": (
        "client_id TEXT PRIMARY KEY, host TEXT, port INTEGER, node BLOB, state INTEGER, clean INTEGER, "
        "duration_seconds INTEGER, sleep_seconds INTEGER, will_topic TEXT, will_payload BLOB, will_qos INTEGER, "
        "will_retain INTEGER",
        1,
    ),
    "subscriptions": (
        "client_id TEXT, topic_filter TEXT, qos INTEGER, id_type INTEGER, predefined_id INTEGER, "
        "PRIMARY KEY (client_id, topic_filter)",
        2,
    ),
    "client_topics": (
        "client_id TEXT, topic_id INTEGER, name TEXT, flags INTEGER, PRIMARY KEY (client_id, topic_id)",
        2,
    ),
    "filters": ("link TEXT, topic_filter TEXT, identifier INTEGER, PRIMARY KEY (link, topic_filter)", 2),
    "deliveries": (
        "client_id TEXT, sequence INTEGER, topic_filter TEXT, topic TEXT, payload BLOB, published_ns INTEGER, "
        "received_ns INTEGER, qos INTEGER, retain INTEGER, priority_class INTEGER, message_id INTEGER, "
        "stage INTEGER, PRIMARY KEY (client_id, sequence)",
        2,
    ),
    "arrivals": (
        "client_id TEXT, message_id INTEGER, topic TEXT, payload BLOB, retain INTEGER, packet_id INTEGER, "
        "PRIMARY KEY (client_id, message_id)",
        2,
    ),
    "receiving": (
        "broker_client_id TEXT, packet_id INTEGER, digest INTEGER, finished INTEGER, "
        "PRIMARY KEY (broker_client_id, packet_id)",
        2,
    ),
    "boots": ("broker_client_id TEXT PRIMARY KEY, boot TEXT", 1),
}
"""Table to its columns, and how many of them are the key."""


def key_of(table: str, row: Row) -> Hashable:
    """What a row is known by.

    >>> key_of("sessions", ("pump", "10.0.0.1")), key_of("client_topics", ("pump", 7, "smoke", 0))
    ('pump', ('pump', 7))
    """
    columns = TABLES[table][1]
    return row[0] if columns == 1 else row[:columns]


def session(value: Session) -> Row:
    """A client, its address and its will."""
    host, port, *node = value.endpoint
    will = value.will
    return (
        value.client_id,
        host,
        port,
        node[0] if node else None,
        int(value.state),
        int(value.clean),
        value.duration_seconds,
        value.sleep_seconds,
        None if will is None else will.topic,
        None if will is None else will.payload,
        0 if will is None else will.qos,
        0 if will is None else int(will.retain),
    )


def subscription(owner: Session, value: Subscription) -> Row:
    """A client's filter."""
    return owner.client_id, value.topic_filter, value.qos, int(value.id_type), value.predefined_id


def client_topic(owner: Session, value: KnownTopic, flags: int) -> Row:
    """What a topic id means, or has meant, to a client."""
    return owner.client_id, value.topic_id, value.topic.name, flags


def gave_up_topics(owner: Session) -> Row:
    """That ids of a client have come to mean nothing, which another topic may be given since."""
    return owner.client_id, 0, "", FORMER


def delivery(owner: Session, value: Delivery) -> Row:
    """A message that is kept for a client."""
    publication = value.publication
    return (
        owner.client_id,
        value.sequence,
        value.subscription.topic_filter,
        publication.topic,
        publication.payload,
        publication.published_ns,
        publication.received_ns,
        value.qos,
        int(value.retain),
        value.priority_class,
        value.message_id,
        int(value.stage),
    )


def abandoned(owner: Session, message_id: int, sequence: int) -> Row:
    """A QoS 2 message that was given up: of the message itself nothing is kept but its id."""
    stage = int(DeliveryStage.ABANDONED)
    return owner.client_id, sequence, "", "", b"", 0, 0, 2, 0, 0, message_id, stage


def arrival(owner: Session, message_id: int, value: Arrival) -> Row:
    """A QoS 2 message of a client that the broker does not have for sure; a negative packet id: it holds it."""
    packet_id = -value.packet_id if value.broker_holds_it else value.packet_id
    return owner.client_id, message_id, value.topic, value.payload, int(value.retain), packet_id


class RowChanges:
    """What has to be stored before anything is acknowledged: rows by table and key, None for one that is gone.

    `enabled=False` forgets everything at once.

    >>> changes = RowChanges(enabled=True)
    >>> changes.put("boots", ("one", "a"))
    >>> changes.put("boots", ("other", "b"))
    >>> changes.remove("boots", "other")
    >>> taken = changes.take()
    >>> taken
    {'boots': {'one': ('one', 'a')}}
    >>> changes.committed(taken)
    >>> changes.remove("boots", "one")
    >>> changes.take()
    {'boots': {'one': None}}
    """

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled
        self._tables: dict[str, dict[Hashable, Row | None]] = {}
        self._stored: dict[str, set[Hashable]] = {}

    def put(self, table: str, row: Row) -> None:
        """The row is now this."""
        if self.enabled:
            self._tables.setdefault(table, {})[key_of(table, row)] = row

    def remove(self, table: str, key: Hashable) -> None:
        """The row is gone."""
        if not self.enabled:
            return
        rows = self._tables.setdefault(table, {})
        if self.is_stored(table, key):
            rows[key] = None
        else:
            rows.pop(key, None)

    def give_back(self, taken: Mapping[str, Mapping[Hashable, Row | None]]) -> None:
        """What was taken could not be stored: it is to be stored with the next, unless it has changed since.

        >>> changes = RowChanges(enabled=True)
        >>> changes.put("boots", ("one", "a"))
        >>> changes.give_back(changes.take())
        >>> changes.take()
        {'boots': {'one': ('one', 'a')}}
        """
        for table, rows in taken.items():
            self._tables[table] = {**rows, **self._tables.get(table, {})}

    def is_stored(self, table: str, key: Hashable) -> bool:
        """Does the store hold a row of this key?"""
        return key in self._stored.get(table, ())

    def restored(self, table: str, row: Row) -> None:
        """The row was read from the store."""
        self._stored.setdefault(table, set()).add(key_of(table, row))

    def take(self) -> dict[str, dict[Hashable, Row | None]]:
        """Everything since the last call, by table: to be stored, and then `committed` or given back."""
        taken = {table: rows for table, rows in self._tables.items() if rows}
        if self._tables:
            self._tables = {}
        return taken

    def committed(self, taken: Mapping[str, Mapping[Hashable, Row | None]]) -> None:
        """What was taken is in the store."""
        for table, rows in taken.items():
            stored = self._stored.setdefault(table, set())
            for key, row in rows.items():
                if row is None:
                    stored.discard(key)
                else:
                    stored.add(key)
