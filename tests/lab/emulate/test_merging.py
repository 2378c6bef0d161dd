"""What the gateway sent and what subscribers got become one Trace, in which every copy has one outcome."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest

from triagemq.lab.emulate.merging import merge_trace
from triagemq.lab.emulate.receipts import Receipts
from triagemq.lab.generators import prototype
from triagemq.plan.dataplane import Counters, PortCounters, QueueCounters
from triagemq.trace import Outcome, Trace, TraceWriter

SCENARIO = prototype(subscribers=2)
COPIES = 20


@pytest.fixture
def gateway_trace(tmp_path: Path) -> Path:
    """Twenty copies of flow 3 to subscriber 1, all handed over."""
    folder = tmp_path / "gateway-trace"
    with TraceWriter(folder / "run-0", scenario_text="", plan_text=None, producer="gateway") as writer:
        columns = {
            "publication_id": range(COPIES),
            "subscription_id": [1] * COPIES,
            "subscriber_id": [1] * COPIES,
            "topic_id": [0] * COPIES,
            "flow_id": [3] * COPIES,
            "priority_class": [2] * COPIES,
            "published_ns": [1000 + number for number in range(COPIES)],
            "enqueued_ns": [-1] * COPIES,
            "dequeued_ns": [-1] * COPIES,
            "delivered_ns": [2000] * COPIES,
            "size_bytes": [100] * COPIES,
            "outcome": [int(Outcome.delivered)] * COPIES,
        }
        writer.publications(
            {
                "publication_id": list(range(COPIES)),
                "topic_id": [0] * COPIES,
                "publisher_id": [0] * COPIES,
                "published_ns": columns["published_ns"],
                "size_bytes": [100] * COPIES,
            }
        )
        writer.deliveries({name: list(column) for name, column in columns.items()})
        writer.finish(measured_from_ns=0, extra={"topics": ["smoke"], "counters": {"sent": COPIES}})
    return folder


def queue(drops: int) -> QueueCounters:
    return QueueCounters(0, 0, 0, 0, drops, 0, 0, 1_000)


def merged(
    gateway_trace: Path,
    arrived: list[int],
    samples: list[Counters],
    *,
    lost: list[int] | None = None,
    behind_gateway: bool = True,
) -> Trace:
    receipts = Receipts(gateway_trace.parent / "receipts")
    for number in arrived:
        receipts.add(1, 0, 1000 + number, 5000 + number)
    receipts.close()
    merge_trace(
        gateway_trace,
        gateway_trace.parent / "sent",
        gateway_trace.parent / "receipts",
        [(10 * number, each) for number, each in enumerate(samples)],
        {(1, 1000 + number) for number in lost or []},
        SCENARIO,
        gateway_trace.parent / "trace",
        scenario_text="",
        plan_text="{}",
        measured_from_ns=0,
        behind_gateway=behind_gateway,
        present=lambda at_ns: np.ones(len(SCENARIO.subscriptions), dtype=np.bool_),
    )
    return Trace.open(gateway_trace.parent / "trace")


def outcomes(trace: Trace) -> dict[str, int]:
    return {name: count for name, count in trace.counts().items() if count}


def counted(drops: int, elsewhere: int = 0) -> Counters:
    """What the queue of class 2 at the subscriber's port has dropped, and one at a port before that."""
    own = SCENARIO.ports.name[SCENARIO.subscribers.port[1]]
    ports = {own: PortCounters((queue(0), queue(0), queue(drops)), queue(0))}
    if elsewhere:
        ports["before"] = PortCounters((queue(elsewhere),), queue(0))
    return Counters(ports=ports)


def test_what_arrived_has_the_time_at_which_it_did_and_comes_once(gateway_trace: Path) -> None:
    trace = merged(gateway_trace, [*range(COPIES), 3, 3], [])
    assert outcomes(trace) == {"delivered": COPIES}
    assert trace.table("deliveries", ["delivered_ns"])["delivered_ns"].to_pylist() == [
        5000 + number for number in range(COPIES)
    ]


def test_copies_enter_the_kernels_queues_when_the_gateway_has_sent_them(gateway_trace: Path) -> None:
    trace = merged(gateway_trace, list(range(19)), [])
    assert set(trace.table("deliveries", ["enqueued_ns"])["enqueued_ns"].to_pylist()) == {2000}


def test_it_has_the_gateways_names_and_counters(gateway_trace: Path) -> None:
    manifest = merged(gateway_trace, [], []).manifest
    assert manifest is not None
    assert manifest.extra == {"topics": ["smoke"], "counters": {"sent": COPIES}}


def test_what_never_reached_the_gateway_was_lost_for_all_who_wanted_it(gateway_trace: Path) -> None:
    sent = Receipts(gateway_trace.parent / "sent")
    for number in range(COPIES + 2):
        sent.add(0, 0, 1000 + number, 100)
    sent.close()
    trace = merged(gateway_trace, list(range(COPIES)), [])
    wanting = np.flatnonzero(SCENARIO.subscriptions.topic == 0)
    assert outcomes(trace) == {"delivered": COPIES, "lost_on_link": 2 * len(wanting)}
    publications = trace.table("publications").to_pydict()
    assert publications["publication_id"] == list(range(COPIES + 2))
    assert publications["published_ns"][-2:] == [1000 + COPIES, 1001 + COPIES]
    lost = trace.table("deliveries").filter(pc.field("publication_id") >= COPIES).to_pydict()
    assert sorted(lost["subscription_id"]) == sorted([*wanting, *wanting])
    assert set(lost["enqueued_ns"]) == set(lost["delivered_ns"]) == set(lost["priority_class"]) == {None}


def test_what_is_missing_has_the_reasons_that_were_counted(gateway_trace: Path) -> None:
    trace = merged(gateway_trace, list(range(8)), [counted(4), counted(9, 1)])
    # Twelve are missing: nine at its port, one at a port before that, and of two nobody knows.
    assert outcomes(trace) == {
        "delivered": 8,
        "dropped_by_buffer": 10,
        "lost_on_link": 2,
    }


def test_what_a_link_says_it_lost_was_not_dropped(gateway_trace: Path) -> None:
    # Two of the lost were sent once more, and arrived.
    trace = merged(gateway_trace, list(range(8)), [counted(7)], lost=[3, 4, 9, 12, 15, 19])
    assert outcomes(trace) == {"delivered": 8, "dropped_by_buffer": 7, "lost_on_link": 5}
    rows = trace.table("deliveries", ["published_ns", "outcome"]).to_pylist()
    lost = {row["published_ns"] - 1000 for row in rows if row["outcome"] == "lost_on_link"}
    assert lost > {9, 12, 15, 19}


def test_more_drops_than_missing_copies_are_no_more_than_these(gateway_trace: Path) -> None:
    trace = merged(gateway_trace, list(range(10)), [counted(40)])
    assert outcomes(trace) == {"delivered": 10, "dropped_by_buffer": 10}


def test_behind_the_embedded_port_there_is_only_the_link(gateway_trace: Path) -> None:
    trace = merged(gateway_trace, list(range(19)), [], behind_gateway=False)
    assert outcomes(trace) == {"delivered": 19, "lost_on_link": 1}
