"""The slow network with direct routes, fair ports and ports with queue rates: written for the reader, with nothing of
the engine's layout."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import numpy as np
from tests.simulate.slow_network import Network, Port, split

from triagemq.scenario import Discipline
from triagemq.simulate import DirectRoutes
from triagemq.simulate.random import Purpose, uniform
from triagemq.trace import Outcome


class FairPort(Port):
    """Flow after flow, a packet each; when the buffer is full, the newest packet of the longest queue is dropped."""

    def arrive(self, time: float, packet: dict[str, Any]) -> None:
        if not self.sending:
            self._send_unless_old(time, packet)
            return
        flow = self.network.flow_of(packet)
        if self._took_a_place(time, packet, self.queues.get(flow, [])):
            return
        if sum(map(len, self.queues.values())) + 1 >= self.network.scenario.ports.buffer_packets[self.number]:
            longest = max(self.queues, key=lambda each: len(self.queues[each]), default=flow)
            own = len(self.queues.get(flow, ())) + 1
            dropped = packet if own >= len(self.queues.get(longest, ())) else self.queues[longest].pop()
            self.network.end_packet(dropped, Outcome.dropped_by_buffer, time)
            if dropped is packet:
                return
        # A dictionary keeps its order: the first key is whose turn it is.
        self.queues[flow].append(packet)

    def _sent(self, time: float, packet: dict[str, Any]) -> None:
        self.sending = False
        while self.queues:
            flow = next(iter(self.queues))
            waiting = self.queues.pop(flow)
            following = waiting.pop(0)
            if waiting:
                self.queues[flow] = waiting
            if self._send_unless_old(time, following):
                break
        self.network.leave_port(time, self.number, packet)


class WidthsPort(Port):
    """A queue, a buffer and a width for each class. Each sends by itself; or, where they borrow, the port sends the
    packet that would be done first if each sent at its width, counted from the packet that was sent last."""

    def __init__(self, network: Any, number: int) -> None:
        super().__init__(network, number)
        self.borrows = bool(network.scenario.ports.borrowing[number])
        self.sent_tag, self.tags = 0.0, defaultdict(float)
        self.on_wire: set[int] = set()

    def arrive(self, time: float, packet: dict[str, Any]) -> None:
        level = packet["class"]
        waiting = self.queues[level]
        if not self.on_wire if self.borrows else level not in self.on_wire:
            self._tag(time, packet)
            self._send_unless_old(time, packet)
        elif self._took_a_place(time, packet, waiting):
            return
        elif (
            len(waiting) + (level in self.on_wire) >= self.network.scenario.ports.buffer_packets[self.number]
        ):
            self.network.end_packet(packet, Outcome.dropped_by_buffer, time)
        else:
            waiting.append(packet)
            if len(waiting) == 1:
                self._tag(time, packet)

    def _tag(self, time: float, packet: dict[str, Any]) -> None:
        level = packet["class"]
        seconds = packet["bytes"] * (8 / self.network.queue_rates_at(time)[self.number][level])
        self.tags[level] = max(self.sent_tag, self.tags[level]) + seconds

    def _send(self, time: float, packet: dict[str, Any]) -> None:
        level = packet["class"]
        self.on_wire.add(level)
        self.sent_tag = self.tags[level]
        rates = (
            self.network.bandwidth_at(time) if self.borrows else self.network.queue_rates_at(time)[:, level]
        )
        finished = time + packet["bytes"] * (8 / rates[self.number])
        self.network.events.at(finished, (0,), lambda now: self._sent(now, packet))

    def _sent(self, time: float, packet: dict[str, Any]) -> None:
        self.on_wire.discard(packet["class"])
        while waiting := sorted(
            level
            for level, queue in self.queues.items()
            if queue and (self.borrows or level == packet["class"])
        ):
            level = min(waiting, key=lambda each: self.tags[each])
            self.sent_tag = self.tags[level]
            sent = self._send_unless_old(time, self.queues[level].pop(0))
            if self.queues[level]:
                self._tag(time, self.queues[level][0])
            if sent:
                break
        self.network.leave_port(time, self.number, packet)


PORTS = {Discipline.PRIORITY: Port, Discipline.FAIR: FairPort, Discipline.QUEUE_RATES: WidthsPort}


class AccessLink(Port):
    """Strict priority without a limit, at the publisher's rate."""

    def arrive(self, time: float, packet: dict[str, Any]) -> None:
        if self.sending:
            self.queues[packet["class"]].append(packet)
        else:
            self._send(time, packet)

    def _send(self, time: float, packet: dict[str, Any]) -> None:
        self.sending = True
        finished = time + packet["bytes"] * (8 / self.network.scenario.publishers.access_bps[self.number])
        self.network.events.at(finished, (0,), lambda now: self._sent(now, packet))

    def _sent(self, time: float, packet: dict[str, Any]) -> None:
        self.sending = False
        waiting = [c for c, queue in sorted(self.queues.items()) if queue]
        if waiting:
            self._send(time, self.queues[waiting[0]].pop(0))
        self.network.leave_access(time, packet)


class PromisingNetwork(Network):
    def __init__(self, scenario: Any, plan: Any, routes: DirectRoutes, *rest: Any) -> None:
        super().__init__(scenario, plan, *rest)
        self.routes = defaultdict(list)
        for route in routes.routes:
            self.routes[route.publication].append(route)
        self.direct = {route.subscription for route in routes.routes}
        self.limits = routes.limits
        self.buckets = {row: (limit.burst_bytes, 0.0) for row, limit in routes.limits.items()}
        self.access = [AccessLink(self, row) for row in range(len(scenario.publishers))]
        self.ports = [
            PORTS[Discipline(kind)](self, number) for number, kind in enumerate(scenario.ports.discipline)
        ]

    def active_at(self, time: float) -> Any:
        there = np.array(super().active_at(time), dtype=bool)
        there[list(self.direct)] = False
        return there

    def queue_rates_at(self, time: float) -> Any:
        lists = self.scenario.ports.queue_rates_bps
        first = np.full((len(lists), max(map(len, lists))), np.nan)
        for row, queue_rates in enumerate(lists):
            first[row, : len(queue_rates)] = queue_rates
        return self._in_force(time, "width_bps", first)

    def flow_of(self, packet: dict[str, Any]) -> tuple[str, int]:
        if "message" in packet:
            return "publication", packet["message"]["publication"]
        return "flow", int(self.plan.flow[packet["copy"]["row"]])

    def publish(self, time: float, event: dict[str, Any]) -> None:
        routes = self.routes[event["publication"]]
        topic = self.scenario.publications.topic[event["publication"]]
        others = set(np.flatnonzero(self.scenario.subscriptions.topic == topic)) - self.direct
        if routes:
            self.set_out(time, event, routes)
        if others or not routes:
            super().publish(time, event)

    def set_out(self, time: float, event: dict[str, Any], routes: list[Any]) -> None:
        scenario = self.scenario
        publisher = int(scenario.publications.publisher[event["publication"]])
        switches = [int(scenario.publishers.access_switch[publisher])]
        switches += [int(scenario.ports.switch[port]) for route in routes for port in route.ports]
        payload = min(scenario.switches.packet_bytes[switches]) - scenario.overhead_bytes
        count = max(1, math.ceil(event["size"] / payload))
        message = {**event, "enqueued": None, "left": {route.subscription: count for route in routes}}
        message["ends"] = {route.subscription: [] for route in routes}
        for fragment in range(count):
            data = min(payload, event["size"] - fragment * payload)
            packet = {"message": message, "fragment": fragment, "routes": routes, "hop": -1}
            packet |= {
                "bytes": data + scenario.overhead_bytes,
                "class": min(route.access_level for route in routes),
            }
            self.access[publisher].arrive(time, packet)

    def leave_access(self, time: float, packet: dict[str, Any]) -> None:
        message = packet["message"]
        row = message["publication"]
        publisher = int(self.scenario.publications.publisher[row])
        seed = split(self.seeds[Purpose.PUBLISHER_LINK], packet["fragment"] + 1)
        error = self.error_at(time, "publisher", publisher)
        if error > 0 and uniform(seed, message["number"]) <= error:
            self.end_direct(packet, packet["routes"], Outcome.lost_on_link, time)
            return
        if row in self.limits:
            limit = self.limits[row]
            tokens, since = self.buckets[row]
            tokens = min(limit.burst_bytes, tokens + (time - since) * limit.rate_bytes_per_second)
            if tokens < packet["bytes"]:
                self.buckets[row] = tokens, time
                self.end_direct(packet, packet["routes"], Outcome.limited, time)
                return
            self.buckets[row] = tokens - packet["bytes"], time
        switch = int(self.scenario.publishers.access_switch[publisher])
        arrival = time + (
            self.scenario.publishers.propagation_seconds[publisher]
            + self.scenario.switches.multiplexing_seconds[switch]
        )
        self.go_on(arrival, packet, packet["routes"], 0)

    def go_on(self, time: float, packet: dict[str, Any], routes: list[Any], hop: int) -> None:
        branches = defaultdict(list)
        for route in routes:
            branches[route.ports[hop]].append(route)
        for port, behind in sorted(branches.items()):
            level = min(route.levels[hop] for route in behind)
            each = {**packet, "routes": behind, "hop": hop, "class": level}
            key = (2, packet["message"]["number"], port, packet["fragment"])
            self.events.at(time, key, lambda now, port=port, each=each: self.come(now, port, each))

    def come(self, time: float, port: int, packet: dict[str, Any]) -> None:
        message = packet["message"]
        if message["enqueued"] is None:
            message["enqueued"] = time
        self.ports[port].arrive(time, packet)

    def leave_port(self, time: float, port: int, packet: dict[str, Any]) -> None:
        if "message" not in packet:
            super().leave_port(time, port, packet)
            return
        hop, message, scenario = packet["hop"], packet["message"], self.scenario
        for route in packet["routes"]:
            if len(route.ports) == hop + 1:
                subscriber = int(scenario.subscriptions.subscriber[route.subscription])
                arrival = time + scenario.subscribers.propagation_seconds[subscriber]
                seed = split(self.seeds[Purpose.SUBSCRIBER_LINK], packet["fragment"])
                error = self.error_at(time, "subscriber", subscriber)
                counter = message["number"] * len(scenario.subscriptions) + route.subscription
                lost = error > 0 and uniform(seed, counter) <= error
                outcome = Outcome.lost_on_link if lost else Outcome.delivered
                self.end_direct(packet, [route], outcome, arrival, time)
        onward = [route for route in packet["routes"] if len(route.ports) > hop + 1]
        if onward:
            switch = int(scenario.ports.switch[onward[0].ports[hop + 1]])
            arrival = time + (
                scenario.ports.propagation_seconds[port] + scenario.switches.multiplexing_seconds[switch]
            )
            self.go_on(arrival, packet, onward, hop + 1)

    def end_packet(
        self, packet: dict[str, Any], outcome: Outcome, time: float, dequeued: float | None = None
    ) -> None:
        if "message" in packet:
            self.end_direct(packet, packet["routes"], outcome, time, dequeued)
        else:
            super().end_packet(packet, outcome, time, dequeued)

    def end_direct(
        self,
        packet: dict[str, Any],
        routes: list[Any],
        outcome: Outcome,
        time: float,
        dequeued: float | None = None,
    ) -> None:
        message = packet["message"]
        for route in routes:
            row = route.subscription
            left = self.ns(dequeued) if dequeued is not None and dequeued <= self.ends else -1
            final = outcome if time <= self.ends else Outcome.in_flight
            message["ends"][row].append((int(final), left, self.ns(time)))
            message["left"][row] -= 1
            if message["left"][row] == 0:
                ends = message["ends"][row]
                worst = min((each for each, _, _ in ends if each != Outcome.delivered), default=0)
                delivered = max(each for _, _, each in ends) if worst == Outcome.delivered else -1
                enqueued = message["enqueued"]
                begun = self.ns(enqueued) if enqueued is not None and enqueued < self.ends else -1
                times = (begun, max(each for _, each, _ in ends), delivered)
                self.ended[message["number"], row] = (worst, route.levels[-1], *times)
