"""From packets that left ports to events, and to the hops of deliveries."""

from __future__ import annotations

import numpy as np

from triagemq.lab.emulate.passing import PASSED, hops_of, whole_events, with_queue_times

ONE, TWO = 0x0A4D0003, 0x0A4D0004


def packets(*rows: tuple[int, int, int, int, bool, int, int]) -> np.ndarray:
    """Port, address, time, datagram, whether it is a later fragment, when it was queued and when it left."""
    made = np.zeros(len(rows), PASSED)
    for place, (port, address, published_ns, datagram, later, enqueued_ns, dequeued_ns) in enumerate(rows):
        made[place] = (port, 2, address, published_ns, datagram, later, enqueued_ns, dequeued_ns)
    return made


def test_fragments_are_one_event_until_the_last_has_left() -> None:
    found = whole_events(
        packets(
            (0, ONE, 100, 7, False, 1000, 1500),
            (0, TWO, 100, 7, False, 1000, 1600),
            (0, ONE, -1, 7, True, 1001, 1700),
            (1, ONE, -1, 7, True, 1001, 9000),  # Of an event whose beginning never left there.
            (0, ONE, 101, 8, False, 1200, 1800),
        )
    )
    rows = sorted(found[["address", "published_ns", "enqueued_ns", "dequeued_ns"]].tolist())
    assert rows == [(ONE, 100, 1000, 1700), (ONE, 101, 1200, 1800), (TWO, 100, 1000, 1600)]


def test_what_is_sent_again_counts_as_it_was_sent_first_and_what_carries_no_time_not_at_all() -> None:
    again, nothing = (0, ONE, 100, 9, False, 5000, 5100), (0, ONE, -1, 10, False, 1, 2)
    found = whole_events(packets(again, nothing, (0, ONE, 100, 7, False, 1000, 1500)))
    assert found["enqueued_ns"].tolist() == [1000]
    assert not len(whole_events(packets()))
    assert not len(whole_events(packets((0, ONE, -1, 7, True, 1, 2))))


def test_hops_are_in_the_order_of_the_way_and_give_deliveries_their_ends() -> None:
    deliveries = {
        "publication_id": np.array([5, 5, 6]),
        "subscription_id": np.array([0, 1, 0]),
        "subscriber_id": np.array([0, 1, 0]),
        "published_ns": np.array([100, 100, 200]),
        "enqueued_ns": np.array([900, 900, 901]),
        "dequeued_ns": np.array([-1, -1, -1]),
    }
    events = whole_events(
        packets(
            (4, ONE, 100, 7, False, 2000, 2500),
            (3, ONE, 100, 7, False, 1000, 1500),
            (3, TWO, 100, 8, False, 1001, 1600),  # It never left its subscriber's port.
            (4, 0x0A4D00FF, 100, 7, False, 1, 2),
        )
    )
    hops = hops_of(deliveries, events, {ONE: 0, TWO: 1})
    rows = zip(
        *(hops[name].tolist() for name in ("publication_id", "subscription_id", "hop", "port_id")),
        strict=True,
    )
    assert list(rows) == [(5, 0, 0, 3), (5, 0, 1, 4), (5, 1, 0, 3)]
    assert set(hops["queue"].tolist()) == {2}
    found = with_queue_times(deliveries, hops, np.array([4, 4]))
    assert found["enqueued_ns"].tolist() == [1000, 1001, 901]
    assert found["dequeued_ns"].tolist() == [2500, -1, -1]
    nothing = hops_of(deliveries, events[:0], {ONE: 0})
    assert with_queue_times(deliveries, nothing, np.array([4, 4]))["dequeued_ns"].tolist() == [-1, -1, -1]
