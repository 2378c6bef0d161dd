"""What an earlier plan promised, under the names and numbers of the scenario of now; and the steps between plans."""

from __future__ import annotations

from functools import partial

import numpy as np

from triagemq.plan.admission.ledger import NONE, AdmittedPromise, Ledger
from triagemq.plan.admission.links import LevelStep, LinkFlows, safe_order
from triagemq.plan.admission.promises import PromiseNetwork, PromiseRequest, matching, promise_request
from triagemq.plan.difference import new_rows, new_rows_by_name
from triagemq.plan.model import Plan
from triagemq.scenario import Floats, Integers, Scenario

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
    left = was.copy()
    ended = []
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
            ended.append(old)
    left.release_all(ended)
    for link, flows in left.links.items():
        if len(flows.publication):
            port = was.network.port(link)
            owner = publishers[link - was.network.port_count] if port < 0 else -1
            number = int(ports[port]) if port >= 0 else network.access_link(int(owner))
            ledger.links[number] = flows.renumbered(publications)
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
    columns: dict[int, dict[int, list[float]]] = {}
    lacking = False
    for row in np.flatnonzero(promises.admitted).tolist():
        publication, rows = int(promises.publication[row]), plan.hops_of(row)
        wish = promise_request(scenario, publication, int(promises.subscription[row]))
        path = tuple(hops.port[rows][1:].tolist())
        entry = None
        if isinstance(wish, PromiseRequest):
            entry = _over(ledger.network, wish, path, hops.deadline_seconds[rows], hops.jitter_seconds[rows])
        if entry is None:
            lacking = True
            continue
        ledger.put(entry)
        for place, (link, arrival) in enumerate(zip(entry.path.links, ledger.arrivals(entry), strict=True)):
            row_of_link = [*arrival, float(hops.level[rows][place]), float(hops.bound_seconds[rows][place])]
            known = columns.setdefault(link, {}).setdefault(publication, row_of_link)
            known[2], known[5] = max(known[2], row_of_link[2]), min(known[5], row_of_link[5])
            known[7] = max(known[7], row_of_link[7])
    for link, flows in columns.items():
        ledger.links[link] = LinkFlows.of(list(flows), np.array(list(flows.values())))
    if lacking:
        ledger.bound_again(ledger.links)
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
