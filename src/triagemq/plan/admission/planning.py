"""The promises of a plan: those of the plan before first, then the new ones by name; as tables, rows and words.

What was admitted stays as it was, unless its own terms or a link on its path have changed: then it is decided on again,
before anything new.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from triagemq.plan.admission.ledger import NONE, AdmittedPromise, Ledger, Refused
from triagemq.plan.admission.links import LevelStep, LinkFlows, safe_order
from triagemq.plan.admission.promises import PromiseNetwork, PromiseRequest, matching, promise_request
from triagemq.plan.difference import new_rows, new_rows_by_name
from triagemq.plan.model import (
    NO_HOPS,
    NO_LIMITERS,
    NO_PROMISES,
    Decision,
    Limiters,
    Plan,
    PromisedHops,
    Promises,
    table_of,
)
from triagemq.scenario import Floats, Integers, Scenario


@dataclass(frozen=True, slots=True, eq=False)
class AdmissionResult:
    """What a plan holds of promises, and the load they put on every port."""

    promises: Promises
    hops: PromisedHops
    limiters: Limiters
    decisions: tuple[Decision, ...]
    port_bytes_per_second: Floats
    ledger: Ledger | None = None

    @property
    def levels(self) -> int:
        """The first class of utility flows."""
        return int(self.hops.level[self.hops.port >= 0].max(initial=-1)) + 1


def admit_promises(
    scenario: Scenario, previous: Plan | None = None, before: Scenario | None = None, why_none: str = ""
) -> AdmissionResult:
    """Decide on all promises that a scenario asks for; `why_none` is why all are refused."""
    publication, subscription, often = matching(scenario)
    if not len(subscription) and not scenario.subscriptions.guaranteed.any():
        return AdmissionResult(NO_PROMISES, NO_HOPS, NO_LIMITERS, (), np.zeros(len(scenario.ports)))
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
            _decision(scenario, key, refused[key], earlier.get(key)) for key in sorted(refused, key=_by_name)
        ),
        _port_loads(ledger),
        ledger,
    )


def _tables(
    ledger: Ledger, refused: dict[tuple[int, int], Refused]
) -> tuple[Promises, PromisedHops, Limiters]:
    promises: list[tuple[float, ...]] = []
    hops: list[tuple[float, ...]] = []
    placed = {
        link: dict(zip(flows.publication.tolist(), zip(flows.level, flows.bound, strict=True), strict=True))
        for link, flows in ledger.links.items()
    }
    for key, entry in ledger.entries.items():
        links, wanted, bound_seconds = entry.path.links, entry.request.max_latency_seconds, 0.0
        first = len(hops)
        for link, deadline, jitter in zip(links, entry.deadline, entry.jitter, strict=True):
            level, bound = placed[link][key[0]]
            hops.append((ledger.network.port(link), level, deadline, bound, jitter))
            bound_seconds += bound
        bound_seconds += entry.path.fixed_seconds
        promises.append((*key, 1, bound_seconds, wanted, 0.0, -1, 0.0, first, len(links)))
    latency = ledger.network.scenario.subscriptions.max_latency_seconds
    for key, why in refused.items():
        promises.append((*key, 0, 0.0, latency[key[1]], why.offer_seconds, *_missed(key, why), 0, 0))
    return table_of(Promises, promises), table_of(PromisedHops, hops), _limiters(ledger)


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
    return table_of(Limiters, [(publication, *terms) for publication, terms in sorted(limited.items())])


def _port_loads(ledger: Ledger) -> Floats:
    """Bytes a second that promises may put on every port in the long run."""
    loads = np.zeros(len(ledger.network.scenario.ports))
    for link, flows in ledger.links.items():
        if ledger.network.port(link) >= 0:
            loads[link] = flows.load * ledger.network.link(link).bytes_per_second
    return loads


def _by_name(key: tuple[int, int]) -> tuple[int, int]:
    return key[1], key[0]


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


ROUNDING = 1.0 + 1e-12


def carry_over(
    network: PromiseNetwork,
    wanted: dict[tuple[int, int], PromiseRequest],
    previous: Plan | None,
    before: Scenario | None,
) -> tuple[Ledger, list[tuple[int, int]], dict[tuple[int, int], float]]:
    """A ledger with what an earlier plan promised and still holds; what is to be decided on again, in order; and what
    all of these were promised.

    A promise stays over its path, with its deadlines, if its messages, its publisher and the links are what they were.
    """
    ledger = Ledger(network)
    again: list[tuple[int, int]] = []
    earlier: dict[tuple[int, int], float] = {}
    if previous is None or not previous.promises.admitted.any():
        return ledger, again, earlier
    scenario = network.scenario
    before = scenario if before is None else before
    was = _ledger_before(before, previous)
    publications = new_rows(before, scenario, "publications", "publisher")
    subscriptions = new_rows(before, scenario, "subscriptions", "subscriber")
    ports = new_rows_by_name(before.ports.name, scenario.ports.name)
    publishers = new_rows_by_name(before.publishers.name, scenario.publishers.name)
    ended: set[int] = set()
    promises = previous.promises
    for row in np.flatnonzero(promises.admitted).tolist():
        old = int(promises.publication[row]), int(promises.subscription[row])
        key = int(publications[old[0]]), int(subscriptions[old[1]])
        entry = was.entries.get(old)
        if key in wanted:
            earlier[key] = float(promises.max_latency_seconds[row])
            stays = None if entry is None else _renewed(was.network, entry, network, wanted[key], ports)
            if stays is not None:
                ledger.put(stays)
                continue
            again.append(key)
        if entry is not None:
            ended.update(entry.path.links)
    changed: dict[int, dict[int, int]] = {}
    for link, flows in was.links.items():
        port, publication = was.network.port(link), publications[flows.publication].astype(np.int64)
        owner = int(publishers[link - was.network.port_count]) if port < 0 else -1
        number = int(ports[port]) if port >= 0 else network.access_link(owner) if owner >= 0 else -1
        moved = replace(flows, publication=publication)
        if link in ended:
            changed[number] = moved.levels
        elif len(publication):
            ledger.links[number] = moved
    # A link that is gone (-1) has no promise that stays.
    ledger.lay({number: levels for number, levels in changed.items() if number >= 0})
    return ledger, again, earlier


def _ledger_before(scenario: Scenario, plan: Plan) -> Ledger:
    """The ledger that a plan was made with; read from its tables where the plan comes from a file.

    Promises that cannot be stated any more, or whose path is not there, are not in it.
    """
    if isinstance(plan.ledger, Ledger) and plan.ledger.network.scenario is scenario:
        return plan.ledger
    plan.require(scenario)
    ledger = Ledger(PromiseNetwork(scenario))
    promises, hops = plan.promises, plan.hops
    levels: dict[int, dict[int, int]] = {}
    for row in np.flatnonzero(promises.admitted).tolist():
        publication, rows = int(promises.publication[row]), plan.hops_of(row)
        wish = promise_request(scenario, publication, int(promises.subscription[row]))
        path = tuple(hops.port[rows][1:].tolist())
        if isinstance(wish, str):
            continue
        entry = _over(ledger.network, wish, path, hops.deadline_seconds[rows], hops.jitter_seconds[rows])
        if entry is None:
            continue
        ledger.put(entry)
        for link, level in zip(entry.path.links, hops.level[rows].tolist(), strict=True):
            levels.setdefault(link, {}).setdefault(publication, level)
    ledger.lay(levels)
    return ledger


def _over(
    network: PromiseNetwork, wish: PromiseRequest, ports: tuple[int, ...], deadline: Floats, jitter: Floats
) -> AdmittedPromise | None:
    """The promise over the path that it had, if there is such a path and its deadlines are soon enough."""
    subscriber = int(network.scenario.subscriptions.subscriber[wish.subscription])
    if not ports or min(ports) < 0 or not network.leads(ports, wish.publisher, subscriber):
        return None
    path = network.path_over(ports, wish.publisher, subscriber)
    if float(deadline.sum()) + path.fixed_seconds > wish.max_latency_seconds * ROUNDING:
        return None
    return AdmittedPromise(wish, path, deadline, jitter)


def _renewed(
    was: PromiseNetwork,
    entry: AdmittedPromise,
    network: PromiseNetwork,
    wish: PromiseRequest,
    ports: Integers,
) -> AdmittedPromise | None:
    """A promise over the network of now, if all that it was proven on is as it was when it was admitted."""
    before, old = entry.request, entry.path
    if (wish.message, wish.separation_seconds) != (before.message, before.separation_seconds):
        return None
    path = tuple(int(ports[port]) for port in old.links[1:])
    found = _over(network, wish, path, entry.deadline, entry.jitter)
    if found is None:
        return None
    first, switch = old.switches[0], found.path.switches[0]
    same = (
        was.has_buckets(first) == network.has_buckets(switch)
        and was.limiter_jitter(before, first) == network.limiter_jitter(wish, switch)
        and np.array_equal(old.multiplexing_seconds, found.path.multiplexing_seconds)
        and all(
            was.link(one) == network.link(other)
            for one, other in zip(old.links, found.path.links, strict=True)
        )
    )
    return found if same else None


def ledger_of(scenario: Scenario, plan: Plan, before: Scenario | None = None) -> Ledger:
    """The ledger of a plan's promises, as far as this scenario still has them."""
    if isinstance(plan.ledger, Ledger) and plan.ledger.network.scenario is scenario:
        return plan.ledger
    network = PromiseNetwork(scenario)
    publication, subscription, often = matching(scenario)
    wanted = {}
    for key in zip(publication[often > 0].tolist(), subscription[often > 0].tolist(), strict=True):
        found = promise_request(scenario, *key)
        if isinstance(found, PromiseRequest):
            wanted[key] = found
    return carry_over(network, wanted, plan, before)[0]


def reconfiguration(
    scenario: Scenario, before: Plan, after: Plan, scenario_before: Scenario | None = None
) -> tuple[LevelStep, ...] | None:
    """The steps from one plan's levels to another's, in an order that keeps every promise; None if none is known.

    What is gone goes first and what is new comes last, from the end of its path. Where the first class of utility flows
    rises, they make room before these steps, and where it falls, after.
    """
    was = ledger_of(scenario, before, scenario_before)
    will = ledger_of(scenario, after)
    gone, moves, new = [], [], []
    ports = [link for link in {**was.links, **will.links} if was.network.port(link) >= 0]
    for port in sorted(ports):
        old, now = was.links.get(port, NONE), will.links.get(port, NONE)
        stays, rows_old, rows_now = np.intersect1d(old.publication, now.publication, return_indices=True)
        common, level = old.some(rows_old), now.level[rows_now]
        order = safe_order(common.deadline_check(was.network.link(port)), common.level, level)
        if order is None:
            return None
        moves += [LevelStep(int(stays[row]), port, int(common.level[row]), int(level[row])) for row in order]
        gone += [
            LevelStep(int(each), port, int(old.level[old.row(each)]), -1)
            for each in np.setdiff1d(old.publication, stays)
        ]
    for entry in will.entries.values():
        for port in reversed(entry.path.links[1:]):
            publication = entry.request.publication
            step = LevelStep(
                publication, port, -1, int(will.links[port].level[will.links[port].row(publication)])
            )
            if was.links.get(port, NONE).row(publication) < 0 and step not in new:
                new.append(step)
    return (*gone, *moves, *new)


NAMED = 4
"""Flows that are named, of those that interfere at a link."""


def promise_rows(scenario: Scenario, plan: Plan) -> list[dict[str, Any]]:
    """One row per promise, as `triage plan --json` has it."""
    return [_row(scenario, plan, promise) for promise in range(len(plan.promises))]


def _row(scenario: Scenario, plan: Plan, promise: int) -> dict[str, Any]:
    promises = plan.promises
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
        "hops": [_hop_row(scenario, plan.hops, row) for row in range(rows.start, rows.stop)],
    }


def _hop_row(scenario: Scenario, hops: PromisedHops, row: int) -> dict[str, Any]:
    """A link of a promise; an access link is no port, and has no level."""
    found = {column.name: getattr(hops, column.name)[row].item() for column in fields(hops)}
    port = found["port"]
    return found | ({"port": scenario.ports.name[port]} if port >= 0 else {"port": None, "level": None})


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
    same_level = flows.level == level
    same_level[row] = False
    who.append(
        _named(ledger, flows, same_level, "in order with it" if link.in_order else "in the same level")
    )
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
