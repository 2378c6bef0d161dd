"""The Trace of a run in a box: what publishers and gateway sent, what subscribers got, and what the queues counted.

Links record the copies that they lose, and the gateway those that the plan drops. The kernel counts its drops for
each queue without naming packets: the other copies that did not arrive are given a reason at random so that these
totals are right. A copy in no counter was lost on a link, too (a fragment that was not the first of its event), and so
was an event that a publisher sent and the gateway never saw, for all its subscribers.

When a copy was queued and left is the kernel's word (passing.py); of one that was dropped only when it was sent.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence, Set
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from triagemq.gateway.live_trace import Names
from triagemq.gateway.trace import sample_columns
from triagemq.lab.emulate.passing import hops_of, whole_events, with_queue_times
from triagemq.lab.emulate.promises import PromisedRun
from triagemq.lab.emulate.receipts import SENT, read_receipts
from triagemq.lab.emulate.wire import packets_of
from triagemq.network.reported import QueueKey
from triagemq.plan.dataplane import Counters, PortCounters
from triagemq.scenario import Scenario
from triagemq.trace import Outcome, Trace, TraceWriter, runs

Present = Callable[[int], NDArray[np.bool_]]
"""Which of the scenario's subscriptions were there at a time."""

_LEAST_APART_NS = 100_000_000

_KEY = ["subscriber_id", "topic_id", "published_ns"]


def merge_trace(
    gateway_trace: Path,
    sent: Path,
    receipts: Path,
    samples: Sequence[tuple[int, Counters]],
    lost: Set[tuple[int, int]],
    scenario: Scenario,
    directory: Path,
    *,
    scenario_text: str,
    plan_text: str,
    measured_from_ns: int,
    behind_gateway: bool,
    present: Present,
    promised: PromisedRun | None = None,
    passed: NDArray[np.void] | None = None,
    times_missed: int = 0,
    addresses: Sequence[str] = (),
) -> None:
    """Write the whole Trace into a directory. `lost` are copies by subscriber and the time that the event carries.
    `behind_gateway`: ports are in the kernel, and drops happen there. `promised` messages did not come by a gateway.
    `passed` are the packets that left ports but those that were missed, `addresses` those of the subscribers."""
    found = runs(gateway_trace)
    traces = [Trace.open(path, allow_incomplete=True) for path in (*found.complete, *found.incomplete)]
    got = read_receipts(receipts)
    events = None if passed is None else whole_events(passed)
    missed = {"queue_times_missed": times_missed} if times_missed else {}
    subscribers = {int(IPv4Address(address)): row for row, address in enumerate(addresses)}
    with TraceWriter(
        directory,
        scenario_text=scenario_text,
        plan_text=plan_text,
        producer="emulate",
        scenario_fingerprint=scenario.fingerprint,
        with_hops=events is not None,
    ) as writer:
        for trace in traces:
            writer.publications(_with_real_sizes(_columns(trace.table("publications")), promised, scenario))
            deliveries = _deliveries(trace.table("deliveries"), got, samples, lost, scenario, behind_gateway)
            if events is not None:
                hops = hops_of(deliveries, events, subscribers)
                deliveries = with_queue_times(deliveries, hops, scenario.subscribers.port)
                writer.hops(hops)
            writer.deliveries(deliveries)
            for name in ("queue_samples", "decisions"):
                table = trace.table(name)
                if len(table):
                    getattr(writer, name)(_columns(table))
        publications, copies = _never_seen(traces, read_receipts(sent, SENT), scenario, present, promised)
        if len(publications["publication_id"]):
            writer.publications(_with_real_sizes(publications, promised, scenario))
            writer.deliveries(copies)
        if promised is not None and promised.copies:
            _write_promised(writer, promised, scenario, traces, publications)
        port_numbers = Names(scenario.ports.name)
        for sampled_ns, counters in _apart(samples):
            writer.queue_samples(sample_columns(counters.ports, port_numbers, sampled_ns))
        writer.finish(measured_from_ns=measured_from_ns, extra=_stated_extra(traces) | missed)


def _apart(samples: Sequence[tuple[int, Counters]]) -> list[tuple[int, Counters]]:
    """The samples for the Trace, which are of every 200 ms: who waits for queues to drain looks more often."""
    found: list[tuple[int, Counters]] = []
    for sample in samples:
        if sample[1].ports and (
            not found or sample is samples[-1] or sample[0] - found[-1][0] >= _LEAST_APART_NS
        ):
            found.append(sample)
    return found


def _direct_copies(promised: PromisedRun | None) -> set[tuple[int, int]]:
    """The subscriptions that got an event directly, and when it was published."""
    if promised is None or not promised.copies:
        return set()
    published_ns = promised.sent["published_ns"][promised.copies["message"]].tolist()
    return set(zip(promised.copies["subscription_id"].tolist(), published_ns, strict=True))


def _with_real_sizes(
    publications: dict[str, Any], promised: PromisedRun | None, scenario: Scenario
) -> dict[str, Any]:
    """Payloads of what was sent directly are shorter than the scenario's messages, since their headers are longer."""
    if promised is None:
        return publications
    sent = promised.sent
    topics = scenario.publications.topic[sent["publication"]].tolist()
    sizes = dict(
        zip(zip(topics, sent["published_ns"].tolist(), strict=True), sent["size_bytes"].tolist(), strict=True)
    )
    keys = zip(
        *(np.asarray(publications[name]).tolist() for name in ("topic_id", "published_ns")), strict=True
    )
    measured = np.asarray(publications["size_bytes"]).tolist()
    real = [sizes.get(key, size) for key, size in zip(keys, measured, strict=True)]
    return publications | {"size_bytes": np.array(real, dtype=np.int64)}


def _write_promised(
    writer: TraceWriter,
    promised: PromisedRun,
    scenario: Scenario,
    traces: Sequence[Trace],
    others: dict[str, Any],
) -> None:
    """Promised messages, under the number of the event where that came by a gateway, too. The access link is the first
    queue, and a message is in it when it is published."""
    number = _numbers(traces, others)
    first = 1 + max(number.values(), default=-1)
    sent, publications = promised.sent, scenario.publications
    row = sent["publication"]
    topic, publisher = publications.topic[row], publications.publisher[row]
    known = [number.get(key, -1) for key in zip(topic.tolist(), sent["published_ns"].tolist(), strict=True)]
    known_ids = np.array(known, dtype=np.int64)
    new = np.flatnonzero(known_ids < 0)
    ids = known_ids.copy()
    ids[new] = first + np.arange(len(new))
    writer.publications(
        {
            "publication_id": ids[new],
            "topic_id": topic[new],
            "publisher_id": publisher[new],
            "published_ns": sent["published_ns"][new],
            "size_bytes": sent["size_bytes"][new],
        }
    )
    copies, message = promised.copies, promised.copies["message"]
    delivered_ns = copies["delivered_ns"]
    writer.deliveries(
        {
            "publication_id": ids[message],
            "subscription_id": copies["subscription_id"],
            "subscriber_id": scenario.subscriptions.subscriber[copies["subscription_id"]],
            "topic_id": topic[message],
            "flow_id": np.full(len(message), -1, dtype=np.int64),
            "priority_class": copies["priority_class"],
            "published_ns": sent["published_ns"][message],
            "enqueued_ns": sent["published_ns"][message],
            "dequeued_ns": delivered_ns,
            "delivered_ns": delivered_ns,
            "size_bytes": sent["size_bytes"][message],
            "outcome": copies["outcome"],
        }
    )
    if promised.decisions:
        writer.decisions(
            {
                "decided_ns": np.maximum(promised.decided_ns, sent["published_ns"][0]),
                **{
                    name: [getattr(each, name) for each in promised.decisions]
                    for name in ("kind", "subject", "before", "after", "reason")
                },
            }
        )


def _numbers(traces: Sequence[Trace], others: dict[str, Any]) -> dict[tuple[int, int], int]:
    """The publications that are written already, by topic and time."""
    names = ("topic_id", "published_ns", "publication_id")
    tables = [trace.table("publications", list(names)).to_pydict() for trace in traces]
    tables.append({name: others[name].tolist() for name in names})
    return {
        (topic, published_ns): number
        for table in tables
        for topic, published_ns, number in zip(*(table[name] for name in names), strict=True)
    }


def _stated_extra(traces: Sequence[Trace]) -> dict[str, Any]:
    """What the gateway says of its trace: names of topics and clients by their numbers, and its counters."""
    manifests = [trace.manifest for trace in traces if trace.manifest is not None]
    return dict(manifests[-1].extra) if manifests else {}


def _columns(table: pa.Table) -> dict[str, Any]:
    """As a writer takes them: -1 for null numbers, texts as they are."""
    columns: dict[str, Any] = {}
    for name in table.column_names:
        column = table[name]
        if name == "outcome":
            columns[name] = _outcomes(column)
        elif pa.types.is_integer(column.type):
            columns[name] = pc.fill_null(column, -1).to_numpy()
        else:
            columns[name] = column.to_pylist()
    return columns


def _outcomes(column: pa.ChunkedArray) -> NDArray[np.int8]:
    names = pa.array([outcome.name for outcome in Outcome])
    return np.asarray(pc.index_in(column.cast(pa.string()), names).to_numpy(), dtype=np.int8)


def _deliveries(
    sent: pa.Table,
    got: NDArray[np.void],
    samples: Sequence[tuple[int, Counters]],
    lost: Set[tuple[int, int]],
    scenario: Scenario,
    behind_gateway: bool,
) -> dict[str, Any]:
    columns = _columns(sent)
    received_ns = _received(columns, got)
    outcome, delivered_ns = columns["outcome"].copy(), columns["delivered_ns"].copy()
    handed_over = outcome == Outcome.delivered
    arrived = handed_over & (received_ns >= 0)
    delivered_ns[arrived] = received_ns[arrived]
    missing = np.flatnonzero(handed_over & (received_ns < 0))
    delivered_ns[missing] = -1
    outcome[missing] = int(Outcome.lost_on_link)
    enqueued_ns = columns["enqueued_ns"]
    if behind_gateway:
        names = zip(
            *(columns[name][missing].tolist() for name in ("subscriber_id", "published_ns")), strict=True
        )
        dropped = missing[[name not in lost for name in names]]
        ports = [scenario.ports.name[port] for port in scenario.subscribers.port.tolist()]
        levels = columns["priority_class"][dropped].tolist()
        subscribers = columns["subscriber_id"][dropped].tolist()
        outcome[dropped] = _reasons(
            [(ports[subscriber], level) for subscriber, level in zip(subscribers, levels, strict=True)],
            packets_of(columns["size_bytes"][dropped]),
            dict(ChainMap(*(dict(each.ports) for _, each in reversed(samples)))),
            ports,
        )
        # What the gateway has sent is in the first of the kernel's queues at that moment.
        enqueued_ns = np.where(handed_over, columns["delivered_ns"], enqueued_ns)
    return columns | {"outcome": outcome, "enqueued_ns": enqueued_ns, "delivered_ns": delivered_ns}


def _never_seen(
    traces: Sequence[Trace],
    sent: NDArray[np.void],
    scenario: Scenario,
    present: Present,
    promised: PromisedRun | None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Publications that did not reach the gateway, and a copy of each for every subscription that was there, and to
    which it did not come directly."""
    seen: set[tuple[int, int]] = set()
    last = -1
    for trace in traces:
        table = trace.table("publications", ["publication_id", "topic_id", "published_ns"])
        last = max(last, pc.max(table["publication_id"]).as_py() or -1)
        seen.update(zip(table["topic_id"].to_pylist(), table["published_ns"].to_pylist(), strict=True))
    keys = zip(sent["topic"].tolist(), sent["published_ns"].tolist(), strict=True)
    lost = sent[np.array([key not in seen for key in keys], dtype=np.bool_)]
    publications = {
        "publication_id": last + 1 + np.arange(len(lost)),
        "topic_id": lost["topic"],
        "publisher_id": lost["publisher"],
        "published_ns": lost["published_ns"],
        "size_bytes": lost["size_bytes"],
    }
    subscriptions, direct = scenario.subscriptions, _direct_copies(promised)
    copies = [
        (row, subscription)
        for row, (topic, published_ns) in enumerate(lost[["topic", "published_ns"]].tolist())
        for subscription in np.flatnonzero((subscriptions.topic == topic) & present(published_ns)).tolist()
        if (subscription, published_ns) not in direct
    ]
    row, subscription = np.array(copies, dtype=np.int64).reshape(-1, 2).T
    nothing = np.full(len(copies), -1, dtype=np.int64)
    return publications, {
        "publication_id": publications["publication_id"][row],
        "subscription_id": subscription,
        "subscriber_id": subscriptions.subscriber[subscription].astype(np.int64),
        "topic_id": lost["topic"][row],
        **dict.fromkeys(("flow_id", "priority_class", "enqueued_ns", "dequeued_ns", "delivered_ns"), nothing),
        "published_ns": lost["published_ns"][row],
        "size_bytes": lost["size_bytes"][row],
        "outcome": np.full(len(copies), int(Outcome.lost_on_link), dtype=np.int8),
    }


def _received(columns: dict[str, Any], got: NDArray[np.void]) -> NDArray[np.int64]:
    """When each copy arrived; -1 for never. The first counts if one came twice."""
    rows = len(columns["topic_id"])
    keys = pa.table({name: columns[name].astype(np.int64) for name in _KEY} | {"row": np.arange(rows)})
    receipts = pa.table(
        {
            "subscriber_id": got["subscriber"],
            "topic_id": got["topic"],
            "published_ns": got["published_ns"],
            "received_ns": got["received_ns"],
        }
    )
    first = receipts.group_by(_KEY).aggregate([("received_ns", "min")])
    joined = keys.join(first, _KEY, join_type="left outer")
    received = np.full(len(keys), -1, dtype=np.int64)
    received[joined["row"].to_numpy()] = pc.fill_null(joined["received_ns_min"], -1).to_numpy()
    return received


def _reasons(
    queues: Sequence[QueueKey],
    packets: NDArray[np.int64],
    counted: Mapping[str, PortCounters],
    ports: Sequence[str],
) -> NDArray[np.int8]:
    """For copies that did not arrive, by the last queue on their path: as many by buffer as were counted there, the
    rest on a link, or for lack of room before it (`ports` are the last ones)."""
    reasons = np.full(len(queues), int(Outcome.lost_on_link), dtype=np.int8)
    random = np.random.default_rng(0)
    rows_of: dict[QueueKey, list[int]] = {}
    for row, key in enumerate(queues):
        rows_of.setdefault(key, []).append(row)
    elsewhere = 0
    for name, port in counted.items():
        for level, queue in enumerate(port.queues):
            rows = random.permutation(np.array(rows_of.get((name, level), ()), dtype=np.int64))
            lost = np.cumsum(packets[rows])
            last = np.searchsorted(lost, queue.drops, side="right")
            reasons[rows[:last]] = int(Outcome.dropped_by_buffer)
            if name not in ports or (last == len(rows) > 0):
                elsewhere += queue.drops - (int(lost[last - 1]) if last else 0)
    left = random.permutation(np.flatnonzero(reasons == int(Outcome.lost_on_link)))
    reasons[left[:elsewhere]] = int(Outcome.dropped_by_buffer)
    return reasons
