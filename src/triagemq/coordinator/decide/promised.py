"""Promises between plans and orders: what is stored of them, and what they are on the wire.

One multicast address is a topic's for as long as something of it is promised; each publication of it has a UDP port of
its own there, because every publisher has its own limiter and its own level at a port.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b

import numpy as np

from triagemq.channel.orders import DirectTopics, Orders, Promised, StoredHop, StoredPromise
from triagemq.errors import PlanError
from triagemq.plan import Plan, PlannerChoice
from triagemq.plan.admission.links import LevelStep
from triagemq.plan.admission.planning import reconfiguration
from triagemq.plan.admission.promises import PromiseNetwork, PromiseRequest, promise_request
from triagemq.plan.dataplane import FlowKey, SetFlow, SetLimiter, difference
from triagemq.plan.model import Flows, PortLoads, PromisedHops, Promises, table_of
from triagemq.scenario import Scenario
from triagemq.scenario.model import filled

_NO_CHOICE = PlannerChoice("", "", "", "", 0, 1, 1, 0.0)


FIRST_ADDRESS, ADDRESSES = ipaddress.IPv4Address("239.192.0.0"), 65_536
"""Of topics with promises: in the range that organisations give to themselves (RFC 2365)."""

UDP_PORT = 17_000
"""Of a topic's first publication: none that the kernel hands out."""


def free_address(taken: Iterable[str]) -> str:
    """An address behind the last that is taken: what was given back is not given to the next one at once.

    >>> free_address(["239.192.0.0", "239.192.0.2"])
    '239.192.0.3'
    """
    used = {int(ipaddress.IPv4Address(address)) - int(FIRST_ADDRESS) for address in taken}
    last = max(used, default=-1)
    for step in range(1, ADDRESSES + 1):
        if (number := (last + step) % ADDRESSES) not in used:
            return str(FIRST_ADDRESS + number)
    raise PlanError(
        f"all {ADDRESSES} multicast addresses from {FIRST_ADDRESS} on are given to topics with promises"
    )


def publication_name(publisher: str, topic: str) -> str:
    """Names hold no spaces, topics may."""
    return f"{publisher} {topic}"


def promise_name(publisher: str, topic: str, subscriber: str) -> str:
    return f"{subscriber} {publisher} {topic}"


def copy_name(key: FlowKey, port: str) -> str:
    return f"{key} {port}"


# From a plan to orders.


def with_promises(
    before: Orders,
    scenario: Scenario,
    plan: Plan,
    next_number: int,
    listening: Mapping[str, Collection[str]],
    sources: Mapping[str, str],
) -> tuple[Orders, int]:
    """The orders before with the promises of a plan, and the number of the next new flow.

    Addresses and numbers of flows stay what they were.
    """
    admitted = np.flatnonzero(plan.promises.admitted).tolist()
    if not admitted:
        return replace(before, promised=Promised(), copies={}, limiters={}, direct={}), next_number
    network, ports = PromiseNetwork(scenario), scenario.ports.name
    promises: dict[str, StoredPromise] = {}
    publications: dict[int, tuple[str, str]] = {}
    copied: dict[int, dict[str, int]] = {}
    entered: dict[int, dict[str, None]] = {}
    for row in admitted:
        publication, subscription = int(plan.promises.publication[row]), int(plan.promises.subscription[row])
        publisher, topic, subscriber = names_of(scenario, publication, subscription)
        publications[publication] = publisher, topic
        rows = plan.hops_of(row)
        path = plan.hops.port[rows].tolist()
        names = ["" if port < 0 else ports[port] for port in path]
        figures = (plan.hops.level, plan.hops.deadline_seconds, plan.hops.jitter_seconds)
        hops = tuple(map(StoredHop, names, *(column[rows].tolist() for column in figures)))
        name = promise_name(publisher, topic, subscriber)
        was = before.promised.promises.get(name)
        # Which deadlines there are follows from all that they were proven on. If it did not, the promise would be
        # decided on again after a restart, and no more.
        proven_on = (
            was.proven_on
            if was is not None and _deadlines(was.hops) == _deadlines(hops)
            else _proof(network, publication, subscription, path[1:])
        )
        promises[name] = StoredPromise(
            publisher,
            topic,
            subscriber,
            float(plan.promises.max_latency_seconds[row]),
            float(plan.promises.bound_seconds[row]),
            proven_on,
            hops,
        )
        copied.setdefault(publication, {}).update((hop.port, hop.level) for hop in hops[1:])
        entered.setdefault(publication, {})[hops[1].port] = None
    addresses = _addresses(publications.values(), before.promised.addresses)
    numbers = {copy.key: copy.flow_id for copy in before.copies.values()}
    copies: dict[str, SetFlow[FlowKey]] = {}
    limiters: dict[str, SetLimiter] = {}
    for place, publication in enumerate(plan.limiters.publication.tolist()):
        key = addresses[publication_name(*publications[publication])]
        if key not in numbers:
            numbers[key], next_number = next_number, next_number + 1
        for port, level in copied[publication].items():
            source = sources.get(publications[publication][0], "")
            copies[copy_name(key, port)] = SetFlow(key, port, numbers[key], level, 0.0, source)
        burst, rate = plan.limiters.burst_bytes[place], plan.limiters.rate_bytes_per_second[place]
        jitter = float(plan.limiters.jitter_seconds[place])
        for port in entered[publication]:
            limiters[copy_name(key, port)] = SetLimiter(key, float(burst), float(rate), port, jitter)
    promised = Promised(promises, addresses)
    direct = _direct(promised, listening, before)
    return replace(before, promised=promised, copies=copies, limiters=limiters, direct=direct), next_number


def _direct(promised: Promised, listening: Mapping[str, Collection[str]], before: Orders) -> DirectTopics:
    """What subscribers get without a broker: what is promised, where they are listening."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for each in promised.promises.values():
        address = str(promised.addresses[publication_name(each.publisher, each.topic)])
        if address in listening.get(each.subscriber, ()):
            was = before.direct.get(each.subscriber, {}).get(each.topic, {})
            publishers = found.setdefault(each.subscriber, {}).setdefault(each.topic, {})
            publishers[each.publisher] = was.get(each.publisher, before.generation + 1)
    return found


def _deadlines(hops: Sequence[StoredHop]) -> list[tuple[str, float, float]]:
    return [(hop.port, hop.deadline_seconds, hop.jitter_seconds) for hop in hops]


def names_of(scenario: Scenario, publication: int, subscription: int) -> tuple[str, str, str]:
    subscriber = scenario.subscriptions.subscriber[subscription]
    return *_names_of_publication(scenario, publication), scenario.subscribers.name[subscriber]


def _addresses(publications: Iterable[tuple[str, str]], before: Mapping[str, FlowKey]) -> dict[str, FlowKey]:
    """Publications that had an address keep it; others join their topic's, or it gets one that no topic has."""
    found: dict[str, FlowKey] = {}
    of_topic: dict[str, str] = {}
    used_ports: dict[str, set[int]] = {}
    taken = {key.address for key in before.values()}
    new = []
    for publisher, topic in publications:
        name = publication_name(publisher, topic)
        key = before.get(name)
        if key is None:
            new.append((name, topic))
            continue
        found[name] = key
        of_topic[topic] = key.address
        used_ports.setdefault(topic, set()).add(key.udp_port)
    for name, topic in new:
        if topic not in of_topic:
            of_topic[topic] = free_address(taken)
            taken.add(of_topic[topic])
        used = used_ports.setdefault(topic, set())
        udp_port = next(port for port in range(UDP_PORT, 65_536) if port not in used)
        used.add(udp_port)
        found[name] = FlowKey(of_topic[topic], udp_port)
    return found


def _proof(network: PromiseNetwork, publication: int, subscription: int, path: Sequence[int]) -> str:
    """A mark of all that a promise was proven on but the other promises: it changes when its proof does not hold."""
    scenario = network.scenario
    wish = promise_request(scenario, publication, subscription)
    if not isinstance(wish, PromiseRequest):
        return ""
    route = network.path_over(
        tuple(path), wish.publisher, int(scenario.subscriptions.subscriber[subscription])
    )
    links = [network.link(link) for link in route.links]
    facts = (
        wish.message,
        wish.separation_seconds,
        route.multiplexing_seconds.tolist(),
        route.fixed_seconds,
        links,
    )
    return blake2b(repr(facts).encode(), digest_size=8).hexdigest()


def promised_anew(orders_before: Orders, orders_after: Orders) -> list[str]:
    """The subscribers of promises that are new, gone, or on another path."""
    before, after = (
        {name: (each.subscriber, each.hops) for name, each in orders.promised.promises.items()}
        for orders in (orders_before, orders_after)
    )
    changed = [(after.get(name) or before[name])[0] for name in difference(before, after)]
    return [*difference(orders_before.direct, orders_after.direct), *changed]


# From orders to the plan before, after a restart.


def restored(scenario: Scenario, orders: Orders) -> Plan | None:
    """A plan that holds nothing but what was promised, in the order of admission and with the levels of the wire.

    A promise that was not laid to its end when the coordinator stopped was never made: it is decided on like any
    other. What has other terms or links now is decided on again, before anything new.
    """
    publications = {_names_of_publication(scenario, row): row for row in range(len(scenario.publications))}
    wanted = scenario.subscriptions
    subscriptions = {
        (scenario.subscribers.name[wanted.subscriber[row]], scenario.topics.name[wanted.topic[row]]): row
        for row in np.flatnonzero(wanted.guaranteed).tolist()
    }
    ports = {name: number for number, name in enumerate(scenario.ports.name)}
    network = PromiseNetwork(scenario)
    found: list[tuple[int, int, StoredPromise]] = []
    path: list[int] = []
    levels: list[int] = []
    for promise in orders.promised.promises.values():
        publication = publications.get((promise.publisher, promise.topic))
        subscription = subscriptions.get((promise.subscriber, promise.topic))
        key = orders.promised.addresses.get(publication_name(promise.publisher, promise.topic))
        if publication is None or subscription is None or key is None:
            continue
        access, *beyond = promise.hops
        copies = [orders.copies.get(copy_name(key, hop.port)) for hop in beyond]
        if None in copies:
            continue
        over = [ports.get(hop.port, -1) for hop in beyond]
        if min(over) < 0 or _proof(network, publication, subscription, over) != promise.proven_on:
            over = [-1] * len(over)
        found.append((publication, subscription, promise))
        path += [-1, *over]
        levels += [access.level, *(copy.priority_class for copy in copies if copy is not None)]
    if not found:
        return None
    publication_rows, subscription_rows, promises = zip(*found, strict=True)
    lengths = np.array([len(promise.hops) for promise in promises])
    hops = [hop for promise in promises for hop in promise.hops]
    return Plan(
        scenario_fingerprint=scenario.fingerprint,
        made_by=_NO_CHOICE,
        flow=np.full(len(scenario.subscriptions), -1, dtype=np.int32),
        rank=np.full(len(scenario.subscriptions), np.nan),
        flows=table_of(Flows, ()),
        ports=PortLoads(np.zeros(len(scenario.ports)), np.zeros(len(scenario.ports))),
        promises=filled(
            Promises,
            len(found),
            publication=publication_rows,
            subscription=subscription_rows,
            admitted=1,
            bound_seconds=[promise.bound_seconds for promise in promises],
            max_latency_seconds=[promise.max_latency_seconds for promise in promises],
            offer_seconds=0.0,
            missed_publication=-1,
            missed_by_seconds=0.0,
            first_hop=np.cumsum(lengths) - lengths,
            hop_count=lengths,
        ),
        hops=filled(
            PromisedHops,
            len(hops),
            port=path,
            level=levels,
            deadline_seconds=[hop.deadline_seconds for hop in hops],
            # Admission computes them again.
            bound_seconds=np.nan,
            jitter_seconds=[hop.jitter_seconds for hop in hops],
        ),
    )


def _names_of_publication(scenario: Scenario, row: int) -> tuple[str, str]:
    published = scenario.publications
    return scenario.publishers.name[published.publisher[row]], scenario.topics.name[published.topic[row]]


def moves_in_order(
    scenario: Scenario,
    plan: Plan,
    plan_before: Plan | None,
    scenario_before: Scenario | None,
    before: Orders,
    after: Orders,
) -> list[list[str]] | None:
    """The copies that change their level, as rounds of one for each port; None if no safe order is known."""
    moved = {
        name
        for name, copy in after.copies.items()
        if name in before.copies and before.copies[name].priority_class != copy.priority_class
    }
    if not moved or plan_before is None:
        return []
    steps = reconfiguration(scenario, plan_before, plan, scenario_before)
    if steps is None:
        return None
    rounds: list[list[str]] = []
    of_port: dict[int, int] = {}
    for step in steps:
        if step.before < 0 or step.after < 0:
            continue
        number = of_port.get(step.port, 0)
        of_port[step.port] = number + 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(_copy(scenario, step, after))
    return rounds


def _copy(scenario: Scenario, step: LevelStep, orders: Orders) -> str:
    name = publication_name(*_names_of_publication(scenario, step.publication))
    return copy_name(orders.promised.addresses[name], scenario.ports.name[step.port])


def staged(before: Orders, after: Orders, rounds: Sequence[Sequence[str]] = ()) -> tuple[Orders, ...]:
    """All orders from one to the other, the last of which is `after` but for its generation.

    >>> staged(Orders(4), Orders(5))
    (Orders(generation=5, ...),)
    """
    if before.copies == after.copies and before.limiters == after.limiters:
        return (after,)
    makes_room = _levels(after) >= _levels(before)
    around = after if makes_room else replace(before, promised=after.promised)
    around = replace(around, direct=_in_both(before.direct, after.direct))
    copies = {name: copy for name, copy in before.copies.items() if name in after.copies}
    limiters = {name: limiter for name, limiter in before.limiters.items() if name in after.limiters}
    # What was decided on again, and has another level for that.
    redecided = [name for name, copy in after.copies.items() if name in copies and copies[name] != copy]
    unlimited = [name for name in after.copies if name not in after.limiters]
    stages = [replace(around, copies=copies, limiters=limiters)]
    for names in (*rounds, redecided, unlimited):
        copies = copies | {name: after.copies[name] for name in names}
        stages.append(replace(around, copies=copies, limiters=limiters))
    stages += [replace(around, copies=after.copies, limiters=after.limiters), after]
    found: list[Orders] = []
    last = before
    for each in stages:
        if replace(each, generation=last.generation) != last:
            last = replace(each, generation=before.generation + 1 + len(found))
            found.append(last)
    return tuple(found) or (after,)


def _in_both(before: DirectTopics, after: DirectTopics) -> DirectTopics:
    """No subscriber is left to a route that is gone, or not there yet."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for name, topics in before.items():
        now = after.get(name, {})
        stays = {
            topic: {each: since for each, since in publishers.items() if now[topic].get(each) == since}
            for topic, publishers in topics.items()
            if topic in now
        }
        if stays:
            found[name] = stays
    return found


def _levels(orders: Orders) -> int:
    """How many classes promises use on the wire."""
    return 1 + max((copy.priority_class for copy in orders.copies.values()), default=-1)
