"""Which event waited how long in which queue of a box, from what the kernel says of each packet that left a port.

Promised messages are not among them: they carry no time that distinguishes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from triagemq.lab.box import packet_events
from triagemq.scenario import Integers
from triagemq.trace import Outcome

PASSED = np.dtype(
    [
        ("port", np.int64),
        ("priority_class", np.int64),
        ("address", np.uint32),
        ("published_ns", np.int64),
        ("identification", np.uint16),
        ("later_fragment", np.bool_),
        ("enqueued_ns", np.int64),
        ("dequeued_ns", np.int64),
    ]
)
"""A packet that has left a port, a row of the scenario. The others as in PACKET_EVENT and QUEUE_TIME."""

_EVENT = ["subscriber_id", "published_ns"]


def passed_packets(times: Mapping[str, NDArray[np.void]], ports: Sequence[str]) -> NDArray[np.void]:
    """What a data plane says of the packets that left its ports, without the octets."""
    found = [np.empty(0, PASSED)]
    for name, rows in times.items():
        if name not in ports:
            continue
        some = np.empty(len(rows), PASSED)
        some["port"] = ports.index(name)
        for column in ("priority_class", "enqueued_ns", "dequeued_ns"):
            some[column] = rows[column]
        events = packet_events(rows["beginning"])
        for column in events.dtype.names or ():
            some[column] = events[column]
        found.append(some)
    return np.concatenate(found)


def whole_events(packets: NDArray[np.void]) -> NDArray[np.void]:
    """One row for each event, its receiver and port: from when the first fragment is queued until the last has left.

    What was sent again counts once, as it was sent first.
    """
    order = np.lexsort(
        (packets["dequeued_ns"], packets["identification"], packets["address"], packets["port"])
    )
    rows = packets[order]
    begins = np.flatnonzero(~rows["later_fragment"])
    if not len(begins):
        return rows[:0]
    events = rows[begins].copy()
    # What follows the beginning of an event and is no part of it has lost its own beginning.
    whose = np.maximum(np.cumsum(~rows["later_fragment"]) - 1, 0)
    same = np.all(
        [rows[name] == events[name][whose] for name in ("port", "address", "identification")], axis=0
    )
    np.maximum.at(events["dequeued_ns"], whose[same], rows["dequeued_ns"][same])
    events = events[events["published_ns"] >= 0]
    order = np.lexsort((events["enqueued_ns"], events["port"], events["published_ns"], events["address"]))
    events = events[order]
    key = events[["address", "published_ns", "port"]]
    return events[np.append(True, key[1:] != key[:-1])] if len(events) else events


def hops_of(
    deliveries: Mapping[str, Any], events: NDArray[np.void], subscribers: Mapping[int, int]
) -> dict[str, Any]:
    """The table of hops for these deliveries; `subscribers` are rows of the scenario by address."""
    known = events[np.isin(events["address"], list(subscribers))]
    passed = pa.table(
        {
            "subscriber_id": np.array([subscribers[one] for one in known["address"].tolist()], np.int64),
            **{
                name: known[name]
                for name in ("published_ns", "port", "priority_class", "enqueued_ns", "dequeued_ns")
            },
        }
    )
    names = ("publication_id", "subscription_id", *_EVENT)
    copies = pa.table({name: np.asarray(deliveries[name], np.int64) for name in names})
    joined = copies.join(passed, _EVENT, join_type="inner")
    found = {name: joined[name].to_numpy() for name in joined.column_names}
    order = np.lexsort((found["enqueued_ns"], found["subscription_id"], found["publication_id"]))
    found = {name: column[order] for name, column in found.items()}
    rows = np.arange(len(order))
    begins = np.append(
        True, (np.diff(found["publication_id"]) != 0) | (np.diff(found["subscription_id"]) != 0)
    )[: len(order)]
    return {
        "publication_id": found["publication_id"],
        "subscription_id": found["subscription_id"],
        "hop": rows - np.maximum.accumulate(np.where(begins, rows, 0)),
        "port_id": found["port"],
        "queue": found["priority_class"],
        "enqueued_ns": found["enqueued_ns"],
        "dequeued_ns": found["dequeued_ns"],
        "outcome": np.full(len(order), int(Outcome.delivered), np.int8),
    }


def with_queue_times(
    deliveries: dict[str, Any], hops: Mapping[str, Any], last_port: Integers
) -> dict[str, Any]:
    """Deliveries with the times of the first queue they came to and the last they left, as far as that is known.

    `last_port` is the port of each subscriber.
    """
    enqueued_ns, dequeued_ns = (
        np.array(deliveries[name], np.int64) for name in ("enqueued_ns", "dequeued_ns")
    )
    rows = {
        pair: row
        for row, pair in enumerate(
            zip(deliveries["publication_id"].tolist(), deliveries["subscription_id"].tolist(), strict=True)
        )
    }
    whose = np.array(
        [
            rows[pair]
            for pair in zip(hops["publication_id"].tolist(), hops["subscription_id"].tolist(), strict=True)
        ],
        np.int64,
    )
    first = hops["hop"] == 0
    enqueued_ns[whose[first]] = hops["enqueued_ns"][first]
    last = hops["port_id"] == last_port[np.asarray(deliveries["subscriber_id"])[whose]]
    dequeued_ns[whose[last]] = hops["dequeued_ns"][last]
    return deliveries | {"enqueued_ns": enqueued_ns, "dequeued_ns": dequeued_ns}
