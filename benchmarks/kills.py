"""kill -9 of each process of an exchange at the building fire: acknowledged events arrive, or are dropped on purpose.

Every copy of every acknowledged event is looked for: at its subscriber, else in the Trace as dropped by policy. The
second run has ample ports and no drops: there nothing may be missing. Recovery is from the kill until everything is
well and an event that was published since has arrived.

The third run is the campus of three gateways and brokers, with ample ports: each process is killed, two gateways are
kept down until their clients have gone elsewhere, and at the end subscribers leave their sessions behind, everything is
backed up, and they get from the copy what was published meanwhile. At QoS 2 no event may come twice in any run.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import statistics
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from measuring import finish, machine, options
from triagemq.client import Event, Publisher, Subscriber, SubscriptionIntent, Utility
from triagemq.client.settings import ConnectionSettings
from triagemq.errors import ClientError
from triagemq.live.up.exchange import Exchange, ExchangeOptions
from triagemq.live.up.state import back_up
from triagemq.mqttsn.timestamps import PREFIX_BYTES, stamp_payload
from triagemq.scenario import Scenario, load
from triagemq.simulate.source import PublicationStream
from triagemq.trace import Outcome, Trace, runs

EXAMPLES = Path(__file__).parents[1] / "examples"
BUILDING_FIRE, CAMPUS = EXAMPLES / "building-fire.yaml", EXAMPLES / "campus.yaml"
VICTIMS = ("gateway", "broker", "coordinator", "all")
CAMPUS_BROKERS = ("hall", "labs", "library")
"""The first one's processes are just "gateway" and "broker"; publishers are at the library's."""
FAILOVER = "failover of "
CAMPUS_VICTIMS = (
    "gateway-labs",
    "broker-labs",
    f"{FAILOVER}gateway-library",
    "gateway",
    "broker",
    f"{FAILOVER}gateway",
    "coordinator",
    "all",
)
DOWN_SECONDS = 6.0
"""So long a gateway is kept down for its clients to go elsewhere."""
LEFT_BEHIND = 100
"""Events that are published while all subscribers are away."""
AGAIN_AND_AGAIN = "is started again and again"
AMPLE_FACTOR = 100
SETTLING_SECONDS = 2.0
BETWEEN_SECONDS = 1.0
LONG_SECONDS = 60.0
QUIET_SECONDS = 12.0
POLL_SECONDS = 0.02
# A lost answer is asked for again soon, so that recovery is the exchange's and not the client's patience.
QUICK_TO_ASK = ConnectionSettings(retry_seconds=1.0, ping_seconds=1.0)


class Fire:
    """The scenario's clients: what they published and got acknowledged, and what arrived where."""

    def __init__(self, running: Exchange, scenario: Scenario, qos: int) -> None:
        self.running, self.scenario, self.qos = running, scenario, qos
        self.acknowledged: dict[int, str] = {}
        self.received: dict[str, Counter[int]] = {name: Counter() for name in scenario.subscribers.name}
        self.latest_received = 0
        self.published = 0
        self._last_stamp = 0
        self._subscribers: list[Subscriber] = []
        self._publishers: list[Publisher] = []
        self._unanswered: set[asyncio.Task[None]] = set()

    async def begin(self, stack: AsyncExitStack) -> None:
        await self.subscribe(stack)
        table = self.scenario.publications
        for number, name in enumerate(self.scenario.publishers.name):
            publisher = Publisher(self.running.rest, name=name, keep_session=True, settings=QUICK_TO_ASK)
            self._publishers.append(await stack.enter_async_context(publisher))
            rows = [row for row in range(len(table)) if table.publisher[row] == number]
            await publisher.declare(
                {
                    self.scenario.topics.name[int(table.topic[row])]: (
                        float(table.rate_per_second[row]),
                        float(table.size_bytes[row]),
                    )
                    for row in rows
                }
            )

    async def subscribe(self, stack: AsyncExitStack) -> None:
        """Have all subscribers, for the first time or again."""
        self._subscribers.clear()
        for name, wanted in self.wanted().items():
            subscriber = Subscriber(
                self.running.rest,
                name=name,
                keep_session=True,
                on_event=lambda event, name=name: self._arrived(name, event),  # type: ignore[misc]
                settings=QUICK_TO_ASK,
            )
            self._subscribers.append(await stack.enter_async_context(subscriber))
            await subscriber.subscribe_all(wanted)

    async def leave_behind(self) -> None:
        """Publish for subscribers that are away, with their sessions stored."""
        await asyncio.gather(*(each.close() for each in self._subscribers))
        table = self.scenario.publications
        for number in range(LEFT_BEHIND):
            row = number % len(table)
            topic = self.scenario.topics.name[int(table.topic[row])]
            await self._publish(int(table.publisher[row]), topic, float(table.size_bytes[row]))

    @property
    def moves(self) -> int:
        return sum(each.moves for each in self._subscribers) + sum(each.moves for each in self._publishers)

    def wanted(self) -> dict[str, list[SubscriptionIntent]]:
        table = self.scenario.subscriptions
        found: dict[str, list[SubscriptionIntent]] = {name: [] for name in self.scenario.subscribers.name}
        for row in range(len(table)):
            found[self.scenario.subscribers.name[int(table.subscriber[row])]].append(
                SubscriptionIntent(
                    self.scenario.topics.name[int(table.topic[row])],
                    Utility("log", float(table.utility_weight[row])),
                    qos=self.qos,
                )
            )
        return found

    async def burn(self, ended: asyncio.Event) -> None:
        """Publish at the scenario's full rate until `ended`, and wait for the last acknowledgement."""
        stream = PublicationStream(self.scenario, seed=1)
        table, begun, until = self.scenario.publications, time.monotonic(), 0.0
        while not ended.is_set():
            until += 0.25
            for due_ns, row, size in stream.until(until).tolist():
                await asyncio.sleep(max(0.0, begun + due_ns * 1e-9 - time.monotonic()))
                topic = self.scenario.topics.name[int(table.topic[row])]
                task = asyncio.create_task(self._publish(int(table.publisher[row]), topic, size))
                self._unanswered.add(task)
                task.add_done_callback(self._unanswered.discard)
        async with asyncio.timeout(LONG_SECONDS):
            await asyncio.gather(*self._unanswered)

    async def _publish(self, publisher: int, topic: str, size: float) -> None:
        stamp = self._last_stamp = max(time.time_ns(), self._last_stamp + 1)
        payload = stamp_payload(bytes(max(0, round(size) - PREFIX_BYTES)), stamp)
        self.published += 1
        try:
            await self._publishers[publisher].publish(topic, payload, qos=self.qos)
        except ClientError:
            return
        self.acknowledged[stamp] = topic

    def _arrived(self, name: str, event: Event) -> None:
        stamp = event.published_ns or 0
        self.received[name][stamp] += 1
        self.latest_received = max(self.latest_received, stamp)

    def missing(self) -> set[tuple[str, int]]:
        """Copies of acknowledged events that their subscribers have not got."""
        subscribers_of: dict[str, list[str]] = {}
        for name, wanted in self.wanted().items():
            for one in wanted:
                subscribers_of.setdefault(str(one.topic), []).append(name)
        return {
            (name, stamp)
            for stamp, topic in self.acknowledged.items()
            for name in subscribers_of.get(topic, ())
            if stamp not in self.received[name]
        }

    @property
    def repeated(self) -> int:
        return sum(count - 1 for counts in self.received.values() for count in counts.values())


async def until(what: Callable[[], Awaitable[bool]], seconds: float = LONG_SECONDS) -> float:
    begun = time.monotonic()
    while not await what():
        if time.monotonic() - begun > seconds:
            raise SystemExit(f"waited {seconds:.0f} s in vain")
        await asyncio.sleep(POLL_SECONDS)
    return time.monotonic() - begun


async def is_well(running: Exchange) -> bool:
    def ask() -> bool:
        try:
            with urllib.request.urlopen(f"{running.rest}/v1/health", timeout=LONG_SECONDS) as answer:
                status = str(json.load(answer)["status"])
                # That a gateway was killed again and again is true, and no news here.
                return all(each == "ok" or each.endswith(AGAIN_AND_AGAIN) for each in status.split("; "))
        except (OSError, urllib.error.HTTPError):
            return False

    return await asyncio.to_thread(ask)


async def kill(running: Exchange, victim: str, fire: Fire) -> float:
    """Kill it, or all at once, or keep it down; the seconds until all is well again."""
    clients = ("publishers", "subscribers")
    name = victim.removeprefix(FAILOVER)
    names = [each for each in running.pids if each not in clients] if name == "all" else [name]
    pids = {each: running.pids[each] for each in names}
    begun, begun_ns = time.monotonic(), time.time_ns()
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    while victim != name and time.monotonic() - begun < DOWN_SECONDS:
        if (next_pid := running.pids.get(name, pids[name])) != pids[name]:
            pids[name] = next_pid
            with contextlib.suppress(ProcessLookupError):
                os.kill(next_pid, signal.SIGKILL)
        await asyncio.sleep(POLL_SECONDS)

    async def recovered() -> bool:
        back = all(running.pids.get(each) not in (None, pid) for each, pid in pids.items())
        return back and fire.latest_received > begun_ns and await is_well(running)

    await until(recovered)
    return time.monotonic() - begun


def outcomes(directory: Path, scenario: Scenario) -> dict[tuple[str, int], str]:
    """What the Trace says of every copy, all runs together; the last word counts."""
    found: dict[tuple[str, int], str] = {}
    seen = runs(directory)
    for path in (*seen.complete, *seen.incomplete):
        rows = Trace.open(path, allow_incomplete=True).table(
            "deliveries", columns=["subscriber_id", "published_ns", "outcome"]
        )
        for row in rows.to_pylist():
            copy = (scenario.subscribers.name[row["subscriber_id"]], row["published_ns"])
            if found.get(copy) != Outcome.dropped_by_policy.name:
                found[copy] = row["outcome"]
    return found


async def scene(
    qos: int, rounds: int, *, ample: bool, campus: bool = False, victims: Sequence[str] = ()
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        document = yaml.safe_load((CAMPUS if campus else BUILDING_FIRE).read_text())
        if ample:
            for port in document["ports"].values():
                port["bandwidth_bps"] = AMPLE_FACTOR * float(port["bandwidth_bps"])
        if campus:
            del document["conditions"]
        path = Path(directory) / "fire.yaml"
        path.write_text(yaml.safe_dump(document, sort_keys=False))
        scenario = load(path)
        chosen = ExchangeOptions(
            state=Path(directory) / "state",
            scenario=path,
            qos=qos,
            planner={"drops": "none"} if ample else {},
            name=CAMPUS_BROKERS[0] if campus else "gateway",
            peer_brokers=dict.fromkeys(CAMPUS_BROKERS[1:]) if campus else {},
        )
        victims = victims or (CAMPUS_VICTIMS if campus else VICTIMS)
        recovery: dict[str, list[float]] = {victim: [] for victim in victims}
        async with Exchange(chosen) as running, AsyncExitStack() as stack:
            fire = Fire(running, scenario, qos)
            await fire.begin(stack)
            await asyncio.sleep(SETTLING_SECONDS)
            ended = asyncio.Event()
            burning = asyncio.create_task(fire.burn(ended))
            try:
                await until(lambda: is_well(running))
                for _ in range(rounds):
                    for victim in victims:
                        await asyncio.sleep(BETWEEN_SECONDS)
                        recovery[victim].append(await kill(running, victim, fire))
            finally:
                ended.set()
                await burning
            await _quiet(fire)
            moves = fire.moves
            if campus:
                await fire.leave_behind()
                await back_up(chosen.state, Path(directory) / "copy")
        if campus:
            again = replace(chosen, state=Path(directory) / "copy")
            async with Exchange(again) as fire.running, AsyncExitStack() as stack:
                await fire.subscribe(stack)
                await _quiet(fire)
        missing = fire.missing()
        told = {} if campus else outcomes(running.trace, scenario)
        why = Counter(told.get(copy, "nothing is known of it") for copy in missing)
        purposely = why.pop(Outcome.dropped_by_policy.name, 0)
    return {
        "qos": qos,
        "ample": ample,
        "campus": campus,
        "moves": moves,
        "kills": {victim: len(seconds) for victim, seconds in recovery.items()},
        "recovery_median_seconds": {
            victim: statistics.median(seconds) for victim, seconds in recovery.items()
        },
        "recovery_longest_seconds": {victim: max(seconds) for victim, seconds in recovery.items()},
        "published": fire.published,
        "acknowledged": len(fire.acknowledged),
        "received": sum(counts.total() for counts in fire.received.values()),
        "repeated": fire.repeated,
        "dropped_on_purpose": purposely,
        "lost": why.total(),
        "lost_because": dict(why),
    }


async def _quiet(fire: Fire) -> None:
    """Until nothing is missing, or nothing has arrived for longer than a gateway waits before it sends again."""
    last, since = -1, time.monotonic()
    while fire.missing() and time.monotonic() - since < QUIET_SECONDS:
        now = sum(counts.total() for counts in fire.received.values())
        if now != last:
            last, since = now, time.monotonic()
        await asyncio.sleep(0.5)


def lines(run: dict[str, Any]) -> list[str]:
    what = "ample ports, no drops" if run["ample"] else "the plan's ports and drops"
    if run["campus"]:
        what = f"three gateways, {run['moves']:,} moves to other gateways, restored from a copy"
    found = [
        f"QoS {run['qos']}, {what}: {run['acknowledged']:,} of {run['published']:,} events acknowledged, "
        f"{run['received']:,} copies received ({run['repeated']:,} of them again), "
        f"{run['dropped_on_purpose']:,} dropped on purpose, {run['lost']:,} lost"
        + "".join(f" ({count:,} {reason})" for reason, count in run["lost_because"].items())
    ]
    found += [
        f"    {victim}: killed {run['kills'][victim]} times, back after {median:.1f} s (median), "
        f"{run['recovery_longest_seconds'][victim]:.1f} s (longest)"
        for victim, median in run["recovery_median_seconds"].items()
    ]
    return found


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--qos", type=int, choices=(1, 2), help="only this one")
    parser.add_argument("--ample", action="store_true", help="only with ample ports")
    parser.add_argument("--campus", action="store_true", help="only with three gateways")
    parser.add_argument("--victim", action="append", default=[], help="only this process; may be repeated")
    arguments = parser.parse_args()
    rounds = 1 if arguments.quick else 10
    kinds: list[dict[str, bool]] = [{"ample": False}, {"ample": True}, {"ample": True, "campus": True}]
    if arguments.campus or arguments.ample:
        kinds = [each for each in kinds if each["ample"] and each.get("campus", False) == arguments.campus]
    done = []
    for qos in (1, 2) if arguments.qos is None else (arguments.qos,):
        for kind in kinds:
            done.append(asyncio.run(scene(qos, rounds, **kind, victims=arguments.victim)))
            if not arguments.json:
                print("\n".join(lines(done[-1])), flush=True)
    finish({"runs": done, "machine": machine("triagemq")}, [], as_json=arguments.json)
    if any(run["lost"] or (run["qos"] == 2 and run["repeated"]) for run in done):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
