"""What an earlier plan promised, under the names and numbers of the scenario of now; and the way from plan to plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triagemq.plan.admission.ledger import NONE, AdmittedPromise, Ledger
from triagemq.plan.admission.links import LevelStep, LinkFlows, safe_order
from triagemq.plan.admission.promises import PromiseNetwork, PromiseRequest, matching, promise_request
from triagemq.plan.model import Plan
from triagemq.scenario import Floats, Integers, Scenario
from triagemq.scenario.model import Table

ROUNDING = 1.0 + 1e-12


def carried(
    network: PromiseNetwork,
    wanted: dict[tuple[int, int], PromiseRequest],
    previous: Plan | None,
    before: Scenario | None,
) -> tuple[Ledger, list[tuple[int, int]], dict[tuple[int, int], float]]:
    """A ledger with what an earlier plan promised and still holds; what is to be decided on again, in order; and what
    all of these were promised."""
    ledger = Ledger(network)
    again: list[tuple[int, int]] = []
    earlier: dict[tuple[int, int], float] = {}
    if previous is None or not previous.promises.admitted.any():
        return ledger, again, earlier
    scenario = network.scenario
    before = scenario if before is None else before
    previous.require(before)
    if isinstance(previous.ledger, Ledger) and previous.ledger.network.scenario is before:
        found = _continued(network, wanted, previous.ledger)
        if found is not None:
            return found
    same = before.fingerprint == scenario.fingerprint
    was = network if same else PromiseNetwork(before)
    publications = _renumbered(before, scenario, "publications", ("publisher", "publishers"))
    subscriptions = _renumbered(before, scenario, "subscriptions", ("subscriber", "subscribers"))
    ports = _places(before.ports.name, scenario.ports.name)
    publishers = _places(before.publishers.name, scenario.publishers.name)
    columns: dict[int, dict[int, list[float]]] = {}
    freed: set[int] = set()
    promises, hops = previous.promises, previous.hops
    for row in np.flatnonzero(promises.admitted).tolist():
        old = int(promises.publication[row]), int(promises.subscription[row])
        key = int(publications[old[0]]), int(subscriptions[old[1]])
        rows = previous.hops_of(row)
        path = tuple(int(ports[port]) for port in hops.port[rows][1:].tolist())
        entry = None
        if key in wanted:
            earlier[key] = float(promises.max_latency_seconds[row])
            entry = _still(network, wanted[key], path, hops.deadline_seconds[rows], hops.jitter_seconds[rows])
            if entry is not None and not same and not _unchanged(was, network, old, entry, hops.port[rows]):
                entry = None
        if entry is None:
            again += [key] if key in wanted else []
            freed.update(path, [network.access_link(int(publishers[before.publications.publisher[old[0]]]))])
            continue
        ledger.put(entry)
        for place, (link, arrival) in enumerate(zip(entry.path.links, ledger.arrivals(entry), strict=True)):
            row_of_link = [*arrival, float(hops.level[rows][place]), float(hops.bound_seconds[rows][place])]
            known = columns.setdefault(link, {}).setdefault(key[0], row_of_link)
            known[2], known[5] = max(known[2], row_of_link[2]), min(known[5], row_of_link[5])
            known[7] = max(known[7], row_of_link[7])
    for link, flows in columns.items():
        sent, separation, jitter, packet, spread, deadline, bucket, passing, level, bound = np.array(
            list(flows.values())
        ).T.copy()
        ledger.links[link] = LinkFlows(
            np.array(list(flows), dtype=np.int64),
            sent,
            separation,
            jitter,
            packet,
            spread,
            deadline,
            bucket.astype(np.bool_),
            passing.astype(np.bool_),
            level.astype(np.int64),
            bound,
        )
        if link in freed:
            left = ledger.links[link]
            ledger.links[link] = replace(left, bound=left.bounds(network.link(link), left.level))
    return ledger, again, earlier


def _continued(
    network: PromiseNetwork, wanted: dict[tuple[int, int], PromiseRequest], was: Ledger
) -> tuple[Ledger, list[tuple[int, int]], dict[tuple[int, int], float]] | None:
    """The same by going on with the ledger of the earlier plan, over a network that has not changed; None if it has.

    A promise whose publisher, publication or subscriber is not what it was is ended, and decided on again.
    """
    before, scenario = was.network.scenario, network.scenario
    if (
        not all(_equal(getattr(before, table), getattr(scenario, table)) for table in ("ports", "switches"))
        or before.overhead_bytes != scenario.overhead_bytes
        or was.network.longest_utility_packet != network.longest_utility_packet
    ):
        return None
    publications = _renumbered(before, scenario, "publications", ("publisher", "publishers"))
    subscriptions = _renumbered(before, scenario, "subscriptions", ("subscriber", "subscribers"))
    publishers = _places(before.publishers.name, scenario.publishers.name)
    subscribers = _places(before.subscribers.name, scenario.subscribers.name)
    changed = _differs(before.publications, scenario.publications, publications, _OF_PUBLICATIONS)
    elsewhere = _differs(before.publishers, scenario.publishers, publishers, _OF_PUBLISHERS)
    moved = _differs(before.subscribers, scenario.subscribers, subscribers, _OF_SUBSCRIBERS)
    ledger, left = Ledger(network), was.copy()
    again: list[tuple[int, int]] = []
    earlier: dict[tuple[int, int], float] = {}
    for old, entry in was.entries.items():
        key = int(publications[old[0]]), int(subscriptions[old[1]])
        wish = wanted.get(key)
        if wish is not None:
            earlier[key] = entry.request.max_latency_seconds
            taken = float(entry.deadline.sum()) + entry.path.fixed_seconds
            if not (
                changed[old[0]]
                or elsewhere[entry.request.publisher]
                or moved[before.subscriptions.subscriber[old[1]]]
                or taken > wish.max_latency_seconds * ROUNDING
            ):
                links = (network.access_link(wish.publisher), *entry.path.links[1:])
                ledger.put(
                    AdmittedPromise(wish, replace(entry.path, links=links), entry.deadline, entry.jitter)
                )
                continue
            again.append(key)
        left.release(*old)
    for link, flows in left.links.items():
        if len(flows.publication):
            port = was.network.port(link)
            number = (
                port if port >= 0 else network.access_link(int(publishers[link - was.network.port_count]))
            )
            ledger.links[number] = replace(
                flows, publication=publications[flows.publication].astype(np.int64)
            )
    return ledger, again, earlier


_OF_PUBLICATIONS = ("max_size_bytes", "min_separation_seconds")
_OF_PUBLISHERS = ("access_switch", "access_bps", "propagation_seconds")
_OF_SUBSCRIBERS = ("port", "propagation_seconds")
"""What promises are proven on; ports and switches are compared as a whole."""


def _differs(before: Table, after: Table, place: Integers, columns: Sequence[str]) -> NDArray[np.bool_]:
    """Per row of a table, whether one of these columns is another in the row where it is now."""
    rows = place[:-1]
    found = rows < 0
    for column in columns:
        found = found | (getattr(before, column) != getattr(after, column)[rows])
    return np.asarray(found)


def _equal(before: Table, after: Table) -> bool:
    columns = ((getattr(before, each.name), getattr(after, each.name)) for each in fields(before))  # type: ignore[arg-type]
    return all(_same(one, other) for one, other in columns)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple) and one and isinstance(one[0], np.ndarray):
        return len(one) == len(other) and all(map(np.array_equal, one, other))
    return np.array_equal(one, other) if isinstance(one, np.ndarray) else bool(one == other)


def _still(
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


def _unchanged(
    was: PromiseNetwork,
    network: PromiseNetwork,
    old: tuple[int, int],
    entry: AdmittedPromise,
    ports: Integers,
) -> bool:
    """Whether a promise's messages and links are what they were when it was admitted."""
    wish = promise_request(was.scenario, *old)
    if isinstance(wish, str):
        return False
    same = (wish.message, wish.separation_seconds) == (
        entry.request.message,
        entry.request.separation_seconds,
    )
    crossed = tuple(ports[1:].tolist())
    before = (was.access_link(wish.publisher), *crossed)
    path = was.path_over(crossed, wish.publisher, int(was.scenario.subscriptions.subscriber[old[1]]))
    return (
        same
        and was.has_buckets(path.switches[0]) == network.has_buckets(entry.path.switches[0])
        and was.limiter_jitter(wish, path.switches[0])
        == network.limiter_jitter(entry.request, entry.path.switches[0])
        and np.array_equal(path.multiplexing_seconds, entry.path.multiplexing_seconds)
        and all(
            was.link(one) == network.link(other) for one, other in zip(before, entry.path.links, strict=True)
        )
    )


def _renumbered(before: Scenario, after: Scenario, table: str, who: tuple[str, str]) -> Integers:
    """Per row of a table of pairs of names, its row in the other scenario; -1 where it is gone."""

    def keys(scenario: Scenario) -> list[tuple[str, str]]:
        rows = getattr(scenario, table)
        names = getattr(scenario, who[1]).name
        return [
            (names[one], scenario.topics.name[topic])
            for one, topic in zip(getattr(rows, who[0]).tolist(), rows.topic.tolist(), strict=True)
        ]

    if before is after:
        return np.append(np.arange(len(getattr(before, table)), dtype=np.int32), np.int32(-1))
    return _places(keys(before), keys(after))


def _places(before: Sequence[object], after: Sequence[object]) -> Integers:
    place = {name: number for number, name in enumerate(after)}
    # The last is for access links, which are no ports.
    return np.array([*(place.get(name, -1) for name in before), -1], dtype=np.int32)


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
    return carried(network, wanted, plan, before)[0]


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
        common = old.some(rows_old)

        found = safe_order(
            partial(common.keeps, was.network.link(port)), stays, common.level, now.level[rows_now]
        )
        if found is None:
            return None
        moves += [LevelStep(move.publication, port, move.before, move.after) for move in found]
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
