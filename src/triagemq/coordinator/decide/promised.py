"""Promises between plans and orders: what is kept of them over a restart, and what they are on the wire.

One multicast address is a topic's for as long as something of it is promised; each publication of it has a UDP port of
its own there, because every publisher has its own limiter and its own level at a port.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np

from triagemq.coordinator.decide.orders import AdmittedHop, AdmittedPromise, DirectTopics, Orders, Promised
from triagemq.errors import PlanError
from triagemq.plan import FlowKey, Plan, PlannerChoice, SetFlow, SetLimiter
from triagemq.plan.admission import (
    LevelStep,
    PromiseNetwork,
    PromiseRequest,
    ledger_of,
    promise_request,
    reconfiguration,
)
from triagemq.plan.instructions import difference
from triagemq.plan.model import Flows, PortLoads, PromisedHops, Promises, nothing
from triagemq.scenario import Scenario
from triagemq.scenario.model import filled

_NO_CHOICE = PlannerChoice("", "", "", "", 0, 1, 1, 0.0)


@dataclass(frozen=True, slots=True)
class MulticastRange:
    """The addresses that topics with promises get, from `first` on, and the UDP port of a topic's first publication.

    Those of the default lie in the range that organisations give to themselves (RFC 2365), and the port is none that
    the kernel hands out.
    """

    first: str = "239.192.0.0"
    addresses: int = 65_536
    udp_port: int = 17_000

    def number(self, address: str) -> int:
        return int(ipaddress.IPv4Address(address)) - int(ipaddress.IPv4Address(self.first))

    def address(self, number: int) -> str:
        return str(ipaddress.IPv4Address(self.first) + number)

    def free(self, taken: Iterable[str]) -> str:
        """An address behind the last that is taken: what was given back is not given to the next one at once.

        >>> MulticastRange(addresses=3).free(["239.192.0.0", "239.192.0.2"])
        '239.192.0.1'
        """
        used = {self.number(address) for address in taken}
        last = max(used, default=-1)
        for step in range(1, self.addresses + 1):
            number = (last + step) % self.addresses
            if number not in used:
                return self.address(number)
        raise PlanError(
            f"all {self.addresses} multicast addresses from {self.first} on are given to topics with promises; "
            "give the coordinator more (multicast_addresses)"
        )


DEFAULT_RANGE = MulticastRange()


def publication_name(publisher: str, topic: str) -> str:
    """Names hold no spaces, topics may."""
    return f"{publisher} {topic}"


def promise_name(publisher: str, topic: str, subscriber: str) -> str:
    return f"{subscriber} {publisher} {topic}"


def copy_name(key: FlowKey, port: str) -> str:
    return f"{key} {port}"


# From a plan to orders.


@dataclass(frozen=True, slots=True)
class PromiseOrders:
    """What a plan's promises are in orders; `next_number` is that of the next flow which is new."""

    promised: Promised
    copies: Mapping[str, SetFlow[FlowKey]]
    limiters: Mapping[str, SetLimiter]
    direct: DirectTopics
    next_number: int

    def same_as(self, orders: Orders) -> bool:
        return (self.promised, self.copies, self.limiters, self.direct) == (
            orders.promised,
            orders.copies,
            orders.limiters,
            orders.direct,
        )


def promise_orders(
    scenario: Scenario,
    plan: Plan,
    before: Orders,
    multicast: MulticastRange,
    next_number: int,
    listening: Mapping[str, Collection[str]],
    sources: Mapping[str, str],
) -> PromiseOrders:
    """What a plan's promises mean for the wire; addresses and numbers of flows stay what they were."""
    admitted = np.flatnonzero(plan.promises.admitted).tolist()
    if not admitted:
        return PromiseOrders(Promised(), {}, {}, {}, next_number)
    network, ports = PromiseNetwork(scenario), scenario.ports.name
    kept: dict[str, AdmittedPromise] = {}
    publications: dict[int, tuple[str, str]] = {}
    copied: dict[int, dict[str, int]] = {}
    entered: dict[int, dict[str, None]] = {}
    for row in admitted:
        publication, subscription = int(plan.promises.publication[row]), int(plan.promises.subscription[row])
        publisher, topic, subscriber = names_of(scenario, publication, subscription)
        publications[publication] = publisher, topic
        rows = plan.hops_of(row)
        path = plan.hops.port[rows].tolist()
        hops = tuple(
            AdmittedHop("" if port < 0 else ports[port], level, deadline, jitter)
            for port, level, deadline, jitter in zip(
                path,
                plan.hops.level[rows].tolist(),
                plan.hops.deadline_seconds[rows].tolist(),
                plan.hops.jitter_seconds[rows].tolist(),
                strict=True,
            )
        )
        name = promise_name(publisher, topic, subscriber)
        was = before.promised.promises.get(name)
        # Which deadlines there are follows from all that they were proven on. If it did not, the promise would be
        # decided on again after a restart, and no more.
        proven_on = (
            was.proven_on
            if was is not None and _deadlines(was.hops) == _deadlines(hops)
            else _proof(network, publication, subscription, path[1:])
        )
        kept[name] = AdmittedPromise(
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
    addresses = _addresses(publications.values(), before.promised.addresses, multicast)
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
    promised = Promised(kept, addresses)
    return PromiseOrders(promised, copies, limiters, _direct(promised, listening, before), next_number)


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


def _deadlines(hops: Sequence[AdmittedHop]) -> list[tuple[str, float, float]]:
    return [(hop.port, hop.deadline_seconds, hop.jitter_seconds) for hop in hops]


def names_of(scenario: Scenario, publication: int, subscription: int) -> tuple[str, str, str]:
    published, wanted = scenario.publications, scenario.subscriptions
    return (
        scenario.publishers.name[published.publisher[publication]],
        scenario.topics.name[published.topic[publication]],
        scenario.subscribers.name[wanted.subscriber[subscription]],
    )


def _addresses(
    publications: Iterable[tuple[str, str]], before: Mapping[str, FlowKey], multicast: MulticastRange
) -> dict[str, FlowKey]:
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
            of_topic[topic] = multicast.free(taken)
            taken.add(of_topic[topic])
        used = used_ports.setdefault(topic, set())
        udp_port = next(port for port in range(multicast.udp_port, 65_536) if port not in used)
        used.add(udp_port)
        found[name] = FlowKey(of_topic[topic], udp_port)
    return found


def _proof(network: PromiseNetwork, publication: int, subscription: int, path: Sequence[int]) -> str:
    """A mark of all that a promise was proven on but the other promises: it changes when its proof does not hold."""
    scenario = network.scenario
    wish = promise_request(scenario, publication, subscription)
    if not isinstance(wish, PromiseRequest):
        return ""
    way = network.path_over(tuple(path), wish.publisher, int(scenario.subscriptions.subscriber[subscription]))
    links = [network.link(link) for link in way.links]
    facts = wish.message, wish.separation_seconds, way.multiplexing_seconds.tolist(), way.fixed_seconds, links
    return blake2b(repr(facts).encode(), digest_size=8).hexdigest()


def promised_anew(orders_before: Orders, orders_after: Orders) -> list[str]:
    """The subscribers of promises that are new, gone, or on another way or address."""
    before, after = orders_before.promised, orders_after.promised
    changed = list(difference(orders_before.direct, orders_after.direct))
    for name in {**before.promises, **after.promises}:
        old, new = before.promises.get(name), after.promises.get(name)
        one = old or new
        if one is None:
            continue
        key = publication_name(one.publisher, one.topic)
        if (
            old is None
            or new is None
            or old.hops != new.hops
            or before.addresses.get(key) != after.addresses.get(key)
        ):
            changed.append(one.subscriber)
    return changed


# From orders to the plan before, after a restart.


def restored(scenario: Scenario, orders: Orders) -> Plan | None:
    """A plan that holds nothing but what was promised, in the order of admission and with the levels of the wire.

    What had not been laid to its end, when the coordinator stopped, was never promised to anybody: it is decided on
    like any other. What has other terms or links now is decided on again, before anything new.
    """
    publications = {_names_of_publication(scenario, row): row for row in range(len(scenario.publications))}
    subscriptions = _subscription_rows(scenario) if orders.promised.promises else {}
    ports = {name: number for number, name in enumerate(scenario.ports.name)}
    network = PromiseNetwork(scenario)
    rows: list[tuple[int, int, AdmittedPromise, list[int], list[int]]] = []
    for kept in orders.promised.promises.values():
        publication = publications.get((kept.publisher, kept.topic))
        subscription = subscriptions.get((kept.subscriber, kept.topic))
        key = orders.promised.addresses.get(publication_name(kept.publisher, kept.topic))
        if publication is None or subscription is None or key is None:
            continue
        copies = [orders.copies.get(copy_name(key, hop.port)) for hop in kept.hops[1:]]
        levels = [copy.priority_class for copy in copies if copy is not None]
        if len(levels) < len(copies):
            continue
        path = [ports.get(hop.port, -1) for hop in kept.hops[1:]]
        if min(path) < 0 or _proof(network, publication, subscription, path) != kept.proven_on:
            path = [-1] * len(path)
        rows.append((publication, subscription, kept, [-1, *path], [kept.hops[0].level, *levels]))
    if not rows:
        return None
    bounds = [np.array([hop.deadline_seconds for hop in kept.hops]) for _, _, kept, _, _ in rows]
    ledger = ledger_of(scenario, _plan_of(scenario, rows, bounds))
    at_links = ledger.recomputed()
    for number, (publication, subscription, _, _, _) in enumerate(rows):
        entry = ledger.entries.get((publication, subscription))
        if entry is not None:
            bounds[number] = np.array(
                [at_links[link][ledger.links[link].row(publication)] for link in entry.path.links]
            )
    return _plan_of(scenario, rows, bounds)


def _plan_of(
    scenario: Scenario,
    rows: Sequence[tuple[int, int, AdmittedPromise, list[int], list[int]]],
    bounds: Sequence[np.ndarray[tuple[int], np.dtype[np.float64]]],
) -> Plan:
    lengths = np.array([len(path) for _, _, _, path, _ in rows])
    hops = [hop for _, _, kept, _, _ in rows for hop in kept.hops]
    return Plan(
        scenario_fingerprint=scenario.fingerprint,
        made_by=_NO_CHOICE,
        flow=np.full(len(scenario.subscriptions), -1, dtype=np.int32),
        rank=np.full(len(scenario.subscriptions), np.nan),
        flows=nothing(Flows),
        ports=PortLoads(np.zeros(len(scenario.ports)), np.zeros(len(scenario.ports))),
        promises=filled(
            Promises,
            len(rows),
            publication=[publication for publication, _, _, _, _ in rows],
            subscription=[subscription for _, subscription, _, _, _ in rows],
            admitted=1,
            bound_seconds=[kept.bound_seconds for _, _, kept, _, _ in rows],
            max_latency_seconds=[kept.max_latency_seconds for _, _, kept, _, _ in rows],
            offer_seconds=0.0,
            missed_publication=-1,
            missed_by_seconds=0.0,
            first_hop=np.cumsum(lengths) - lengths,
            hop_count=lengths,
        ),
        hops=filled(
            PromisedHops,
            len(hops),
            port=[port for _, _, _, path, _ in rows for port in path],
            level=[level for _, _, _, _, levels in rows for level in levels],
            deadline_seconds=[hop.deadline_seconds for hop in hops],
            bound_seconds=np.concatenate(list(bounds)),
            jitter_seconds=[hop.jitter_seconds for hop in hops],
        ),
    )


def _names_of_publication(scenario: Scenario, row: int) -> tuple[str, str]:
    published = scenario.publications
    return scenario.publishers.name[published.publisher[row]], scenario.topics.name[published.topic[row]]


def _subscription_rows(scenario: Scenario) -> dict[tuple[str, str], int]:
    """Guaranteed subscriptions by the names of subscriber and topic."""
    wanted = scenario.subscriptions
    return {
        (scenario.subscribers.name[wanted.subscriber[row]], scenario.topics.name[wanted.topic[row]]): row
        for row in np.flatnonzero(wanted.guaranteed).tolist()
    }


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
    published = scenario.publications
    publisher = scenario.publishers.name[published.publisher[step.publication]]
    topic = scenario.topics.name[published.topic[step.publication]]
    key = orders.promised.addresses[publication_name(publisher, topic)]
    return copy_name(key, scenario.ports.name[step.port])


def staged(before: Orders, after: Orders, rounds: Sequence[Sequence[str]] = ()) -> tuple[Orders, ...]:
    """All orders from one to the other, the last of which is `after` but for its generation.

    >>> staged(Orders(4), Orders(5))
    (Orders(generation=5, ...),)
    """
    if before.copies == after.copies and before.limiters == after.limiters:
        return (after,)
    makes_room = _levels(after) >= _levels(before)
    around = after if makes_room else replace(before, promised=after.promised)
    copies = {name: copy for name, copy in before.copies.items() if name in after.copies}
    limiters = {name: limiter for name, limiter in before.limiters.items() if name in after.limiters}
    around = replace(around, direct=_in_both(before.direct, after.direct))
    stages = [replace(around, copies=dict(copies), limiters=limiters)]

    def stage(names: Iterable[str], limited: Mapping[str, object] = {}) -> None:
        copies.update((name, after.copies[name]) for name in names)
        kept = after.limiters if limited else limiters
        stages.append(replace(around, copies=dict(copies), limiters=kept))

    for names in rounds:
        stage(names)
    # What was decided on again, and has another level for that.
    stage(name for name, copy in after.copies.items() if name in copies and copies[name] != copy)
    stage(name for name in after.copies if name not in after.limiters)
    stage(after.copies, after.limiters)
    stages.append(after)
    told: list[Orders] = []
    last = replace(before, generation=0)
    for each in stages:
        if replace(each, generation=0) != last:
            told.append(replace(each, generation=before.generation + 1 + len(told)))
            last = replace(each, generation=0)
    return tuple(told) or (after,)


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
