"""Guaranteed subscribers join and leave a network of real packets: is every admitted message on time?

`triage emulate` runs two switches with four promised topics and utility traffic beside them. Visitors join and leave;
some ask for less than is possible, are refused, and ask again for what they were offered. A message is late beyond its
bound and the p99.9 of an idle port, measured in the same run. Utility traffic stands beside its forecast. It needs
root, and a machine that has little else to do.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from measuring import finish, machine, options
from triagemq.client.coordinator import Coordinator, Promise
from triagemq.coordinator.decide.decide import PlannerSettings, Question, decide
from triagemq.errors import CoordinatorError
from triagemq.forecast import forecast
from triagemq.lab.emulate.boxed import BoxedExchange, BoxedOptions
from triagemq.lab.emulate.run import EmulationResult, as_long_as_packets, run_emulation
from triagemq.lab.emulate.wire import wire_bytes
from triagemq.lab.recordings import recorded_at_hosts
from triagemq.live.figures import copies_in, of_scenario
from triagemq.live.rig import KERNEL_CLASSES
from triagemq.live.up.run import as_sent
from triagemq.scenario import loads
from triagemq.trace import Trace

SECONDS, EVENTS = 60.0, 200
QUICK_SECONDS, QUICK_EVENTS = 15.0, 30
PORTS, VISITORS, PORT_BPS = 4, 20, 1e6
UTILITY = ("alarms", "pictures")
TOO_LITTLE_SECONDS, ENOUGH_SECONDS = 0.02, 0.2
MOST_SUCCESS_OFF, MOST_LATENCY_OFF = 0.02, 0.1
DECIDED_SECONDS = 30.0
WATCH_SECONDS = 0.25
LITTLE_SHARE, TOGETHER = 0.15, 8
"""So many ask at a time, unless one may be refused and then wants what it is offered."""
LAST_SHARE = 0.9
"""Of the time, in which all that joins and leaves begins to."""


def network(absent: Collection[str] = ()) -> dict[str, Any]:
    """Each port has a desk with a promise of its own for the whole time, visitors, and a screen for utility traffic."""
    promised = {f"vital-{number}": 0.04 + 0.01 * number for number in range(PORTS)}
    desks = {
        f"desk-{number}": {
            "port": f"port-{number}",
            "subscribes": {f"vital-{number}": {"max_latency_seconds": ENOUGH_SECONDS, "guaranteed": True}},
        }
        for number in range(PORTS)
    }
    visitors = {
        f"visitor-{number}": {
            "port": f"port-{number % PORTS}",
            "subscribes": {
                f"vital-{number // PORTS % PORTS}": {
                    "max_latency_seconds": ENOUGH_SECONDS,
                    "guaranteed": True,
                }
            },
        }
        for number in range(VISITORS)
        if f"visitor-{number}" not in absent
    }
    screens = {
        f"screen-{number}": {
            "port": f"port-{number}",
            "subscribes": {"alarms": "log:10", "pictures": "log:1"},
        }
        for number in range(PORTS)
    }
    return {
        "name": "Visitors",
        "overhead_bytes": 102,
        "mtu_bytes": 1500,
        "fragmentation": True,
        "planning": {"flows_per_subscriber": 2, "priority_classes": 4},
        "brokers": {"hall": {}},
        "switches": {"ward": {"model": "linux-htb"}, "floor": {"model": "linux-htb"}},
        "ports": {
            "over": {"switch": "ward", "bandwidth_bps": "4 Mbit/s", "to": "floor"},
            **{
                f"port-{number}": {"switch": "floor", "bandwidth_bps": PORT_BPS, "buffer_packets": 1000}
                for number in range(PORTS)
            },
        },
        "publishers": {
            **{
                f"sensor-{number}": {
                    "access": "ward",
                    "access_bps": "4 Mbit/s",
                    "publishes": {
                        topic: {
                            "min_separation_seconds": separation,
                            "max_size_bytes": 200,
                            "size_bytes": 200,
                            "sizes": "constant",
                        }
                    },
                }
                for number, (topic, separation) in enumerate(promised.items())
            },
            "building": {
                "publishes": {
                    "alarms": {"rate_per_second": 40, "size_bytes": 200, "sizes": "constant"},
                    "pictures": {"rate_per_second": 100, "size_bytes": 600, "sizes": "constant"},
                }
            },
        },
        "subscribers": desks | visitors | screens,
    }


class Visits:
    """Who is there, and what was decided about those who came."""

    def __init__(self, seconds: float, events: int) -> None:
        self._seconds, self._events = seconds, events
        self._random = np.random.default_rng(16)
        self._here = {f"visitor-{number}": True for number in range(VISITORS)}
        self._busy: set[str] = set()
        self._asking, self._waiting = asyncio.Semaphore(TOGETHER), asyncio.Lock()
        self.done = 0
        self.counted: Counter[str] = Counter()
        self.problems: list[str] = []
        self.crossing: Counter[tuple[str, frozenset[str]]] = Counter()
        """How often it was seen that promised messages of some topics, and no others, crossed a port."""

    async def _watch(self, rig: BoxedExchange) -> None:
        assert rig.follower is not None
        published, topics = rig.scenario.publications.topic, rig.scenario.topics.name
        while True:
            topic = {
                each.promise.address: topics[published[each.promise.publication]]
                for each in rig.promised.intervals
            }
            found: dict[str, set[str]] = {f"port-{number}": set() for number in range(PORTS)}
            for copy in rig.follower.orders.copies.values():
                if copy.port in found and str(copy.key) in topic:
                    found[copy.port].add(topic[str(copy.key)])
            self.crossing.update((port, frozenset(there)) for port, there in found.items())
            await asyncio.sleep(WATCH_SECONDS)

    async def run(self, rig: BoxedExchange) -> None:
        began, steps = time.monotonic(), []
        watching = asyncio.create_task(self._watch(rig))
        coordinator = Coordinator(rig.rest)
        try:
            for number in range(self._events):
                due = began + LAST_SHARE * self._seconds * number / self._events
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                free = sorted(self._here.keys() - self._busy)
                if not free:
                    self.counted["nobody was free"] += 1
                    continue
                name = str(self._random.choice(free))
                self._busy.add(name)
                steps.append(asyncio.create_task(self._step(rig, coordinator, name)))
            await asyncio.gather(*steps)
        finally:
            watching.cancel()
            await coordinator.close()

    async def _step(self, rig: BoxedExchange, coordinator: Coordinator, name: str) -> None:
        if self._here[name]:
            async with self._asking:
                await self._leave(rig, name)
        else:
            little = self._random.random() < LITTLE_SHARE
            async with self._alone() if little else self._asking:
                await self._join(rig, coordinator, name, TOO_LITTLE_SECONDS if little else ENOUGH_SECONDS)
            await rig.promised.update()
        self._here[name] = not self._here[name]
        self._busy.discard(name)
        self.done += 1

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """While nobody else asks or leaves: what is offered can be had until somebody else gets a promise, or ends one
        whose way it could have shared."""
        async with self._waiting, AsyncExitStack() as all_places:
            for _ in range(TOGETHER):
                await all_places.enter_async_context(self._asking)
            yield

    async def _leave(self, rig: BoxedExchange, name: str) -> None:
        """Until the coordinator knows: who comes back at once would find its old promise."""
        rig.notify_clients("subscribers", name=name, there=False)
        self.counted["left"] += 1
        deadline = time.monotonic() + DECIDED_SECONDS
        while time.monotonic() < deadline:
            if not await rig.promised.are_there(name):
                return
            await asyncio.sleep(0.05)
        self.problems.append(f"{name} has left, and is still promised something")

    async def _join(
        self, rig: BoxedExchange, coordinator: Coordinator, name: str, latency_seconds: float
    ) -> None:
        self.counted["asked"] += 1
        decided = await self._ask(rig, coordinator, name, latency_seconds)
        if decided is not None and not decided.admitted:
            self.counted["refused"] += 1
            if decided.offer_seconds is None:
                self.problems.append(f"{name} was refused and offered nothing: {decided.reason}")
                return
            decided = await self._ask(rig, coordinator, name, decided.offer_seconds)
            if decided is not None and not decided.admitted:
                self.problems.append(f"{name} was not admitted with what it was offered: {decided.reason}")
        if decided is None:
            self.problems.append(f"nothing was decided about {name}")
        elif decided.admitted:
            self.counted["admitted"] += 1

    async def _ask(
        self, rig: BoxedExchange, coordinator: Coordinator, name: str, latency_seconds: float
    ) -> Promise | None:
        """What is decided about a visitor that asks for this."""
        topic = f"vital-{int(name.rpartition('-')[2]) // PORTS % PORTS}"
        rig.notify_clients("subscribers", name=name, there=True, max_latency_seconds={topic: latency_seconds})
        deadline = time.monotonic() + DECIDED_SECONDS
        while time.monotonic() < deadline:
            try:
                for each in await coordinator.promises(name, wait_seconds=1.0):
                    if each.topic == topic and np.isclose(each.max_latency_seconds, latency_seconds):
                        return each
            except CoordinatorError:
                # It has not come yet.
                pass
            await asyncio.sleep(0.05)
        return None


def main() -> None:
    arguments = options(__doc__).parse_args()
    seconds, events = (QUICK_SECONDS, QUICK_EVENTS) if arguments.quick else (SECONDS, EVENTS)
    visits = Visits(seconds, events)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "visitors.yaml"
        file.write_text(yaml.safe_dump(network(), sort_keys=False))
        result = asyncio.run(
            run_emulation(
                BoxedOptions(scenario=file, state=Path(folder) / "state"),
                seconds=seconds,
                ended=asyncio.Event(),
                meanwhile=visits.run,
                compared=False,
            )
        )
        found = figures(result, visits, seconds, events)
    finish(found, described(found), as_json=arguments.json)
    if not found["holds"]:
        sys.exit("not everything is as it should be")


def figures(result: EmulationResult, visits: Visits, seconds: float, events: int) -> dict[str, Any]:
    rows = result.promise_rows
    sums = {
        name: sum(row[name] for row in rows) for name in ("messages", "delivered", "late", "limited", "lost")
    }
    used = [
        row["worst_latency_seconds"] / row["bound_seconds"] for row in rows if row["worst_latency_seconds"]
    ]
    forecast = forecast_of(visits.crossing)
    utility: list[dict[str, Any]] = [
        {"topic": topic, **measured_of(result, topic), **forecast[topic]} for topic in UTILITY
    ]
    near = all(
        abs(row["success_rate"] - row["forecast_success_rate"]) <= MOST_SUCCESS_OFF
        and abs(row["mean_latency_seconds"] / row["forecast_latency_seconds"] - 1) <= MOST_LATENCY_OFF
        for row in utility
    )
    kept = sums["messages"] == sums["delivered"] > 0 and sums["late"] == 0
    return {
        "machine": machine("triagemq"),
        "seconds": seconds,
        "visits": dict(visits.counted),
        "events_done": visits.done,
        "problems": visits.problems,
        "promises": len(rows),
        **sums,
        "worst_share_of_bound": max(used, default=0.0),
        **result.promised.as_json(),
        "utility": utility,
        "promises_kept": kept,
        "utility_near_forecast": near,
        "holds": kept and near and not visits.problems and visits.done == events,
    }


def measured_of(result: EmulationResult, topic: str) -> dict[str, float]:
    """Success and mean latency of what goes through the broker, from when events reach the network; what hosts take
    before that is beside it."""
    scenario, from_ns = result.scenario, result.measured.measured_from_ns
    row = scenario.topics.name.index(topic)
    published = recorded_at_hosts(result.trace, scenario, from_ns)
    mine = scenario.publications.topic[published["publication"]] == row
    hosts = float((published["under_way_ns"] - published["published_ns"])[mine].mean() * 1e-9)
    copies = Trace.open(result.trace).table("deliveries")
    subscription, published_ns, delivered, latency_ns = copies_in(of_scenario(copies, scenario))
    mine = (scenario.subscriptions.topic[subscription] == row) & (published_ns >= from_ns)
    size = int(scenario.publications.size_bytes[scenario.publications.topic == row][0])
    # Ports send packets at the start of their transmission.
    on_the_wire = float(wire_bytes(np.array([size]))[0]) * 8 / PORT_BPS
    return {
        "success_rate": float(delivered[mine].mean()),
        "mean_latency_seconds": float(latency_ns[mine & delivered].mean() * 1e-9) - hosts + on_the_wire,
        "host_seconds": hosts,
    }


def forecast_of(crossing: Counter[tuple[str, frozenset[str]]]) -> dict[str, dict[str, float]]:
    """Success and mean latency of each topic that goes through the broker, as the mean of what is forecast with the
    promised topics that crossed each port each time; of events that take what their real packets do."""
    known: dict[tuple[str, frozenset[str]], dict[str, tuple[float, float]]] = {}
    others = PORTS - 1
    for number in range(1 << others):
        here = [
            {port} | {(port + 1 + other) % PORTS for other in range(others) if number >> other & 1}
            for port in range(PORTS)
        ]
        absent = [
            f"visitor-{visitor}"
            for visitor in range(VISITORS)
            if visitor // PORTS % PORTS not in here[visitor % PORTS]
        ]
        for port, figures in enumerate(forecast_with(absent)):
            known[f"port-{port}", frozenset(f"vital-{each}" for each in here[port])] = figures
    seen = {key: times for key, times in crossing.items() if key in known}
    return {
        topic: {
            f"forecast_{name}": sum(times * known[key][topic][place] for key, times in seen.items())
            / sum(seen.values())
            for place, name in enumerate(("success_rate", "latency_seconds"))
        }
        for topic in UTILITY
    }


def forecast_with(absent: Collection[str]) -> list[dict[str, tuple[float, float]]]:
    """Success and mean latency by port and topic."""
    stated = loads(yaml.safe_dump(network(absent), sort_keys=False))
    brokered = stated.publishers.name.index("building") == stated.publications.publisher
    size = stated.publications.size_bytes
    real = as_long_as_packets(stated, size.astype(np.int64))
    scenario = stated.with_tables(
        publications=replace(stated.publications, size_bytes=np.where(brokered, real, size))
    )
    plan = decide(Question(scenario, settings=PlannerSettings(priority_classes=KERNEL_CLASSES))).plan
    predicted, wanted = forecast(*as_sent(scenario, plan)), scenario.subscriptions
    found: list[dict[str, tuple[float, float]]] = []
    for port in range(PORTS):
        screen = wanted.subscriber == scenario.subscribers.name.index(f"screen-{port}")
        found.append({})
        for topic in UTILITY:
            (row,) = np.flatnonzero(screen & (wanted.topic == scenario.topics.name.index(topic)))
            found[-1][topic] = float(predicted.success[row]), float(predicted.latency_seconds[row])
    return found


def described(found: dict[str, Any]) -> list[str]:
    idle = found["idle_port"]["p99_9_seconds"]
    lines = [
        f"{found['seconds']:g} s, {found['events_done']} joins and leaves: "
        + ", ".join(f"{count} {what}" for what, count in found["visits"].items()),
        f"{found['messages']:,} promised messages to {found['promises']} subscriptions: {found['late']} late, "
        f"{found['limited']} limited, {found['lost']} lost; the worst took "
        f"{100 * found['worst_share_of_bound']:.0f} % of its bound",
        f"p99.9 of an idle port: {1e3 * (idle or 0):.2f} ms",
    ]
    lines += [
        f"{row['topic']}: success {row['success_rate']:.3f}, forecast {row['forecast_success_rate']:.3f}; mean latency "
        f"{1e3 * row['mean_latency_seconds']:.2f} ms, forecast {1e3 * row['forecast_latency_seconds']:.2f} ms; hosts "
        f"before the network {1e3 * row['host_seconds']:.2f} ms"
        for row in found["utility"]
    ]
    return [*lines, *found["problems"]]


if __name__ == "__main__":
    main()
