"""The promises of a plan, as tables, rows and words: those of the plan before first, then the new ones by name.

What was admitted stays as it was, unless its own terms or a link on its path have changed: then it is decided on again,
before anything new.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from triagemq.plan.admission.carrying import carry_over, ledger_of
from triagemq.plan.admission.ledger import AdmittedPromise, Ledger, Refused
from triagemq.plan.admission.links import LinkFlows
from triagemq.plan.admission.promises import PromiseNetwork, PromiseRequest, matching, promise_request
from triagemq.plan.model import (
    NO_HOPS,
    NO_LIMITERS,
    NO_PROMISES,
    Decision,
    Limiters,
    Plan,
    PromisedHops,
    Promises,
)
from triagemq.scenario import Floats, Scenario
from triagemq.scenario.model import filled


@dataclass(frozen=True, slots=True, eq=False)
class AdmissionResult:
    """What a plan holds of promises, and the load they put on every port."""

    promises: Promises
    hops: PromisedHops
    limiters: Limiters
    decisions: tuple[Decision, ...]
    port_bytes_per_second: Floats
    levels: int
    ledger: Ledger | None = None


def admit_promises(
    scenario: Scenario, previous: Plan | None = None, before: Scenario | None = None, why_none: str = ""
) -> AdmissionResult:
    """Decide on all promises that a scenario asks for; `why_none` is why all are refused."""
    publication, subscription, often = matching(scenario)
    if not len(subscription) and not scenario.subscriptions.guaranteed.any():
        return AdmissionResult(NO_PROMISES, NO_HOPS, NO_LIMITERS, (), np.zeros(len(scenario.ports)), 0)
    network = PromiseNetwork(scenario)
    wanted: dict[tuple[int, int], PromiseRequest] = {}
    refused: dict[tuple[int, int], Refused] = {}
    for row in np.lexsort((publication, subscription)).tolist():
        key = int(publication[row]), int(subscription[row])
        if not often[row]:
            refused[key] = Refused(_too_rare(scenario, *key))
            continue
        found = why_none or promise_request(scenario, *key)
        if isinstance(found, str):
            refused[key] = Refused(found)
        else:
            wanted[key] = found
    ledger, again, earlier = carry_over(network, wanted, previous, before)
    for key in (*again, *(key for key in wanted if key not in ledger.entries and key not in earlier)):
        decided = ledger.admit(wanted[key])
        if isinstance(decided, Refused):
            refused[key] = decided
    return AdmissionResult(
        *_tables(ledger, refused),
        tuple(
            _decision(scenario, key, why, earlier.get(key))
            for key, why in sorted(refused.items(), key=_by_name)
        ),
        _port_loads(ledger),
        max(
            (
                int(flows.level.max(initial=-1)) + 1
                for link, flows in ledger.links.items()
                if network.port(link) >= 0
            ),
            default=0,
        ),
        ledger,
    )


def _tables(
    ledger: Ledger, refused: dict[tuple[int, int], Refused]
) -> tuple[Promises, PromisedHops, Limiters]:
    rows = list(ledger.entries.values())
    lengths = np.array([len(entry.path.links) for entry in rows], dtype=np.int32)
    found = _levels_and_bounds(ledger)
    at_hops = [[found[link][entry.request.publication] for link in entry.path.links] for entry in rows]
    bounds = [np.array([bound for _, bound in hops]) for hops in at_hops]
    level = [level for hops in at_hops for level, _ in hops]
    keys = [*ledger.entries, *refused]
    none = np.zeros(len(refused))
    promises = filled(
        Promises,
        len(keys),
        publication=[publication for publication, _ in keys],
        subscription=[subscription for _, subscription in keys],
        admitted=np.arange(len(keys)) < len(rows),
        bound_seconds=[
            *(each.sum() + entry.path.fixed_seconds for each, entry in zip(bounds, rows, strict=True)),
            *none,
        ],
        max_latency_seconds=[
            *(entry.request.max_latency_seconds for entry in rows),
            *ledger.network.scenario.subscriptions.max_latency_seconds[[key[1] for key in refused]],
        ],
        offer_seconds=[0.0] * len(rows) + [why.offer_seconds for why in refused.values()],
        missed_publication=[-1] * len(rows) + [_missed(key, why)[0] for key, why in refused.items()],
        missed_by_seconds=[0.0] * len(rows) + [_missed(key, why)[1] for key, why in refused.items()],
        first_hop=np.append(np.cumsum(lengths) - lengths, none),
        hop_count=np.append(lengths, none),
    )
    hops = filled(
        PromisedHops,
        int(lengths.sum()),
        port=[ledger.network.port(link) for entry in rows for link in entry.path.links],
        level=level,
        deadline_seconds=np.concatenate([np.empty(0), *(entry.deadline for entry in rows)]),
        bound_seconds=np.concatenate([np.empty(0), *bounds]),
        jitter_seconds=np.concatenate([np.empty(0), *(entry.jitter for entry in rows)]),
    )
    return promises, hops, _limiters(ledger)


def _levels_and_bounds(ledger: Ledger) -> dict[int, dict[int, tuple[int, float]]]:
    """By link and publication."""
    return {
        link: dict(
            zip(
                flows.publication.tolist(),
                zip(flows.level.tolist(), flows.bound.tolist(), strict=True),
                strict=True,
            )
        )
        for link, flows in ledger.links.items()
    }


def _missed(key: tuple[int, int], why: Refused) -> tuple[int, float]:
    """Whose flow would be late, and by how much."""
    missed = why.missed
    if missed is None or missed.no_safe_order:
        return (key[0], why.too_long_by_seconds) if why.too_long_by_seconds > 0 else (-1, 0.0)
    over = missed.bound_seconds - missed.deadline_seconds
    return missed.publication, over if np.isfinite(over) else 0.0


def _limiters(ledger: Ledger) -> Limiters:
    """What every first switch is to let through: a message per separation (MIDAS V.A), and sooner by the jitter that
    bounds count at its ports. Of a publication with several promises the smallest: its messages keep the soonest of
    their deadlines on the access link, and no port counts less."""
    scenario = ledger.network.scenario
    limited: dict[int, tuple[int, float, float, float]] = {}
    for entry in ledger.entries.values():
        wish, switch = entry.request, entry.path.switches[0]
        slack = 1.0 + float(scenario.switches.limiter_precision[switch])
        separation = float(scenario.publications.min_separation_seconds[wish.publication])
        burst = wish.message.wire_bytes
        more = ledger.network.limiter_jitter(wish, switch)[1]
        jitter = min(float(entry.jitter[1]) - more, limited.get(wish.publication, (0, 0.0, 0.0, math.inf))[3])
        limited[wish.publication] = switch, burst, burst / separation * slack, jitter
    rows = sorted(limited.items())
    return filled(
        Limiters,
        len(rows),
        publication=[publication for publication, _ in rows],
        switch=[switch for _, (switch, _, _, _) in rows],
        burst_bytes=[burst for _, (_, burst, _, _) in rows],
        rate_bytes_per_second=[rate for _, (_, _, rate, _) in rows],
        jitter_seconds=[jitter for _, (_, _, _, jitter) in rows],
    )


def _port_loads(ledger: Ledger) -> Floats:
    """Bytes a second that promises may put on every port in the long run."""
    loads = np.zeros(len(ledger.network.scenario.ports))
    for link, flows in ledger.links.items():
        if ledger.network.port(link) >= 0:
            loads[link] = flows.load * ledger.network.link(link).bytes_per_second
    return loads


def _by_name(item: tuple[tuple[int, int], Refused]) -> tuple[int, int]:
    publication, subscription = item[0]
    return subscription, publication


def _too_rare(scenario: Scenario, publication: int, subscription: int) -> str:
    often, wanted = (
        float(table.max_separation_seconds[row])
        for table, row in ((scenario.publications, publication), (scenario.subscriptions, subscription))
    )
    who = scenario.publishers.name[scenario.publications.publisher[publication]]
    return (
        f"publisher {who} may be silent for {often:.6g} s, and max_separation_seconds asks for a message every "
        f"{wanted:.6g} s"
    )


def _decision(scenario: Scenario, key: tuple[int, int], why: Refused, earlier: float | None) -> Decision:
    subscription = key[1]
    wanted = scenario.subscriptions
    who = scenario.subscribers.name[wanted.subscriber[subscription]]
    topic = scenario.topics.name[wanted.topic[subscription]]
    latency = float(wanted.max_latency_seconds[subscription])
    return Decision(
        kind="refused",
        subject=f"{who} {topic}",
        before=f"asked for {latency:.6g} s" if earlier is None else f"was promised {earlier:.6g} s",
        after=f"{why.offer_seconds:.6g} s would be admitted" if why.offer_seconds > 0 else "",
        reason=why.reason,
    )


NAMED = 4
"""Flows that are named, of those that interfere at a link."""


def promise_rows(scenario: Scenario, plan: Plan) -> list[dict[str, Any]]:
    """One row per promise, as `triage plan --json` has it."""
    return [_row(scenario, plan, promise) for promise in range(len(plan.promises))]


def _row(scenario: Scenario, plan: Plan, promise: int) -> dict[str, Any]:
    promises, hops = plan.promises, plan.hops
    published, wanted = scenario.publications, scenario.subscriptions
    publication, subscription = int(promises.publication[promise]), int(promises.subscription[promise])
    admitted = bool(promises.admitted[promise])
    request, bound = float(promises.max_latency_seconds[promise]), float(promises.bound_seconds[promise])
    offer = float(promises.offer_seconds[promise])
    rows = plan.hops_of(promise)
    return {
        "subscriber": scenario.subscribers.name[wanted.subscriber[subscription]],
        "topic": scenario.topics.name[wanted.topic[subscription]],
        "publisher": scenario.publishers.name[published.publisher[publication]],
        "admitted": admitted,
        "max_latency_seconds": request if np.isfinite(request) else None,
        "bound_seconds": bound if admitted else None,
        "slack_seconds": request - bound if admitted else None,
        "offer_seconds": offer if offer > 0 else None,
        **missed_flow(scenario, promises, promise),
        "hops": [
            {
                "port": scenario.ports.name[port] if port >= 0 else None,
                "level": level if port >= 0 else None,
                "bound_seconds": hop_bound,
                "deadline_seconds": deadline,
                "jitter_seconds": jitter,
            }
            for port, level, hop_bound, deadline, jitter in zip(
                hops.port[rows].tolist(),
                hops.level[rows].tolist(),
                hops.bound_seconds[rows].tolist(),
                hops.deadline_seconds[rows].tolist(),
                hops.jitter_seconds[rows].tolist(),
                strict=True,
            )
        ],
    }


def missed_flow(scenario: Scenario, promises: Promises, promise: int) -> dict[str, Any]:
    """Whose flow would be late if a refused promise were made, and by how much (None: it would have no bound)."""
    row, over = int(promises.missed_publication[promise]), float(promises.missed_by_seconds[promise])
    published = scenario.publications
    return {
        "missed_publisher": scenario.publishers.name[published.publisher[row]] if row >= 0 else None,
        "missed_topic": scenario.topics.name[published.topic[row]] if row >= 0 else None,
        "missed_by_seconds": over if over > 0 else None,
    }


def explain_promises(scenario: Scenario, plan: Plan, subscription: int) -> list[str]:
    """What a guaranteed subscription is promised, and what it waits for at every link; or why it is refused."""
    own = np.flatnonzero(plan.promises.subscription == subscription).tolist()
    ledger = ledger_of(scenario, plan) if plan.promises.admitted[own].any() else None
    lines: list[str] = []
    for promise in own:
        row = _row(scenario, plan, promise)
        what = f"{row['topic']} of {row['publisher']} to {row['subscriber']}"
        if not row["admitted"]:
            offer = row["offer_seconds"]
            would = f"{offer:.4g} s would be admitted now" if offer else "no max_latency would be admitted"
            lines.append(f"Refused: {what} within {_seconds(row['max_latency_seconds'])}; {would}.")
            continue
        assert ledger is not None
        entry = ledger.entries[int(plan.promises.publication[promise]), subscription]
        lines.append(
            f"Promised: {what} within {_seconds(row['max_latency_seconds'])}, proven: at worst it takes "
            f"{_seconds(row['bound_seconds'])}, {_seconds(row['slack_seconds'])} are to spare. "
            f"{_seconds(entry.path.fixed_seconds)} of that are wires and switches."
        )
        lines += [_hop(ledger, entry, hop) for hop in range(len(entry.path.links))]
    return lines


def _hop(ledger: Ledger, entry: AdmittedPromise, hop: int) -> str:
    number = entry.path.links[hop]
    link, flows = ledger.network.link(number), ledger.links[number]
    row = flows.row(entry.request.publication)
    level = int(flows.level[row])
    who = [] if link.in_order else [_named(ledger, flows, flows.level < level, "above it")]
    beside = flows.level == level
    beside[row] = False
    who.append(_named(ledger, flows, beside, "in order with it" if link.in_order else "in the same level"))
    lower = float(flows.packet[flows.level > level].max(initial=link.blocking_seconds))
    who.append(f"one packet below it, {_seconds(lower)}" if lower > 0 else "")
    who.append(f"control traffic, {_seconds(link.control_seconds)} now and then")
    place = link.name if link.in_order else f"{link.name}, level {level}"
    bound, own, deadline, late = map(
        _seconds, (flows.bound[row], flows.transmission[row], entry.deadline[hop], entry.jitter[hop])
    )
    waits = "; ".join(each for each in who if each)
    return (
        f"- {place}: at worst {bound} of the {deadline} it has; a message takes {own} alone and comes up to {late} "
        f"late. It waits for {waits}."
    )


def _named(ledger: Ledger, flows: LinkFlows, rows: np.ndarray[Any, np.dtype[np.bool_]], where: str) -> str:
    """Some flows by their names, those of the longest messages first."""
    scenario = ledger.network.scenario
    published = scenario.publications
    there = np.flatnonzero(rows)
    there = there[np.argsort(-flows.transmission[there], kind="stable")]
    if not there.size:
        return ""
    names = [
        f"{scenario.topics.name[published.topic[one]]} of {scenario.publishers.name[published.publisher[one]]} "
        f"({_seconds(seconds)})"
        for one, seconds in zip(
            flows.publication[there[:NAMED]].tolist(), flows.transmission[there[:NAMED]].tolist(), strict=True
        )
    ]
    more = f" and {len(there) - NAMED} more" if len(there) > NAMED else ""
    return f"{where} {', '.join(names)}{more}"


def _seconds(seconds: float | None) -> str:
    """
    >>> _seconds(0.00123456), _seconds(2.5), _seconds(None), _seconds(1.2e-6)
    ('1.235 ms', '2.5 s', 'no limit', '1.2 µs')
    """
    if seconds is None:
        return "no limit"
    if seconds >= 1 or seconds == 0:
        return f"{seconds:.4g} s"
    return f"{seconds * 1e3:.4g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.4g} µs"
