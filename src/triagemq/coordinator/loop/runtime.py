"""The control loop at work: gathers reasons to plan, plans in a thread, stores, and has the gateway follow.

Two tasks that never end, planning and measuring; each goes on whatever happens to it, with the last plan in force.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from triagemq.coordinator.channel.gateways import Gateways
from triagemq.coordinator.channel.link import GatewayLink
from triagemq.coordinator.channel.messages import (
    ControlError,
    Measured,
    PortConstraints,
)
from triagemq.coordinator.decide.campus_balance import CampusBalance
from triagemq.coordinator.decide.decide import Decided, PlannerSettings
from triagemq.coordinator.decide.orders import Orders, client_id_of
from triagemq.coordinator.decide.placement import CampusPlaces, ClientMove
from triagemq.coordinator.intents.registry import Key, Record
from triagemq.coordinator.loop.assignments import Assignments
from triagemq.coordinator.loop.health import Check, Metrics
from triagemq.coordinator.loop.measuring import Measuring
from triagemq.coordinator.loop.replanning import Pacing, Planned, Replanner, Step
from triagemq.coordinator.ports import PortWatch
from triagemq.coordinator.rates import KnownRates
from triagemq.coordinator.refusals import StoreError
from triagemq.coordinator.store import tables
from triagemq.coordinator.store.store import Store
from triagemq.errors import TriageError
from triagemq.intents import SUBSCRIBER, SubscriberIntent
from triagemq.plan import Decision
from triagemq.waiting import end

_LOG = logging.getLogger("triagemq.coordinator")

GRANTS_SECONDS = 2.0
"""How long an answer waits for the gateway to know of rights that came or went; it gets them in any case."""

CARRIED_SECONDS = 1.0
"""How long a telling waits for queues and switches to carry a stage out; it is looked after again in any case."""

_CARRIED_LOOK_SECONDS = 0.01

LOOK_AFTER_SECONDS = 0.25
"""How often it is looked whether all gateways can serve their clients."""

_MOVE_STEPS, _MOVE_PAUSE_SECONDS = 10, 0.1
"""Many who move at once keep gateways from serving: they move in so many groups."""

_PLAIN_AGAIN_SECONDS = 10.0
"""How often plain clients are sent away from a gateway that cannot serve them: more may have come."""

PROBLEM_SECONDS = 1.0
LONGEST_PROBLEM_SECONDS = 60.0
"""How long after a mistake planning is tried again: the first time, and at most, twice as long each time between."""


class Runtime:
    """Planning and the gateway. All methods are called in the event loop."""

    def __init__(
        self,
        *,
        store: Store,
        gateways: Gateways,
        replanner: Replanner,
        rates: KnownRates,
        port_names: Sequence[str],
        bandwidths: Mapping[str, float],
        port_watch: PortWatch,
        last_orders: Orders,
        metrics: Metrics,
        access: bool = False,
        balancing: str = "ours",
    ) -> None:
        self.gateways = gateways
        self._access = access
        self.rates = rates
        self.metrics = metrics
        self.assignments = Assignments()
        self.decided: Decided | None = None
        self.bandwidths = dict(bandwidths)
        """Of the output ports, as they are stated."""
        self.port_watch = port_watch
        self.planning = Check(words="the last plan failed; the one before is in force")
        """Whether the last plan was made."""
        self.planning_since: float | None = None
        """Since when a plan is being made, None while none is."""
        self.on_second: Callable[[Measured, Measured], Awaitable[None]] | None = None
        self._port_names = port_names
        self._store = store
        self._replanner = replanner
        self._pacing = Pacing()
        self._asked = asyncio.Event()
        self._steps: list[Step] = []
        self._problem_seconds = PROBLEM_SECONDS
        self._not_in_force: dict[Key, int] = {}
        self._orders = last_orders
        # Orders on the way to those that were decided: the first is the one that is sent.
        self._stages = deque([last_orders] if last_orders.ports or last_orders.topics else [])
        self._orders_stored = True
        self._changed_for: dict[str, None] = {}
        self._covered: dict[Key, int] = {}
        self._refusal_noted: str | None = None
        self._balancing = CampusBalance(balancing)
        self._places = CampusPlaces()
        # When plain clients of a gateway that cannot serve are sent away again.
        self._plain_again: dict[str, float] = {}
        gateways.placements.placing = self._place
        # The topics and filters of every subscriber.
        self._wanted: dict[Key, tuple[str, ...]] = {}
        # Of those with QoS 1 or 2: the client id, and these filters.
        self._sessions: dict[Key, tuple[str, dict[str, int]]] = {}
        # When topics were counted last, and what there was of each.
        self._counted: tuple[float, dict[str, int]] = 0.0, {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="planning")
        self._tasks: set[asyncio.Task[Any]] = set()
        self.measuring = Measuring(
            gateways, rates, port_watch, store, on_change=self._request, on_second=self._second
        )

    @property
    def port_names(self) -> Sequence[str]:
        """The output ports that subscribers may be behind."""
        return self._port_names

    @property
    def generation(self) -> int:
        """Of the orders in force, as far as is known."""
        return self.assignments.orders.generation

    @property
    def planned_generation(self) -> int:
        return self._orders.generation

    def is_in_force(self, key: Key) -> bool:
        """Does the gateway follow orders that were made with the latest intent of this name?"""
        return key not in self._not_in_force

    # From start to stop.

    def start(self, records: Sequence[Record]) -> None:
        """Plan for those who were there before, and go on for ever."""
        self.intents_changed(records, (), "the coordinator started")
        self._spawn(self._for_ever(self._plan_when_due))
        self._spawn(self._for_ever(self.measuring.one_second))
        self._spawn(self._for_ever(self._tell_again))
        self._spawn(self._for_ever(self._look_after_gateways))

    async def stop(self) -> None:
        await end(*self._tasks)
        await self.gateways.close()
        with contextlib.suppress(StoreError):
            await self.measuring.store()
        # A plan that is being made ends by itself; the end does not wait for it.
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _for_ever(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except Exception as error:
                # Whatever it is, the exchange goes on with the plan it has.
                if not isinstance(error, TriageError):
                    _LOG.exception("the control loop goes on after a mistake of its own")
                await asyncio.sleep(PROBLEM_SECONDS)

    # Reasons to plan.

    def intents_changed(self, announced: Sequence[Record], withdrawn: Sequence[Key], reason: str) -> None:
        for record in announced:
            self._steps.append(record.intent)
            self.gateways.announced(record.key)
            if isinstance(record.intent, SubscriberIntent):
                self._wanted[record.key] = tuple(each.topic for each in record.intent.subscriptions)
                base = f"{record.intent.name}.{record.session_key}" if self._access else record.intent.name
                stored = {each.topic: each.qos for each in record.intent.subscriptions if each.qos}
                self._sessions[record.key] = client_id_of(base), stored
            self._not_in_force[record.key] = record.sequence
        for key in withdrawn:
            self._steps.append(key)
            self._not_in_force.pop(key, None)
            kind, name = key
            self.gateways.forget(key)
            self._wanted.pop(key, None)
            self._sessions.pop(key, None)
            (self.assignments.subscribers if kind == SUBSCRIBER else self.assignments.publishers).forget(name)
        self._request(reason)
        self.rights_changed()

    def bandwidth_changed(self, port: str, bandwidth_bps: float) -> None:
        before = self.bandwidths[port]
        self.bandwidths[port] = bandwidth_bps
        self.port_watch.state(port, bandwidth_bps)
        self._request(f"bandwidth of port {port} from {before:g} to {bandwidth_bps:g} bit/s")

    def change_settings(self, settings: PlannerSettings, reason: str) -> None:
        """Plan with other algorithms from now on."""
        self._replanner.settings = settings
        self._request(reason)

    def measurements(self, table: str, rows: Sequence[Mapping[str, Any]]) -> int:
        """Windows of the streaming pipeline; how many were of use."""
        if table != "topic_rates":
            return 0
        used, news = self.rates.take_windows(rows, time.monotonic())
        self.metrics.measurements += used
        for reason in news:
            self._request(reason)
        return used

    def note(self, decisions: Sequence[Decision]) -> None:
        """Decisions that are no plan's: kept and written into the trace like the others."""
        self._spawn(self._record(decisions))

    def constrain(self, constraints: PortConstraints) -> None:
        """How long packets may wait at ports whose widths are controlled."""
        if self.gateways.want_constraints(constraints):
            self._spawn(self._tell())

    def rights_changed(self) -> None:
        """A client may do more or less than before: the gateways get the grants."""
        if self._access:
            self.gateways.want_grants()
            self._spawn(self._tell())

    async def rights_in_force(self) -> bool:
        """Wait a moment for the gateway to follow the rights of now; False if it does not yet."""
        if self._access and not self.gateways.grants_in_force:
            telling = asyncio.ensure_future(self._tell())
            await asyncio.wait({telling}, timeout=GRANTS_SECONDS)
        return not self._access or self.gateways.grants_in_force

    def _request(self, reason: str) -> None:
        self._pacing.request(time.monotonic(), reason)
        self._asked.set()

    # Planning.

    async def _plan_when_due(self) -> None:
        wait = self._pacing.wait_seconds(time.monotonic())
        if wait is None:
            self._asked.clear()
            await self._asked.wait()
        elif wait > 0:
            await asyncio.sleep(wait)
        else:
            why = self._pacing.take(time.monotonic())
            self.planning_since = time.monotonic()
            try:
                await self._plan(why)
            except Exception as error:
                self._try_again(why, f"{type(error).__name__}: {error}")
                raise
            finally:
                self.planning_since = None

    async def _plan(self, why: Sequence[str]) -> None:
        covered = dict(self._not_in_force)
        loop = asyncio.get_running_loop()
        # What clients did leaves the list when the book has it, and not before.
        steps = tuple(self._steps)
        taken = await loop.run_in_executor(self._thread, self._replanner.take, steps)
        self._steps[: len(steps)] = taken.again
        if taken.news:
            await self._record(taken.news)
        if taken.declared is not None:
            self.rates.watch.declare(taken.declared)
        rates = self.rates.rates(time.monotonic())
        bandwidths, ports = dict(self.bandwidths), self.port_watch.now()
        try:
            planned = await loop.run_in_executor(
                self._thread, self._replanner.plan, rates, bandwidths, ports, why
            )
        except Exception as error:
            await self._record([self._refusal(why, error)])
            return
        for step in taken.again:
            covered.pop(_key(step), None)
        if taken.again:
            self._try_again(why, f"{len(taken.again)} intents could not be taken into the plan")
        else:
            self.planning.worked()
            self._problem_seconds = PROBLEM_SECONDS
        await self._take_over(planned, covered)

    def _refusal(self, why: Sequence[str], error: Exception) -> Decision:
        self.metrics.plans_refused += 1
        reason = str(error)
        if isinstance(error, TriageError):
            self.planning.failed(reason)
        else:
            _LOG.exception("a plan failed; the one before stays", exc_info=error)
            reason = f"{type(error).__name__}: {error}"
            self._try_again(why, reason)
        generation = f"generation {self._orders.generation}"
        return Decision("refused", "plan", generation, generation, f"{'; '.join(why)}: {reason}")

    def _try_again(self, why: Sequence[str], problem: str) -> None:
        """After a mistake of the coordinator's own: it may not be there the next time."""
        self.planning.failed(problem)
        delay, self._problem_seconds = (
            self._problem_seconds,
            min(2 * self._problem_seconds, LONGEST_PROBLEM_SECONDS),
        )

        async def later() -> None:
            await asyncio.sleep(delay)
            for reason in why:
                self._request(reason)

        self._spawn(later())

    async def _take_over(self, planned: Planned, covered: Mapping[Key, int]) -> None:
        decided = planned.decided
        self.metrics.plan_seconds.add(planned.seconds)
        self.metrics.plans_unchanged += not decided.changed
        self.decided, self._orders = decided, decided.orders
        self.rates.watch.listen(decided.subscribed_topics)
        self.port_watch.planned(decided.scenario, planned.ports.survival)
        self.metrics.count_decisions(decided.decisions)
        told = self._stages[0] if self._stages else None
        if decided.changed:
            self._queue(decided.stages)
        await self._record(decided.decisions, self._stages[0] if self._stages[0] is not told else None)
        self._covered |= covered
        self._changed_for |= dict.fromkeys(decided.changed_for)
        self.gateways.want_orders(self._stages[0])
        await self._tell()

    def _queue(self, stages: Sequence[Orders]) -> None:
        """Orders that change nothing about promises take the place of those that wait; others come after them."""
        if self.gateways.refusal is not None:
            # What is refused must not be in the way: there is nothing to be gained by waiting for it.
            self._stages.clear()
        last = self._stages[-1] if self._stages else None
        if (
            last is not None
            and len(stages) == 1
            and (last.copies, last.limiters) == (stages[0].copies, stages[0].limiters)
        ):
            self._stages[-1] = stages[0]
        else:
            self._stages.extend(stages)

    async def _tell(self) -> None:
        """Have the gateway follow what is wanted; if it is away or unwilling, that is repeated until it does.

        Of several stages the next is sent when one is confirmed, and stored before that: after a restart the
        coordinator finds what the gateways follow, or what they were to follow next.
        """
        await self.gateways.tell()
        while len(self._stages) > 1:
            stage = self._stages[0]
            # Several may wait for the same stage; one of them goes on.
            if not await self._carried_out(stage) or self._stages[0] is not stage or len(self._stages) == 1:
                break
            self._stages.popleft()
            await self._record((), self._stages[0])
            self.gateways.want_orders(self._stages[0])
            await self.gateways.tell()
        if self.gateways.follows(self._orders):
            self._in_force()
        refusal = self.gateways.refusal
        if refusal is not None and refusal != self._refusal_noted:
            generation = f"generation {self._orders.generation}"
            self.note([Decision("refused", "gateway", f"generation {self.generation}", generation, refusal)])
        self._refusal_noted = refusal

    async def _carried_out(self, stage: Orders) -> bool:
        """Do the gateway and all who carry its orders out elsewhere follow a stage? They have a moment for it."""
        end_at = time.monotonic() + CARRIED_SECONDS
        while self.gateways.follows(stage):
            try:
                measured = await self.gateways.measure(flows=False, topics=False)
            except ControlError:
                return False
            if measured.carried is None or measured.carried >= stage.generation:
                return True
            if time.monotonic() >= end_at:
                return False
            await asyncio.sleep(_CARRIED_LOOK_SECONDS)
        return False

    async def _tell_again(self) -> None:
        await asyncio.sleep(self.gateways.pause_seconds)
        if any(each.reconciler.link.connected for each in self.gateways):
            await self._tell()

    def _in_force(self) -> None:
        for key, sequence in self._covered.items():
            if self._not_in_force.get(key) == sequence:
                del self._not_in_force[key]
        changed, self._covered, self._changed_for = self._changed_for, {}, {}
        self.assignments.put_in_force(self._orders, changed)

    async def gateway_connected(self, name: str) -> None:
        """A gateway is there (again): it says what it follows, and gets what it lacks."""
        self.metrics.gateway_connections[name] += 1
        await self.gateways.connected(name)
        await self._tell()
        await self.gateways.tell_decisions()

    # Several gateways.

    async def gateway_joined(self, name: str, link: GatewayLink, host: str, *, is_here: bool) -> None:
        """A gateway has come by itself, from a host: it gets its part, and clients may be sent there."""
        led = await self.gateways.join(name, link, host, is_here=is_here)
        self.metrics.gateway_connections[name] += 1
        self.note([Decision("joined", f"gateway {name}", "", led.broker_shown, f"it has come from {host}")])
        await self._store_gateways()
        await self._tell()

    async def _store_gateways(self) -> None:
        """After a restart clients come back to where their sessions are: the coordinator waits for these."""
        with contextlib.suppress(StoreError):
            await self._store.write(tables.set_gateways, self.gateways.joined)

    def _place(self, key: Key, sites: Sequence[str]) -> str | None:
        """Where a client is to be at home, by the rules of placement."""
        scenario = None if self.decided is None else self.decided.scenario
        wanted = self._wanted.get(key, ())
        return self._places.choice(
            key, wanted, sites, scenario, lambda: dict(self.gateways.placements), time.monotonic()
        )

    async def _look_after_gateways(self) -> None:
        """Clients at home where none can be served are sent elsewhere."""
        await asyncio.sleep(LOOK_AFTER_SECONDS)
        if gone := self.gateways.forget_gone():
            self.note(
                [Decision("left", f"gateway {name}", "", "forgotten", "it stays away") for name in gone]
            )
            await self._store_gateways()
        if not self.gateways.are_several:
            return
        sites = self.gateways.sites()
        problems = {site.name: site.problem for site in sites}
        moves = [
            ClientMove(
                key, self.gateways.home_of(key).name, target, problems[self.gateways.home_of(key).name]
            )
            for key, target in self.gateways.placements.evacuations(sites)
        ]
        if moves:
            await self.move(moves)
        now = time.monotonic()
        for site in sites:
            if site.problem and now >= self._plain_again.get(site.name, 0.0):
                self._plain_again[site.name] = now + _PLAIN_AGAIN_SECONDS
                if not all(each.problem for each in sites):
                    with contextlib.suppress(ControlError):
                        await self.send_plain_elsewhere(site.name, None, site.problem)

    async def send_plain_elsewhere(self, name: str, client_ids: Sequence[str] | None, why: str) -> int:
        """Have plain clients of a gateway look for another one, which is noted; how many there are."""
        told = await self.gateways.send_plain_elsewhere(name, client_ids)
        if told:
            noted = f"{told} plain clients"
            self.note([Decision("sent away", noted, f"gateway {name}", "any other that they find", why)])
        return told

    async def _balance(self) -> None:
        """Who is to go elsewhere because a broker has too much, by what was measured in the last second."""
        now = time.monotonic()
        (before, counted), totals = self._counted, self.gateways.topic_totals()
        self._counted = now, totals
        decided = self.decided
        if decided is None or not counted:
            return
        seconds = max(now - before, 1e-9)
        moves = self._balancing.moves(
            decided.scenario,
            self._orders,
            dict(self.gateways.placements),
            self.gateways.loads(),
            {topic: (events - counted.get(topic, 0)) / seconds for topic, events in totals.items()},
            now,
        )
        if moves:
            await self.move(moves)

    async def move(self, moves: Sequence[ClientMove]) -> None:
        """Send clients to other gateways: these know of them before the clients do.

        A gateway that is away brings nothing more: what is acknowledged meanwhile is stored where its clients go to.
        """
        for each in moves:
            self.gateways.move(each.key, each.target)
        await self.gateways.tell()
        expected: dict[str, dict[str, dict[str, int]]] = {}
        for each in moves:
            client_id, stored = self._sessions.get(each.key, ("", {}))
            if stored and self.gateways.is_away(each.source):
                expected.setdefault(each.target, {})[client_id] = stored
        await asyncio.gather(*(self.gateways.expect(at, sessions) for at, sessions in expected.items()))
        self._spawn(self._tell_moved([each.key for each in moves]))
        self.note(
            [
                Decision(
                    "moved", " ".join(each.key), f"gateway {each.source}", f"gateway {each.target}", each.why
                )
                for each in moves
            ]
        )

    async def _tell_moved(self, keys: Sequence[Key]) -> None:
        """Have clients ask where their gateway is, some at a time."""
        size = -(-len(keys) // _MOVE_STEPS)
        for first in range(0, len(keys), size):
            for kind, name in keys[first : first + size]:
                of_kind = self.assignments.subscribers if kind == SUBSCRIBER else self.assignments.publishers
                of_kind.changed([name], self._orders.generation)
            await asyncio.sleep(_MOVE_PAUSE_SECONDS)

    async def _record(self, decisions: Sequence[Decision], orders: Orders | None = None) -> None:
        """Store decisions and orders, then have the decisions written into the trace."""
        now_ns, generation = time.time_ns(), self._orders.generation
        try:
            await self._store.write(tables.decide, now_ns, generation, decisions, orders)
            self._orders_stored = self._orders_stored or orders is not None
        except StoreError:
            # The plan counts more than its record; health says that the store cannot be written.
            self._orders_stored = self._orders_stored and orders is None
        rows = [{"decided_ns": now_ns, **asdict(each)} for each in decisions]
        self._spawn(self.gateways.tell_decisions(rows))

    # Once a second.

    async def _second(self, before: Measured | None, now: Measured) -> None:
        if not self._orders_stored and self._store.writing.ok:
            self._spawn(self._record((), self._stages[0]))
        if self.gateways.are_several:
            await self._balance()
        if before is not None and self.on_second is not None:
            await self.on_second(before, now)


def _key(step: Step) -> Key:
    return step if isinstance(step, tuple) else (step.kind, step.name)
