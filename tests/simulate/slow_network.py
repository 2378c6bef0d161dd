"""A slow, obvious simulator of whole networks: one list of events, one object per queue."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import defaultdict, deque
from dataclasses import replace
from typing import Any

import numpy as np

from triagemq.scenario import SendingOrder, broker_routes, port_paths
from triagemq.simulate import random as draws
from triagemq.simulate.random import Purpose, exponential, seeds_for, uniform
from triagemq.trace import Outcome


def split(seed: np.uint64, part: int) -> np.uint64:
    return np.uint64(draws.split(seed, part))


class EventList:
    """What happens next: departures from ports before arrivals at the same instant, ties by the given key."""

    def __init__(self) -> None:
        self._heap: list[Any] = []
        self._sequence = itertools.count()

    def at(self, time: float, key: tuple[int, ...], action: Any) -> None:
        heapq.heappush(self._heap, (time, key, next(self._sequence), action))

    def run(self) -> None:
        while self._heap:
            time, _, _, action = heapq.heappop(self._heap)
            action(time)


def with_terms(scenario: Any, seed: int) -> Any:
    """Thinned, superseded and expiring subscriptions, alone and together."""
    draw, wanted = np.random.default_rng(seed + 5), scenario.subscriptions
    rows = len(wanted)
    return scenario.with_tables(
        subscriptions=replace(
            wanted,
            max_rate_per_second=draw.choice([np.inf, 3.0, 10.0, 40.0], rows),
            newest_only=draw.integers(0, 2, rows).astype(np.int8),
            expires_seconds=draw.choice([np.inf, 0.02, 0.1, 0.5], rows),
        )
    )


TERMS = {Outcome.thinned, Outcome.superseded, Outcome.expired}


class Fifo:
    """A first-in-first-out server; customers say how long they take (a list of services) and what to do then."""

    def __init__(self, events: EventList) -> None:
        self.events, self.queue, self.busy = events, deque(), False

    def arrive(self, time: float, services: list[float], then: Any) -> None:
        self.queue.append((services, then))
        if not self.busy:
            self._next(time)

    def _next(self, time: float) -> None:
        self.busy = bool(self.queue)
        if self.queue:
            services, then = self.queue.popleft()
            for service in services:
                time += service
            self.events.at(time, (0,), lambda now: (self._next(now), then(now)))


class Port:
    """Strict priority over plain lists."""

    def __init__(self, network: Any, number: int) -> None:
        self.network, self.number = network, number
        self.sending = False
        self.queues: dict[int, list[Any]] = defaultdict(list)

    def arrive(self, time: float, packet: dict[str, Any]) -> None:
        waiting = sum(map(len, self.queues.values()))
        if not self.sending:
            self._send_unless_old(time, packet)
            return
        if self._took_a_place(time, packet, self.queues[packet["class"]]):
            return
        if waiting + 1 >= self.network.scenario.ports.buffer_packets[self.number]:
            lowest = max((c for c, queue in self.queues.items() if queue), default=-1)
            if lowest <= packet["class"]:
                self.network.end_packet(packet, Outcome.dropped_by_buffer, time)
                return
            self.network.end_packet(self.queues[lowest].pop(), Outcome.dropped_by_buffer, time)
        self.queues[packet["class"]].append(packet)

    def _took_a_place(self, time: float, packet: dict[str, Any], queue: list[Any]) -> bool:
        """Whether it is the newest that counts, and an older event of the subscription waited in the queue."""
        copy = packet.get("copy")
        if copy is None or copy["event"]["packets"] > 1:
            return False
        if not self.network.scenario.subscriptions.newest_only[copy["row"]]:
            return False
        for place, other in enumerate(queue):
            before = other.get("copy")
            if before is not None and before["row"] == copy["row"] and before["event"]["packets"] == 1:
                queue[place] = packet
                self.network.end_packet(other, Outcome.superseded, time)
                return True
        return False

    def _send_unless_old(self, time: float, packet: dict[str, Any]) -> bool:
        copy = packet.get("copy")
        most = self.network.scenario.subscriptions.expires_seconds[copy["row"]] if copy else math.inf
        if copy and time - copy["event"]["published_ns"] * 1e-9 > most:
            self.network.end_packet(packet, Outcome.expired, time)
            return False
        self._send(time, packet)
        return True

    def _send(self, time: float, packet: dict[str, Any]) -> None:
        self.sending = True
        bandwidth = self.network.bandwidth_at(time)[self.number]
        finished = time + packet["bytes"] * (8 / bandwidth)
        self.network.events.at(finished, (0,), lambda now: self._sent(now, packet))

    def _sent(self, time: float, packet: dict[str, Any]) -> None:
        self.sending = False
        while waiting := [c for c, queue in sorted(self.queues.items()) if queue]:
            if self._send_unless_old(time, self.queues[waiting[0]].pop(0)):
                break
        self.network.leave_port(time, self.number, packet)


class Network:
    """The path of PrioDeX Fig. 3, written for the reader."""

    def __init__(self, scenario: Any, plan: Any, changes: Any, replay: Any, seed: int, ends: float) -> None:
        self.scenario, self.events, self.ends = scenario, EventList(), ends
        self.seeds = seeds_for(seed, 0)
        self.changes = sorted(changes, key=lambda change: change.at_seconds)
        self.plan = plan
        self.routes = broker_routes(scenario)
        self.unmanaged = [Fifo(self.events) for _ in scenario.unmanaged_switches.name]
        self.inbound = [Fifo(self.events) for _ in scenario.brokers.name]
        self.links = [Fifo(self.events) for _ in range(len(scenario.broker_links))]
        self.outbound = [Fifo(self.events) for _ in scenario.subscribers.name]
        self.lookup = [Fifo(self.events) for _ in scenario.switches.name]
        self.ports = [Port(self, number) for number in range(len(scenario.ports))]
        self.paths = [[int(port) for port in row if port >= 0] for row in port_paths(scenario)]
        self.ended: dict[tuple[int, int], tuple[int, ...]] = {}
        self.held: dict[int, dict[str, Any]] = {}
        self.opens: dict[int, float] = defaultdict(float)
        for number in range(len(replay["published_ns"])):
            event = {
                "number": number,
                "published_ns": int(replay["published_ns"][number]),
                "publication": int(replay["publication"][number]),
                "size": float(replay["size_bytes"][number]),
            }
            payload = scenario.mtu_bytes - scenario.overhead_bytes
            event["packets"] = max(1, math.ceil(event["size"] / payload))
            event["wire"] = event["size"] + event["packets"] * scenario.overhead_bytes
            time = event["published_ns"] * 1e-9
            if time < ends:
                self.events.at(time, (9, number), lambda now, event=event: self.publish(now, event))

    # What is in force at a time.

    def _in_force(self, time: float, name: str, start: Any) -> Any:
        for change in self.changes:
            if change.at_seconds <= time and getattr(change, name) is not None:
                start = getattr(change, name)
        return start

    def plan_at(self, time: float) -> Any:
        return self._in_force(time, "plan", self.plan)

    def active_at(self, time: float) -> Any:
        return self._in_force(time, "active_subscriptions", np.ones(len(self.scenario.subscriptions), bool))

    def bandwidth_at(self, time: float) -> Any:
        return self._in_force(time, "bandwidth_bps", self.scenario.ports.bandwidth_bps)

    def error_at(self, time: float, of: str, row: int) -> float:
        declared = getattr(self.scenario, f"{of}s").error_rate
        return float(self._in_force(time, f"{of}_error", declared)[row])

    # Above the home broker.

    def publish(self, time: float, event: dict[str, Any]) -> None:
        publisher = int(self.scenario.publications.publisher[event["publication"]])
        event["topic"] = int(self.scenario.publications.topic[event["publication"]])
        switch = int(self.scenario.publishers.unmanaged_switch[publisher])
        if switch < 0:
            self.leave_publisher(time, event, publisher)
        else:
            service = event["wire"] * (8 / self.scenario.unmanaged_switches.bandwidth_bps[switch])
            self.unmanaged[switch].arrive(
                time, [service], lambda now: self.leave_publisher(now, event, publisher)
            )

    def leave_publisher(self, time: float, event: dict[str, Any], publisher: int) -> None:
        error = self.error_at(time, "publisher", publisher)
        everyone = set(range(len(self.scenario.brokers)))
        if self.event_lost(error, event, Purpose.PUBLISHER_LINK, event["number"]):
            self.lose(time, event, everyone, Outcome.lost_on_link)
            return
        home = int(self.scenario.publishers.broker[publisher])
        arrival = time + self.scenario.publishers.propagation_seconds[publisher]
        self.to_broker(arrival, event, home, home)

    def to_broker(self, time: float, event: dict[str, Any], broker: int, source: int) -> None:
        number = event["number"] * len(self.scenario.brokers) + broker
        service = 1 / self.scenario.brokers.inbound_rate_per_second[broker]
        service = service * exponential(self.seeds[Purpose.BROKER_INBOUND], number) if service else 0.0
        self.events.at(
            time,
            (3, event["number"], broker),
            lambda now: self.inbound[broker].arrive(
                now, [service], lambda done: self.matched(done, event, broker, source)
            ),
        )

    def matched(self, time: float, event: dict[str, Any], broker: int, source: int) -> None:
        scenario, table = self.scenario, self.scenario.broker_links
        targets = self.brokers_of(event["topic"])
        if broker == source:
            lost = {b for b in targets if b != source and self.routes.next_link[source, b] < 0}
            self.lose(time, event, lost, Outcome.lost_on_link)
        behind: dict[int, set[int]] = defaultdict(set)
        for target in targets - {source}:
            if self.routes.next_link[source, target] >= 0:
                here = source
                for link in self.routes.path(source, target, table.target_broker):
                    if here == broker:
                        behind[link].add(target)
                    here = int(table.target_broker[link])
        for link, ahead in sorted(behind.items()):
            service = event["wire"] * (8 / table.bandwidth_bps[link])
            self.links[link].arrive(
                time,
                [service],
                lambda now, link=link, ahead=ahead: self.leave_link(now, event, link, ahead, source),
            )
        if broker in targets:
            self.fan_out(time, event, broker, scenario)

    def leave_link(self, time: float, event: dict[str, Any], link: int, ahead: set[int], source: int) -> None:
        table = self.scenario.broker_links
        number = event["number"] * len(table) + link
        if self.event_lost(table.error_rate[link], event, Purpose.BROKER_LINK, number):
            self.lose(time, event, ahead, Outcome.lost_on_link)
        else:
            arrival = time + table.propagation_seconds[link]
            self.to_broker(arrival, event, int(table.target_broker[link]), source)

    def event_lost(self, error: float, event: dict[str, Any], purpose: Purpose, number: int) -> bool:
        kept = 1 - error if event["packets"] == 1 else (1 - error) ** event["packets"]
        return error > 0 and uniform(self.seeds[purpose], number) > kept

    def brokers_of(self, topic: int) -> set[int]:
        rows = np.flatnonzero(self.scenario.subscriptions.topic == topic)
        return {
            int(self.scenario.subscribers.broker[self.scenario.subscriptions.subscriber[row]]) for row in rows
        }

    def subscriptions_of(self, topic: int, brokers: set[int]) -> list[int]:
        wanted, table = self.scenario.subscriptions, self.scenario.subscribers
        return [
            row
            for row in range(len(wanted))
            if wanted.topic[row] == topic and int(table.broker[wanted.subscriber[row]]) in brokers
        ]

    def lose(self, time: float, event: dict[str, Any], brokers: set[int], outcome: Outcome) -> None:
        for row in self.subscriptions_of(event["topic"], brokers):
            at_first = self.active_at(event["published_ns"] * 1e-9)[row]
            if self.active_at(min(time, self.ends))[row] or (time > self.ends and at_first):
                self.end_copy(event, row, outcome, time)

    # Below the home broker.

    def fan_out(self, time: float, event: dict[str, Any], broker: int, scenario: Any) -> None:
        if time > self.ends:
            self.lose(time, event, {broker}, Outcome.in_flight)
            return
        rows = self.subscriptions_of(event["topic"], {broker})
        by_class = scenario.sending_order is SendingOrder.BY_CLASS
        for row in rows:
            if not self.active_at(time)[row]:
                if self.active_at(event["published_ns"] * 1e-9)[row]:
                    self.end_copy(event, row, Outcome.subscriber_gone, time)
                continue
            copy = {
                "event": event,
                "row": row,
                "counter": event["number"] * len(scenario.subscriptions) + row,
                "rank": 0,
            }
            service = 1 / scenario.brokers.outbound_rate_per_second[broker]
            if by_class or not service:
                copy["rank"] = int(draws.bits(self.seeds[Purpose.SENDING_ORDER], copy["counter"])) >> 40
            if by_class:
                # Class first, chance within it; the first row's outbound time is everybody's.
                copy["rank"] += int(self.plan_at(time).subscription_class[row]) << 24
            if service:
                whose = event["number"] * len(scenario.subscriptions) + (rows[0] if by_class else row)
                service *= exponential(self.seeds[Purpose.BROKER_OUTBOUND], whose)
            subscriber = int(scenario.subscriptions.subscriber[row])
            self.outbound[subscriber].arrive(
                time,
                [service],
                lambda now, copy=copy: self.events.at(
                    now,
                    (5, copy["event"]["number"], copy["rank"], copy["row"]),
                    lambda then: self.thin(then, copy),
                ),
            )

    def thin(self, time: float, copy: dict[str, Any]) -> None:
        """A copy passes if the time since the last one is long enough; else it waits for that, unless a newer comes."""
        row = copy["row"]
        seconds = 1 / self.scenario.subscriptions.max_rate_per_second[row]
        if seconds > 0 and time < self.opens[row]:
            if row in self.held:
                self.end_copy(self.held[row]["event"], row, Outcome.thinned, time)
            self.held[row] = copy
            key = (5, copy["event"]["number"], copy["rank"], row)
            self.events.at(self.opens[row], key, lambda now: self.pass_if_newest(now, copy))
            return
        if seconds > 0:
            self.opens[row] = time + seconds
        self.to_switch(time, copy, list(range(copy["event"]["packets"])), 0)

    def pass_if_newest(self, time: float, copy: dict[str, Any]) -> None:
        if self.held.get(copy["row"]) is copy:
            del self.held[copy["row"]]
            self.thin(time, copy)

    def port_of(self, row: int, hop: int) -> int:
        subscriber = self.scenario.subscriptions.subscriber[row]
        return self.paths[int(self.scenario.subscribers.port[subscriber])][hop]

    def to_switch(self, time: float, copy: dict[str, Any], fragments: list[int], hop: int) -> None:
        port = self.port_of(copy["row"], hop)
        switch = int(self.scenario.ports.switch[port])
        mean = 1 / self.scenario.switches.inbound_rate_per_second[switch]
        seed = split(self.seeds[Purpose.SWITCH_INBOUND], hop)
        services = [
            mean * exponential(split(seed, fragment), copy["counter"]) if mean else 0.0
            for fragment in fragments
        ]
        plan = self.plan_at(time)
        # What is looked up after the end of the run is never seen.
        if hop == 0 or time < self.ends:
            copy["shown"] = int(plan.subscription_class[copy["row"]])
        rules = int(plan.subscription_class[copy["row"]]), 1 - plan.subscription_keep[copy["row"]]
        self.lookup[switch].arrive(
            time, services, lambda now: self.to_port(now, copy, fragments, hop, port, *rules)
        )

    def to_port(
        self,
        time: float,
        copy: dict[str, Any],
        fragments: list[int],
        hop: int,
        port: int,
        priority: int,
        drop: float,
    ) -> None:
        event = copy["event"]
        if hop == 0:
            copy["class"] = priority
            if drop > 0 and uniform(self.seeds[Purpose.DROP], copy["counter"]) <= drop:
                self.end_copy(event, copy["row"], Outcome.dropped_by_policy, time, priority)
                return
            copy.update(enqueued=time, left=len(fragments), outcomes=[], dequeued=[], delivered=[])
        payload = self.scenario.mtu_bytes - self.scenario.overhead_bytes
        for fragment in fragments:
            last = fragment == event["packets"] - 1
            data = (
                event["size"] - fragment * payload
                if last and fragment
                else event["size"]
                if last
                else payload
            )
            packet = {"copy": copy, "fragment": fragment, "hop": hop, "class": priority}
            packet["bytes"] = data + self.scenario.overhead_bytes
            self.ports[port].arrive(time, packet)

    def leave_port(self, time: float, port: int, packet: dict[str, Any]) -> None:
        copy, fragment, hop = packet["copy"], packet["fragment"], packet["hop"]
        subscriber = int(self.scenario.subscriptions.subscriber[copy["row"]])
        if hop + 1 < len(self.paths[int(self.scenario.subscribers.port[subscriber])]):
            seed = split(split(self.seeds[Purpose.PORT_LINK], hop), fragment)
            error = self.error_at(time, "port", port)
            if error > 0 and uniform(seed, copy["counter"]) <= error:
                self.end_packet(packet, Outcome.lost_on_link, time, time)
                return
            arrival = time + self.scenario.ports.propagation_seconds[port]
            key = (5, copy["event"]["number"], copy["row"], fragment)
            self.events.at(arrival, key, lambda now: self.to_switch(now, copy, [fragment], hop + 1))
            return
        arrival = time + self.scenario.subscribers.propagation_seconds[subscriber]
        error = self.error_at(time, "subscriber", subscriber)
        seed = split(self.seeds[Purpose.SUBSCRIBER_LINK], fragment)
        if error > 0 and uniform(seed, copy["counter"]) <= error:
            outcome = Outcome.lost_on_link
        elif not self.active_at(arrival)[copy["row"]]:
            outcome = Outcome.subscriber_gone
        else:
            outcome = Outcome.delivered
        self.end_packet(packet, outcome, arrival, time)

    def end_packet(
        self, packet: dict[str, Any], outcome: Outcome, time: float, dequeued: float | None = None
    ) -> None:
        copy = packet["copy"]
        copy["left"] -= 1
        copy["outcomes"].append(outcome if time <= self.ends else Outcome.in_flight)
        copy["delivered"].append(self.ns(time))
        copy["dequeued"].append(self.ns(dequeued) if dequeued is not None and dequeued <= self.ends else -1)
        if copy["left"] == 0:
            losses = [each for each in copy["outcomes"] if each != Outcome.delivered]
            final = min(losses, default=Outcome.delivered)
            delivered = max(copy["delivered"]) if final == Outcome.delivered else -1
            enqueued = self.ns(copy["enqueued"]) if copy["enqueued"] <= self.ends else -1
            times = (enqueued, max(copy["dequeued"]), delivered)
            event = copy["event"]
            priority = copy["class"] if event["packets"] > 1 else copy["shown"]
            self.ended[event["number"], copy["row"]] = (int(final), priority, *times)

    def end_copy(
        self, event: dict[str, Any], row: int, outcome: Outcome, time: float, priority: int | None = None
    ) -> None:
        if priority is None:
            priority = int(self.plan_at(min(time, self.ends)).subscription_class[row])
        if time > self.ends:
            outcome = Outcome.in_flight
        assert (event["number"], row) not in self.ended
        self.ended[event["number"], row] = (int(outcome), priority, -1, -1, -1)

    @staticmethod
    def ns(time: float) -> int:
        return int(time * 1e9 + 0.5)
