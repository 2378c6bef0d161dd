"""The promises of a plan: those of the plan before first, in their order, and then the new ones by name.

What was admitted stays as it was, unless its own terms or a link on its way have changed: then it is decided on again,
before anything new.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from triagemq.plan.admission.carrying import carried
from triagemq.plan.admission.ledger import Ledger, Refused
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


def promised(
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
    ledger, again, earlier = carried(network, wanted, previous, before)
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
