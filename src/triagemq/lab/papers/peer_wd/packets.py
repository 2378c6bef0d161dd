"""PEER-WD Figs. 3 to 5 with five real brokers in a box: the same tables, SCALE times fewer events and less bandwidth.

The paper simulates. Five brokers, five gateways and 96 clients share the processors of one machine, which are to carry
Table 6's nine thousand copies a second in time. So events are as long as the paper's and SCALE times rarer, and
bandwidths and matching rates SCALE times less: all loads, and how long queues take to grow and to empty, are the
paper's. The kernel here delays no packets on purpose: the 0.3 s that an event is travelling in the paper are taken off
what it may take instead, so that it may wait as long. Downlinks, and the uplink of the head, are shaped by the kernel;
those of edges by their gateways, before queues that these can see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from triagemq.coordinator.decide.placement import MOVING_SECONDS
from triagemq.lab.papers.experiment import (
    Claim,
    Difference,
    Effort,
    Experiment,
    Findings,
    Panel,
    PrintedTable,
    Progress,
    Series,
    duration,
    part_of,
    percent,
)
from triagemq.lab.papers.peer_wd.balancing import PRINTED_CLEAR, PRINTED_TRIGGER, TOPIC_8, moves_table
from triagemq.lab.papers.peer_wd.network import (
    BROKER_SECONDS,
    BURST_SECONDS,
    CLIENT_SECONDS,
    EDGE_MBPS,
    EDGES,
    experiment_scenario,
    table_7,
    topic_name,
)
from triagemq.lab.papers.real_packets import in_box, share_done
from triagemq.plan.balancing.detection import queue_threshold
from triagemq.scenario import ArrivalProcess, Floats, Scenario
from triagemq.scenario.conditions import Conditions

if TYPE_CHECKING:
    from triagemq.lab.emulate.clusters import BoxedClustersRun

SCALE = 5
"""How many times less bandwidth there is, and how many times fewer events."""
OVERHEAD_BYTES = 49
"""Of MQTT-SN, UDP, IP and Ethernet around an event."""
WAY_SECONDS = BROKER_SECONDS + CLIENT_SECONDS
LONG_SECONDS = 0.2
"""A third of what the most urgent may wait. A shorter wait is one for events that came at once; where a client waits
for longer, a deadline is taken to be at risk, whichever policy moves clients then."""


def boxed_scenario(balancing: str) -> tuple[Scenario, Conditions]:
    """Tables 5 and 6 as this machine can carry them; PEER begins with all at b1, ours as Table 7 has it."""
    made, conditions = experiment_scenario()
    published, brokers, links = made.publications, made.brokers, made.broker_links
    subscribers, subscriptions = made.subscribers, made.subscriptions
    if balancing != "peer":
        # Everyone has one subscription, in the same order.
        subscribers = replace(subscribers, broker=table_7(made).subscriptions)
    changed = made.with_tables(
        publications=replace(
            published,
            rate_per_second=published.rate_per_second / SCALE,
            size_bytes=published.size_bytes - OVERHEAD_BYTES,
            arrival_process=np.full_like(published.arrival_process, ArrivalProcess.PERIODIC),
        ),
        brokers=replace(
            brokers,
            inbound_rate_per_second=brokers.inbound_rate_per_second / SCALE,
            downlink_bps=brokers.downlink_bps / SCALE,
            uplink_bps=brokers.uplink_bps / SCALE,
        ),
        broker_links=replace(links, propagation_seconds=np.zeros(len(links))),
        subscribers=replace(subscribers, propagation_seconds=np.zeros(len(subscribers))),
        subscriptions=replace(
            subscriptions, max_latency_seconds=subscriptions.max_latency_seconds - WAY_SECONDS
        ),
    )
    return replace(changed, overhead_bytes=float(OVERHEAD_BYTES)), conditions


@dataclass(frozen=True)
class BoxedExperiment:
    """What one policy did with real brokers."""

    run: BoxedClustersRun

    @cached_property
    def limits(self) -> dict[str, tuple[int, float, float]]:
        """Of every subscriber the topic, what its events may take, and what they are long."""
        scenario = self.run.scenario
        size = np.zeros(len(scenario.topics))
        size[scenario.publications.topic] = scenario.publications.size_bytes + scenario.overhead_bytes
        subscriptions = scenario.subscriptions
        return {
            scenario.subscribers.name[row]: (int(topic), float(limit), float(size[topic]))
            for row, topic, limit in zip(
                subscriptions.subscriber, subscriptions.topic, subscriptions.max_latency_seconds, strict=True
            )
        }

    @property
    def at_seconds(self) -> Floats:
        return np.array([each.at_seconds for each in self.run.samples])

    def uplink(self, broker: str) -> Floats:
        """What left for subscribers, in parts of the uplink."""
        bps = 1e6 * EDGE_MBPS[EDGES.index(broker)] / SCALE
        return np.array([each.uplink_bps[broker] for each in self.run.samples]) / bps

    def waiting_seconds(self, broker: str) -> Floats:
        """How long what waited at a broker took to leave, at every sample."""
        bps = 1e6 * EDGE_MBPS[EDGES.index(broker)] / SCALE
        return np.array(
            [
                sum(8 * self.limits[name][2] * packets for name, packets in each.waiting[broker].items())
                / bps
                for each in self.run.samples
            ]
        )

    def long_waits(self, broker: str) -> tuple[float, float] | None:
        """From when to when something waited for long at a broker, after the burst."""
        moments = self.at_seconds[
            (self.waiting_seconds(broker) > LONG_SECONDS) & (self.at_seconds > BURST_SECONDS)
        ]
        return (float(moments[0]), float(moments[-1])) if len(moments) else None

    def queue(self, topic: int) -> Floats:
        """Events of a topic that wait, at every sample."""
        return np.array(
            [
                sum(
                    packets
                    for waiting in each.waiting.values()
                    for name, packets in waiting.items()
                    if self.limits[name][0] == topic
                )
                for each in self.run.samples
            ],
            dtype=np.float64,
        )

    def threshold(self, subscriber: str, at_seconds: float) -> float:
        """The deepest queue of a subscriber that would still empty in time, by the second before."""
        run = self.run
        topic, limit, _ = self.limits[subscriber]
        row = run.scenario.subscribers.name.index(subscriber)

        def counted(moments_ns: Any) -> float:
            moments = run.seconds(moments_ns)
            return float(((moments > at_seconds - 1) & (moments <= at_seconds)).sum())

        published = counted(run.sent["published_ns"][run.sent["topic"] == topic])
        got = counted(run.receipts["received_ns"][run.receipts["subscriber"] == row])
        if got < published / 2:
            # It has only just come.
            return np.inf
        grows_seconds = 1.0 + MOVING_SECONDS
        found = queue_threshold(np.array([limit]), np.array([published]), np.array([got]), grows_seconds)
        return float(found[0])

    def at_risk(self, broker: str, at_seconds: float) -> bool:
        """Whether something waited for long at a broker, in the second before or after."""
        near = np.abs(self.at_seconds - at_seconds) <= 1.0
        return bool((self.waiting_seconds(broker)[near] > LONG_SECONDS).any())

    @cached_property
    def moves(self) -> list[dict[str, Any]]:
        """Who went from where to where at once, in the form of a simulation's."""
        found: dict[tuple[int, str, str], list[str]] = {}
        for each in self.run.moved:
            where = each["before"].removeprefix("gateway "), each["after"].removeprefix("gateway ")
            found.setdefault((each["decided_ns"], *where), []).append(
                each["subject"].removeprefix("subscriber ")
            )
        return [
            {
                "at_seconds": (at := (decided_ns - self.run.begun_ns) * 1e-9),
                "source": source,
                "target": target,
                "subscriptions": len(names),
                "topics": sorted({topic_name(self.limits[name][0] + 1) for name in names}),
                "needed": self.at_risk(source, at),
            }
            for (decided_ns, source, target), names in found.items()
        ]

    def after_burst(self) -> list[dict[str, Any]]:
        return [each for each in self.moves if each["at_seconds"] >= BURST_SECONDS]

    @cached_property
    def late(self) -> int:
        """Events that took longer than they may, from the burst on."""
        limit = self.run.scenario.subscriptions.max_latency_seconds[self._row_of_subscriber]
        got = self.run.receipts
        took = (got["received_ns"] - got["published_ns"]) * 1e-9
        return int((took[self._counted] > limit[got["subscriber"]][self._counted]).sum())

    @property
    def _row_of_subscriber(self) -> Any:
        subscriber = self.run.scenario.subscriptions.subscriber
        return np.argsort(subscriber)

    @cached_property
    def _counted(self) -> Any:
        return self.run.seconds(self.run.receipts["published_ns"]) >= BURST_SECONDS

    @property
    def delivered(self) -> int:
        """Events that came, of those published since the burst."""
        return int(self._counted.sum())

    @cached_property
    def missing_and_repeated(self) -> tuple[int, int]:
        """Between its first event and shortly before the end, what a subscriber did not get, and got twice."""
        run, missing, repeated = self.run, 0, 0
        last_ns = run.until_ns - round(2e9)
        for row, name in enumerate(run.scenario.subscribers.name):
            got = run.receipts["published_ns"][run.receipts["subscriber"] == row]
            if not len(got):
                continue
            topic = self.limits[name][0]
            all_sent = run.sent["published_ns"][run.sent["topic"] == topic]
            expected = all_sent[(all_sent >= got.min()) & (all_sent <= last_ns)]
            missing += len(np.setdiff1d(expected, got))
            repeated += len(got) - len(np.unique(got))
        return missing, repeated

    def as_json(self) -> dict[str, Any]:
        missing, repeated = self.missing_and_repeated
        return {
            "scale": SCALE,
            "migrations": self.moves,
            "late_events": self.late,
            "delivered_events": self.delivered,
            "missing_events": missing,
            "repeated_events": repeated,
            "at_seconds": self.at_seconds.tolist(),
            "uplink": {name: self.uplink(name).tolist() for name in EDGES},
            "waiting_seconds": {name: self.waiting_seconds(name).tolist() for name in EDGES},
            "packets_lost_by_machine": self.run.lost_by_machine,
        }


def boxed(balancing: str, effort: Effort, progress: Progress) -> BoxedExperiment:
    """One run with real brokers."""
    # Late: only experiments with packets need a network.
    from triagemq.lab.emulate.boxed import BoxedOptions
    from triagemq.lab.emulate.clusters import run_clusters

    scenario, conditions = boxed_scenario(balancing)
    run = in_box(
        scenario,
        lambda file, state: run_clusters(
            BoxedOptions(
                scenario=file, state=state, dataplane="embedded", no_triage=True, balancing=balancing
            ),
            seconds=effort.seconds,
            ended=asyncio.Event(),
            on_tick=share_done(progress, effort.seconds),
        ),
        conditions,
    )
    return BoxedExperiment(run)


def _kept_claims(ours: BoxedExperiment) -> tuple[Claim, ...]:
    missing, repeated = ours.missing_and_repeated
    moves = ours.after_burst()
    needless = [each for each in ours.moves if not each["needed"]]
    return (
        Claim(
            "ours moves clients, and only when a deadline is at risk",
            bool(moves) and not needless,
            f"{len(ours.moves)} migrations, {len(needless)} of them with none at risk",
        ),
        Claim("no event is late", ours.late == 0, f"{ours.late} of {ours.delivered} since the burst"),
        Claim(
            "no client misses an event or gets one twice",
            missing + repeated == 0,
            f"{missing} and {repeated}",
        ),
    )


def _broker_panel(title: str, label: str, ours: BoxedExperiment, of: Callable[[str], Floats]) -> Panel:
    return Panel(title, "s", label, tuple(Series.of(name, ours.at_seconds, of(name)) for name in EDGES))


def _uplink_panel(title: str, ours: BoxedExperiment) -> Panel:
    return _broker_panel(title, "left by the uplink, %", ours, lambda name: 100 * ours.uplink(name))


def _figure_3(effort: Effort, progress: Progress) -> Findings:
    ours = boxed("ours", effort, progress)
    waits = {name: ours.long_waits(name) for name in EDGES}

    def at(values: Floats, seconds: float) -> float:
        before = np.flatnonzero(ours.at_seconds <= seconds)
        return float(values[before[-1]]) if len(before) else np.nan

    def shown(name: str) -> str:
        span = waits[name]
        return "-" if span is None else f"{span[0]:.0f} to {span[1]:.0f} s"

    printed = {"b1": "above 100 % from 30 s, back below by 62 s"}
    return Findings(
        tables=(
            PrintedTable.of(
                f"edge brokers with real packets, 1/{SCALE} of the bandwidth, topics placed as in Table 7",
                EDGES,
                ("broker", str),
                ("uplink at 29 s", lambda name: percent(at(ours.uplink(name), BURST_SECONDS - 1))),
                ("at the end", lambda name: percent(float(ours.uplink(name)[-1]))),
                ("longest wait", lambda name: duration(float(ours.waiting_seconds(name).max()))),
                (f"longer than {duration(LONG_SECONDS)}", shown),
                ("printed", lambda name: printed.get(name, "below 100 %")),
            ),
            moves_table("who moved (printed: topic 1 from b1 to b0 at 34 s)", ours.moves),
        ),
        panels=(
            _uplink_panel("ours, real packets", ours),
            _broker_panel("what waits", "s", ours, ours.waiting_seconds),
        ),
        differences=(_scaled(ours),),
        claims=(
            Claim(
                "after the burst nothing waits for long but at b1",
                all(span is None for name, span in waits.items() if name != "b1") and waits["b1"] is not None,
                str({name: shown(name) for name in EDGES}),
            ),
            *_kept_claims(ours),
        ),
        figures={"ours": ours.as_json()},
    )


def _figure_4(effort: Effort, progress: Progress) -> Findings:
    ours = boxed("ours", effort, progress)
    queue, seconds = ours.queue(TOPIC_8), ours.at_seconds
    members = [name for name, (topic, _, _) in ours.limits.items() if topic == TOPIC_8]
    threshold = np.array([sum(ours.threshold(name, at) for name in members) for at in seconds.tolist()])
    begun = seconds > BURST_SECONDS
    passed = seconds[begun & (queue > 0) & (queue > threshold)]
    first = float(passed[0]) if len(passed) else np.nan
    moved = ours.after_burst()
    at_move = float(moved[0]["at_seconds"]) if moved else np.nan
    deepest = float(queue[begun].max(initial=0.0))
    rows = (
        ("threshold of topic 8 passed at", duration(first), duration(PRINTED_TRIGGER)),
        ("first move at", duration(at_move), duration(PRINTED_TRIGGER)),
        ("deepest queue of topic 8", f"{deepest:.0f} events", "-"),
        ("queue of topic 8 at the end", f"{queue[-1]:.0f} events", f"0 from {duration(PRINTED_CLEAR)} on"),
    )
    return Findings(
        tables=(
            PrintedTable.of(
                f"queue of topic 8 at b1, real packets, 1/{SCALE} of the events",
                rows,
                ("", lambda row: row[0]),
                ("ours", lambda row: row[1]),
                ("printed", lambda row: row[2]),
            ),
        ),
        panels=(
            Panel(
                "queue depth of topic 8",
                "s",
                "events of all 7 subscribers",
                (
                    Series.of("queue", seconds, queue),
                    Series.of("threshold", seconds, np.clip(threshold, 0, 2 * max(deepest, 1.0)), "dashed"),
                ),
            ),
        ),
        differences=(_scaled(ours),),
        claims=(
            *_kept_claims(ours),
            Claim(
                "the queue shrinks once a client has moved",
                bool(queue[-1] < deepest / 2),
                f"from {deepest:.0f} to {queue[-1]:.0f} events",
            ),
        ),
        figures={
            "ours": ours.as_json(),
            "queue_events": queue.tolist(),
            "threshold_events": threshold.tolist(),
        },
    )


def _figure_5(effort: Effort, progress: Progress) -> Findings:
    peer = boxed("peer", effort, part_of(progress, 0, 2))
    ours = boxed("ours", effort, part_of(progress, 1, 2))
    needless = [each for each in peer.after_burst() if not each["needed"]]

    def moved(each: BoxedExperiment) -> int:
        return sum(move["subscriptions"] for move in each.moves)

    return Findings(
        tables=(
            moves_table(
                "PEER with real brokers, after the burst at 30 s (printed: needless balancing at 31 and 33 s)",
                peer.after_burst(),
            ),
            PrintedTable.of(
                f"Table 6, all of it, 1/{SCALE} of the bandwidth",
                (("ours", ours), ("PEER", peer)),
                ("", lambda row: row[0]),
                ("migrations", lambda row: str(len(row[1].moves))),
                ("of these after the burst", lambda row: str(len(row[1].after_burst()))),
                (
                    "without a deadline at risk",
                    lambda row: str(sum(not each["needed"] for each in row[1].moves)),
                ),
                ("subscribers moved", lambda row: str(moved(row[1]))),
                ("late events since the burst", lambda row: str(row[1].late)),
                ("missed, got twice", lambda row: "{}, {}".format(*row[1].missing_and_repeated)),
            ),
        ),
        panels=(_uplink_panel("PEER, real packets", peer), _uplink_panel("ours, real packets", ours)),
        differences=(_scaled(ours),),
        claims=(
            Claim(
                "PEER moves clients when no deadline is at risk",
                bool(needless),
                f"{len(needless)} of {len(peer.after_burst())} after the burst",
            ),
            Claim(
                "ours moves less than half as many",
                2 * moved(ours) < moved(peer),
                f"{moved(ours)} beside {moved(peer)}",
            ),
            Claim("ours has no more late events", ours.late <= peer.late, f"{ours.late} beside {peer.late}"),
            *_kept_claims(ours),
        ),
        figures={"peer": peer.as_json(), "ours": ours.as_json()},
    )


def _scaled(ours: BoxedExperiment) -> Difference:
    return Difference(
        "what was run",
        "a simulation, 5 to 20 Mbit/s",
        f"five Mosquitto brokers with their gateways in namespaces of one machine, 1/{SCALE} of the bandwidth and of "
        f"the events; {ours.run.lost_by_machine} packets were lost by the machine",
        "Loads, deadlines and times are the paper's. The kernel here delays no packets, and so the 0.3 s of their path "
        "are taken off what events may take. A gateway sends what it has first in, first out, so that all of b1 wait "
        "alike, and topic 8 is at risk later than with shares by rate. Clients that move are served by both for "
        "some seconds, and the old one is relieved after that.",
    )


# The paper goes on to 75 s: by then queues are empty, or nearly.
_NORMAL, _QUICK = Effort(seconds=75.0), Effort(seconds=45.0)
PACKETS_UPLINKS = Experiment(
    "uplinks of four edge brokers through a burst, real brokers", _figure_3, _NORMAL, _QUICK
)
PACKETS_QUEUE = Experiment("queue depth of topic 8 at b1, real brokers", _figure_4, _NORMAL, _QUICK)
PACKETS_PEER = Experiment("PEER on the same load, real brokers", _figure_5, _NORMAL, _QUICK)
