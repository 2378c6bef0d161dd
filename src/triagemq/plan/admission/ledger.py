"""The ledger of promises: what is admitted, and whether one more can be.

One more promise touches the links of its path only. Its latency, less what is fixed, is split over them: in equal
parts, or in proportion to their loads, the split with more room first; and if neither will do, each link gets the
smallest deadline that it can keep, which is also what a refusal offers. Whatever is admitted keeps its deadlines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from triagemq.plan.admission.links import (
    NEARLY,
    LinkArrival,
    LinkFlows,
    Missed,
    least_bound,
    place,
    smallest_deadline,
)
from triagemq.plan.admission.promises import PromiseNetwork, PromisePath, PromiseRequest, round_up
from triagemq.scenario import Floats
from triagemq.theory import path_arrivals


@dataclass(frozen=True, slots=True, eq=False)
class AdmittedPromise:
    """A promise as it was admitted: its path, and per link the deadline and the jitter that were fixed then."""

    request: PromiseRequest
    path: PromisePath
    deadline: Floats
    jitter: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Admitted:
    """A promise that can be made, and the links that change."""

    entry: AdmittedPromise
    links: dict[int, LinkFlows]


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a promise cannot be made, and the smallest max_latency with which it could be now; 0 if with none.

    `too_long_by_seconds`: the path alone takes so much longer than requested.
    """

    reason: str
    missed: Missed | None = None
    offer_seconds: float = 0.0
    too_long_by_seconds: float = 0.0


class Ledger:
    """Admitted promises over one network, in the order of their admission."""

    def __init__(self, network: PromiseNetwork) -> None:
        self.network = network
        self.links: dict[int, LinkFlows] = {}
        self.entries: dict[tuple[int, int], AdmittedPromise] = {}
        self._of: dict[int, list[AdmittedPromise]] = {}

    def admit(self, request: PromiseRequest) -> Admitted | Refused:
        """Decide on one more promise, and keep it if it can be."""
        found = self.decide(request)
        if isinstance(found, Admitted):
            self.links |= found.links
            self.put(found.entry)
        return found

    def put(self, entry: AdmittedPromise) -> None:
        """Enter a promise whose flow is on its links already."""
        self.entries[entry.request.key] = entry
        self._of.setdefault(entry.request.publication, []).append(entry)

    def release(self, keys: Iterable[tuple[int, int]]) -> None:
        """End promises: what no other promise of the publication needs is freed, all others stay where they are."""
        levels: dict[int, dict[int, int]] = {}
        for key in keys:
            gone = self.entries.pop(key)
            self._of[gone.request.publication].remove(gone)
            levels |= {link: self.links[link].levels for link in gone.path.links}
        self.lay(levels)

    def lay(self, levels: Mapping[int, Mapping[int, int]]) -> None:
        """Make the flows of some links again from the promises over them, with these levels by publication."""
        flows = dict.fromkeys(levels, NONE)
        for entry in self.entries.values():
            if flows.keys().isdisjoint(entry.path.links):
                continue
            for link, arrival in zip(entry.path.links, self.arrivals(entry), strict=True):
                if link in flows:
                    flows[link], _ = flows[link].with_flow(entry.request.publication, arrival)
        for link, each in flows.items():
            level = np.array([levels[link][row] for row in each.publication.tolist()], dtype=np.int64)
            bound = each.bounds(self.network.link(link), level)
            self.links[link] = replace(each, level=level, bound=bound)

    def arrivals(self, entry: AdmittedPromise) -> list[LinkArrival]:
        """How a promise's flow comes to its links, with the jitters that were fixed."""
        found = self._arrivals(entry.request, entry.path, entry.deadline)
        return [
            each._replace(jitter=jitter) for each, jitter in zip(found, entry.jitter.tolist(), strict=True)
        ]

    def decide(self, request: PromiseRequest) -> Admitted | Refused:
        """Whether one more promise can be made, with what would change."""
        scenario = self.network.scenario
        subscriber = int(scenario.subscriptions.subscriber[request.subscription])
        impossible = self._impossible()
        if impossible is not None:
            return Refused(impossible)
        first: Refused | None = None
        offers: list[float] = []
        problem = ""
        for path in self.network.paths(request.publisher, subscriber):
            problem = self._no_room(request, path) or ""
            if problem:
                first = first or Refused(problem)
                continue
            found = self._along(request, path, offer=not offers)
            if isinstance(found, Admitted):
                return found
            first = found if first is None or first.missed is None else first
            offers += [found.offer_seconds] if found.offer_seconds > 0 else []
        if first is None:
            switch = scenario.switches.name[int(scenario.publishers.access_switch[request.publisher])]
            name = scenario.subscribers.name[subscriber]
            return Refused(f"no path over ports with priorities leads from switch {switch} to {name}")
        return replace(first, offer_seconds=min(offers, default=0.0))

    def _impossible(self) -> str | None:
        network = self.network
        if network.most_levels < 1:
            ports = network.scenario.ports
            few = int(np.flatnonzero((ports.queues > 0) & (ports.queues < 3))[0])
            return (
                f"port {ports.name[few]} has {ports.queues[few]} queues; promises need 3 at every port: one for "
                "control, one for utility traffic, and their own"
            )
        if not np.isfinite(network.longest_utility_packet):
            return "events of utility traffic have no largest packet; state mtu_bytes and fragmentation"
        return None

    def _no_room(self, request: PromiseRequest, path: PromisePath) -> str | None:
        """What but time a path lacks for a promise."""
        scenario = self.network.scenario
        switches, ports = scenario.switches, scenario.ports
        others = self._of.get(request.publication, [])
        entered = {
            switch: link
            for entry in others
            for switch, link in zip(entry.path.switches, entry.path.links, strict=False)
        }
        for link, switch in zip(path.links, path.switches, strict=False):
            name = switches.name[switch]
            if entered.get(switch, link) != link:
                return f"switch {name} gets the publication by another link already, and would get it twice"
            if switches.packet_bytes[switch] < request.message.packet_bytes:
                return f"switch {name} takes packets of at most {switches.packet_bytes[switch]:.6g} octets"
            if switch not in entered and self._full(ports.switch == switch, switches.rules[switch]):
                return f"switch {name} has no room for another rule than its {switches.rules[switch]:.0f}"
        first = path.switches[0]
        plugged = scenario.publishers.access_switch == first
        access_links = np.append(np.zeros(len(ports), dtype=np.bool_), plugged)
        if not others and self._full(access_links, switches.rate_limiters[first]):
            return f"switch {switches.name[first]} has no rate limiter left of its {switches.rate_limiters[first]:.0f}"
        return None

    def _full(self, links: NDArray[np.bool_], most: float) -> bool:
        """Whether so many publications cross these links; promises of one publication share rules and limiters."""
        if np.isinf(most):
            return False
        used = (self.links.get(link, NONE).publication for link in np.flatnonzero(links).tolist())
        return len({row for rows in used for row in rows.tolist()}) >= most

    def _along(self, request: PromiseRequest, path: PromisePath, *, offer: bool) -> Admitted | Refused:
        """Whether a promise can be made over a path; and what can be offered, if that is not known of another one."""
        budget = request.max_latency_seconds - path.fixed_seconds
        missed: Missed | None = None
        for deadline in self._splits(request, path, budget):
            tried = self._tried(request, path, deadline)
            if isinstance(tried, Admitted):
                return tried
            missed = missed or tried
        if not offer:
            return Refused(self._words(missed) if missed else "the path is too long", missed)
        smallest = self._smallest(request, path)
        if isinstance(smallest, Missed):
            return Refused(self._words(smallest), smallest)
        left = budget - float(smallest.sum())
        if left >= 0.0:
            # Behind the last link, what comes late disturbs no other flow.
            roomy = smallest.copy()
            roomy[-1] += left
            for deadline in (roomy, smallest):
                tried = self._tried(request, path, deadline)
                if isinstance(tried, Admitted):
                    return tried
                missed = missed or tried
        offered = round_up((float(smallest.sum()) + path.fixed_seconds) * NEARLY)
        if missed is None:
            reason = (
                f"the path alone takes {round_up(float(smallest.sum()) + path.fixed_seconds):.4g} s at worst over "
                f"{len(path.links)} links, {request.max_latency_seconds:.6g} s are requested"
            )
            return Refused(reason, None, offered, float(smallest.sum()) - budget)
        return Refused(self._words(missed), missed, offered)

    def _words(self, missed: Missed) -> str:
        scenario = self.network.scenario
        published = scenario.publications
        who = scenario.publishers.name[published.publisher[missed.publication]]
        topic = scenario.topics.name[published.topic[missed.publication]]
        if missed.no_safe_order:
            return f"at {missed.link} no order of changing levels keeps every promise meanwhile"
        if not np.isfinite(missed.bound_seconds):
            return f"{missed.link} cannot carry it: {topic} of {who} would have no bound"
        over = missed.bound_seconds - missed.deadline_seconds
        return (
            f"at {missed.link} {topic} of {who} would take {missed.bound_seconds:.4g} s, {over:.4g} s more than the "
            f"{missed.deadline_seconds:.4g} s it has there"
        )

    def _arrivals(self, request: PromiseRequest, path: PromisePath, deadline: Floats) -> list[LinkArrival]:
        """How the flow comes to each link, if it keeps these deadlines."""
        links = [self.network.link(link) for link in path.links]
        rate = np.array([link.bytes_per_second for link in links])
        transmission, packet = request.message.wire_bytes / rate, request.message.packet_bytes / rate
        finite = np.where(np.isfinite(deadline), deadline, 0.0)
        came = path_arrivals(transmission, packet, finite)
        # A message may be shorter than the largest one, and every packet of it as quick as an empty one. A switch may
        # be quicker than it is built for: to others that is jitter. To the flow itself it does no harm (a packet that
        # is there earlier is never sent later), so its own packets count as apart as they left the link before.
        quicker = np.cumsum(packet - self.network.scenario.overhead_bytes / rate + path.multiplexing_seconds)
        jitter = came.jitter + np.append(0.0, quicker[:-1])
        bucket = self.network.has_buckets(path.switches[0])
        jitter[1:] += sum(self.network.limiter_jitter(request, path.switches[0]))
        if bucket:
            # What it lets through need not come in messages: behind a port any packet may be quick, or late.
            quick = self.network.scenario.overhead_bytes / rate[1:-1]
            jitter[2:] = jitter[1] + np.cumsum(finite[1:-1] - quick + path.multiplexing_seconds[1:-1])
        return [
            LinkArrival(*values)
            for values in zip(
                transmission.tolist(),
                [request.separation_seconds] * len(links),
                jitter.tolist(),
                packet.tolist(),
                came.spread.tolist(),
                deadline.tolist(),
                # The limiter stands behind the access link.
                [False, *[bucket] * (len(links) - 1)],
                [False, *[bucket] * (len(links) - 2), False],
                strict=True,
            )
        ]

    def _splits(self, request: PromiseRequest, path: PromisePath, budget: float) -> list[Floats]:
        """Deadlines by equal parts and by load, those with more room first; none if there is nothing to split.

        Where the publication crosses a link already it keeps the deadline that it has there.
        """
        scenario = self.network.scenario
        alone = self._arrivals(request, path, np.full(len(path.links), np.inf))
        needed, load, queued = np.zeros(len(alone)), np.zeros(len(alone)), np.zeros(len(alone))
        shared = np.zeros(len(alone), dtype=np.bool_)
        for hop, (link, arrival) in enumerate(zip(path.links, alone, strict=True)):
            flows = self.links.get(link, NONE)
            row = flows.row(request.publication)
            if row >= 0:
                shared[hop], needed[hop] = True, flows.deadline[row]
                continue
            needed[hop] = least_bound(self.network.link(link), flows, arrival._replace(jitter=0.0)) * NEARLY
            load[hop] = flows.load + arrival.transmission / arrival.separation
            queued[hop] = flows.transmission.sum()
        slack = budget - float(needed.sum())
        if slack < 0.0 or not np.isfinite(slack):
            return []
        if shared.all():
            return [needed]
        equal = np.where(shared, 0.0, 1.0)
        if (scenario.publications.publisher == request.publisher).sum() == 1:
            # Nothing else ever waits on this access link.
            equal[0], load[0] = 0.0, 0.0
        if not equal.any():
            equal[-1], load[-1] = 1.0, 1.0
        splits = [needed + slack * weight / weight.sum() for weight in (equal, load)]
        return sorted(splits, key=lambda split: -float((split / (needed + queued))[equal > 0].min()))

    def _smallest(self, request: PromiseRequest, path: PromisePath) -> Floats | Missed:
        """The smallest deadline that each link can keep, one after the other."""
        deadline = np.zeros(len(path.links))
        for hop, link in enumerate(path.links):
            arrival = self._arrivals(request, path, deadline)[hop]
            flows = self.links.get(link, NONE)
            found = smallest_deadline(self.network.link(link), flows, request.publication, arrival)
            if isinstance(found, Missed):
                return found
            deadline[hop] = found
        return deadline

    def _tried(self, request: PromiseRequest, path: PromisePath, deadline: Floats) -> Admitted | Missed:
        """Place the flow on every link of a path with these deadlines."""
        arrivals = self._arrivals(request, path, deadline)
        changed: dict[int, LinkFlows] = {}
        for link, arrival in zip(path.links, arrivals, strict=True):
            flows = self.links.get(link, NONE)
            row = flows.row(request.publication)
            if (
                row >= 0
                and flows.deadline[row] <= arrival.deadline
                and flows.jitter[row] >= arrival.jitter
                and flows.passing[row] >= arrival.passing
            ):
                continue
            among, new = flows.with_flow(request.publication, arrival)
            placed = place(self.network.link(link), among, new)
            if isinstance(placed, Missed):
                return placed
            changed[link] = placed
        jitter = np.array([arrival.jitter for arrival in arrivals])
        return Admitted(AdmittedPromise(request, path, deadline, jitter), changed)


NONE = LinkFlows.none()
