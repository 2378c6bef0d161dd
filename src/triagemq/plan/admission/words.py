"""Promises as rows and in words: bound, slack, who interferes, hop by hop; and why others were refused."""

from __future__ import annotations

from typing import Any

import numpy as np

from triagemq.plan.admission.carrying import ledger_of
from triagemq.plan.admission.ledger import AdmittedPromise, Ledger
from triagemq.plan.admission.links import LinkFlows
from triagemq.plan.model import Plan, Promises
from triagemq.scenario import Scenario

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
    """What a guaranteed subscription is promised, and what stands in its way at every link; or why it is refused."""
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
