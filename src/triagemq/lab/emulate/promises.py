"""What became of promised messages in a box: rows of its Trace, and a row per promise as a simulation has them.

A message is late if it takes longer than its bound and the p99.9 of an idle port, measured in the same run: what this
machine adds is not the network's. It runs from when the first packet begins to leave the publisher's host (MIDAS,
Definition 1). Ports send packets at the start of their transmission: what the last packet of a message takes on the
links of its path is added. While the whole machine stands still, no time passes in the network: this is not counted,
but reported, with how many messages would be late if it were.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triagemq.client.coordinator import Promise
from triagemq.lab.emulate.promised import IDLE_ROW, RealMessages
from triagemq.lab.emulate.receipts import PROMISED_RECEIPT, PROMISED_SENT, read_receipts
from triagemq.plan import Decision
from triagemq.plan.dataplane import Counters
from triagemq.scenario import Floats, Scenario
from triagemq.simulate import PromiseResults
from triagemq.simulate.promised.direct import PromisedRows
from triagemq.simulate.promised.state import new_promise_tally
from triagemq.simulate.result import promise_results
from triagemq.simulate.sink import cut_publishers
from triagemq.trace import Outcome

Times = NDArray[np.int64]

_MOST_LATE = 20


@dataclass(frozen=True, slots=True)
class MeasuredPromise:
    """A promise by rows of the scenario: the address of its publication, its bound, and its path with its levels.

    Messages of orders from `since_generation` on come directly.
    """

    publication: int
    subscription: int
    address: str
    since_generation: int
    bound_seconds: float
    ports: tuple[int, ...]
    levels: tuple[int, ...]


NEVER_NS = np.iinfo(np.int64).max


@dataclass(slots=True)
class ActiveInterval:
    """How long a promise was in force: from the last one of the same subscription until its subscriber left."""

    promise: MeasuredPromise
    since_ns: int = 0
    until_ns: int = NEVER_NS


def promises_in_force(scenario: Scenario, promises: Iterable[Promise]) -> list[MeasuredPromise]:
    """Those of which messages come directly, by rows of the scenario."""
    published, requested, names = scenario.publications, scenario.subscriptions, scenario.topics.name
    publications = {
        (scenario.publishers.name[publisher], names[topic]): row
        for row, (publisher, topic) in enumerate(
            zip(published.publisher.tolist(), published.topic.tolist(), strict=True)
        )
    }
    subscriptions = {
        (scenario.subscribers.name[subscriber], names[topic]): row
        for row, (subscriber, topic) in enumerate(
            zip(requested.subscriber.tolist(), requested.topic.tolist(), strict=True)
        )
    }
    return [
        MeasuredPromise(
            publications[each.publisher, each.topic],
            subscriptions[each.subscriber, each.topic],
            each.address,
            each.since_generation,
            each.bound_seconds,
            tuple(scenario.ports.name.index(hop.port) for hop in each.hops[1:]),
            tuple(hop.level for hop in each.hops[1:]),
        )
        for each in promises
        if each.address is not None and each.since_generation is not None and each.bound_seconds is not None
    ]


@dataclass(frozen=True, slots=True)
class CutPackets:
    """What limiters cut of the messages to an address, when that began, and whether queues had no room."""

    limited: int = 0
    first_ns: int = -1
    without_room: bool = False


def cut_packets(samples: Sequence[tuple[int, Counters]], metered: Path) -> dict[str, CutPackets]:
    """By address, from the counters of the kernel's queues, or of meters where switches have them."""
    found: dict[str, CutPackets] = {}
    for sampled_ns, counters in samples:
        full = any(queue.drops for port in counters.ports.values() for queue in port.queues)
        for key, flow in counters.flows.items():
            if key.is_multicast and (flow.limited or full):
                first = found.get(str(key), CutPackets()).first_ns
                if first < 0 and flow.limited:
                    first = sampled_ns
                found[str(key)] = CutPackets(flow.limited, first, full)
    if metered.exists():
        for address, packets in json.loads(metered.read_text()).items():
            before = found.get(address, CutPackets())
            found[address] = CutPackets(before.limited + packets, before.first_ns, before.without_room)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class PromisedRun:
    """What was promised, sent and got in a run. `copies` have a row per message and promise, with -1 for times of what
    never came, `idle_ns` one per message over the idle port; `host_ns` is what publishers' and subscribers' hosts took.
    """

    results: PromiseResults
    decisions: tuple[Decision, ...]
    decided_ns: Times
    idle_ns: Times
    host_ns: Mapping[str, Times]
    sent: NDArray[np.void]
    copies: Mapping[str, NDArray[Any]]

    def as_json(self) -> dict[str, Any]:
        """Beside `promises` and `decisions`, as `triage simulate` has them."""
        return {
            "idle_port": _figures(self.idle_ns),
            "host_delay": {who: _figures(taken) for who, taken in self.host_ns.items()},
            "late_messages": self._late_messages(),
        }

    def _late_messages(self) -> list[dict[str, Any]]:
        """The first of those that were late, and how long their publisher took to hand them over: a host that pauses in
        the midst of a message is no fault of the network."""
        if not self.copies:
            return []
        copies, table = self.copies, self.results
        found = []
        for row in np.flatnonzero(copies["late"])[:_MOST_LATE].tolist():
            promise, message = int(copies["promise"][row]), int(copies["message"][row])
            found.append(
                {
                    "publisher": table.publisher[promise],
                    "topic": table.topic[promise],
                    "subscriber": table.subscriber[promise],
                    "latency_seconds": float(copies["latency_ns"][row]) * 1e-9,
                    "bound_seconds": float(table.bound_seconds[promise]),
                    "handed_over_after_seconds": float(self.host_ns["publishers"][message]) * 1e-9,
                }
            )
        return found


def promised_run(
    scenario: Scenario,
    intervals: Sequence[ActiveInterval],
    sent_files: Iterable[Path],
    receipts: Path,
    cut: Mapping[str, CutPackets],
) -> PromisedRun:
    """Everything that clients and queues know, together: a row for each pair that was promised at some time."""
    pairs: dict[tuple[int, int], list[ActiveInterval]] = {}
    for interval in intervals:
        pair = interval.promise.publication, interval.promise.subscription
        pairs.setdefault(pair, []).append(interval)
    parts = [read_receipts(path, PROMISED_SENT) for path in sent_files]
    sent = np.concatenate(parts) if parts else np.empty(0, dtype=PROMISED_SENT)
    sent = sent[np.argsort(sent["published_ns"], kind="stable")]
    got = read_receipts(receipts, PROMISED_RECEIPT)
    idle_ns = _idle_ns(sent[sent["publication"] == IDLE_ROW], got[got["subscriber"] == IDLE_ROW])
    sent = sent[sent["publication"] != IDLE_ROW]
    allowance_ns = _quantile_ns(idle_ns, 0.999) or 0
    tally = new_promise_tally(len(pairs), len(scenario.publications))
    columns: list[dict[str, NDArray[Any]]] = []
    for row, ((publication, subscription), periods) in enumerate(pairs.items()):
        mine = got[
            (got["subscriber"] == scenario.subscriptions.subscriber[subscription])
            & (got["topic"] == scenario.subscriptions.topic[subscription])
        ]
        places = dict(zip(mine["sent_ns"].tolist(), range(len(mine)), strict=True))
        for interval in periods:
            promise = interval.promise
            messages = np.flatnonzero(
                (sent["publication"] == publication)
                & (sent["generation"] >= promise.since_generation)
                & (sent["published_ns"] >= interval.since_ns)
                & (sent["published_ns"] < interval.until_ns)
            )
            moments = sent["sent_ns"][messages].tolist()
            place = np.array([places.get(sent_ns, -1) for sent_ns in moments], dtype=np.int64)
            came = place >= 0
            counted = cut.get(promise.address, CutPackets())
            outcome = np.full(len(messages), int(Outcome.delivered), dtype=np.int8)
            outcome[~came] = _reasons(int((~came).sum()), counted)
            arrived_ns = np.full(len(messages), -1, dtype=np.int64)
            arrived_ns[came] = mine["arrived_ns"][place[came]]
            on_the_wire = np.rint(last_packet_seconds(scenario, promise, sent["size_bytes"][messages]) * 1e9)
            begun_ns = sent["begun_ns"][messages][came]
            taken_ns = arrived_ns[came] - begun_ns + on_the_wire[came].astype(np.int64)
            latency_ns = np.full(len(messages), -1, dtype=np.int64)
            latency_ns[came] = taken_ns
            tally.outcomes[row] += np.bincount(outcome, minlength=len(Outcome))
            most_ns = promise.bound_seconds * 1e9 + allowance_ns
            late = latency_ns > most_ns
            tally.late[row] += int(late.sum())
            tally.worst_ns[row] = max(tally.worst_ns[row], int(taken_ns.max(initial=0)))
            tally.latency_ns[row] += int(taken_ns.sum())
            tally.cut_packets[publication] = counted.limited
            tally.first_cut_ns[publication] = counted.first_ns
            columns.append(
                {
                    "promise": np.full(len(messages), row),
                    "message": messages,
                    "latency_ns": latency_ns,
                    "late": late,
                    "subscription_id": np.full(len(messages), subscription),
                    "priority_class": np.full(len(messages), promise.levels[-1]),
                    "delivered_ns": arrived_ns,
                    "outcome": outcome,
                }
            )
    rows = PromisedRows(
        np.array([publication for publication, _ in pairs], dtype=np.int32),
        np.array([subscription for _, subscription in pairs], dtype=np.int32),
        np.array(
            [max(each.promise.bound_seconds for each in periods) for periods in pairs.values()],
            dtype=np.float64,
        ),
    )
    decisions, decided_ns = cut_publishers(scenario, tally)
    return PromisedRun(
        results=promise_results(scenario, rows, tally),
        decisions=decisions,
        decided_ns=decided_ns,
        idle_ns=idle_ns,
        host_ns={
            "publishers": sent["handed_over_ns"] - sent["sent_ns"],
            "subscribers": (got["received_ns"] - got["arrived_ns"])[got["subscriber"] != IDLE_ROW],
        },
        sent=sent,
        copies={name: np.concatenate([each[name] for each in columns]) for name in columns[0]}
        if columns
        else {},
    )


def _idle_ns(sent: NDArray[np.void], got: NDArray[np.void]) -> Times:
    """What messages over the idle port took, of which both ends are known."""
    begun = dict(zip(sent["sent_ns"].tolist(), sent["begun_ns"].tolist(), strict=True))
    arrived = zip(got["sent_ns"].tolist(), got["arrived_ns"].tolist(), strict=True)
    return np.array([ns - begun[sent_ns] for sent_ns, ns in arrived if sent_ns in begun], dtype=np.int64)


def last_packet_seconds(scenario: Scenario, promise: MeasuredPromise, size_bytes: NDArray[Any]) -> Floats:
    """What the last packet of messages takes on all links of a promise's path."""
    publication = promise.publication
    publisher = int(scenario.publications.publisher[publication])
    rates = [scenario.publishers.access_bps[publisher], *scenario.ports.bandwidth_bps[list(promise.ports)]]
    last = RealMessages.of(scenario, publication).last_packet_bytes(np.asarray(size_bytes, dtype=np.float64))
    return np.asarray(last * sum(8.0 / float(rate) for rate in rates))


def _reasons(missing: int, cut: CutPackets) -> NDArray[np.int8]:
    """For messages that did not come: packets were cut, or found no room, or are in no counter."""
    reasons = np.full(missing, int(Outcome.lost_on_link), dtype=np.int8)
    if cut.without_room:
        reasons[:] = int(Outcome.dropped_by_buffer)
    reasons[: min(missing, cut.limited)] = int(Outcome.limited)
    return reasons


def _quantile_ns(taken: Times, share: float) -> int | None:
    """Of those that were seen the smallest that this share does not exceed; None where there are none."""
    return int(np.quantile(taken, share, method="inverted_cdf")) if len(taken) else None


def _figures(taken: Times) -> dict[str, Any]:
    def seconds(share: float) -> float | None:
        found = _quantile_ns(taken, share)
        return None if found is None else found * 1e-9

    return {
        "count": len(taken),
        "p50_seconds": seconds(0.5),
        "p99_9_seconds": seconds(0.999),
        "worst_seconds": seconds(1.0),
    }
